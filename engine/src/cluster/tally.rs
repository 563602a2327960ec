//! The results of transactions, counted by the coordinator from the outputs.
//!
//! The counts are stored in the coordinator's directory from time to time and at a clean end, and
//! continue there. A coordinator that dies may leave its last second uncounted.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidemill_cluster::{Output, RequestId};
use tidemill_core::{StreamId, Value};
use tidemill_env::Env;
use tidemill_function::Tid;
use tidemill_txn::program::{Abort, Origin, Program, FAULT};

use super::feeds::END_ID;
use crate::data_dir::replace;
use crate::functions::slides::ABORTED;
use crate::reasons::{by_abort_stream, Reasons};

/// The name of the file with the counts.
const FILE: &str = "counts";
/// The time between two writes of the file, in nanoseconds.
const STORE_NS: u64 = 1_000_000_000;
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
}

/// The open ends of a source's outputs.
#[derive(Default)]
struct Tail {
    /// The last reply's request, and the number of its replies before.
    last: Option<RequestId>,
    nth: usize,
    /// The handler of the last transaction, which aborted. The reply follows.
    aborted: Option<(Tid, usize)>,
    /// The last aborted request whose handler is unknown. Its sender knows it.
    unnamed: Option<(Tid, Abort)>,
}

#[derive(Default)]
struct State {
    counts: Counts,
    tails: BTreeMap<u32, Tail>,
    is_changed: bool,
    stored_ns: u64,
}

/// The counts of a cluster.
pub(super) struct Tally {
    env: Env,
    dir: PathBuf,
    program: Arc<Program>,
    /// The number of sources of requests. Topics and files follow.
    requests: u32,
    /// The handlers of an event's transactions, for each topic and file.
    handlers: Vec<Vec<usize>>,
    /// The handlers, by the streams of their aborts.
    aborted: BTreeMap<StreamId, usize>,
    /// Whether outputs are read, so that the counts are complete.
    is_read: bool,
    state: Mutex<State>,
}

impl Tally {
    /// Continues the counts of a directory. Unreadable ones begin again.
    pub fn open(
        env: &Env,
        dir: PathBuf,
        program: Arc<Program>,
        (requests, handlers): (u32, Vec<Vec<usize>>),
        is_read: bool,
    ) -> Tally {
        let mut text = Vec::new();
        let file = env.disk.open_read(&dir.join(FILE)).ok();
        let file = file.and_then(|mut file| file.read_to_end(&mut text).ok());
        // An unreadable file has only lost counts, which begin again.
        let counts = file.and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let aborted = by_abort_stream(&program);
        let state = Mutex::new(State { counts, ..State::default() });
        Tally { env: env.clone(), dir, program, requests, handlers, aborted, is_read, state }
    }

    /// Counts an output of a source. Returns a new fault in words, with the user's line.
    pub fn take(&self, source: u32, output: &Output) -> Option<(String, Option<String>)> {
        let mut state = self.state.lock();
        let State { counts, tails, is_changed, .. } = &mut *state;
        let tail = tails.entry(source).or_default();
        *is_changed = true;
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
                    (ABORTED, [Value::Str(window), Value::Int(_), Value::Str(why)]) => {
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
                let is_same = is_of_event && tail.last.as_ref() == Some(id);
                counts.events += u64::from(!is_end && !is_same);
                tail.nth = if is_same { tail.nth + 1 } else { 0 };
                if !is_same {
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
                    Err(abort) if handler.is_some() => {
                        counts.abort(&self.program, handler, abort, None)
                    }
                    Err(abort) => {
                        let before = tail.unnamed.replace((*tid, abort.clone()));
                        let (_, before) = before?;
                        counts.abort(&self.program, None, &before, None)
                    }
                }
            }
        }
    }

    /// Counts the abort of a request by its handler, which only the sender knows. Returns a fault
    /// in words, with the user's line.
    pub fn name(&self, tid: Tid, handler: &str) -> Option<(String, Option<String>)> {
        let mut state = self.state.lock();
        let State { counts, tails, .. } = &mut *state;
        let of = |tail: &mut Tail| tail.unnamed.take_if(|(of, _)| *of == tid);
        let (_, abort) = tails.values_mut().find_map(of)?;
        let handler = self.program.handlers.iter().position(|of| *of.name == *handler);
        counts.abort(&self.program, handler, &abort, None)
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

    /// Takes requests of the engine's own clock out of the counts.
    pub fn engines(&self, requests: u64) {
        let counts = &mut self.state.lock().counts;
        counts.events = counts.events.saturating_sub(requests);
        counts.ended = counts.ended.saturating_sub(requests);
    }

    /// Adds the counts to a status.
    pub fn report(&self, status: &mut serde_json::Value) {
        self.store(false);
        let mut state = self.state.lock();
        state.name_rest(&self.program);
        let Counts { events, ended, refused, faults, dead, late, reasons, fault } = &state.counts;
        let committed = ended.saturating_sub(dead + late);
        let said = match self.is_read {
            true => json!({
                "events": events, "committed": committed, "refused": refused, "faults": faults,
                "dead": dead, "reasons": reasons.report(), "fault": fault,
            }),
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
        self.state.lock().counts.faults
    }

    /// Writes the counts, unless that was a moment ago and this is not the `last` time.
    pub fn store(&self, last: bool) {
        let now_ns = self.env.clock.monotonic_ns();
        let text = {
            let mut state = self.state.lock();
            state.name_rest(&self.program);
            let is_due = now_ns.saturating_sub(state.stored_ns) >= STORE_NS;
            if !state.is_changed || !(last || is_due) {
                return;
            }
            (state.is_changed, state.stored_ns) = (false, now_ns);
            serde_json::to_string(&state.counts).unwrap_or_default()
        };
        if let Err(error) = replace(&*self.env.disk, &self.dir, FILE, &text) {
            let what = error.to_string();
            tracing::warn!(target: "tidemill::cluster", what, "counts could not be stored");
        }
    }
}

impl State {
    /// Counts the aborts of requests whose sender has not named their handlers: others sent them.
    fn name_rest(&mut self, program: &Program) {
        for tail in self.tails.values_mut() {
            if let Some((_, abort)) = tail.unnamed.take() {
                self.counts.abort(program, None, &abort, None);
            }
        }
    }
}

impl Counts {
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
