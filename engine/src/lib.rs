//! The engine. It connects sources, flow, sequencer, executor, tables and sinks, and runs them.
//!
//! | file | purpose |
//! | --- | --- |
//! | `spec`, `settings` | an app as data |
//! | `open` | makes all running parts of an app: sources, branches, sinks, tables |
//! | `feed`, `stages` | a source, and a map or filter, as the flow sees them |
//! | `driver` | the driver of the sequencer: closes epochs, makes cuts, executes |
//! | `deliver` | holds the results of epochs until their cuts are durable |
//! | `outlets` | outputs: retained in memory, written to sinks, hashed |
//! | `data_dir`, `records`, `internal`, `fingerprint` | the contents of a data directory |
//! | `snapshots` | takes snapshots in the background |
//! | `recover` | reads a data directory when the engine starts |
//! | `crash_guard`, `clocks` | the crash guard; wrong clocks |
//! | `mill`, `view` | the handle of a running app, and all queries to it |
//! | `quarantine` | late events, and rows that could not be decoded or computed |
//! | `timers`, `external` | events that the clock sends; work outside, and its answers |
//! | `calls`, `requests` | calls of procedures, and calls that clients may repeat |
//! | `functions` | the app's functions as nodes run them |
//! | `cluster` | the app on several processes |
//! | `rings` | the last rows of streams |
//! | `workers`, `recent` | threads that execute an epoch together; figures of recent epochs |
//! | `needed`, `awaited` | the input that recorded cuts need; the input that a recovery awaits |
//! | `full_disk`, `counts` | writes that wait for disk space; counters |
//! | `serve` | answers on a socket; health and metrics |
//! | `clients`, `followed` | the queries of clients, and the streams and tables they follow |
//! | `ask`, `stopped` | queries to a running engine, and to the files of a stopped one |
//! | `past`, `stored` | the state at an earlier cut; the app as manifests store it |
//! | `schema`, `compare`, `renames`, `changes` | differences between two versions of a program |
//! | `upgrade`, `convert`, `carry` | upgrades: the rows, and all other state |
//! | `report`, `inspect` | the status and summary of a run; the description of an app |
//! | `logging` | the log, as lines of text or JSON |
//!
//! The engine must not know Python.

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
mod convert;
mod counts;
mod crash_guard;
mod data_dir;
mod deliver;
mod differences;
mod driver;
mod emptied;
mod external;
mod faults;
mod feed;
mod file_conflicts;
mod fingerprint;
mod followed;
mod full_disk;
mod functions;
// Tests compile it too, so that it stays right.
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzz;
mod histories;
mod inspect;
mod internal;
mod logging;
mod lookups;
mod mill;
mod moves;
mod needed;
mod open;
mod outlets;
mod past;
mod process_mode;
mod quarantine;
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
mod snapshots;
mod spec;
mod stages;
mod stopped;
mod stored;
mod timers;
mod upgrade;
mod view;
mod workers;

pub use ask::{ask, Next, Replies};
pub use calls::{Procedure, Reply, Then};
pub use clients::{App, Declared, Health, RetainedRows, StreamProgress};
pub use cluster::{join, unfinished, Clients, Cluster, ClusterSettings, JoinedWorker};
pub use emptied::fresh_deletes;
pub use external::{GivesUp, Outside};
pub use followed::{Changes, TableChange};
pub use functions::{has_sole_owner, inner, AppFunctions, StartFunction};
pub use logging::{log_filter, log_lines, LOG_TARGETS};
pub use mill::Mill;
pub use moves::Way;
pub use report::{HandlerReport, ReasonReport, Status, Summary, TableReport, UnstableReport};
pub use requests::Request;
pub use rings::retained_rows;
pub use schema::schema_diff;
pub use settings::{Durable, LogFormat, OnFault, Recovery, Settings, Upgrade};
pub use spec::{AppSpec, ExternalDecl, FunctionDecl, ProcedureDecl, SinkDecl, SourceDecl};
pub use tidemill_connect::push::TrySend;
pub use workers::Workers;
