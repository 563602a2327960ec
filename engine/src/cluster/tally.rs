//! The results of transactions, counted by the coordinator from the outputs.
//!
//! A thread stores the counts in the coordinator's directory once a second, and they continue there.
//! A coordinator that dies may leave its last second uncounted.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidemill_cluster::{Output, RequestId};
use tidemill_core::{Error, Result, StreamId, Value};
use tidemill_env::{Env, Handle};
use tidemill_function::Tid;
use tidemill_host::Mark;
use tidemill_txn::program::{Abort, Origin, Program, FAULT};

use super::feeds::END_ID;
use crate::data_dir::replace;
use crate::functions::slides::ABORTED;
use crate::reasons::{by_abort_stream, Reasons};

/// The name of the file with the counts.
const FILE: &str = "counts";
/// The time between two writes of the file.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// The mark of requests by the engine itself, which count only if they abort.
pub(super) const ENGINES: Mark = Mark::MAX;
/// The handler of an abort that no event reports.
const UNKNOWN: &str = "-";

/// The counts since the app's first start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Counts {
    /// Events and calls, without requests of the engine.
    events: u64,
    /// Transactions that ended without an abort, with those of late events and dead letters.
    ended: u64,
    refused: u64,
    faults: u64,
    dead: u64,
    /// Late events that are only passed on.
    late: u64,
    reasons: Reasons,
    /// The last fault, in words.
    fault: Option<String>,
    /// Slides of windows whose triggers aborted, and the description of the last one.
    slides: u64,
    slide: Option<String>,
}

/// The contents of the file. Beside the counts, it has the report that a status has.
#[derive(Default, Deserialize)]
struct Stored {
    counts: Counts,
}

/// The open ends of a source's outputs.
#[derive(Default)]
struct Tail {
    /// The last reply's request, and the number of its replies before.
    last: Option<RequestId>,
    nth: usize,
    /// The handler of the last transaction, which aborted. The reply follows.
    aborted: Option<(Tid, usize)>,
}

#[derive(Default)]
struct State {
    counts: Counts,
    tails: BTreeMap<u32, Tail>,
    is_changed: bool,
    is_over: bool,
}

/// The counts, and where they are stored.
struct Shared {
    env: Env,
    dir: PathBuf,
    state: Mutex<State>,
    /// The condition for the thread that stores them.
    changed: Condvar,
}

/// The counts of a cluster.
pub(super) struct Tally {
    shared: Arc<Shared>,
    /// The thread that stores the counts, if they are complete.
    thread: Mutex<Option<Handle>>,
    program: Arc<Program>,
    /// The number of sources of requests. Topics and files follow.
    requests: u32,
    /// The handlers of an event's transactions, for each topic and file.
    handlers: Vec<Vec<usize>>,
    /// The handlers, by the streams of their aborts.
    aborted: BTreeMap<StreamId, usize>,
    /// Whether outputs are read, so that the counts are complete.
    is_read: bool,
}

