//! The positions of topics when they were opened the first time. "The end, as of the first start"
//! must be the same after every restart. Sinks do not search earlier messages for their own rows.
//!
//! They are in one small file of the data directory, which is written before anything else is read
//! or written.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidemill_connect::{Place, SinkPlace};
use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use crate::data_dir::replace;
use crate::internal::SinkFacts;

/// The file's name.
const BEGINS: &str = "BEGINS";

/// The positions of sources by name, and of sinks by stream and name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartPositions {
    sources: BTreeMap<String, Place>,
    sinks: Vec<SinkFacts>,
    #[serde(skip)]
    has_changed: bool,
}

impl StartPositions {
    /// Reads the file. The positions are empty when there is none.
    ///
    /// # Errors
    /// When it can't be read.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<StartPositions> {
        let path: PathBuf = dir.join(BEGINS);
        let io = |e: std::io::Error| Error::io(format!("reading {}", path.display()), &e);
        if !disk.exists(&path).map_err(io)? {
            return Ok(StartPositions::default());
        }
        let mut text = Vec::new();
        disk.open_read(&path).and_then(|mut file| file.read_to_end(&mut text)).map_err(io)?;
        serde_json::from_slice(&text).map_err(|_| {
            Error::setting(format!("{} is damaged", path.display()))
                .help("restore it from a backup of the data directory; --fresh (fresh=True) starts from scratch")
        })
    }

    /// Stores new positions durably.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        if !self.has_changed {
            return Ok(());
        }
        let text = serde_json::to_string_pretty(self).expect("it is JSON");
        replace(disk, dir, BEGINS, &text)
            .map_err(|e| Error::io(format!("writing {}", dir.join(BEGINS).display()), &e))
    }

    /// Copies the file to another folder.
    ///
    /// # Errors
    /// When the disk fails.
    pub(crate) fn copy(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
        let begins = StartPositions::read(disk, from)?;
        let has_changed = !begins.sources.is_empty() || !begins.sinks.is_empty();
        StartPositions { has_changed, ..begins }.write(disk, to)
    }

    /// Returns where a source begins: its known position, or else the present one, which becomes
    /// the known one.
    pub(crate) fn source(&mut self, name: &str, now: Place) -> Place {
        if let Some(known) = self.sources.get(name) {
            return known.clone();
        }
        // Files need no known position.
        if now.begin.is_some() {
            self.sources.insert(name.to_owned(), now.clone());
            self.has_changed = true;
        }
        now
    }

    /// The position where a source began, if it is known.
    pub(crate) fn known_source(&self, name: &str) -> Option<&Place> {
        self.sources.get(name)
    }

    /// The position where a sink began, if it is known.
    pub(crate) fn sink(&self, stream: &str, path: &str) -> Option<&SinkPlace> {
        let is_it = |s: &&SinkFacts| s.stream == stream && s.path == path;
        self.sinks.iter().find(is_it).map(|sink| &sink.place)
    }

    /// Sets the position of a sink that starts from scratch.
    pub(crate) fn set_sink(&mut self, stream: &str, path: &str, place: SinkPlace) {
        self.sinks.retain(|sink| sink.stream != stream || sink.path != path);
        self.sinks.push(SinkFacts { stream: stream.to_owned(), path: path.to_owned(), place });
        self.has_changed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_known_stays() {
        let env = tidemill_sim::SimEnv::new(1).env();
        let dir = Path::new("/data");
        env.disk.create_dir_all(dir).unwrap();
        let mut begins = StartPositions::read(&*env.disk, dir).unwrap();
        let at = |begin| Place { begin: Some(begin), ..Place::start() };
        assert_eq!(begins.source("a", at(7)), at(7));
        assert_eq!(begins.source("file", Place::start()), Place::start());
        begins.set_sink("s", "kafka:t", SinkPlace { ends: vec![3], ..SinkPlace::default() });
        begins.write(&*env.disk, dir).unwrap();
        let mut again = StartPositions::read(&*env.disk, dir).unwrap();
        assert_eq!(again.source("a", at(9)), at(7));
        assert_eq!(again.sink("s", "kafka:t").unwrap().ends, [3]);
        assert!(again.sink("s", "kafka:other").is_none());
        assert_eq!(again.sources.len(), 1);
    }
}
