//! What threads meet through: the standard library's, or in its place loom's, which tries all orders
//! in which things may happen:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tidemill-txn --lib --target-dir target/loom loom_tests`.

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

/// What one thread writes and others look at, alone in its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Alone<T>(pub(crate) T);

/// A place that one thread writes before others read it. That it is so is theirs to see to; loom
/// notices where it is not.
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

    /// Looks at what was written last.
    ///
    /// # Safety
    /// Nobody writes meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        // SAFETY: as the caller says.
        #[cfg(loom)]
        return self.0.with(|value| look(unsafe { &*value }));
        // SAFETY: as above.
        #[cfg(not(loom))]
        look(unsafe { &*self.0.get() })
    }

    /// Writes in place.
    ///
    /// # Safety
    /// Nobody reads or writes meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn with_mut<R>(&self, write: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: as the caller says.
        #[cfg(loom)]
        return self.0.with_mut(|value| write(unsafe { &mut *value }));
        // SAFETY: as above.
        #[cfg(not(loom))]
        write(unsafe { &mut *self.0.get() })
    }
}

impl<T: Copy> Place<T> {
    /// What was written last.
    ///
    /// # Safety
    /// Nobody writes meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> T {
        // SAFETY: as the caller says.
        #[cfg(loom)]
        return self.0.with(|value| unsafe { *value });
        // SAFETY: as above.
        #[cfg(not(loom))]
        unsafe {
            *self.0.get()
        }
    }

    /// Writes.
    ///
    /// # Safety
    /// Nobody reads or writes meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn set(&self, value: T) {
        // SAFETY: as the caller says.
        #[cfg(loom)]
        self.0.with_mut(|place| unsafe { *place = value });
        // SAFETY: as above.
        #[cfg(not(loom))]
        unsafe {
            *self.0.get() = value;
        }
    }
}
