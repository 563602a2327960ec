//! Work outside. Transactions write requests for it into a table, an *outbox*. The work is done
//! after the request is durable, and its answer is pushed into a stream.
//!
//! The outbox is the whole memory of the work. A row stays until the transaction of its answer
//! removes it. So nothing is lost in a crash. Work may be done again, with the row's key, by which
//! the outside can recognize it. A second answer finds no row.

use std::collections::{HashSet, VecDeque};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_connect::push::TrySend;
use tidemill_core::{rules, Batch, Error, Result, Row, Schema, TableSpec, Value};
use tracing::warn;

use crate::followed::Changes;
use crate::spec::ExternalDecl;
use crate::view::View;

/// An implementation of work outside.
pub trait Outside: Send + Sync {
    /// Does the work of an outbox's row. Returns the columns of the stream of answers after the
    /// row's key. A long call should end when `gives_up` says so; its result is not used then.
    /// After a panic or a wrong answer it is called again, a second later.
    fn call(&self, asked: &[Value], gives_up: GivesUp) -> Vec<Value>;
}

/// Whether the answer is no longer awaited.
pub type GivesUp = Arc<dyn Fn() -> bool + Send + Sync>;

/// The waits before a failed function is called again: a second in all.
pub(crate) const AGAIN: usize = 50;

/// The longest wait. The end of the engine waits no longer.
pub(crate) const WAIT: Duration = Duration::from_millis(20);

/// Returns the implementation for an outbox, and checks the columns of its answers.
///
/// # Errors
/// When there is no implementation, or the answers have wrong columns.
pub(crate) fn who(
    decl: &ExternalDecl,
    outbox: &TableSpec,
    answers: &Schema,
) -> Result<Arc<dyn Outside>> {
    let refuse = |what: String| Error::program(what).at(decl.at.clone());
    let Some(outside) = &decl.outside else {
        return Err(refuse(format!("no function does the work of outbox {}", decl.outbox)));
    };
    if outbox.key.len() != 1 || answers.columns[0].ty != outbox.schema.columns[outbox.key[0]].ty {
        let what = format!("the answers of outbox {} do not begin with its key", decl.outbox);
        return Err(refuse(what));
    }
    Ok(outside.clone())
}

/// Calls the implementation for a row of an outbox with this key. Returns a row of the stream of
/// answers, or `None` when the answer is wrong or the function has panicked.
pub(crate) fn ask(
    outside: &dyn Outside,
    asked: &[Value],
    key: &Value,
    answers: &Schema,
    gives_up: GivesUp,
) -> Option<Vec<Value>> {
    let said = catch_unwind(AssertUnwindSafe(|| outside.call(asked, gives_up))).ok()?;
    let row = std::iter::once(key.clone()).chain(said).zip(&answers.columns);
    // A value that fits no column is not an answer.
    let row: Vec<Value> =
        row.map(|(value, column)| rules::store(&value, column).ok()).collect::<Option<_>>()?;
    (row.len() == answers.len()).then_some(row)
}

/// An outbox with its work; its workers share it.
struct OutboxWork {
    table: usize,
    /// The column of the outbox that is its key.
    key: usize,
    /// The stream of answers, and its columns.
    answers: String,
    columns: Arc<Schema>,
    outside: Arc<dyn Outside>,
    work: Mutex<Work>,
    /// Notified when an idle worker may be needed: for a row, or to watch.
    needed: Condvar,
}

#[derive(Default)]
struct Work {
    /// The epoch up to which the outbox's changes are known, after the first read.
    epoch: Option<u64>,
    /// The rows whose work has not begun, and the known rows of the outbox.
    waiting: VecDeque<Value>,
    known: HashSet<Value>,
    /// Whether an idle worker watches for epochs. The others sleep.
    is_watched: bool,
}

/// Starts the workers of an app, if it has any. They end by themselves, and no thread waits for a
/// call outside.
///
/// # Errors
/// When a table or stream is missing or has wrong columns, or a thread can't be started.
pub(crate) fn start(view: &Arc<View>, decls: Vec<ExternalDecl>) -> Result<()> {
    let mut outboxes = Vec::new();
    for decl in decls {
        let table = view.table_index(&decl.outbox).map_err(|e| e.at(decl.at.clone()))?;
        let answers = decl.answers.clone();
        let schema = view.pushed(&answers).map_err(|e| e.at(decl.at.clone()))?.handle.schema();
        let outside = who(&decl, &view.program.tables[table], schema)?;
        let outbox = Arc::new(OutboxWork {
            table,
            key: view.program.tables[table].key[0],
            answers,
            columns: schema.clone(),
            outside,
            work: Mutex::default(),
            needed: Condvar::new(),
        });
        outboxes.push((outbox, decl.at_once.max(1)));
    }
    let all: Arc<Vec<usize>> = Arc::new(outboxes.iter().map(|(outbox, _)| outbox.table).collect());
    for (outbox, at_once) in outboxes {
        for worker in 0..at_once {
            let (weak, outbox, all) = (Arc::downgrade(view), outbox.clone(), all.clone());
            let name = format!("tidemill-outside-{worker}");
            let body = move || {
                run(&weak, &outbox, &all);
                // Sleeping workers then see that the run is over.
                outbox.needed.notify_all();
            };
            let thread = view.env.threads.spawn(&name, Box::new(body));
            thread.map_err(|e| Error::io("starting a thread for external work", &e))?;
        }
    }
    Ok(())
}

/// Whether the run has ended or is about to.
fn is_over(view: &View) -> bool {
    let shared = &view.shared;
    shared.stop_wanted() || shared.has_failed() || shared.is_over()
}

