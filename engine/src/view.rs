//! What can be asked of a running app, by its handle and by whoever comes to its socket.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use tidemill_connect::PushHandle;
use tidemill_core::error::nearest;
use tidemill_core::{Error, Result, SourceId};
use tidemill_env::Env;
use tidemill_flow::Gate;
use tidemill_txn::execute::HandlerCounts;
use tidemill_txn::program::Program;

use crate::calls::Procedure;
use crate::counts::Counts;
use crate::data_dir::Site;
use crate::report::{HandlerReport, Status, Summary, TableReport, UnstableReport};
use crate::requests::{is_hidden, shown};
use crate::settings::Settings;
use crate::shared::{Out, Shared};
use crate::spec::SourceDecl;

/// A running app as it is seen from outside.
pub(crate) struct View {
    pub(crate) program: Arc<Program>,
    pub(crate) env: Env,
    pub(crate) gate: Arc<Gate>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pushed: BTreeMap<String, Pushed>,
    /// Those of them that are answers from outside.
    pub(crate) answers: Vec<String>,
    /// What clients may call.
    pub(crate) procedures: BTreeMap<String, Procedure>,
    /// By handler: how it is executed.
    pub(crate) paths: Vec<String>,
    pub(crate) started_ns: u64,
    pub(crate) decls: Vec<SourceDecl>,
    pub(crate) settings: Settings,
    /// Its data directory, and the fingerprint of what runs.
    pub(crate) site: Option<(Site, u128)>,
    /// Where it answers over HTTP.
    pub(crate) http: OnceLock<String>,
    /// A source never ends: files that are followed.
    pub(crate) has_followed: bool,
    /// What was done before the start.
    pub(crate) before: Before,
}

/// What is known of the runs before.
pub(crate) struct Before {
    /// The last recorded epoch, and the rows of all sources up to it.
    pub(crate) epoch: u64,
    pub(crate) rows: u64,
    /// Events that are not executed again.
    pub(crate) events: u64,
}

/// A stream that others feed.
pub(crate) struct Pushed {
    pub(crate) source: SourceId,
    pub(crate) handle: PushHandle,
    /// An earlier run has recorded its end.
    pub(crate) is_over: bool,
    /// Rows known when the engine started, and all that are known by now.
    pub(crate) known: u64,
    pub(crate) sent: AtomicU64,
}

impl View {
    /// A pushed stream.
    pub(crate) fn pushed(&self, stream: &str) -> Result<&Pushed> {
        self.pushed.get(stream).ok_or_else(|| {
            let names: Vec<&str> = self.pushed.keys().map(String::as_str).collect();
            Error::program(format!("stream {stream} is not open for sending")).help(format!(
                "streams without a source are; here: {}",
                if names.is_empty() { "none".into() } else { names.join(", ") }
            ))
        })
    }

    pub(crate) fn seconds(&self) -> f64 {
        let end = self.shared.end.lock();
        if end.over {
            return end.seconds;
        }
        (self.env.clock.monotonic_ns() - self.started_ns) as f64 / 1e9
    }

    /// Events a second since the start; what was executed before it does not count.
    fn events_per_s(&self, counts: &Counts, seconds: f64) -> f64 {
        (counts.events - self.before.events) as f64 / seconds.max(1e-9)
    }

    /// Where the run is.
    pub(crate) fn status(&self) -> Status {
        let (seconds, ended) = (self.seconds(), self.shared.is_over());
        self.status_at(&self.shared.out.lock(), seconds, ended)
    }

    /// The same, of what has left the engine.
    pub(crate) fn status_at(&self, out: &Out, seconds: f64, ended: bool) -> Status {
        let counts = &out.counts;
        let sum = |of: fn(&HandlerCounts) -> u64| counts.handlers.iter().map(of).sum::<u64>();
        let (aborted, faults) = (sum(|h| h.aborted - h.faults), sum(|h| h.faults));
        Status {
            epoch: counts.epochs,
            events: counts.events,
            transactions: sum(|h| h.committed) + aborted + faults,
            aborted,
            faults,
            dead: counts.dead,
            late: counts.late,
            parked: counts.parked,
            lag_us: counts.lag_us,
            seconds,
            events_per_s: self.events_per_s(counts, seconds),
            ended,
            recovering: out.is_recovering,
            troubles: self.shared.troubles.all(),
            stalled: out.stalled.as_ref().map(|error| error.what.clone()),
            snapshot_epoch: out.snapshot_epoch,
            snapshots: out.snapshots,
            known_epoch: self.before.epoch,
            known_rows: self.before.rows,
        }
    }

