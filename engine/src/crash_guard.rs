//! The crash guard: finds inputs, and slides of windows, that kill the process. The engine notes
//! each execution in the data directory before it begins. So the next start knows where to be
//! careful.
//!
//! The note is the file `guard`. It is written but not synced, because it must survive the death of
//! the process, not of the machine. Normally it has the number of transactions under way, epoch by
//! epoch. After a death the next run executes so many transactions, and some more, one at a time,
//! and notes each before. If the process dies again, the note names one event. After enough such
//! deaths a verdict is logged, and the event goes to the dead-letter stream. For a slide, its
//! triggers do not run.
//!
//! A kill from outside may also come during an execution, and always during the same one if that is
//! slow. So a death counts only if nothing else can be the reason. Before the engine tries the
//! event of a death again, it waits idly for as long as the process lived the last time. If the
//! process ends then, the event is not the cause, and its deaths no longer count.
//!
//! A process that is killed again and again before its recovery is complete would execute the same
//! epochs for ever. So a recovery after a death in a recovery takes snapshots on its way.
//!
//! The note has version, kind, epoch, source, offset, transactions, the life time of the process,
//! and checksum; see [`Note`].

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_u32, put_u64, take_u32, take_u64, take_u8};
use tidemill_core::{Error, Result, SourceId};
use tidemill_env::Disk;
use tidemill_txn::program::{slide_of, Program};
use tracing::warn;

use crate::full_disk::is_full;

const VERSION: u8 = 2;
/// The version of notes without the life time of the process.
const VERSION_1: u8 = 1;
/// A bit of a note's kind: the process was replaying recorded epochs.
const RECOVERING: u8 = 4;
/// The longest wait before an event is tried again, in microseconds.
const WAIT_US_MAX: u64 = 10_000_000;
/// The transactions beyond those under way that are also executed one at a time.
const MARGIN: u64 = 1000;

/// The size of a note, in bytes.
const NOTE_BYTES: usize = 46;

/// Reports an event, or a slide of a window, that is not the cause of the last death.
pub(crate) fn report_spared(program: &Program, event: (SourceId, u64)) {
    let what = "the process ended while it executed nothing, so no event is the cause";
    match slide_of(event) {
        Some((window, ends)) => {
            let window = program.windows.get(window.index()).map(|of| &*of.name);
            warn!(target: "tidemill::recovery", window, ends, what, "spared");
        }
        None => {
            let source = program.sources.get(event.0.index()).map(|of| &*of.name);
            warn!(target: "tidemill::recovery", source, row = event.1, what, "spared");
        }
    }
}

/// The execution under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    epoch: u64,
    /// The event, if there was only one transaction.
    event: Option<(SourceId, u64)>,
    /// Whether the engine only waited to execute it.
    waits: bool,
    /// The transactions executed since the last durable cut, with those about to be.
    transactions: u64,
    /// The life time of the process, in microseconds.
    lived_us: u64,
    /// Whether recorded epochs were being replayed, or were in no snapshot yet.
    is_recovering: bool,
}

impl Note {
    pub(crate) fn encode(self) -> Vec<u8> {
        let kind = if self.waits { 2 } else { u8::from(self.event.is_some()) };
        let kind = if self.is_recovering { kind | RECOVERING } else { kind };
        let mut out = vec![VERSION, kind];
        let (source, offset) = self.event.unwrap_or_default();
        put_u64(self.epoch, &mut out);
        put_u32(source.0, &mut out);
        put_u64(offset, &mut out);
        put_u64(self.transactions, &mut out);
        put_u64(self.lived_us, &mut out);
        put_u64(hash128(&out) as u64, &mut out);
        out
    }

