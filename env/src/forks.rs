//! What a forked child must not keep open: locks and sockets.
//!
//! A process that forks shares its open files with the child. A lock is then held until both have
//! closed it, and a port is taken as long. The child has no use for either: the threads that used
//! them are gone. So these files are noted, and the child closes them before it does anything else.

#[cfg(unix)]
pub use here::{forked, Held};

#[cfg(not(unix))]
pub use elsewhere::{forked, Held};

#[cfg(unix)]
mod here {
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
    use std::sync::atomic::{AtomicI32, Ordering};

    /// So many files are noted; those beyond stay open in a child.
    const FILES_MAX: usize = 8192;
    const FREE: i32 = -1;

    /// The files, in no order. Without a lock: the child might find it locked for ever.
    static FILES: [AtomicI32; FILES_MAX] = [const { AtomicI32::new(FREE) }; FILES_MAX];

    /// An open file that a forked child closes. To be dropped before the file is closed.
    #[derive(Debug)]
    pub struct Held(Option<usize>);

    impl Held {
        /// Notes a file.
        pub fn new(file: &impl AsFd) -> Held {
            let number = file.as_fd().as_raw_fd();
            let (set, see) = (Ordering::AcqRel, Ordering::Relaxed);
            let take = |slot: &AtomicI32| slot.compare_exchange(FREE, number, set, see).is_ok();
            Held(FILES.iter().position(take))
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            if let Some(at) = self.0 {
                FILES[at].store(FREE, Ordering::Release);
            }
        }
    }

    /// Closes what a forked child must not keep. To be called in the child, once, at its begin. Whatever holds
    /// one of these files there must neither be used nor dropped any more.
    pub fn forked() {
        for slot in &FILES {
            let number = slot.swap(FREE, Ordering::AcqRel);
            if number != FREE {
                // SAFETY: the file was open when the process forked, so it is here, where no other thread
                // runs; nobody uses or closes it after this, as the caller says.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn files_are_noted_until_they_are_let_go() {
            let file = tempfile::tempfile().unwrap();
            let number = file.as_raw_fd();
            let is_noted = || FILES.iter().any(|slot| slot.load(Ordering::Acquire) == number);
            let held = Held::new(&file);
            assert!(is_noted());
            drop(held);
            assert!(!is_noted());
        }
    }
}

#[cfg(not(unix))]
mod elsewhere {
    /// Here no process forks.
    #[derive(Debug)]
    pub struct Held;

    impl Held {
        /// Notes nothing.
        pub fn new<T>(_: &T) -> Held {
            Held
        }
    }

    /// Closes nothing.
    pub fn forked() {}
}
