//! Suspended functions that keep their place.
//!
//! A function that uses a row of another node, or asks for the result of a call, is started again
//! from its beginning when the row or result is there. For a function that does so many times, the
//! cost would grow with the square of that number. So from then on it runs on a thread of its own,
//! which waits in place. Only one of the two threads runs at a time, the function's or the node's.
//! Every use of the context happens on the node's thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};

use pyo3::Python;
use tidemill_core::{StreamId, TableId, Value};
use tidemill_env::{Env, Handle as Thread};
use tidemill_function::{Activation, Call, Context, Handle, Step, Stop};
use tidemill_txn::program::{Asker, Take};

use crate::attached::attached;
use crate::deadline;

/// The largest number of functions with threads at a time. Others are started again.
const THREADS_MAX: usize = 32;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// A use of the context. Returns whether it had a result.
type Use = Box<dyn FnMut(&mut dyn Context) -> bool + Send>;

/// A message from a function's thread to the node's.
enum Request {
    Uses(Use),
    Stops(Result<Step, Stop>),
}

/// A message from the node's thread to the function's.
enum Reply {
    /// Continue.
    On,
    /// The row or result is not there yet.
    Waits,
}

/// A permit for one of the threads.
struct Slot;

impl Slot {
    fn take() -> Option<Slot> {
        let more = |threads: usize| (threads < THREADS_MAX).then_some(threads + 1);
        THREADS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Moves a function to a thread of its own if one is left; otherwise returns it unchanged.
pub fn suspended(activation: Box<dyn Activation>) -> Box<dyn Activation> {
    let Some(slot) = Slot::take() else { return activation };
    let ((says, said), (tells, replies)) = (channel(), channel());
    let mut context = RemoteContext { says, replies: Mutex::new(replies), value: None };
    let function = Arc::new(Mutex::new(Some(activation)));
    let theirs = function.clone();
    let run = move || {
        let taken = theirs.lock().ok().and_then(|mut function| function.take());
        let Some(mut activation) = taken else { return };
        while let Some(Reply::On) = context.receive() {
            let step = activation.resume(&mut context);
            if context.says.send(Request::Stops(step)).is_err() {
                return;
            }
        }
    };
    match Env::real().threads.spawn("tidemill-function", Box::new(run)) {
        Ok(thread) => {
            let (said, thread, used) = (Mutex::new(said), Some(thread), None);
            Box::new(Suspended { tells: Some(tells), said, used, thread, _slot: slot })
        }
        // The system has no thread, so the function is started again like any other.
        Err(_) => {
            let left = function.lock().ok().and_then(|mut function| function.take());
            left.expect("nobody else has taken it")
        }
    }
}

/// A function on a thread of its own, as its node sees it.
struct Suspended {
    /// The channel to the function's thread; none when it ends.
    tells: Option<Sender<Reply>>,
    said: Mutex<Receiver<Request>>,
    /// The use for which the function waits.
    used: Option<Use>,
    thread: Option<Thread>,
    _slot: Slot,
}

impl Suspended {
    fn reply(&self, reply: Reply) {
        // If the thread has ended, it sends nothing more, either.
        let _ = self.tells.as_ref().map(|tells| tells.send(reply));
    }
}

impl Activation for Suspended {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        // This holds the interpreter lock and releases it while it waits, so the waiting need not
        // take it first.
        attached(|_| self.resume_there(context))
    }
}

impl Suspended {
    fn resume_there(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        if let Some(used) = &mut self.used {
            if !used(context) {
                return Ok(Step::Stay);
            }
            self.used = None;
        }
        self.reply(Reply::On);
        loop {
            match received(&self.said) {
                Some(Request::Uses(mut used)) => match used(context) {
                    true => self.reply(Reply::On),
                    false => {
                        self.reply(Reply::Waits);
                        self.used = Some(used);
                        return Ok(Step::Stay);
                    }
                },
                Some(Request::Stops(step)) => return step,
                None => {
                    let thread = self.thread.take().expect("it has not been joined");
                    panic!("{}", thread.join().expect_err("it ends when it has to"));
                }
            }
        }
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        // The function's thread learns that it is to end.
        self.tells = None;
        if let Some(thread) = self.thread.take() {
            // If it has panicked, the panic was already printed. If the interpreter has ended, the
            // thread never ends.
            let _ = Python::try_attach(|py| py.detach(|| thread.join()));
        }
    }
}

/// Waits without the interpreter lock, so that other threads can use it.
fn unattended<T: Send>(wait: impl FnOnce() -> T + Send) -> T {
    let mut wait = Some(wait);
    let waited = Python::try_attach(|py| wait.take().map(|wait| py.detach(wait)));
    // If the interpreter has ended, no other thread waits for its lock.
    waited.flatten().or_else(|| wait.map(|wait| wait())).expect("one of both has waited")
}

/// Receives the next message; none if there will be none.
fn received<T: Send>(from: &Mutex<Receiver<T>>) -> Option<T> {
    unattended(|| from.lock().ok()?.recv().ok())
}

/// The context on the function's thread.
struct RemoteContext {
    says: Sender<Request>,
    replies: Mutex<Receiver<Reply>>,
    /// The value that was lent last.
    value: Option<Value>,
}

impl RemoteContext {
    fn receive(&self) -> Option<Reply> {
        received(&self.replies)
    }

