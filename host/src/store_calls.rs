//! Calls of the store on threads of their own, because they may wait for long.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::Then;
use tidemill_core::{Error, Result};
use tidemill_durable::{Store, Trouble};
use tidemill_env::Env;

/// The largest number of waiting calls. Further ones fail.
const QUEUE: usize = 1024;
/// The largest number of threads. A recovery reads many objects at the same time.
const THREADS: usize = 32;

type Job = Box<dyn FnOnce(&Arc<Calls>) + Send>;

/// The calls of the store. Each is answered once, also if it fails, or if this is dropped first.
/// Failures become the trouble of the store.
pub(crate) struct StoreCalls(Arc<Calls>);

struct Calls {
    env: Env,
    store: Arc<dyn Store>,
    state: Mutex<State>,
    arrived: Condvar,
    /// The last failure, if nothing has succeeded since.
    trouble: Trouble,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    /// The number of threads that wait for a call.
    idle: usize,
    is_closed: bool,
}

/// The answer of a call: the failure, if it is dropped without another one.
struct Answer<T> {
    then: Option<Then<T>>,
    answer: Option<T>,
}

impl<T> Answer<T> {
    fn new(then: Then<T>, failure: T) -> Answer<T> {
        Answer { then: Some(then), answer: Some(failure) }
    }

    fn give(mut self, answer: T) {
        self.answer = Some(answer);
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let (Some(then), Some(answer)) = (self.then.take(), self.answer.take()) {
            then(answer);
        }
    }
}

impl StoreCalls {
    /// Starts the first thread. More are started when calls wait.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(env: &Env, store: Arc<dyn Store>) -> Result<StoreCalls> {
        let calls = StoreCalls(Arc::new(Calls {
            env: env.clone(),
            store,
            state: Mutex::new(State { threads: 1, ..State::default() }),
            arrived: Condvar::new(),
            trouble: Trouble::default(),
        }));
        let started = calls.0.spawn(0);
        started.map_err(|e| Error::io("starting a thread for the store", &e))?;
        Ok(calls)
    }

    /// Calls the store on a thread of its own. The answer `None` means that the call has failed, or
    /// that its outcome is unknown.
    pub fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Arc<dyn Store>) -> Result<T> + Send + 'static,
        then: Then<Option<T>>,
    ) {
        let answer = Answer::new(then, None);
        self.0.add(Box::new(move |calls| answer.give(calls.tried(call(&calls.store)))));
    }

    /// Deletes the objects that `keeps` refuses by their names. Some may be left, after a failure or
    /// if too many calls wait.
    pub fn sweep(&self, keeps: impl Fn(&str) -> bool + Send + 'static) {
        self.0.add(Box::new(move |calls| {
            for object in calls.tried(calls.store.list("")).into_iter().flatten() {
                if !keeps(&object.name) {
                    calls.add(Box::new(move |calls| {
                        // A failure is a trouble of the store by now.
                        let _ = calls.tried(calls.store.delete(&object.name));
                    }));
                }
            }
        }));
    }

    /// Returns the current trouble of the store, as text.
    pub fn trouble(&self) -> Option<String> {
        self.0.store.trouble().or_else(|| self.0.trouble.now())
    }
}

impl Drop for StoreCalls {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.0.arrived.notify_all();
        // Dropped calls are answered.
        drop(waiting);
    }
}

impl Calls {
    /// Adds a call. If too many wait, it is dropped, which answers it.
    fn add(self: &Arc<Calls>, job: Job) {
        let mut state = self.state.lock();
        if state.is_closed || state.waiting.len() >= QUEUE {
            // The answer may make another call.
            drop(state);
            return drop(job);
        }
        state.waiting.push_back(job);
        let more = state.waiting.len() > state.idle && state.threads < THREADS;
        let number = state.threads;
        state.threads += usize::from(more);
        drop(state);
        self.arrived.notify_one();
        // Without another thread, the existing ones do it later.
        if more && self.spawn(number).is_err() {
            self.state.lock().threads -= 1;
        }
    }

    fn spawn(self: &Arc<Calls>, number: usize) -> std::io::Result<()> {
        let calls = self.clone();
        let body = move || {
            while let Some(job) = calls.next() {
                // A panic has been printed, and the call is answered. The thread serves the others.
                let _ = catch_unwind(AssertUnwindSafe(|| job(&calls)));
            }
        };
        self.env.threads.spawn(&format!("store-{number}"), Box::new(body)).map(drop)
    }

