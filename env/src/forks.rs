//! Files that a forked child must not keep open: locks and sockets.
//!
//! A process that forks shares its open files with the child. A lock is then held, and a port
//! taken, until both have closed it. The child does not need them, because the threads that used
//! them do not exist there. So these files are registered, and the child closes them before it does
//! anything else.

#[cfg(unix)]
pub use here::{forked, Held};

#[cfg(not(unix))]
pub use elsewhere::{forked, Held};

#[cfg(unix)]
mod here {
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
    use std::sync::atomic::{AtomicI32, Ordering};

    /// The maximum number of registered files. Those beyond it stay open in a child.
    const FILES_MAX: usize = 8192;
    const FREE: i32 = -1;

    /// The files, in no order. There is no lock, because the child might find it locked forever.
    static FILES: [AtomicI32; FILES_MAX] = [const { AtomicI32::new(FREE) }; FILES_MAX];

    /// An open file that a forked child closes. It must be dropped before the file is closed.
    #[derive(Debug)]
    pub struct Held(Option<usize>);

    impl Held {
        /// Registers a file.
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

    /// Closes the registered files. It must be called in the child, once, at its beginning. The
    /// owners of these files there must not use or drop them any more.
    pub fn forked() {
        for slot in &FILES {
            let number = slot.swap(FREE, Ordering::AcqRel);
            if number != FREE {
                // SAFETY: the file was open when the process forked, so it is open here, where no
                // other thread runs. By the caller's contract, no code uses or closes it after
                // this.
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
    /// On this system no process forks.
    #[derive(Debug)]
    pub struct Held;

    impl Held {
        /// Registers nothing.
        pub fn new<T>(_: &T) -> Held {
            Held
        }
    }

    /// Closes nothing.
    pub fn forked() {}
}
