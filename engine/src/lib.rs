//! The engine: it wires sources, flow, sequencer, executor, tables and sinks together and runs
//! them.
//!
//! | file | what it does |
//! | --- | --- |
//! | `spec`, `settings` | what an app is, as data |
//! | `open` | from an app to everything that runs: sources, branches, sinks, tables |
//! | `feed`, `stages` | a source and a map or filter as the flow sees them |
//! | `conduct` | the sequencer's driver: closes epochs, makes cuts, executes |
//! | `deliver` | the way out: what epochs came to waits until their cuts are durable |
//! | `outlets` | outputs: kept in memory, written to sinks, hashed |
//! | `data_dir`, `records`, `internal`, `fingerprint` | what is in a data directory |
//! | `snapshots` | takes snapshots in the background |
//! | `recover` | what a data directory holds when the engine starts |
//! | `trial` | inputs that kill the process |
//! | `mill` | the handle of a running app |
//! | `report`, `inspect` | what a run is doing, has done, would do |
//!
//! The engine must not know Python.

mod ask;
mod conduct;
mod counts;
mod data_dir;
mod deliver;
mod feed;
mod fingerprint;
mod inspect;
mod internal;
mod mill;
mod open;
mod outlets;
mod records;
mod recover;
mod report;
mod schema;
mod settings;
mod snapshots;
mod spec;
mod stages;
mod trial;

pub use ask::{ask, Replies};
pub use mill::Mill;
pub use report::{HandlerReport, Status, Summary, TableReport, UnstableReport};
pub use schema::schema_diff;
pub use settings::{Durable, Settings};
pub use spec::{AppSpec, SinkDecl, SourceDecl};
