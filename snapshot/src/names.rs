//! Names for new objects, and which of them are being written.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

/// Creates names that no object has or has had, from the next free number and the writer's own
/// number.
pub(crate) struct Names {
    writer: u64,
    next: AtomicU64,
    claimed: Mutex<BTreeSet<String>>,
}

/// A name that is in use as long as this value exists. Its object may look unused, but is not.
pub(crate) struct Claim {
    names: Arc<Names>,
    name: String,
}

impl Names {
    /// Creates the names of a writer, from a number that none of `there` has.
    pub(crate) fn new<'a>(writer: u64, there: impl Iterator<Item = &'a str>) -> Arc<Names> {
        let number = |name: &str| {
            let (_, last) = name.rsplit_once('/')?;
            u64::from_str_radix(last.split('-').next()?, 16).ok()
        };
        let next = there.filter_map(number).max().map_or(0, |last| last.wrapping_add(1));
        Arc::new(Names { writer, next: AtomicU64::new(next), claimed: Mutex::default() })
    }

    pub(crate) fn claim(self: &Arc<Names>, prefix: &str) -> Claim {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}{number:016x}-{:016x}", self.writer);
        self.claimed.lock().insert(name.clone());
        Claim { names: self.clone(), name }
    }

    pub(crate) fn is_claimed(&self, name: &str) -> bool {
        self.claimed.lock().contains(name)
    }
}

impl Claim {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.names.claimed.lock().remove(&self.name);
    }
}