impl Tally {
    /// Continues the counts of a directory. Unreadable ones begin again.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn open(
        env: &Env,
        dir: PathBuf,
        program: Arc<Program>,
        (requests, handlers): (u32, Vec<Vec<usize>>),
        is_read: bool,
    ) -> Result<Tally> {
        let mut text = Vec::new();
        let file = env.disk.open_read(&dir.join(FILE)).ok();
        let file = file.and_then(|mut file| file.read_to_end(&mut text).ok());
        // An unreadable file has only lost counts, which begin again.
        let stored = file.and_then(|_| serde_json::from_slice(&text).ok());
        let Stored { counts } = stored.unwrap_or_default();
        let aborted = by_abort_stream(&program);
        let state = Mutex::new(State { counts, ..State::default() });
        let (env, changed) = (env.clone(), Condvar::new());
        let shared = Arc::new(Shared { env: env.clone(), dir, state, changed });
        let stores = shared.clone();
        let spawn = || env.threads.spawn("cluster-counts", Box::new(move || stores.run()));
        let thread = is_read.then(spawn).transpose();
        let thread = thread.map_err(|e| Error::io("starting the thread that stores counts", &e))?;
        let thread = Mutex::new(thread);
        Ok(Tally { shared, thread, program, requests, handlers, aborted, is_read })
    }

    /// Counts an output of a source. The mark of a request is its handler, or [`ENGINES`]. Returns a
    /// new fault in words, with the user's line.
    pub fn take(
        &self,
        source: u32,
        output: &Output,
        mark: Option<Mark>,
    ) -> Option<(String, Option<String>)> {
        let mut state = self.shared.state.lock();
        let State { counts, tails, is_changed, .. } = &mut *state;
        let tail = tails.entry(source).or_default();
        if !std::mem::replace(is_changed, true) {
            self.shared.changed.notify_one();
        }
        match output {
            Output::Event { tid, path, stream, row, .. } => {
                if let Some(&handler) = self.aborted.get(stream) {
                    // The last event of a request's transaction is followed by its reply, which
                    // also has the line.
                    if path.iter().eq(&[u32::MAX]) {
                        tail.aborted = Some((*tid, handler));
                        return None;
                    }
                    let Some(Value::Str(why)) = row.last() else { return None };
                    return counts.abort(&self.program, Some(handler), &public(why), None);
                }
                let stream = self.program.streams.get(stream.index())?;
                let is_engines = stream.origin == Origin::Emitted;
                match (&*stream.spec.name, &row[..]) {
                    (ABORTED, [Value::Str(window), Value::Int(end), Value::Str(why)]) => {
                        counts.slides += 1;
                        counts.slide =
                            Some(format!("window {window}, which ended at {end}: {why}"));
                        let mut windows = self.program.windows.iter();
                        let of = windows.find(|of| of.name == *window)?;
                        let event = format!("a slide of window {window}");
                        let owner = Some(of.owner.index());
                        // The log reports all slides that abort.
                        counts.abort(&self.program, owner, &public(why), Some(&event));
                    }
                    (name, _) if is_engines && self.is_side(name, ".dead") => counts.dead += 1,
                    (name, _) if is_engines && self.is_side(name, ".late") => counts.late += 1,
                    _ => {}
                }
                None
            }
            Output::Reply { tid, id, outcome } => {
                // All transactions of an event have one id.
                let is_of_event = source >= self.requests;
                let is_end = is_of_event && id.ends_with(END_ID.as_bytes());
                if mark == Some(ENGINES) && outcome.is_ok() {
                    return None;
                }
                let is_same = is_of_event && tail.last.as_ref() == Some(id);
                counts.events += u64::from(!is_end && !is_same);
                tail.nth = if is_same { tail.nth + 1 } else { 0 };
                if is_of_event && !is_same {
                    tail.last = Some(id.clone());
                }
                let handler = tail.aborted.take().filter(|(of, _)| of == tid).map(|(_, of)| of);
                match outcome {
                    Ok(_) => {
                        counts.ended += u64::from(!is_end);
                        None
                    }
                    Err(abort) if is_of_event => {
                        let all = self.handlers.get((source - self.requests) as usize);
                        let own = all.and_then(|all| all.get(tail.nth).copied());
                        let handler = handler.or(own);
                        let event = self.row_named(id, handler);
                        counts.abort(&self.program, handler, abort, event.as_deref())
                    }
                    Err(abort) => {
                        let handler = handler.or(mark.map(|of| of as usize));
                        counts.abort(&self.program, handler, abort, None)
                    }
                }
            }
        }
    }

    /// Names the row of a source, by the id of its replies, `name/offset`, and by its handler.
    fn row_named(&self, id: &[u8], handler: Option<usize>) -> Option<String> {
        let (name, offset) = std::str::from_utf8(id).ok()?.rsplit_once('/')?;
        let offset: u64 = offset.parse().ok()?;
        let of = handler.map_or(String::new(), |handler| {
            let input = self.program.root_stream(self.program.handlers[handler].input);
            format!("source {}/", self.program.streams[input.index()].spec.name)
        });
        Some(format!("row {offset} of {of}{name} (counted from 0)"))
    }

    /// Whether a stream is one that the engine adds to another for rows that it takes out.
    fn is_side(&self, name: &str, end: &str) -> bool {
        let of = name.strip_suffix(end);
        of.is_some_and(|of| self.program.streams.iter().any(|stream| *stream.spec.name == *of))
    }

    /// Adds the counts to a status.
    pub fn report(&self, status: &mut serde_json::Value) {
        let said = match self.is_read {
            true => self.shared.state.lock().counts.report(),
            false => json!({
                "events": null, "committed": null, "refused": null, "faults": null, "dead": null,
                "reasons": [], "fault": null,
            }),
        };
        if let (Some(status), serde_json::Value::Object(said)) = (status.as_object_mut(), said) {
            status.extend(said);
        }
    }

    /// The number of faults.
    pub fn faults(&self) -> u64 {
        self.shared.state.lock().counts.faults
    }

    /// The number of slides that aborted, and the description of the last one.
    pub fn slides(&self) -> (u64, Option<String>) {
        let counts = &self.shared.state.lock().counts;
        (counts.slides, counts.slide.clone())
    }

    /// Stores the counts now.
    pub fn store(&self) {
        if self.is_read {
            self.shared.store();
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.get_mut().take() {
            // A panic has been reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Stores the counts after changes, until the end.
    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |state| !state.is_changed && !state.is_over);
            let is_over = state.is_over;
            drop(state);
            self.store();
            if is_over {
                return;
            }
            let mut state = self.state.lock();
            self.changed.wait_while_for(&mut state, |state| !state.is_over, STORE_EVERY);
        }
    }

    fn store(&self) {
        let text = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.is_changed) {
                return;
            }
            json!({"counts": state.counts, "report": state.counts.report()}).to_string()
        };
        if let Err(error) = replace(&*self.env.disk, &self.dir, FILE, &text) {
            let what = error.to_string();
            tracing::warn!(target: "tidemill::cluster", what, "counts could not be stored");
        }
    }
}

