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
//! | `trial`, `clocks` | inputs that kill the process; clocks that are wrong |
//! | `mill`, `view` | the handle of a running app, and what can be asked of it |
//! | `aside` | what could not be decoded or computed, what is late |
//! | `timers`, `external` | events that the clock sends; work outside, and its answers |
//! | `calls`, `requests` | calls of procedures, and those that may come again |
//! | `functions` | the app's functions as nodes run them |
//! | `cluster` | the app on several processes |
//! | `rings` | the last rows of streams |
//! | `workers`, `recent` | threads that execute epochs together; how the last ones were executed |
//! | `needed`, `awaited` | what recorded cuts need of the input log, and what a recovery waits for |
//! | `patient`, `counts` | writing that waits for room; what has been counted |
//! | `serve` | answers on a socket; what health and metrics say |
//! | `clients`, `followed` | what clients of the app may ask and follow |
//! | `ask`, `stopped` | asking a running engine, reading what a stopped one has left |
//! | `past`, `stored` | the state at an earlier cut; the app as manifests keep it |
//! | `schema`, `compare`, `renames`, `changes` | what is different between two versions of a program |
//! | `upgrade`, `convert`, `carry` | going from one to the other: its rows, and everything beside them |
//! | `report`, `inspect` | what a run is doing, has done, would do |
//! | `life` | the events of an engine's life |
//!
//! The engine must not know Python.

mod apart;
mod aside;
mod ask;
mod awaited;
mod begins;
mod calls;
mod careful;
mod carry;
mod changes;
mod clients;
mod clocks;
mod cluster;
mod compare;
mod conduct;
mod convert;
mod counts;
mod data_dir;
mod deliver;
mod emptied;
mod external;
mod faults;
mod feed;
mod fingerprint;
mod followed;
mod functions;
mod histories;
mod inspect;
mod internal;
mod life;
mod mill;
mod needed;
mod objects;
mod open;
mod outlets;
mod past;
mod patient;
mod reasons;
mod recent;
mod records;
mod recover;
mod renames;
mod report;
mod requests;
mod rings;
mod schema;
mod serve;
mod settings;
mod shared;
mod sides;
mod snapshots;
mod spec;
mod stages;
mod stopped;
mod stored;
mod timers;
mod trial;
mod upgrade;
mod view;
mod workers;

pub use ask::{ask, Next, Replies};
pub use calls::{Procedure, Reply, Then};
pub use clients::{App, Health, Kept, News};
pub use cluster::{join, Cluster, ClusterSettings};
pub use emptied::would_go;
pub use external::{GivesUp, Outside};
pub use followed::{Changes, TableChange};
pub use functions::{inner, AppFunctions, Begins};
pub use life::LifeSink;
pub use mill::Mill;
pub use report::{HandlerReport, ReasonReport, Status, Summary, TableReport, UnstableReport};
pub use requests::Request;
pub use schema::schema_diff;
pub use settings::{Durable, OnFault, Recovery, Settings, Upgrade};
pub use spec::{AppSpec, ExternalDecl, FunctionDecl, SinkDecl, SourceDecl};
pub use tidemill_connect::push::TrySend;
pub use workers::Workers;