    /// Decodes a note; `None` for other bytes. A truncated note counts as none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Note> {
        let (body, mut checksum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
        (take_u64(&mut checksum)? == hash128(body) as u64).then_some(())?;
        let mut input = body;
        let version = take_u8(&mut input)?;
        (version == VERSION || version == VERSION_1).then_some(())?;
        let kind = take_u8(&mut input)?;
        let epoch = take_u64(&mut input)?;
        let event = (SourceId(take_u32(&mut input)?), take_u64(&mut input)?);
        let transactions = take_u64(&mut input)?;
        let lived_us = if version == VERSION { take_u64(&mut input)? } else { 0 };
        let is_recovering = kind & RECOVERING != 0;
        let kind = kind & !RECOVERING;
        let event = (kind != 0).then_some(event);
        Some(Note { epoch, event, waits: kind == 2, transactions, lived_us, is_recovering })
    }
}

/// How often each event has been the last execution of a process.
type Deaths = BTreeMap<String, u32>;

/// Whether a file is one of the two files of this module, or a part of one.
pub(crate) fn is_note(disk: &dyn Disk, path: &Path, name: &str) -> bool {
    let mut bytes = Vec::new();
    let read = disk.open_read(path).and_then(|file| file.take(1 << 16).read_to_end(&mut bytes));
    let is_trial = bytes.len() <= NOTE_BYTES
        && bytes.first().is_none_or(|byte| [VERSION_1, VERSION].contains(byte));
    let is_deaths = bytes.is_empty() || serde_json::from_slice::<Deaths>(&bytes).is_ok();
    read.is_ok() && if name == "trial" { is_trial } else { is_deaths }
}

/// The crash guard, which notes executions.
pub(crate) struct CrashGuard {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// The transactions still to execute one at a time, and their number at the start.
    careful: u64,
    careful_from: u64,
    /// The event at which the last process died, until it is tried again, and the wait before it in
    /// microseconds.
    wait: Option<((SourceId, u64), u64)>,
    /// The event that the last process waited to try again when it died.
    pub(crate) spared: Option<(SourceId, u64)>,
    /// Whether the last process died before it had replayed the recorded epochs and had a snapshot
    /// of them.
    pub(crate) died_recovering: bool,
    /// Whether recorded epochs are being replayed, or are in no snapshot yet.
    pub(crate) is_recovering: bool,
}

/// The event under suspicion for the last death.
pub(crate) struct Suspect {
    /// The only event in execution: a row of a source, or a
    /// [slide](tidemill_txn::program::slide_of).
    pub(crate) event: (SourceId, u64),
    pub(crate) deaths: u32,
    pub(crate) epoch: u64,
}

impl CrashGuard {
    /// Reads the files of the last run, and counts its death.
    pub(crate) fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(CrashGuard, Option<Suspect>)> {
        let (disk, dir) = (disk.clone(), dir.to_path_buf());
        let mut guard = CrashGuard {
            disk,
            dir,
            careful: 0,
            careful_from: 0,
            wait: None,
            spared: None,
            died_recovering: false,
            is_recovering: false,
        };
        let Some(note) = guard.read("trial")?.and_then(|bytes| Note::decode(&bytes)) else {
            return Ok((guard, None));
        };
        guard.careful_from = note.transactions.saturating_add(MARGIN);
        guard.careful = guard.careful_from;
        guard.died_recovering = note.is_recovering;
        let Some((source, offset)) = note.event else { return Ok((guard, None)) };
        // It counts once. A process that dies before it executes anything has not died of the
        // event.
        guard.note(Note { event: None, waits: false, ..note })?;
        let deaths = guard.read("deaths")?.unwrap_or_default();
        let mut deaths: Deaths = serde_json::from_slice(&deaths).unwrap_or_default();
        if note.waits {
            guard.spared = Some((source, offset));
            guard.replace("deaths", b"{}").map_err(|e| guard.io(&e))?;
            return Ok((guard, None));
        }
        // Only deaths in a row count.
        let name = format!("{}:{offset}", source.0);
        deaths.retain(|other, _| *other == name);
        let count = deaths.entry(name).or_default();
        *count += 1;
        guard.wait = Some(((source, offset), note.lived_us.min(WAIT_US_MAX)));
        let event = (source, offset);
        let suspect = Suspect { event, deaths: *count, epoch: note.epoch };
        let text = serde_json::to_vec(&deaths).expect("counts are JSON");
        match guard.replace("deaths", &text) {
            // A start must not need disk space. The next death will not include this one.
            Err(e) if is_full(&e) => {}
            other => other.map_err(|e| guard.io(&e))?,
        }
        Ok((guard, Some(suspect)))
    }

