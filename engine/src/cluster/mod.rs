//! An app on several processes: the parts of its coordinator's process and of its workers'
//! processes.
//!
//! | file | purpose |
//! | --- | --- |
//! | `settings` | the settings of a cluster |
//! | `address` | the address for clients, beside the log |
//! | `backends` | the log and the store that the settings name |
//! | `format` | requests and outputs as messages of Kafka |
//! | `copied` | copies of the state, for backups |
//! | `coordinate` | the coordinator |
//! | `clients` | the app as the clients of any of its processes see it |
//! | `questions` | what a worker's clients ask of the coordinator |
//! | `delivered` | the outputs that have left, for followers |
//! | `metrics` | the metrics |
//! | `topics` | the app's own topics, as sources, and their rows |
//! | `feeds` | files that the app's streams read, as sources |
//! | `sinks` | topics and files that the app writes |
//! | `retained` | the last rows of streams, over restarts |
//! | `socket` | the answers at the socket of the coordinator's directory |
//! | `times` | streams with event time, by their sources |
//! | `firings` | firings of timers, which the coordinator's clock requests |
//! | `join` | a worker |
//! | `counts` | the counts of transactions, for the log and for a stopped cluster's status |
//! | `cuts` | the check that the recorded cuts are there |
//! | `ask` | requests to the log and the store that wait |
//! | `panics` | panics of threads as errors |
//! | `program_file` | the description of the program that the state belongs to |
//! | `from_one` | the state of one process, which several take over |
//! | `look` | the newest snapshot, as the commands read it |
//! | `to_one` | the state of several processes, which one takes over |
//! | `upgrade` | the check of that program, and upgrades to another version |

mod address;
mod ask;
mod backends;
mod clients;
mod coordinate;
mod copied;
mod counts;
mod cuts;
mod delivered;
mod feeds;
mod firings;
mod format;
mod from_one;
mod join;
mod look;
mod metrics;
mod panics;
mod program_file;
mod questions;
mod retained;
mod settings;
mod sinks;
mod socket;
mod times;
mod to_one;
mod topics;
mod upgrade;

pub(crate) use clients::partition_of;
pub use clients::Clients;
pub use coordinate::Cluster;
pub(crate) use copied::copy;
pub use join::{join, JoinedWorker};
pub(crate) use look::LookedAt;
pub use settings::ClusterSettings;
pub(crate) use to_one::{stored_on_several, to_one};

use std::path::Path;
use tidemill_cluster::{EventSource, EventTime};
use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_bytes, put_u128, put_u32, put_u64};

use tidemill_core::Result;
use tidemill_env::Env;

use self::topics::ReadTopic;
use crate::data_dir::hold_free;
use crate::moves::{settle, Way};
use crate::outlets::sink_keys;
use crate::process_mode::{self, CLUSTER};
use crate::spec::AppSpec;

/// Creates the format of messages of an app, for fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn messages(
    functions: std::sync::Arc<crate::functions::AppFunctions>,
    fingerprint: u128,
) -> impl tidemill_kafka::Format {
    format::Json::new(functions, fingerprint)
}

/// Returns the settings, by their names, with which a killed run must be finished before an app goes
/// on: one in the other way than `wanted`, which has left something that no snapshot has. The start
/// that follows reports whatever is wrong with the directory.
pub fn unfinished(env: &Env, dir: &Path, wanted: Way) -> Option<serde_json::Value> {
    find_unfinished(env, dir, wanted).ok().flatten()
}

fn find_unfinished(env: &Env, dir: &Path, wanted: Way) -> Result<Option<serde_json::Value>> {
    let disk = &*env.disk;
    let other = process_mode::held(disk, dir)?.filter(|held| *held != wanted);
    let Some(way) = other else { return Ok(None) };
    let _held = hold_free(disk, dir)?;
    settle(disk, dir)?;
    match way {
        Way::One => Ok(from_one::is_unfinished(dir, env)?.then(|| serde_json::json!({}))),
        Way::Several => to_one::unfinished(&dir.join(CLUSTER), env),
    }
}

/// A hash of everything that determines how a log is executed. It has the program, the setting that
/// causes aborts, and the topics that are read. With different ones, a replay of the recorded cuts
/// would give other results. With different sinks, other outputs would leave.
fn executes(
    spec: &AppSpec,
    message_bytes_max: usize,
    topics: &[ReadTopic],
    event_time: &EventTime,
) -> Result<u128> {
    let mut bytes = Vec::new();
    put_u128(fingerprint(spec), &mut bytes);
    put_u64(message_bytes_max as u64, &mut bytes);
    for topic in topics {
        put_bytes(topic.name.as_bytes(), &mut bytes);
        put_u32(topic.sources(), &mut bytes);
    }
    // Before "open", other tables had the events that wait for their batch.
    if spec.program.streams.iter().any(|stream| stream.batch.is_some()) {
        put_bytes(b"open", &mut bytes);
    }
    // Before "stages", an event that a map or filter can't compute was refused as a whole.
    if spec
        .program
        .streams
        .iter()
        .any(|of| matches!(of.origin, tidemill_txn::program::Origin::Derived { .. }))
    {
        put_bytes(b"stages", &mut bytes);
    }
    for decl in feeds::of_files(spec) {
        put_bytes(b"files", &mut bytes);
        put_bytes(decl.stream.as_bytes(), &mut bytes);
    }
    // Cuts have the watermarks by group, and positions by event source. Before this text, logs had
    // "event source", and other rules for windows of procedures and for ends of intervals.
    for EventSource { source, stream, group, .. } in event_time.sources() {
        put_bytes(b"event source, windows in event time", &mut bytes);
        put_u32(*source, &mut bytes);
        put_u32(stream.0.into(), &mut bytes);
        put_u32(*group as u32, &mut bytes);
    }
    // The log has calls by name, and those of private functions are refused when it is read.
    for (name, _) in spec.procedures.iter().filter(|(_, decl)| decl.private) {
        put_bytes(b"private", &mut bytes);
        put_bytes(name.as_bytes(), &mut bytes);
    }
    for (stream, name) in sink_keys(&spec.sinks)? {
        put_bytes(b"sink", &mut bytes);
        put_bytes(stream.as_bytes(), &mut bytes);
        put_bytes(name.as_bytes(), &mut bytes);
    }
    Ok(hash128(&bytes))
}

/// A hash that identifies the program.
fn fingerprint(spec: &AppSpec) -> u128 {
    crate::fingerprint::of_program(&spec.program)
}

/// A hash that identifies the log of a cluster. It is of the cluster's name, because its app may
/// change.
fn log_of(name: &str) -> u128 {
    hash128(name.as_bytes())
}
