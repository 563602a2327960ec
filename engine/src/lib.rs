//! The engine: it wires sources, flow, sequencer, executor, tables and sinks together and runs
//! them.
//!
//! | file | what it does |
//! | --- | --- |
//! | `spec`, `settings` | what an app is, as data |
//! | `open` | from an app to everything that runs: sources, branches, sinks, tables |
//! | `feed`, `stages` | a source and a map or filter as the flow sees them |
//! | `conduct` | the sequencer's driver: closes epochs, makes cuts, executes, hands outputs on |
//! | `outlets` | outputs: kept in memory, written to sinks, hashed |
//! | `mill` | the handle of a running app |
//! | `report`, `inspect` | what a run is doing, has done, would do |
//!
//! The engine must not know Python.

mod conduct;
mod feed;
mod inspect;
mod mill;
mod open;
mod outlets;
mod report;
mod settings;
mod spec;
mod stages;

pub use mill::Mill;
pub use report::{HandlerReport, Status, Summary, TableReport, UnstableReport};
pub use settings::Settings;
pub use spec::{AppSpec, SinkDecl, SourceDecl};