/// Waits a limited time until a later epoch than this one has left the engine.
fn wait(view: &View, seen: u64) {
    let mut out = view.shared.out.lock();
    if out.epoch == seen {
        view.shared.delivered.wait_for(&mut out, WAIT);
    }
}

/// Waits for the full time, whatever leaves the engine.
fn wait_out(view: &View) {
    view.env.clock.sleep_us(WAIT.as_micros() as u64);
}

fn run(view: &Weak<View>, outbox: &OutboxWork, all: &[usize]) {
    loop {
        let Some(here) = view.upgrade() else { return };
        if is_over(&here) {
            return;
        }
        let seen = here.shared.delivered_epoch();
        let Some(asked) = outbox.next(&here) else {
            end_with_others(&here, all);
            outbox.idle(here, seen);
            continue;
        };
        // The call outside may take long, so no lock or handle is held meanwhile.
        drop(here);
        let weak = view.clone();
        let gives_up = Arc::new(move || weak.upgrade().is_none_or(|view| is_over(&view)));
        let said = ask(&*outbox.outside, &asked, &asked[outbox.key], &outbox.columns, gives_up);
        let Some(here) = view.upgrade() else { return };
        match said {
            Some(row) => outbox.answer(&here, &row),
            None => {
                // The row is tried again after a while, behind the others.
                let answers = &*outbox.answers;
                warn!(target: "tidemill::function", answers, "external work failed");
                (0..AGAIN).take_while(|_| !is_over(&here)).for_each(|_| wait_out(&here));
                outbox.work.lock().waiting.push_back(asked[outbox.key].clone());
            }
        }
    }
}

impl OutboxWork {
    /// Returns a row whose work has not begun, if there is one.
    fn next(&self, view: &View) -> Option<Row> {
        let mut work = self.work.lock();
        if work.waiting.is_empty() {
            self.look(view, &mut work);
        }
        while let Some(key) = work.waiting.pop_front() {
            let state = view.shared.state.lock();
            let seq = state.as_of(view.shared.delivered_epoch()).seq;
            let table = state.tables[self.table].as_of(seq);
            let row = table.ok().and_then(|table| table.get(std::slice::from_ref(&key)));
            drop(state);
            match row {
                Some(row) => {
                    if !work.is_watched || !work.waiting.is_empty() {
                        self.needed.notify_one();
                    }
                    return Some(row);
                }
                None => work.known.remove(&key),
            };
        }
        None
    }

    /// Waits for work, when there was none as of an epoch. One worker of the outbox watches the
    /// epochs, and the others sleep until they are needed.
    fn idle(&self, view: Arc<View>, seen: u64) {
        let mut work = self.work.lock();
        if !work.waiting.is_empty() {
            return;
        }
        if work.is_watched {
            // A worker that sleeps for long holds nothing.
            drop(view);
            self.needed.wait(&mut work);
            return;
        }
        work.is_watched = true;
        drop(work);
        wait(&view, seen);
        self.work.lock().is_watched = false;
    }

    /// Finds new rows, and rows that are gone.
    fn look(&self, view: &View, work: &mut Work) {
        let spec = &view.program.tables[self.table];
        if work.epoch.is_none() {
            if view.shared.out.lock().is_recovering {
                return;
            }
            view.shared.followed.lock().follow(self.table, view.shared.delivered_epoch());
        }
        let since = work.epoch.unwrap_or(u64::MAX);
        let changes = view.shared.followed.lock().since(self.table, since);
        let epoch = match changes {
            Changes::Are(epochs, last) => {
                for change in epochs.iter().flat_map(|(_, changes)| changes.iter()) {
                    let key = &change.key[0];
                    match change.row {
                        Some(_) => work.comes(key),
                        None => drop(work.known.remove(key)),
                    }
                }
                last
            }
            Changes::Unknown(last) => {
                let state = view.shared.state.lock();
                let at = state.as_of(view.shared.delivered_epoch());
                // If a later epoch has left meanwhile, its changes are found once more.
                let Ok(table) = state.tables[self.table].as_of(at.seq) else { return };
                let rows = table.rows();
                drop(state);
                let there: HashSet<&Value> = rows.iter().map(|row| &row[spec.key[0]]).collect();
                work.known.retain(|key| there.contains(key));
                rows.iter().for_each(|row| work.comes(&row[spec.key[0]]));
                last
            }
        };
        work.epoch = Some(epoch);
    }

    /// Pushes an answer.
    fn answer(&self, view: &View, row: &[Value]) {
        let Ok(pushed) = view.pushed(&self.answers) else { return };
        let mut batch = Batch::from_rows(pushed.handle.schema().clone(), [row]);
        loop {
            if is_over(view) {
                return;
            }
            match pushed.handle.try_send(batch) {
                Ok(TrySend::Sent(sent)) => {
                    pushed.sent.fetch_max(pushed.known + sent, Ordering::AcqRel);
                    view.gate.wake_source(pushed.source);
                    return;
                }
                Ok(TrySend::Full(back)) => batch = back,
                Err(_) => return,
            }
            wait(view, view.shared.delivered_epoch());
        }
    }
}

impl Work {
    fn comes(&mut self, key: &Value) {
        if self.known.insert(key.clone()) {
            self.waiting.push_back(key.clone());
        }
    }
}

/// Ends the streams of answers after all other sources have ended and no question is open.
fn end_with_others(view: &View, outboxes: &[usize]) {
    let (epoch, left) =
        (view.shared.asked_all.load(Ordering::Acquire), view.shared.delivered_epoch());
    if epoch == 0 || left < epoch {
        return;
    }
    let state = view.shared.state.lock();
    let rows = &state.as_of(left).rows;
    if outboxes.iter().all(|table| rows[*table] == 0) {
        view.answers.iter().for_each(|stream| view.pushed[stream].handle.close());
        view.gate.wake();
    }
}
