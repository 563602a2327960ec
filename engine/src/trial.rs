//! Inputs that kill the process, and slides of windows that do. What is being executed is noted in the data directory before it is,
//! so that the next start knows what to be careful with.
//!
//! The note is the file `trial`, written but not synced: it must survive the death of the process,
//! not of the machine. Normally it says how many transactions are on their way, epoch by epoch.
//! After a death the next run executes so many, and some more, one at a time, and notes each before.
//! Should the process die again, one is known by name; when that has happened often enough, a
//! verdict is logged, and the event goes to the dead-letter stream instead; of a slide the triggers are not set off.
//!
//! Whoever kills from outside kills while something is executed, too, and when that is slow always the same. So only such
//! deaths count of which nothing else can be the reason: before an event is tried again at which the process has died, the
//! engine waits for as long as it lived the last time, and does nothing. What ends the process then is not the event, and
//! its deaths count no longer.
//!
//! Whoever is killed before a recovery is complete, again and again, would execute the same for ever. So a recovery after
//! a death in one takes snapshots on its way.
//!
//! The note: version, kind, epoch, source, offset, transactions, how long the process had lived, checksum; see [`Note`].

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_u32, put_u64, take_u32, take_u64, take_u8};
use tidemill_core::{Error, Result, SourceId};
use tidemill_env::Disk;
use tidemill_txn::program::slide_of;

use crate::patient::is_full;

const VERSION: u8 = 2;
/// Before notes had how long a process had lived.
const VERSION_1: u8 = 1;
/// In the kind of a note: the process was executing again what is recorded.
const RECOVERING: u8 = 4;
/// The longest wait before an event is tried again.
const WAIT_US_MAX: u64 = 10_000_000;
/// Transactions beyond those that were on their way that are executed one at a time.
const MARGIN: u64 = 1000;

/// Bytes of a note.
const NOTE_BYTES: usize = 46;

/// What was being executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    epoch: u64,
    /// The event, when there was one transaction only.
    event: Option<(SourceId, u64)>,
    /// Whether it was only waited for.
    waits: bool,
    /// Transactions that had been executed since the last durable cut, or were about to be.
    transactions: u64,
    /// How long the process had lived, in microseconds.
    lived_us: u64,
    /// What is recorded was being executed again, or was in no snapshot yet.
    is_recovering: bool,
}