    /// Sends a use of the context to the node's thread, and waits for its result.
    fn uses<T: Send + 'static>(
        &self,
        mut work: impl FnMut(&mut dyn Context) -> Result<T, Stop> + Send + 'static,
    ) -> Result<T, Stop> {
        let done = Arc::new(Mutex::new(None));
        let into = done.clone();
        let used = move |context: &mut dyn Context| match work(context) {
            Err(Stop::Unwind) => false,
            result => {
                *into.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
                true
            }
        };
        let ended = || Err(Stop::Unwind);
        if self.says.send(Request::Uses(Box::new(used))).is_err() {
            return ended();
        }
        let reply = match self.receive() {
            // This wait does not count as the function's time.
            Some(Reply::Waits) => deadline::waiting(|| self.receive()),
            reply => reply,
        };
        match reply {
            Some(Reply::On) => {
                let done = done.lock().unwrap_or_else(|e| e.into_inner()).take();
                done.unwrap_or_else(ended)
            }
            _ => ended(),
        }
    }

    /// Sends a use that has a result at any time.
    fn request<T: Send + 'static>(
        &self,
        otherwise: T,
        mut work: impl FnMut(&mut dyn Context) -> T + Send + 'static,
    ) -> T {
        // If the function is to end, its result is not used.
        self.uses(move |context| Ok(work(context))).unwrap_or(otherwise)
    }
}

impl Context for RemoteContext {
    fn get(&mut self, table: TableId, key: &[Value]) -> Result<Option<Arc<[Value]>>, Stop> {
        let key = key.to_vec();
        self.uses(move |context| context.get(table, &key))
    }

    fn put(&mut self, table: TableId, row: &[Value]) -> Result<(), Stop> {
        let row = row.to_vec();
        self.uses(move |context| context.put(table, &row))
    }

    fn delete(&mut self, table: TableId, key: &[Value]) -> Result<(), Stop> {
        let key = key.to_vec();
        self.uses(move |context| context.delete(table, &key))
    }

    fn write(&mut self, table: TableId, key: &[Value], row: Option<&[Value]>) -> Result<(), Stop> {
        let (key, row) = (key.to_vec(), row.map(<[Value]>::to_vec));
        self.uses(move |context| context.write(table, &key, row.as_deref()))
    }

    fn find(
        &mut self,
        table: TableId,
        leading: &[Value],
        take: Take,
    ) -> Result<Vec<Arc<[Value]>>, Stop> {
        let leading = leading.to_vec();
        self.uses(move |context| context.find(table, &leading, take))
    }

    fn range(
        &mut self,
        table: TableId,
        from: &[Value],
        to: &[Value],
        take: Take,
    ) -> Result<Vec<Arc<[Value]>>, Stop> {
        let (from, to) = (from.to_vec(), to.to_vec());
        self.uses(move |context| context.range(table, &from, &to, take))
    }

    fn expect(
        &mut self,
        rows: &mut dyn Iterator<Item = (TableId, Vec<Value>)>,
    ) -> Result<(), Stop> {
        let rows: Vec<(TableId, Vec<Value>)> = rows.collect();
        self.uses(move |context| context.expect(&mut rows.iter().cloned()))
    }

    fn call(&mut self, call: Call, wanted: bool) -> Result<Handle, Stop> {
        self.uses(move |context| context.call(call.clone(), wanted))
    }

    fn reply(&mut self, handle: Handle) -> Option<&Value> {
        self.value = self.request(None, move |context| context.reply(handle).cloned());
        self.value.as_ref()
    }

    fn settled(&mut self, handle: Handle) -> Result<&Value, Stop> {
        let value = self.uses(move |context| context.settled(handle).cloned())?;
        Ok(self.value.insert(value))
    }

    fn emit(&mut self, stream: StreamId, row: &[Value]) -> Result<(), Stop> {
        let row = row.to_vec();
        self.uses(move |context| context.emit(stream, &row))
    }

    fn lookup(&mut self, question: &[u8], ask: &Asker) -> Result<Arc<[u8]>, Stop> {
        let (question, ask) = (question.to_vec(), ask.clone());
        self.uses(move |context| context.lookup(&question, &ask))
    }

    fn has_deadline(&self) -> bool {
        self.request(false, |context| context.has_deadline())
    }

    fn verdict(&mut self, part: u32, reason: Option<&str>) -> Result<Option<String>, Stop> {
        let reason = reason.map(str::to_string);
        self.uses(move |context| context.verdict(part, reason.as_deref()))
    }

    fn random(&mut self) -> u64 {
        self.request(0, |context| context.random())
    }

    fn now_us(&self) -> i64 {
        self.request(0, |context| context.now_us())
    }

    fn mark_us(&self, stream: StreamId) -> Option<i64> {
        self.request(None, move |context| context.mark_us(stream))
    }
}
