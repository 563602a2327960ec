//! An app on several processes: what its coordinator's process and its workers' processes are made of.
//!
//! | file | what it does |
//! | --- | --- |
//! | `settings` | what may be chosen |
//! | `doors` | the log and the store that the settings name |
//! | `format` | requests and outputs as messages of Kafka |
//! | `coordinate` | the coordinator, with the app as clients see it |
//! | `timers` | transactions that its clock asks for |
//! | `join` | a worker |
//! | `cuts` | that the cuts which were made are there |
//! | `ask` | asking the log and the store, and waiting |
//! | `upgrade` | of which program the state is, and going on with another version |

mod ask;
mod coordinate;
mod cuts;
mod doors;
mod format;
mod join;
mod settings;
mod timers;
mod upgrade;

pub use coordinate::Cluster;
pub use join::join;
pub use settings::ClusterSettings;

use tidemill_core::encode::hash128;

use crate::spec::AppSpec;

/// What tells one app from another, for its processes.
fn fingerprint(spec: &AppSpec) -> u128 {
    crate::fingerprint::of(&crate::fingerprint::text(&spec.program))
}

/// What tells the log of one cluster from another's: its name, because its app may change.
fn log_of(name: &str) -> u128 {
    hash128(name.as_bytes())
}