impl Note {
    fn encode(self) -> Vec<u8> {
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

    /// `None` for what is no note; one that was cut short is as good as none.
    fn decode(bytes: &[u8]) -> Option<Note> {
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

/// How often each event has been the last thing that a process did.
type Deaths = BTreeMap<String, u32>;

/// Whether a file is one of the two that are kept here, or a part of one.
pub(crate) fn is_note(disk: &dyn Disk, path: &Path, name: &str) -> bool {
    let mut bytes = Vec::new();
    let read = disk.open_read(path).and_then(|file| file.take(1 << 16).read_to_end(&mut bytes));
    let is_trial = bytes.len() <= NOTE_BYTES
        && bytes.first().is_none_or(|byte| [VERSION_1, VERSION].contains(byte));
    let is_deaths = bytes.is_empty() || serde_json::from_slice::<Deaths>(&bytes).is_ok();
    read.is_ok() && if name == "trial" { is_trial } else { is_deaths }
}

/// Notes what is executed.
pub(crate) struct Trial {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Transactions still to be executed one at a time, and how many they were at the start.
    careful: u64,
    careful_from: u64,
    /// The event at which the last process died, until it is tried again, and how long that is waited for.
    wait: Option<((SourceId, u64), u64)>,
    /// The last process died while it waited to try this event again.
    pub(crate) spared: Option<(SourceId, u64)>,
    /// The last process died before it had executed again what is recorded, and had a snapshot of it.
    pub(crate) died_recovering: bool,
    /// What is recorded is being executed again, or is in no snapshot yet.
    pub(crate) is_recovering: bool,
}

/// What the last run died of, as far as that is known.
pub(crate) struct Suspect {
    /// What was executed alone: a row of a source, or a [slide](tidemill_txn::program::slide_of).
    pub(crate) event: (SourceId, u64),
    pub(crate) deaths: u32,
    pub(crate) epoch: u64,
}

impl Trial {
    /// Reads what the last run left, and counts what it died of.
    pub(crate) fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(Trial, Option<Suspect>)> {
        let (disk, dir) = (disk.clone(), dir.to_path_buf());
        let mut trial = Trial {
            disk,
            dir,
            careful: 0,
            careful_from: 0,
            wait: None,
            spared: None,
            died_recovering: false,
            is_recovering: false,
        };
        let Some(note) = trial.read("trial")?.and_then(|bytes| Note::decode(&bytes)) else {
            return Ok((trial, None));
        };
        trial.careful_from = note.transactions.saturating_add(MARGIN);
        trial.careful = trial.careful_from;
        trial.died_recovering = note.is_recovering;
        let Some((source, offset)) = note.event else { return Ok((trial, None)) };
        // Counted once: who dies before executing anything has not died of it.
        trial.note(Note { event: None, waits: false, ..note })?;
        let deaths = trial.read("deaths")?.unwrap_or_default();
        let mut deaths: Deaths = serde_json::from_slice(&deaths).unwrap_or_default();
        if note.waits {
            trial.spared = Some((source, offset));
            trial.replace("deaths", b"{}").map_err(|e| trial.io(&e))?;
            return Ok((trial, None));
        }
        // Only in a row.
        let name = format!("{}:{offset}", source.0);
        deaths.retain(|other, _| *other == name);
        let count = deaths.entry(name).or_default();
        *count += 1;
        trial.wait = Some(((source, offset), note.lived_us.min(WAIT_US_MAX)));
        let event = (source, offset);
        let suspect = Suspect { event, deaths: *count, epoch: note.epoch };
        let text = serde_json::to_vec(&deaths).expect("counts are JSON");
        match trial.replace("deaths", &text) {
            // A start needs no room. This death is not counted by the next one.
            Err(e) if is_full(&e) => {}
            other => other.map_err(|e| trial.io(&e))?,
        }
        Ok((trial, Some(suspect)))
    }

    /// Counts the deaths at an event from the beginning again.
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

    /// Whether transactions are to be executed one at a time.
    pub(crate) fn is_careful(&self) -> bool {
        self.careful > 0
    }

    /// An epoch is about to be executed, `transactions` with those that are not durable yet.
    pub(crate) fn epoch(&mut self, epoch: u64, transactions: u64) -> Result<()> {
        self.note(self.of(epoch, None, transactions))
    }

    /// For how long nothing is done before an event is tried again, if the last process died at it. Whoever dies
    /// meanwhile has not died of it.
    pub(crate) fn waits(&mut self, epoch: u64, event: (SourceId, u64)) -> Result<Option<u64>> {
        let Some((_, wait_us)) = self.wait.take_if(|(of, _)| *of == event) else {
            return Ok(None);
        };
        let transactions = self.careful_from;
        self.note(Note { waits: true, ..self.of(epoch, Some(event), transactions) })?;
        Ok(Some(wait_us))
    }

    /// One transaction is about to be executed, by a process that has lived for so long. Slides do not count among
    /// those that are executed alone: how many came before a death is not known.
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

    /// The transactions of an epoch that were executed one at a time are done: whoever dies now has
    /// died of none of them.
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
            // There is no room for a note: the engine will wait for room in its logs anyway.
            Err(e) if is_full(&e) => Ok(()),
            other => other.map_err(|e| self.io(&e)),
        }
    }

    /// The run ends, and not by a death.
    pub(crate) fn close(disk: &dyn Disk, dir: &Path) {
        // What is left makes the next run careful, and that is all.
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
            let (trial, suspect) = Trial::open(&disk, dir).unwrap();
            (trial, suspect.map(|s| s.deaths))
        };
        open().0.transaction(1, (SourceId(0), 7), 5).unwrap();
        assert_eq!(open().1, Some(1));
        assert_eq!(open().1, None, "nothing was executed by the run before");
        let (mut trial, _) = open();
        assert!(trial.is_careful());
        trial.transaction(1, (SourceId(0), 7), 5).unwrap();
        trial.executed(1).unwrap();
        let (mut trial, deaths) = open();
        assert_eq!(deaths, None);
        trial.transaction(1, (SourceId(0), 7), 5).unwrap();
        let (trial, suspect) = Trial::open(&disk, dir).unwrap();
        let suspect = suspect.unwrap();
        assert_eq!(suspect.deaths, 2);
        trial.forget(&suspect).unwrap();
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
        let open = || Trial::open(&disk, dir).unwrap();
        for lived_us in [300, 1 << 40] {
            open().0.transaction(1, (SourceId(0), 7), lived_us).unwrap();
            let (mut trial, suspect) = open();
            assert_eq!(suspect.map(|s| s.deaths), Some(1));
            assert_eq!(trial.waits(1, (SourceId(0), 6)).unwrap(), None);
            let wait_us = trial.waits(1, (SourceId(0), 7)).unwrap();
            assert_eq!(wait_us, Some(lived_us.min(WAIT_US_MAX)));
            assert_eq!(trial.waits(1, (SourceId(0), 7)).unwrap(), None, "once");
            let (trial, suspect) = open();
            assert_eq!((trial.spared, suspect.is_none()), (Some((SourceId(0), 7)), true));
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
