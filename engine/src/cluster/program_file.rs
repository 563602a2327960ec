//! The file of a coordinator's directory that describes the program of its state.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result};
use tidemill_env::Disk;

use super::feeds::of_files;
use super::topics::ReadTopic;
use crate::data_dir::replace;
use crate::spec::AppSpec;
use crate::stored::Stored;

/// The file's name.
pub(super) const PROGRAM: &str = "program";

/// The names of files among topics begin with it. No topic has such a name.
const FILES: &str = "files of ";

/// A program, and its identity.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Version {
    pub fingerprint: String,
    /// The topics that it reads, with their partitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<(String, u32)>,
    /// The sources of its events with event time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub event_sources: Vec<TimedSource>,
    pub app: Stored,
}

/// An event source. Positions in cuts refer to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimedSource {
    pub stream: String,
    /// The column of its times.
    pub time: String,
    pub source: u32,
    pub group: usize,
}

impl Version {
    /// Whether it reads these topics and files.
    pub fn reads(&self, read: &[(String, u32)]) -> bool {
        self.topics == read
    }

    /// The number of sources that are no requests.
    pub fn sources_read(&self) -> usize {
        self.topics.iter().map(|(_, partitions)| *partitions as usize).sum()
    }
}

/// The contents of the file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    pub is: Version,
    /// The version after an upgrade, and the epoch from which it counts.
    pub becomes: Option<(u64, Version)>,
    /// The settings that the log depends on. Earlier versions did not write them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Kept>,
}

/// Settings of a cluster that its log depends on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    pub name: String,
    pub sources: u32,
    pub message_bytes_max: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<String>,
    /// Whether they are in S3 without TLS.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_http: bool,
}

impl Kept {
    /// Returns them by the names that users give them.
    pub fn settings(&self) -> serde_json::Value {
        let Kept { name, sources, message_bytes_max, snapshots, allow_http } = self;
        let mut settings = serde_json::json!({
            "cluster_name": name, "cluster_sources": sources,
            "cluster_message_bytes_max": message_bytes_max,
        });
        if let Some(snapshots) = snapshots {
            settings["cluster_snapshots"] = snapshots.as_str().into();
            settings["cluster_snapshots_allow_http"] = (*allow_http).into();
        }
        settings
    }
}

impl Written {
    /// The cluster's name.
    pub fn name(&self) -> String {
        let known = self.cluster.as_ref().map(|kept| kept.name.clone());
        known.unwrap_or_else(|| self.is.app.program.name.to_string())
    }

    /// Reads the file of a coordinator's directory, if there is one.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Written>> {
        let failed = |e: &std::io::Error| Error::io(format!("reading {}", dir.display()), e);
        let mut text = String::new();
        match disk.open_read(&dir.join(PROGRAM)) {
            Ok(mut file) => {
                std::io::Read::read_to_string(&mut file, &mut text).map_err(|e| failed(&e))?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
        }
        serde_json::from_str(&text).map(Some).map_err(|e| {
            let what = format!("{} can't be read: {e}", dir.join(PROGRAM).display());
            Error::setting(what).help(
                "another version of tidemill has written it: use that one; or it is damaged: restore it as it was",
            )
        })
    }
}

impl Written {
    /// Returns the same with the snapshots beside it.
    pub fn with_own_snapshots(mut self) -> Written {
        if let Some(kept) = &mut self.cluster {
            (kept.snapshots, kept.allow_http) = (None, false);
        }
        self
    }

    /// Stores it in a coordinator's directory.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let text = serde_json::to_string(self).expect("an app is JSON");
        let failed = |e| Error::io(format!("the directory {}", dir.display()), &e);
        replace(disk, dir, PROGRAM, &text).map_err(failed)
    }
}

/// Names the sources after the log's own ones, each with its number of partitions.
pub(super) fn sources_read(topics: &[ReadTopic], spec: &AppSpec) -> Vec<(String, u32)> {
    let topics = topics.iter().map(|topic| (topic.name.clone(), topic.sources()));
    topics.chain(of_files(spec).map(|decl| (format!("{FILES}{}", decl.stream), 1))).collect()
}
