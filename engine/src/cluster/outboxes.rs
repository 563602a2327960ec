//! Work outside on several processes. The owner of an outbox's row does its work, and the answer is
//! a request.
//!
//! The outbox is the whole memory of the work, as in one process. The transaction of an answer
//! removes the row, and a second answer finds none. So after any crash a worker has the row and
//! does the work again, with the same key, by which the outside can recognize it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::{Events, Log, Record, Topic};
use tidemill_core::{Batch, Error, Key, Result, Schema, StreamId, TableId, Value};
use tidemill_env::Env;
use tidemill_function::{Functions as _, Stored};
use tidemill_host::Outboxes;

use super::coordinate::partition_of;
use crate::external::{ask, who, Outside, AGAIN, WAIT};
use crate::functions::AppFunctions;
use crate::spec::AppSpec;

/// The work outside of an app on a worker.
pub(super) struct OutboxWorkers {
    env: Env,
    workers: Vec<Arc<OutboxWorker>>,
}

/// An outbox with its work; its threads share it.
struct OutboxWorker {
    functions: Arc<AppFunctions>,
    table: TableId,
    /// The stream of answers. Its events begin with the row's key.
    answers: StreamId,
    columns: Arc<Schema>,
    /// The column of the outbox that is its key.
    key: usize,
    outside: Arc<dyn Outside>,
    at_once: usize,
    /// The number of the log's sources for requests of clients.
    sources: u32,
    work: Mutex<Work>,
    /// Notified when there is work, and when there will be none any more.
    needed: Condvar,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Work {
    /// The present rows.
    rows: BTreeMap<Key, Arc<[Value]>>,
    /// The rows whose work has not begun.
    waiting: VecDeque<Key>,
    /// The rows whose work has begun, until they are gone. The value says whether a thread still
    /// does the work.
    begun: BTreeMap<Key, bool>,
}

impl OutboxWorkers {
    /// Prepares the work outside of an app, if it has any.
    ///
    /// # Errors
    /// When a table or stream is missing or has wrong columns.
    pub fn of(
        spec: &AppSpec,
        functions: &Arc<AppFunctions>,
        sources: u32,
        env: &Env,
    ) -> Result<Option<Arc<dyn Outboxes>>> {
        let mut workers = Vec::new();
        for decl in &spec.externals {
            let refuse = |what: String| Error::program(what).at(decl.at.clone());
            let program = functions.program();
            let table = program.tables.iter().position(|spec| *spec.name == *decl.outbox);
            let table =
                table.ok_or_else(|| refuse(format!("there is no table {}", decl.outbox)))?;
            let answers = functions.taken(&decl.answers).map_err(|e| e.at(decl.at.clone()))?;
            let columns = functions.columns(&decl.answers)?;
            let spec = &program.tables[table];
            let outside = who(decl, spec, &columns)?;
            workers.push(Arc::new(OutboxWorker {
                functions: functions.clone(),
                table: TableId(table as u16),
                answers,
                columns,
                key: spec.key[0],
                outside,
                at_once: decl.at_once.max(1),
                sources,
                work: Mutex::default(),
                needed: Condvar::new(),
                is_over: AtomicBool::new(false),
            }));
        }
        let workers =
            (!workers.is_empty()).then(|| Arc::new(OutboxWorkers { env: env.clone(), workers }));
        Ok(workers.map(|workers| workers as Arc<dyn Outboxes>))
    }
}

impl Outboxes for OutboxWorkers {
    fn begin(&self, log: Arc<dyn Log>) -> Result<()> {
        for worker in &self.workers {
            for _ in 0..worker.at_once {
                let (own, log, env) = (worker.clone(), log.clone(), self.env.clone());
                let thread =
                    self.env.threads.spawn("outside-work", Box::new(move || own.run(&env, &*log)));
                if let Err(error) = thread {
                    self.end();
                    return Err(Error::io("starting a thread for external work", &error));
                }
            }
        }
        Ok(())
    }

