//! A followed folder: its files one after another, as one source.
//!
//! Offsets continue across files, so the order of the files must never change. A file whose name
//! sorts before one that was begun is too late, and is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_core::{Error, Result, Schema};

use super::{find, name_of, Opener};
use crate::reader::FileRows;
use crate::source::{Before, Chunk, FilePlace, Place, Polled, Source, RESTORE};

/// The files of a folder.
pub(super) struct Folder {
    opener: Opener,
    /// The file that is being read.
    current: Option<Current>,
    /// The files that follow, by name.
    found: BTreeMap<String, PathBuf>,
    /// The names of all files that were begun.
    begun: BTreeSet<String>,
    before: Before,
    place: Place,
    failed: Option<Error>,
}

struct Current {
    name: String,
    rows: Box<dyn FileRows>,
}

impl Folder {
    pub fn new(opener: Opener) -> Folder {
        Folder {
            opener,
            current: None,
            found: BTreeMap::new(),
            begun: BTreeSet::new(),
            before: Before::default(),
            place: Place::start(),
            failed: None,
        }
    }

    /// Looks for new files.
    fn look(&mut self) -> Result<()> {
        let paths = find::paths(&self.opener.settings, &*self.opener.disk)?;
        let named = paths.into_iter().map(|path| (name_of(&path), path));
        let last = self.begun.last();
        self.found = named.filter(|(name, _)| !self.begun.contains(name)).collect();
        match self.found.first_key_value() {
            Some((name, path)) if last.is_some_and(|last| name < last) => Err(late(path, last)),
            _ => Ok(()),
        }
    }

    /// Begins the next file, if there is one.
    fn begin(&mut self) -> Result<()> {
        while self.current.is_none() {
            let Some((name, path)) = self.found.pop_first() else { break };
            // The file may have been renamed since.
            if self.opener.disk.exists(&path).unwrap_or(true) {
                let rows = self.opener.open(&path)?;
                self.begun.insert(name.clone());
                self.current = Some(Current { name, rows });
            }
        }
        Ok(())
    }

    fn read(&mut self, rows_max: usize) -> Result<Polled> {
        loop {
            if self.current.is_none() {
                if self.found.is_empty() {
                    self.look()?;
                }
                self.begin()?;
            }
            let Some(current) = &mut self.current else { return Ok(Polled::Pending) };
            match current.rows.poll(rows_max)? {
                Polled::Rows(chunk) => return Ok(Polled::Rows(self.number(chunk))),
                Polled::End => self.end(),
                Polled::Pending => {
                    if self.found.is_empty() {
                        self.look()?;
                        if self.found.is_empty() {
                            return Ok(Polled::Pending);
                        }
                    }
                    if let Some(current) = &mut self.current {
                        current.rows.complete();
                    }
                }
            }
        }
    }

    /// Gives the rows of the present file their numbers in the folder.
    fn number(&mut self, mut chunk: Chunk) -> Chunk {
        let Some(current) = &self.current else { return chunk };
        let first = self.before.rows;
        chunk.offsets.iter_mut().for_each(|offset| *offset += first);
        chunk.bad.iter_mut().for_each(|bad| bad.offset += first);
        chunk.next_offset += first;
        if chunk.rows() > 0 {
            let file = FilePlace { name: current.name.clone(), before: self.before };
            let place = current.rows.place();
            self.place = Place { offset: chunk.next_offset, file: Some(file), ..place };
        }
        chunk
    }

    /// Ends the present file, which was read to its end.
    fn end(&mut self) {
        let Some(Current { name, rows }) = self.current.take() else { return };
        let Place { offset, bytes, checksum, .. } = rows.place();
        let content = [&bytes.to_le_bytes()[..], &checksum.0.to_le_bytes()].concat();
        self.before = Before {
            files: self.before.files + 1,
            rows: self.before.rows + offset,
            names: self.before.names.then(name.as_bytes()),
            contents: self.before.contents.then(&content),
        };
    }

    fn go_to(&mut self, place: &Place) -> Result<()> {
        self.failed = None;
        self.current = None;
        self.found.clear();
        self.begun.clear();
        self.before = Before::default();
        self.place = Place::start();
        if place.offset == 0 {
            return Ok(());
        }
        let shown = self.opener.settings.path.display().to_string();
        let other = |what: String| Err(Error::input(format!("{shown}: {what}")).help(RESTORE));
        let Some(FilePlace { name, before }) = &place.file else {
            return other("it was read without follow before".into());
        };
        let Some(offset) = place.offset.checked_sub(before.rows) else {
            return other(format!("row {} is not in the file {name}", place.offset));
        };
        let paths = find::paths(&self.opener.settings, &*self.opener.disk)?;
        let Some(at) = paths.iter().position(|path| name_of(path) == *name) else {
            return other(format!("the file {name}, which was being read, has been removed"));
        };
        // Files that were read may be removed. Then the names can't show whether an earlier file
        // was added.
        let earlier: Vec<String> = paths[..at].iter().map(|path| name_of(path)).collect();
        let names = earlier.iter().fold(Before::default().names, |sum, n| sum.then(n.as_bytes()));
        let count = earlier.len() as u64;
        if count > before.files || count == before.files && names != before.names {
            return other(format!(
                "{count} files sort before {name}, but they are not the {} files that were read before it",
                before.files
            ));
        }
        let mut rows = self.opener.open(&paths[at])?;
        rows.resume(&Place { offset, file: None, ..place.clone() })?;
        self.begun.extend(earlier);
        self.begun.insert(name.clone());
        self.before = *before;
        self.place = place.clone();
        self.current = Some(Current { name: name.clone(), rows });
        Ok(())
    }
}

fn late(path: &Path, last: Option<&String>) -> Error {
    let last = last.map(String::as_str).unwrap_or_default();
    Error::input(format!(
        "{} arrived too late: its name sorts before {last}, which was begun already",
        path.display()
    ))
    .help("remove it from the folder; names of new files must sort after those of all files there")
}

impl Source for Folder {
    fn schema(&self) -> &Arc<Schema> {
        &self.opener.schema
    }

    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if rows_max == 0 {
            return Ok(Polled::Pending);
        }
        self.read(rows_max).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn offset(&self) -> u64 {
        self.place.offset
    }

    fn place(&self) -> Place {
        self.place.clone()
    }

    fn resume(&mut self, place: &Place) -> Result<()> {
        self.go_to(place).inspect_err(|error| self.failed = Some(error.clone()))
    }

    fn replayable(&self) -> bool {
        true
    }
}
