//! An app on several processes: what its coordinator's process and its workers' processes are made of.
//!
//! | file | what it does |
//! | --- | --- |
//! | `settings` | what may be chosen |
//! | `doors` | the log and the store that the settings name |
//! | `format` | requests and outputs as messages of Kafka |
//! | `coordinate` | the coordinator, with the app as clients see it |
//! | `topics` | the app's own topics, as sources |
//! | `feeds` | files that the app's streams read, as sources |
//! | `sinks` | topics and files that the app writes |
//! | `times` | streams in event time, by the sources that they come by |
//! | `timers` | transactions that its clock asks for |
//! | `join` | a worker |
//! | `outboxes` | work outside, which workers have done |
//! | `slow` | what takes much longer than in one process |
//! | `cuts` | that the cuts which were made are there |
//! | `ask` | asking the log and the store, and waiting |
//! | `caught` | a thread that panics, told as an error |
//! | `upgrade` | of which program the state is, and going on with another version |

mod ask;
mod caught;
mod coordinate;
mod cuts;
mod doors;
mod feeds;
mod format;
mod join;
mod outboxes;
mod settings;
mod sinks;
mod slow;
mod timers;
mod times;
mod topics;
mod upgrade;

pub use coordinate::Cluster;
pub use join::join;
pub use settings::ClusterSettings;

use tidemill_cluster::{EventSource, EventTime};
use tidemill_core::encode::hash128;
use tidemill_core::wire::{put_bytes, put_u128, put_u32, put_u64};
use tidemill_core::Result;
use tidemill_kafka::Followed;

use crate::outlets::sink_keys;
use crate::spec::AppSpec;

/// What tells what executes a log from what else might, for the log and the processes: the program, the
/// setting that says what aborts, and the topics that are read. With others recorded cuts would come to something else.
/// With other sinks something else would leave.
fn executes(
    spec: &AppSpec,
    message_bytes_max: usize,
    topics: &[Followed],
    event_time: &EventTime,
) -> Result<u128> {
    let mut bytes = Vec::new();
    put_u128(fingerprint(spec), &mut bytes);
    put_u64(message_bytes_max as u64, &mut bytes);
    for Followed { topic, partitions } in topics {
        put_bytes(topic.as_bytes(), &mut bytes);
        put_u32(*partitions, &mut bytes);
    }
    // What waits for its batch was in other tables before "open".
    if spec.program.streams.iter().any(|stream| stream.batch.is_some()) {
        put_bytes(b"open", &mut bytes);
    }
    for decl in feeds::of_files(spec) {
        put_bytes(b"files", &mut bytes);
        put_bytes(decl.stream.as_bytes(), &mut bytes);
    }
    // Cuts have the watermarks by group, and places in them by event source. What windows of procedures hold, and what ends an
    // interval, went by other rules in logs of "event source".
    for EventSource { source, stream, group, .. } in event_time.sources() {
        put_bytes(b"event source, windows in event time", &mut bytes);
        put_u32(*source, &mut bytes);
        put_u32(stream.0.into(), &mut bytes);
        put_u32(*group as u32, &mut bytes);
    }
    for (stream, name) in sink_keys(&spec.sinks)? {
        put_bytes(b"sink", &mut bytes);
        put_bytes(stream.as_bytes(), &mut bytes);
        put_bytes(name.as_bytes(), &mut bytes);
    }
    Ok(hash128(&bytes))
}

/// What tells one program from another.
fn fingerprint(spec: &AppSpec) -> u128 {
    crate::fingerprint::of(&crate::fingerprint::text(&spec.program))
}

/// What tells the log of one cluster from another's: its name, because its app may change.
fn log_of(name: &str) -> u128 {
    hash128(name.as_bytes())
}