impl Counts {
    /// Returns the counts as a status has them.
    fn report(&self) -> serde_json::Value {
        let Counts { events, ended, refused, faults, dead, late, reasons, fault, .. } = self;
        let committed = ended.saturating_sub(dead + late);
        json!({
            "events": events, "committed": committed, "refused": refused, "faults": faults,
            "dead": dead, "reasons": reasons.report(), "fault": fault,
        })
    }

    /// Counts an abort. Returns a fault in words, with the user's line.
    fn abort(
        &mut self,
        program: &Program,
        handler: Option<usize>,
        abort: &Abort,
        event: Option<&str>,
    ) -> Option<(String, Option<String>)> {
        let (what, at) = abort.parts();
        let handler = handler.and_then(|number| program.handlers.get(number));
        let name = handler.map_or(UNKNOWN, |handler| &*handler.name);
        self.reasons.add(name, &abort.public_reason(), 1);
        if !abort.is_fault() {
            self.refused += 1;
            return None;
        }
        self.faults += 1;
        // Where the line of the exception is unknown, that of the function is better than none.
        let own = handler.map(|handler| handler.at.as_str()).filter(|at| !at.is_empty());
        let at = at.or(own).map(str::to_owned);
        if let Some(at) = &at {
            self.reasons.place_at(name, &abort.public_reason(), at);
        }
        let event = event.map(|event| format!(" on {event}")).unwrap_or_default();
        let who = handler.map_or("a function".into(), |of| format!("function {}", of.name));
        let said = format!("{who} failed{event}: {what}");
        self.fault = Some(match &at {
            Some(at) => format!("{at}: {said}"),
            None => said.clone(),
        });
        Some((said, at))
    }
}

/// The abort of a public reason.
fn public(reason: &str) -> Abort {
    match reason.strip_prefix(FAULT) {
        Some(what) => Abort::failed(what, None),
        None => Abort::refused(reason),
    }
}
