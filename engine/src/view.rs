//! The queries of a running app, for its handle and for the clients of its socket.

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
use crate::reasons;
use crate::report::{HandlerReport, Status, Summary, TableReport, UnstableReport};
use crate::requests::{is_hidden, shown};
use crate::settings::Settings;
use crate::shared::{Delivered, Shared};
use crate::spec::SourceDecl;

/// A running app as it is seen from outside.
pub(crate) struct View {
    pub(crate) program: Arc<Program>,
    pub(crate) env: Env,
    pub(crate) gate: Arc<Gate>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pushed: BTreeMap<String, Pushed>,
    /// The streams of answers from outside, among the pushed ones.
    pub(crate) answers: Vec<String>,
    /// The procedures that clients may call.
    pub(crate) procedures: BTreeMap<String, Procedure>,
    /// The app's own version, if it has one.
    pub(crate) version: Option<String>,
    /// For each handler, how it is executed.
    pub(crate) paths: Vec<String>,
    pub(crate) started_ns: u64,
    pub(crate) decls: Vec<SourceDecl>,
    pub(crate) settings: Settings,
    /// Its data directory, and the fingerprint of the running program.
    pub(crate) site: Option<(Site, u128)>,
    /// The address of the HTTP server.
    pub(crate) http: OnceLock<String>,
    /// Whether a source is followed, and so never ends.
    pub(crate) has_followed: bool,
    /// The work before the start.
    pub(crate) before: Before,
}

/// The work of earlier runs.
pub(crate) struct Before {
    /// The last recorded epoch, and the rows of all sources up to it.
    pub(crate) epoch: u64,
    pub(crate) rows: u64,
    /// The events that are not replayed.
    pub(crate) events: u64,
}

/// A stream that clients push into.
pub(crate) struct Pushed {
    pub(crate) source: SourceId,
    pub(crate) handle: PushHandle,
    /// Whether an earlier run has recorded its end.
    pub(crate) is_over: bool,
    /// The rows known when the engine started, and all that are known by now.
    pub(crate) known: u64,
    pub(crate) sent: AtomicU64,
}

impl View {
    /// Finds a pushed stream.
    pub(crate) fn pushed(&self, stream: &str) -> Result<&Pushed> {
        self.pushed.get(stream).ok_or_else(|| {
            let names: Vec<&str> = self.pushed.keys().map(String::as_str).collect();
            Error::program(format!("stream {stream} is not open for sending")).help(format!(
                "streams without a source are open: {}",
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

    /// Events per second since the start, without those executed before.
    fn events_per_s(&self, counts: &Counts, seconds: f64) -> f64 {
        (counts.events - self.before.events) as f64 / seconds.max(1e-9)
    }

    /// Returns the status of the run.
    pub(crate) fn status(&self) -> Status {
        let (seconds, ended) = (self.seconds(), self.shared.is_over());
        self.status_at(&self.shared.out.lock(), seconds, ended)
    }

    /// Returns the status as of the results that have left the engine.
    pub(crate) fn status_at(&self, out: &Delivered, seconds: f64, ended: bool) -> Status {
        let counts = &out.counts;
        let HandlerCounts { committed, aborted, faults } = counts.of_all();
        let aborted = aborted - faults;
        Status {
            epoch: counts.epochs,
            events: counts.events,
            transactions: committed + aborted + faults,
            aborted,
            faults,
            dead: counts.dead,
            late: counts.late,
            buffered: counts.buffered,
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

    /// Finds a procedure that clients can call.
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
        Err(error.help(known(name, names.iter().map(String::as_str), "stream")))
    }

    /// Returns the summary of the work so far.
    ///
    /// # Errors
    /// When the tables' contents have been lost.
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
        let HandlerCounts { committed, aborted, faults } = counts.of_all();
        let refused = aborted - faults;
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
            reasons: reasons::report(&self.shared.reasons.lock()),
            unstable: unstable.collect(),
            state_hash: format!("{state_hash:032x}"),
            output_hash: format!("{:032x}", out.output_hash),
        })
    }
}

/// Returns a hint for an unknown name: the nearest known name, or all of them.
pub(crate) fn known<'a>(
    name: &str,
    names: impl Iterator<Item = &'a str> + Clone,
    kind: &str,
) -> String {
    if let Some(near) = nearest(name, names.clone()) {
        return format!("did you mean '{near}'?");
    }
    match &names.collect::<Vec<_>>()[..] {
        [] => format!("the app has no {kind}"),
        [only] => format!("the only {kind} is {only}"),
        names => format!("there are {}", names.join(", ")),
    }
}