    /// Restarts the count of deaths at an event.
    pub(crate) fn forget(&self, suspect: &Suspect) -> Result<()> {
        let deaths = self.read("deaths")?.unwrap_or_default();
        let mut deaths: Deaths = serde_json::from_slice(&deaths).unwrap_or_default();
        deaths.remove(&format!("{}:{}", suspect.event.0 .0, suspect.event.1));
        let text = serde_json::to_vec(&deaths).expect("counts are JSON");
        self.replace("deaths", &text).map_err(|e| self.io(&e))
    }

    fn io(&self, error: &io::Error) -> Error {
        Error::io(format!("the notes of what is executed in {}", self.dir.display()), error)
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match self.disk.open_read(&self.dir.join(name)) {
            Ok(mut file) => file.read_to_end(&mut bytes).map_err(|e| self.io(&e))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.io(&e)),
        };
        Ok(Some(bytes))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.dir.join(format!("{name}.new"));
        let mut file = self.disk.create(&new)?;
        file.write_all(bytes)?;
        file.sync()?;
        drop(file);
        self.disk.rename(&new, &self.dir.join(name))?;
        self.disk.sync_dir(&self.dir)
    }

    /// Whether transactions should be executed one at a time.
    pub(crate) fn is_careful(&self) -> bool {
        self.careful > 0
    }

    /// Notes the execution of an epoch; `transactions` includes those that are not durable yet.
    pub(crate) fn epoch(&mut self, epoch: u64, transactions: u64) -> Result<()> {
        self.note(self.of(epoch, None, transactions))
    }

    /// Returns how long the engine waits before it tries an event again, if the last process died
    /// at it. A death during the wait does not count against the event.
    pub(crate) fn waits(&mut self, epoch: u64, event: (SourceId, u64)) -> Result<Option<u64>> {
        let Some((_, wait_us)) = self.wait.take_if(|(of, _)| *of == event) else {
            return Ok(None);
        };
        let transactions = self.careful_from;
        self.note(Note { waits: true, ..self.of(epoch, Some(event), transactions) })?;
        Ok(Some(wait_us))
    }

    /// Notes the execution of one transaction, by a process that has lived for so long. Slides do
    /// not reduce the number of careful transactions, because the number of slides before a death
    /// is not known.
    pub(crate) fn transaction(
        &mut self,
        epoch: u64,
        event: (SourceId, u64),
        lived_us: u64,
    ) -> Result<()> {
        if slide_of(event).is_none() {
            self.careful = self.careful.saturating_sub(1);
        }
        let transactions = self.careful_from;
        self.note(Note { lived_us, ..self.of(epoch, Some(event), transactions) })
    }

    /// Notes that the transactions of an epoch that ran one at a time are done. A later death is
    /// not their fault.
    pub(crate) fn executed(&mut self, epoch: u64) -> Result<()> {
        let transactions = self.careful_from;
        self.note(self.of(epoch, None, transactions))
    }

    fn of(&self, epoch: u64, event: Option<(SourceId, u64)>, transactions: u64) -> Note {
        let is_recovering = self.is_recovering;
        Note { epoch, event, waits: false, transactions, lived_us: 0, is_recovering }
    }

    fn note(&self, note: Note) -> Result<()> {
        let written = self
            .disk
            .open_at(&self.dir.join("trial"), 0)
            .and_then(|mut file| file.write_all(&note.encode()));
        match written {
            // The disk is full, so there is no note. The engine will wait for space in its logs
            // anyway.
            Err(e) if is_full(&e) => Ok(()),
            other => other.map_err(|e| self.io(&e)),
        }
    }

    /// Removes the notes, because the run ends without a death.
    pub(crate) fn close(disk: &dyn Disk, dir: &Path) {
        // Remaining files only make the next run careful.
        for name in ["trial", "deaths"] {
            let _ = disk.remove(&dir.join(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_blamed_for_a_death_while_it_is_executed_only() {
        let disk = tidemill_sim::SimEnv::new(1).env().disk;
        let dir = Path::new("/data");
        disk.create_dir_all(dir).unwrap();
        let open = || {
            let (guard, suspect) = CrashGuard::open(&disk, dir).unwrap();
            (guard, suspect.map(|s| s.deaths))
        };
        open().0.transaction(1, (SourceId(0), 7), 5).unwrap();
        assert_eq!(open().1, Some(1));
        assert_eq!(open().1, None, "nothing was executed by the run before");
        let (mut guard, _) = open();
        assert!(guard.is_careful());
        guard.transaction(1, (SourceId(0), 7), 5).unwrap();
        guard.executed(1).unwrap();
        let (mut guard, deaths) = open();
        assert_eq!(deaths, None);
        guard.transaction(1, (SourceId(0), 7), 5).unwrap();
        let (guard, suspect) = CrashGuard::open(&disk, dir).unwrap();
        let suspect = suspect.unwrap();
        assert_eq!(suspect.deaths, 2);
        guard.forget(&suspect).unwrap();
        open().0.transaction(1, (SourceId(0), 7), 5).unwrap();
        assert_eq!(open().1, Some(1), "counted anew");
        open().0.transaction(1, (SourceId(0), 8), 5).unwrap();
        open().0.transaction(1, (SourceId(0), 7), 5).unwrap();
        assert_eq!(open().1, Some(1), "in a row only");
    }

    #[test]
    fn who_dies_while_an_event_is_waited_for_has_not_died_of_it() {
        let disk = tidemill_sim::SimEnv::new(1).env().disk;
        let dir = Path::new("/data");
        disk.create_dir_all(dir).unwrap();
        let open = || CrashGuard::open(&disk, dir).unwrap();
        for lived_us in [300, 1 << 40] {
            open().0.transaction(1, (SourceId(0), 7), lived_us).unwrap();
            let (mut guard, suspect) = open();
            assert_eq!(suspect.map(|s| s.deaths), Some(1));
            assert_eq!(guard.waits(1, (SourceId(0), 6)).unwrap(), None);
            let wait_us = guard.waits(1, (SourceId(0), 7)).unwrap();
            assert_eq!(wait_us, Some(lived_us.min(WAIT_US_MAX)));
            assert_eq!(guard.waits(1, (SourceId(0), 7)).unwrap(), None, "once");
            let (guard, suspect) = open();
            assert_eq!((guard.spared, suspect.is_none()), (Some((SourceId(0), 7)), true));
        }
    }

    #[test]
    fn notes_of_the_version_before_are_read() {
        let note = Note {
            epoch: 7,
            event: Some((SourceId(3), 9)),
            waits: false,
            transactions: 12,
            lived_us: 0,
            is_recovering: false,
        };
        let mut bytes = note.encode();
        bytes.truncate(bytes.len() - 16);
        bytes[0] = VERSION_1;
        put_u64(hash128(&bytes) as u64, &mut bytes);
        assert_eq!(Note::decode(&bytes), Some(note));
    }

    #[test]
    fn notes_come_back_and_damaged_ones_do_not() {
        let event = Some((SourceId(3), 1 << 40));
        for (event, waits) in [(None, false), (event, false), (event, true)] {
            let (transactions, lived_us, is_recovering) = (12, 1 << 50, !waits);
            let note = Note { epoch: 7, event, waits, transactions, lived_us, is_recovering };
            let bytes = note.encode();
            assert_eq!(bytes.len(), NOTE_BYTES);
            assert_eq!(Note::decode(&bytes), Some(note));
            for cut in 0..bytes.len() {
                assert_eq!(Note::decode(&bytes[..cut]), None);
                let mut other = bytes.clone();
                other[cut] ^= 1;
                assert_eq!(Note::decode(&other), None);
            }
        }
    }
}
