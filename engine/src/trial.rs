//! Inputs that kill the process. What is being executed is noted in the data directory before it is,
//! so that the next start knows what to be careful with.
//!
//! The note is the file `trial`, written but not synced: it must survive the death of the process,
//! not of the machine. Normally it says how many transactions are on their way, epoch by epoch.
//! After a death the next run executes so many, and some more, one at a time, and notes each before.
//! Should the process die again, one is known by name; when that has happened often enough, a
//! verdict is logged, and the event goes to the dead-letter stream instead.
//!
//! The note: version, kind, epoch, source, offset, transactions, checksum; see [`Note`].

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_u32, put_u64, take_u32, take_u64, take_u8};
use tidemill_core::{Error, Result, SourceId};
use tidemill_env::Disk;

use crate::patient::is_full;

const VERSION: u8 = 1;
/// Transactions beyond those that were on their way that are executed one at a time.
const MARGIN: u64 = 1000;

/// Bytes of a note.
const NOTE_BYTES: usize = 38;

/// What was being executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    epoch: u64,
    /// The event, when there was one transaction only.
    event: Option<(SourceId, u64)>,
    /// Transactions that had been executed since the last durable cut, or were about to be.
    transactions: u64,
}

impl Note {
    fn encode(self) -> Vec<u8> {
        let mut out = vec![VERSION, u8::from(self.event.is_some())];
        let (source, offset) = self.event.unwrap_or_default();
        put_u64(self.epoch, &mut out);
        put_u32(source.0, &mut out);
        put_u64(offset, &mut out);
        put_u64(self.transactions, &mut out);
        put_u64(hash128(&out) as u64, &mut out);
        out
    }

    /// `None` for what is no note; one that was cut short is as good as none.
    fn decode(bytes: &[u8]) -> Option<Note> {
        let (body, mut checksum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
        (take_u64(&mut checksum)? == hash128(body) as u64).then_some(())?;
        let mut input = body;
        (take_u8(&mut input)? == VERSION).then_some(())?;
        let has_event = take_u8(&mut input)? == 1;
        let epoch = take_u64(&mut input)?;
        let event = (SourceId(take_u32(&mut input)?), take_u64(&mut input)?);
        let transactions = take_u64(&mut input)?;
        Some(Note { epoch, event: has_event.then_some(event), transactions })
    }
}

/// How often each event has been the last thing that a process did.
type Deaths = BTreeMap<String, u32>;

/// Whether a file is one of the two that are kept here, or a part of one.
pub(crate) fn is_note(disk: &dyn Disk, path: &Path, name: &str) -> bool {
    let mut bytes = Vec::new();
    let read = disk.open_read(path).and_then(|file| file.take(1 << 16).read_to_end(&mut bytes));
    let is_trial = bytes.len() <= NOTE_BYTES && bytes.first().is_none_or(|byte| *byte == VERSION);
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
}

/// What the last run died of, as far as that is known.
pub(crate) struct Suspect {
    pub(crate) source: SourceId,
    pub(crate) offset: u64,
    pub(crate) deaths: u32,
    pub(crate) epoch: u64,
}

impl Trial {
    /// Reads what the last run left, and counts what it died of.
    pub(crate) fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(Trial, Option<Suspect>)> {
        let mut trial =
            Trial { disk: disk.clone(), dir: dir.to_path_buf(), careful: 0, careful_from: 0 };
        let Some(note) = trial.read("trial")?.and_then(|bytes| Note::decode(&bytes)) else {
            return Ok((trial, None));
        };
        trial.careful_from = note.transactions.saturating_add(MARGIN);
        trial.careful = trial.careful_from;
        let Some((source, offset)) = note.event else { return Ok((trial, None)) };
        // Counted once: who dies before executing anything has not died of it.
        trial.note(Note { event: None, ..note })?;
        let deaths = trial.read("deaths")?.unwrap_or_default();
        let mut deaths: Deaths = serde_json::from_slice(&deaths).unwrap_or_default();
        let count = deaths.entry(format!("{}:{offset}", source.0)).or_default();
        *count += 1;
        // The first death was of something unknown.
        let suspect = Suspect { source, offset, deaths: *count + 1, epoch: note.epoch };
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
        deaths.remove(&format!("{}:{}", suspect.source.0, suspect.offset));
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
        self.note(Note { epoch, event: None, transactions })
    }

    /// One transaction is about to be executed.
    pub(crate) fn transaction(&mut self, epoch: u64, source: SourceId, offset: u64) -> Result<()> {
        self.careful = self.careful.saturating_sub(1);
        let transactions = self.careful_from;
        self.note(Note { epoch, event: Some((source, offset)), transactions })
    }

    /// The transactions of an epoch that were executed one at a time are done: whoever dies now has
    /// died of none of them.
    pub(crate) fn executed(&mut self, epoch: u64) -> Result<()> {
        self.note(Note { epoch, event: None, transactions: self.careful_from })
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
        open().0.transaction(1, SourceId(0), 7).unwrap();
        assert_eq!(open().1, Some(2));
        assert_eq!(open().1, None, "nothing was executed by the run before");
        let (mut trial, _) = open();
        assert!(trial.is_careful());
        trial.transaction(1, SourceId(0), 7).unwrap();
        trial.executed(1).unwrap();
        let (mut trial, deaths) = open();
        assert_eq!(deaths, None);
        trial.transaction(1, SourceId(0), 7).unwrap();
        let (trial, suspect) = Trial::open(&disk, dir).unwrap();
        let suspect = suspect.unwrap();
        assert_eq!(suspect.deaths, 3);
        trial.forget(&suspect).unwrap();
        open().0.transaction(1, SourceId(0), 7).unwrap();
        assert_eq!(open().1, Some(2), "counted anew");
    }

    #[test]
    fn notes_come_back_and_damaged_ones_do_not() {
        for event in [None, Some((SourceId(3), 1 << 40))] {
            let note = Note { epoch: 7, event, transactions: 12 };
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