    /// A procedure that can be called.
    pub(crate) fn procedure(&self, name: &str) -> Result<&Procedure> {
        crate::calls::named(&self.procedures, name)
    }

    /// The number of a table.
    pub(crate) fn table_index(&self, name: &str) -> Result<usize> {
        let found = self.program.tables.iter().position(|t| &*t.name == name);
        found.ok_or_else(|| {
            let names = self.program.tables.iter().map(|t| &*t.name);
            let mut names = names.filter(|name| !is_hidden(name));
            let error = Error::program(format!("there is no table '{name}'"));
            match nearest(name, names.by_ref()) {
                Some(near) => error.help(format!("did you mean '{near}'?")),
                None => error,
            }
        })
    }

    /// Refuses a name that no stream has.
    pub(crate) fn check_stream(&self, name: &str) -> Result<()> {
        let streams = self.program.streams.iter().filter(|s| !is_hidden(&s.spec.name));
        let mut names: Vec<String> = Vec::new();
        for stream in streams {
            let own = stream.spec.name.to_string();
            if !stream.is_output() {
                names.extend([format!("{own}.dead"), format!("{own}.late")]);
            }
            names.push(own);
        }
        if names.iter().any(|known| known == name) {
            return Ok(());
        }
        let error = Error::program(format!("there is no stream '{name}'"));
        Err(match nearest(name, names.iter().map(String::as_str)) {
            Some(near) => error.help(format!("did you mean '{near}'?")),
            None => error.help(format!("there are {}", names.join(", "))),
        })
    }

    /// What has been done so far.
    ///
    /// # Errors
    /// When the tables no longer have what they should.
    pub(crate) fn summary(&self) -> Result<Summary> {
        let seconds = self.seconds();
        let state = self.shared.state.lock();
        let out = self.shared.out.lock();
        let counts = &out.counts;
        let at = state.as_of(out.epoch);
        let mut state_hash = 0u128;
        for table in &state.tables {
            state_hash = state_hash.wrapping_add(table.as_of(at.seq)?.state_hash());
        }
        let handlers: Vec<HandlerReport> = (self.program.handlers.iter().zip(&counts.handlers))
            .zip(&self.paths)
            .map(|((handler, counts), path)| HandlerReport {
                name: handler.name.to_string(),
                path: path.clone(),
                committed: counts.committed,
                aborted: counts.aborted - counts.faults,
                faults: counts.faults,
            })
            .collect();
        let committed: u64 = handlers.iter().map(|h| h.committed).sum();
        let refused: u64 = handlers.iter().map(|h| h.aborted).sum();
        let faults: u64 = handlers.iter().map(|h| h.faults).sum();
        let tables = state.tables.iter().zip(&at.rows);
        let tables = tables.filter(|(t, _)| !is_hidden(&t.spec().name));
        let tables = tables.map(|(t, rows)| TableReport {
            name: t.spec().name.to_string(),
            rows: *rows as u64,
            bytes: t.bytes() as u64,
        });
        let unstable = counts.unstable.iter().map(|(handler, (event, times))| UnstableReport {
            handler: self.program.handlers[*handler].name.to_string(),
            at: self.program.handlers[*handler].at.clone(),
            event: event.clone(),
            times: *times,
        });
        Ok(Summary {
            app: self.program.name.to_string(),
            events: counts.events,
            transactions: committed + refused + faults,
            committed,
            refused,
            faults,
            dead: counts.dead,
            late: counts.late,
            epochs: counts.epochs,
            seconds,
            events_per_s: self.events_per_s(counts, seconds),
            handlers,
            tables: tables.collect(),
            outputs: shown(out.outputs.clone()),
            reasons: self.shared.reasons.lock().told(),
            unstable: unstable.collect(),
            state_hash: format!("{state_hash:032x}"),
            output_hash: format!("{:032x}", out.output_hash),
        })
    }
}