    fn changed(&self, all: bool, rows: Vec<(TableId, Key, Stored)>) {
        for worker in &self.workers {
            let own = rows.iter().filter(|(table, ..)| *table == worker.table);
            worker.changed(all, own.map(|(_, key, row)| (key, row)));
        }
    }

    fn end(&self) {
        for worker in &self.workers {
            worker.is_over.store(true, Ordering::Release);
            // The lock makes sure that a thread sees `is_over` before it waits, or is notified.
            drop(worker.work.lock());
            worker.needed.notify_all();
        }
    }
}

impl OutboxWorker {
    fn changed<'a>(&self, all: bool, rows: impl Iterator<Item = (&'a Key, &'a Stored)>) {
        let work = &mut *self.work.lock();
        if all {
            work.rows.clear();
            work.waiting.clear();
        }
        for (key, row) in rows {
            match row {
                Some(row) => {
                    let is_new = work.rows.insert(key.clone(), row.clone()).is_none();
                    if is_new && !work.begun.contains_key(key) {
                        work.waiting.push_back(key.clone());
                    }
                }
                None => drop(work.rows.remove(key)),
            }
        }
        // Between two generations there are no rows. Work in progress is not started again for
        // that.
        let Work { rows, begun, .. } = work;
        if !rows.is_empty() {
            begun.retain(|key, is_at_it| *is_at_it || rows.contains_key(key));
        }
        self.needed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Returns the next row whose work has not begun; `None` when there will be none any more.
    fn next(&self) -> Option<(Key, Arc<[Value]>)> {
        let mut work = self.work.lock();
        while !self.is_over() {
            let Some(key) = work.waiting.pop_front() else {
                self.needed.wait(&mut work);
                continue;
            };
            if let Some(row) = work.rows.get(&key).cloned() {
                work.begun.insert(key.clone(), true);
                return Some((key, row));
            }
        }
        None
    }

    fn run(self: &Arc<OutboxWorker>, env: &Env, log: &dyn Log) {
        while let Some((key, row)) = self.next() {
            let worker = Arc::downgrade(self);
            let gives_up = Arc::new(move || worker.upgrade().is_none_or(|worker| worker.is_over()));
            let key_value = &row[self.key];
            let said = ask(&*self.outside, &row, key_value, &self.columns, gives_up);
            let answer = said.and_then(|said| self.answer(&said));
            let is_answer = answer.is_some();
            if let Some((source, answer)) = answer {
                // An answer counts only after it is recorded. A second record of it has no effect.
                while !self.is_over() && !self.append(log, source, &answer) {
                    self.wait(env);
                }
            } else {
                // The work starts again after a while, behind the other rows.
                self.wait(env);
            }
            let work = &mut *self.work.lock();
            if is_answer {
                work.begun.insert(key, false);
            } else {
                work.begun.remove(&key);
                work.waiting.push_back(key);
            }
        }
    }

    fn wait(&self, env: &Env) {
        (0..AGAIN)
            .take_while(|_| !self.is_over())
            .for_each(|_| env.clock.sleep_us(WAIT.as_micros() as u64));
    }

    /// Returns an answer as an event, and its source.
    fn answer(&self, answer: &[Value]) -> Option<(u32, Events)> {
        let calls = self.functions.event(self.answers, answer).ok()?;
        let partition = partition_of(self.functions.program(), calls.first()?).ok()?;
        let source = tidemill_host::source_of(partition, self.sources);
        let batch = Batch::from_rows(self.columns.clone(), [answer]);
        Some((source, Events { stream: self.answers, from: None, is_run: false, batch }))
    }

    /// Appends an event. Returns whether it is known to be recorded.
    fn append(&self, log: &dyn Log, source: u32, event: &Events) -> bool {
        let (tell, told) = channel();
        let record = Record::Events(event.clone());
        let then = move |result: std::result::Result<u64, _>| {
            // The receiver still exists.
            let _ = tell.send(result.is_ok());
        };
        log.append(Topic::Input(source), 0, record, Box::new(then));
        told.recv().unwrap_or(false)
    }
}
