//! A store with faults, for tests.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tidemill_core::{Error, Kind, Result};

use crate::store::{Object, ObjectWriter, Store};

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreOp {
    /// [`Store::put`]
    Put,
    /// [`Store::create`]
    Create,
    /// [`ObjectWriter::write`]
    Write,
    /// [`ObjectWriter::finish`]
    Finish,
    /// [`Store::get`]
    Get,
    /// [`Store::get_range`]
    GetRange,
    /// [`Store::list`]
    List,
    /// [`Store::delete`]
    Delete,
}

/// A fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and has no effect.
    Before,
    /// The call takes effect but fails, because the answer was lost.
    After,
    /// The call claims to have put an object, but has not. (Calls that do not put fail without
    /// effect.)
    Lost,
}

/// A store over another one whose calls fail on request. Clones are the same store.
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    faults: Vec<Planned>,
    stalls: Vec<(Option<StoreOp>, u64, Stall)>,
    written: u64,
    calls: Vec<(StoreOp, String)>,
}

struct Planned {
    /// The kind of call; `None` means any.
    op: Option<StoreOp>,
    /// The number of calls that still succeed.
    after: u64,
    fault: Fault,
    stays: bool,
}

/// A call that does not return before it is released.
#[derive(Clone, Default)]
pub struct Stall(Arc<(Mutex<(bool, bool)>, Condvar)>);

impl Stall {
    /// Waits until the call has been made.
    pub fn wait(&self) {
        let mut state = self.0 .0.lock();
        while !state.0 {
            self.0 .1.wait(&mut state);
        }
    }

    /// Lets the call continue.
    pub fn release(&self) {
        self.0 .0.lock().1 = true;
        self.0 .1.notify_all();
    }

    fn hold(&self) {
        let mut state = self.0 .0.lock();
        state.0 = true;
        self.0 .1.notify_all();
        while !state.1 {
            self.0 .1.wait(&mut state);
        }
    }
}

impl FaultyStore {
    /// Creates a store over `inner`, without faults yet.
    pub fn new(inner: Arc<dyn Store>) -> FaultyStore {
        FaultyStore { inner, plan: Arc::default() }
    }

    /// Makes the `nth` call from now on fail, counted from 1: of this kind, or of any.
    pub fn fail_nth(&self, op: impl Into<Option<StoreOp>>, nth: u64, fault: Fault) {
        self.add(op.into(), nth, fault, false);
    }

    /// Like [`fail_nth`](FaultyStore::fail_nth), and also for all further calls, until
    /// [`clear`](FaultyStore::clear).
    pub fn fail_from(&self, op: impl Into<Option<StoreOp>>, nth: u64, fault: Fault) {
        self.add(op.into(), nth, fault, true);
    }

    fn add(&self, op: Option<StoreOp>, nth: u64, fault: Fault, stays: bool) {
        assert!(nth > 0, "calls are counted from 1");
        self.plan.lock().faults.push(Planned { op, after: nth - 1, fault, stays });
    }

    /// Holds the `nth` call from now on until it is released.
    pub fn stall_nth(&self, op: impl Into<Option<StoreOp>>, nth: u64) -> Stall {
        assert!(nth > 0, "calls are counted from 1");
        let stall = Stall::default();
        self.plan.lock().stalls.push((op.into(), nth - 1, stall.clone()));
        stall
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.plan.lock().faults.clear();
    }

    /// Returns the number of bytes that callers have passed to be written so far.
    pub fn written(&self) -> u64 {
        self.plan.lock().written
    }

    /// Returns all calls since the last call of this method, with the object (or prefix).
    pub fn take_calls(&self) -> Vec<(StoreOp, String)> {
        std::mem::take(&mut self.plan.lock().calls)
    }

    /// Makes a call, or makes it fail. `lost` is the answer of a call that is lost.
    fn call<T>(
        &self,
        op: StoreOp,
        name: &str,
        bytes: usize,
        lost: Option<T>,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let (fault, stall) = self.plan.lock().count(op, name, bytes);
        if let Some(stall) = stall {
            stall.hold();
        }
        let failed = || Error::new(Kind::Io, format!("{op:?} {name}: simulated fault"));
        match (fault, lost) {
            (None, _) => call(),
            (Some(Fault::After), _) => call().and_then(|_| Err(failed())),
            (Some(Fault::Lost), Some(answer)) => Ok(answer),
            (Some(Fault::Before | Fault::Lost), _) => Err(failed()),
        }
    }
}

impl Plan {
    fn count(&mut self, op: StoreOp, name: &str, bytes: usize) -> (Option<Fault>, Option<Stall>) {
        self.calls.push((op, name.to_owned()));
        self.written += bytes as u64;
        let mut found = None;
        self.faults.retain_mut(|planned| {
            if planned.op.is_some_and(|of| of != op) {
                return true;
            }
            if planned.after > 0 {
                planned.after -= 1;
                return true;
            }
            found = found.or(Some(planned.fault));
            planned.stays
        });
        let mut stall = None;
        self.stalls.retain_mut(|(of, after, planned)| {
            if of.is_some_and(|of| of != op) {
                return true;
            }
            if *after > 0 {
                *after -= 1;
                return true;
            }
            stall = Some(planned.clone());
            false
        });
        (found, stall)
    }
}

impl Store for FaultyStore {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let put = || self.inner.put(name, bytes);
        self.call(StoreOp::Put, name, bytes.len(), Some(true), put)
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        let create = || self.inner.create(name);
        let inner = self.call(StoreOp::Create, name, 0, None, create)?;
        Ok(Box::new(FaultyWriter { store: self.clone(), name: name.to_owned(), inner }))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.call(StoreOp::Get, name, 0, None, || self.inner.get(name))
    }

    fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Vec<u8>>> {
        self.call(StoreOp::GetRange, name, 0, None, || self.inner.get_range(name, from, len))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        self.call(StoreOp::List, prefix, 0, None, || self.inner.list(prefix))
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.call(StoreOp::Delete, name, 0, None, || self.inner.delete(name))
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }
}

struct FaultyWriter {
    store: FaultyStore,
    name: String,
    inner: Box<dyn ObjectWriter>,
}

impl ObjectWriter for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let FaultyWriter { store, name, inner } = self;
        store.call(StoreOp::Write, name, bytes.len(), None, || inner.write(bytes))
    }

    fn finish(self: Box<Self>) -> Result<bool> {
        let FaultyWriter { store, name, inner } = *self;
        store.call(StoreOp::Finish, &name, 0, Some(true), || inner.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn without_faults_it_keeps_the_contract() {
        let store: Arc<dyn Store> = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
        crate::contract::store(&store);
    }

    #[test]
    fn calls_fail_before_and_after_their_effect() {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()));
        store.fail_nth(StoreOp::Put, 2, Fault::Before);
        store.fail_nth(StoreOp::Put, 3, Fault::After);
        store.fail_nth(StoreOp::Put, 4, Fault::Lost);
        let put = ["a", "b", "c", "d", "e"].map(|name| store.put(name, b"x").is_ok());
        assert_eq!(put, [true, false, false, true, true]);
        let names: Vec<String> = store.list("").unwrap().into_iter().map(|o| o.name).collect();
        assert_eq!(names, ["a", "c", "e"]);
        assert_eq!(store.written(), 5);
    }
}