    /// Waits for a call. `None` means that there are no more.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            state.idle += 1;
            self.arrived.wait(&mut state);
            state.idle -= 1;
        }
    }

    /// Returns the result, or notes a failure as the trouble of the store.
    fn tried<T>(&self, result: Result<T>) -> Option<T> {
        match result {
            Ok(done) => {
                self.trouble.is_over();
                Some(done)
            }
            Err(error) => {
                self.trouble.has(error.what);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, Receiver};

    use tidemill_durable::{Fault, FaultyStore, MemoryStore, Stall, StoreOp};

    use super::*;

    fn start(store: &FaultyStore) -> StoreCalls {
        StoreCalls::start(&Env::real(), Arc::new(store.clone())).unwrap()
    }

    fn faulty() -> FaultyStore {
        let memory = MemoryStore::new();
        memory.put("a/b", b"x").unwrap();
        FaultyStore::new(Arc::new(memory))
    }

    /// Requests an object so many times, and returns the answers as they come.
    fn gets(calls: &StoreCalls, count: usize) -> Receiver<Option<Vec<u8>>> {
        let (send, receive) = channel();
        for _ in 0..count {
            let send = send.clone();
            let get = |store: &Arc<dyn Store>| store.get("a/b");
            calls.call(get, Box::new(move |bytes| send.send(bytes.flatten()).unwrap()));
        }
        receive
    }

    /// Makes all threads wait in the store.
    fn stall(store: &FaultyStore, calls: &StoreCalls) -> (Vec<Stall>, Receiver<Option<Vec<u8>>>) {
        let nths = 1..=THREADS as u64;
        let stalls: Vec<Stall> = nths.map(|nth| store.stall_nth(StoreOp::Get, nth)).collect();
        let answers = gets(calls, THREADS);
        stalls.iter().for_each(Stall::wait);
        (stalls, answers)
    }

    /// As many calls as there are threads are in the store at the same time. When the queue behind
    /// them is full, the next call fails at once, and later ones succeed again.
    #[test]
    fn a_full_queue_answers() {
        let store = faulty();
        let calls = start(&store);
        let (stalls, first) = stall(&store, &calls);
        let waiting = gets(&calls, QUEUE);
        assert_eq!(gets(&calls, 2).try_iter().collect::<Vec<_>>(), [None, None]);
        assert!(first.try_recv().is_err() && waiting.try_recv().is_err());
        stalls.iter().for_each(Stall::release);
        let found = |answers: Receiver<Option<Vec<u8>>>| answers.iter().flatten().count();
        assert_eq!((found(first), found(waiting)), (THREADS, QUEUE));
        assert_eq!(found(gets(&calls, 1)), 1);
    }

    #[test]
    fn dropping_the_calls_answers_all() {
        let store = faulty();
        let calls = start(&store);
        let (stalls, first) = stall(&store, &calls);
        let waiting = gets(&calls, 5);
        drop(calls);
        // The threads still wait in the store.
        assert_eq!(waiting.try_iter().collect::<Vec<_>>(), vec![None; 5]);
        stalls.iter().for_each(Stall::release);
        assert_eq!(first.iter().flatten().count(), THREADS);
    }

    #[test]
    fn a_failure_is_a_trouble_until_a_call_succeeds() {
        let store = faulty();
        let calls = start(&store);
        let ask = |name: &'static str| {
            let (send, receive) = channel();
            let then = Box::new(move |is_put: Option<bool>| send.send(is_put).unwrap());
            calls.call(move |store| store.put(name, b"y"), then);
            receive.recv().unwrap().unwrap_or(false)
        };
        store.fail_nth(StoreOp::Put, 1, Fault::Before);
        assert!(!ask("a/c"));
        assert!(calls.trouble().unwrap().contains("a/c"));
        assert!(!ask("a/b"), "the name is taken");
        assert_eq!(calls.trouble(), None);
        assert!(ask("a/c"));
        assert_eq!(store.get("a/c").unwrap().unwrap(), b"y");
    }

    /// The bytes of an object can't be made, because of a bug. The thread serves other calls.
    #[test]
    fn a_panic_is_a_failure() {
        let store = faulty();
        let calls = start(&store);
        for _ in 0..2 * THREADS {
            let (send, receive) = channel();
            let then = Box::new(move |is_put: Option<bool>| send.send(is_put).unwrap());
            calls.call(|_| panic!("on purpose"), then);
            assert_eq!(receive.recv().unwrap(), None);
        }
        assert_eq!(gets(&calls, 1).iter().flatten().count(), 1);
    }

    #[test]
    fn a_sweep_deletes_only_what_is_not_kept() {
        let store = faulty();
        for name in ["a/a", "a/c"] {
            store.put(name, b"x").unwrap();
        }
        let calls = start(&store);
        store.take_calls();
        let last = store.stall_nth(StoreOp::Delete, 2);
        calls.sweep(|name| name == "a/a");
        last.wait();
        let mut deleted = store.take_calls();
        deleted.retain(|call| call.0 == StoreOp::Delete);
        deleted.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        let deletes = |name: &str| (StoreOp::Delete, name.to_owned());
        assert_eq!(deleted, ["a/b", "a/c"].map(deletes));
        last.release();
    }
}
