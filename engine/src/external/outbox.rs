//! An outbox, and the threads that do its rows' work.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_core::{Error, Key, Result, Schema, TableSpec, Value};
use tidemill_env::Env;
use tracing::warn;

use super::{ask, who, Outside};
use crate::spec::ExternalDecl;

/// The waits before a failed function is called again: a second in all.
const AGAIN: usize = 50;
/// The longest wait. The end waits no longer.
pub(super) const WAIT: Duration = Duration::from_millis(20);

/// The result of an attempt to pass an answer on.
pub(super) enum Passed {
    /// It is recorded.
    Recorded,
    /// There is no room for it now, or it is unknown whether it is recorded.
    NotYet,
    /// It can't be an event of the stream.
    Refused,
}

/// Passes answers on, to the stream of answers.
pub(super) trait Answers: Send + Sync {
    /// Passes an answer on. After [`Passed::NotYet`] it is called again, a moment later.
    fn pass(&self, answer: &[Value]) -> Passed;
}

/// An outbox with its work; its threads share it.
pub(super) struct Outbox {
    /// The stream of answers, and its columns.
    name: String,
    columns: Arc<Schema>,
    /// The column of the outbox that is its key.
    key: usize,
    outside: Arc<dyn Outside>,
    at_once: usize,
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

impl Outbox {
    /// Creates an outbox without rows. `columns` are those of the stream of answers.
    ///
    /// # Errors
    /// When there is no implementation, or the answers have wrong columns.
    pub fn new(decl: &ExternalDecl, spec: &TableSpec, columns: Arc<Schema>) -> Result<Arc<Outbox>> {
        let outside = who(decl, spec, &columns)?;
        Ok(Arc::new(Outbox {
            name: decl.answers.clone(),
            columns,
            key: spec.key[0],
            outside,
            at_once: decl.at_once.max(1),
            work: Mutex::default(),
            needed: Condvar::new(),
            is_over: AtomicBool::new(false),
        }))
    }

    /// The columns of the stream of answers.
    pub fn columns(&self) -> &Arc<Schema> {
        &self.columns
    }

    /// Starts the threads. They end by themselves after [`Outbox::end`], and nobody waits for a call
    /// outside.
    ///
    /// # Errors
    /// When a thread can't be started.
    pub fn start(self: &Arc<Outbox>, env: &Env, answers: &Arc<dyn Answers>) -> Result<()> {
        for nth in 0..self.at_once {
            let (own, env_too, answers) = (self.clone(), env.clone(), answers.clone());
            let body = Box::new(move || own.run(&env_too, &*answers));
            let thread = env.threads.spawn(&format!("tidemill-outside-{nth}"), body);
            if let Err(error) = thread {
                self.end();
                return Err(Error::io("starting a thread for external work", &error));
            }
        }
        Ok(())
    }

    /// Starts no more work. Does not wait for work in progress.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        // The lock makes sure that a thread sees `is_over` before it waits, or is notified.
        drop(self.work.lock());
        self.needed.notify_all();
    }

    /// Takes rows that exist, or have been removed, and that this is durable. `all` means that there
    /// are no others.
    pub fn changed(&self, all: bool, rows: impl Iterator<Item = (Key, Option<Arc<[Value]>>)>) {
        let work = &mut *self.work.lock();
        if all {
            work.rows.clear();
            work.waiting.clear();
        }
        for (key, row) in rows {
            match row {
                Some(row) => {
                    let is_new = work.rows.insert(key.clone(), row).is_none();
                    if is_new && !work.begun.contains_key(&key) {
                        work.waiting.push_back(key);
                    }
                }
                None => {
                    work.rows.remove(&key);
                    if work.begun.get(&key) == Some(&false) {
                        work.begun.remove(&key);
                    }
                }
            }
        }
        // Between two generations of several processes there are no rows. Work in progress is not
        // started again for that.
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

    fn run(self: &Arc<Outbox>, env: &Env, answers: &dyn Answers) {
        while let Some((key, row)) = self.next() {
            let outbox = Arc::downgrade(self);
            let gives_up = Arc::new(move || outbox.upgrade().is_none_or(|outbox| outbox.is_over()));
            let said = ask(&*self.outside, &row, &row[self.key], &self.columns, gives_up);
            let is_answer = said.is_some_and(|answer| self.pass(env, answers, &answer));
            if !is_answer {
                // The work starts again after a while, behind the other rows.
                let answers = &*self.name;
                warn!(target: "tidemill::function", answers, "external work failed");
                (0..AGAIN).take_while(|_| !self.is_over()).for_each(|_| wait(env));
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

    /// Passes an answer on. Returns whether it is one.
    fn pass(&self, env: &Env, answers: &dyn Answers, answer: &[Value]) -> bool {
        // An answer counts only after it is recorded. A second record of it has no effect.
        while !self.is_over() {
            match answers.pass(answer) {
                Passed::Recorded => return true,
                Passed::NotYet => wait(env),
                Passed::Refused => return false,
            }
        }
        true
    }
}

fn wait(env: &Env) {
    env.clock.sleep_us(WAIT.as_micros() as u64);
}
