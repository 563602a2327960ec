//! The primitives that threads share: the standard library's, or loom's, which tries all orders of
//! events:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tidemill-txn --lib --target-dir target/loom
//! loom_tests`.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

/// A value on cache lines of its own, which one thread writes and others read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// A place that one thread writes before others read it. Its users must ensure this order; loom
/// detects violations.
#[derive(Debug)]
pub(crate) struct Place<T>(Cell<T>);

#[cfg(loom)]
type Cell<T> = loom::cell::UnsafeCell<T>;
#[cfg(not(loom))]
type Cell<T> = std::cell::UnsafeCell<T>;

impl<T> Place<T> {
    pub(crate) fn new(value: T) -> Place<T> {
        Place(Cell::new(value))
    }

    /// Reads the value in place.
    ///
    /// # Safety
    /// No thread writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        // SAFETY: the caller ensures it.
        #[cfg(loom)]
        return self.0.with(|value| look(unsafe { &*value }));
        // SAFETY: as above.
        #[cfg(not(loom))]
        look(unsafe { &*self.0.get() })
    }

    /// Writes the value in place.
    ///
    /// # Safety
    /// No thread reads or writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn with_mut<R>(&self, write: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller ensures it.
        #[cfg(loom)]
        return self.0.with_mut(|value| write(unsafe { &mut *value }));
        // SAFETY: as above.
        #[cfg(not(loom))]
        write(unsafe { &mut *self.0.get() })
    }
}

impl<T: Copy> Place<T> {
    /// Returns the value.
    ///
    /// # Safety
    /// No thread writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> T {
        // SAFETY: the caller ensures it.
        #[cfg(loom)]
        return self.0.with(|value| unsafe { *value });
        // SAFETY: as above.
        #[cfg(not(loom))]
        unsafe {
            *self.0.get()
        }
    }

    /// Sets the value.
    ///
    /// # Safety
    /// No thread reads or writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn set(&self, value: T) {
        // SAFETY: the caller ensures it.
        #[cfg(loom)]
        self.0.with_mut(|place| unsafe { *place = value });
        // SAFETY: as above.
        #[cfg(not(loom))]
        unsafe {
            *self.0.get() = value;
        }
    }
}
