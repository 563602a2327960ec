//! The outboxes of one process.
//!
//! A thread watches the epochs that leave the engine, and tells the outboxes their changes. It holds
//! the engine only while it looks, so a dropped engine ends.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tidemill_connect::push::TrySend;
use tidemill_core::{Batch, Error, Key, Result, Value};

use super::outbox::{Answers, Outbox, Passed, WAIT};
use crate::followed::Changes;
use crate::spec::ExternalDecl;
use crate::view::View;

/// An outbox that is a table of this process.
struct Own {
    table: usize,
    outbox: Arc<Outbox>,
    /// The epoch up to which the outbox's changes are known, after the first read.
    epoch: Option<u64>,
}

/// Starts the work of an app's outboxes, if it has any. The threads end by themselves.
///
/// # Errors
/// When a table or stream is missing or has wrong columns, or a thread can't be started.
pub(crate) fn start(view: &Arc<View>, decls: Vec<ExternalDecl>) -> Result<()> {
    let mut own = Vec::new();
    for decl in decls {
        let table = view.table_index(&decl.outbox).map_err(|e| e.at(decl.at.clone()))?;
        let answers = view.pushed(&decl.answers).map_err(|e| e.at(decl.at.clone()))?;
        let columns = answers.handle.schema().clone();
        let outbox = Outbox::new(&decl, &view.program.tables[table], columns)?;
        let answers = Pushed { view: Arc::downgrade(view), stream: decl.answers };
        let answers: Arc<dyn Answers> = Arc::new(answers);
        own.push((Own { table, outbox, epoch: None }, answers));
    }
    if own.is_empty() {
        return Ok(());
    }
    for (own, answers) in &own {
        own.outbox.start(&view.env, answers)?;
    }
    let (weak, own) = (Arc::downgrade(view), own.into_iter().map(|(own, _)| own).collect());
    let watcher = view.env.threads.spawn("tidemill-outboxes", Box::new(move || watch(&weak, own)));
    watcher.map(drop).map_err(|e| Error::io("starting a thread for external work", &e))
}

/// Tells the outboxes their changes until the run is over.
fn watch(view: &Weak<View>, mut all: Vec<Own>) {
    while let Some(here) = view.upgrade().filter(|view| !is_over(view)) {
        let seen = here.shared.delivered_epoch();
        all.iter_mut().for_each(|own| own.look(&here));
        end_with_others(&here, &all);
        wait(&here, seen);
    }
    all.iter().for_each(|own| own.outbox.end());
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

impl Own {
    /// Finds new rows, and rows that are gone.
    fn look(&mut self, view: &View) {
        let spec = &view.program.tables[self.table];
        if self.epoch.is_none() {
            if view.shared.out.lock().is_recovering {
                return;
            }
            view.shared.followed.lock().follow(self.table, view.shared.delivered_epoch());
        }
        let since = self.epoch.unwrap_or(u64::MAX);
        let changes = view.shared.followed.lock().since(self.table, since);
        let stored = |row: &[Value]| -> Arc<[Value]> { row.into() };
        let epoch = match changes {
            Changes::Are(epochs, last) => {
                if last == since {
                    return;
                }
                // The last change of a row counts.
                let mut rows = BTreeMap::new();
                for change in epochs.iter().flat_map(|(_, changes)| changes.iter()) {
                    rows.insert(Key::of(&change.key), change.row.as_deref().map(stored));
                }
                self.outbox.changed(false, rows.into_iter());
                last
            }
            Changes::Unknown(last) => {
                let state = view.shared.state.lock();
                let at = state.as_of(view.shared.delivered_epoch());
                // If a later epoch has left meanwhile, its changes are found once more.
                let Ok(table) = state.tables[self.table].as_of(at.seq) else { return };
                let rows = table.rows();
                drop(state);
                let key = |row: &[Value]| Key::of(std::slice::from_ref(&row[spec.key[0]]));
                let rows = rows.iter().map(|row| (key(row), Some(stored(row))));
                self.outbox.changed(true, rows);
                last
            }
        };
        self.epoch = Some(epoch);
    }
}

/// The stream of answers of this process.
struct Pushed {
    view: Weak<View>,
    stream: String,
}

impl Answers for Pushed {
    fn pass(&self, answer: &[Value]) -> Passed {
        let Some(view) = self.view.upgrade() else { return Passed::NotYet };
        let Ok(pushed) = view.pushed(&self.stream) else { return Passed::Recorded };
        let batch = Batch::from_rows(pushed.handle.schema().clone(), [answer]);
        match pushed.handle.try_send(batch) {
            Ok(TrySend::Sent(sent)) => {
                pushed.sent.fetch_max(pushed.known + sent, Ordering::AcqRel);
                view.gate.wake_source(pushed.source);
                Passed::Recorded
            }
            Ok(TrySend::Full(_)) => Passed::NotYet,
            // The stream has ended, so nobody waits for the answer in this run.
            Err(_) => Passed::Recorded,
        }
    }
}

/// Ends the streams of answers after all other sources have ended and no question is open.
fn end_with_others(view: &View, outboxes: &[Own]) {
    let (epoch, left) =
        (view.shared.asked_all.load(Ordering::Acquire), view.shared.delivered_epoch());
    if epoch == 0 || left < epoch {
        return;
    }
    let state = view.shared.state.lock();
    let rows = &state.as_of(left).rows;
    if outboxes.iter().all(|own| rows[own.table] == 0) {
        view.answers.iter().for_each(|stream| view.pushed[stream].handle.close());
        view.gate.wake();
    }
}
