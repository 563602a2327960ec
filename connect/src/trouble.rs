//! Troubles: the reasons why sources and sinks wait for another system.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

/// The reasons why sources and sinks wait, by their names, for the operator of a run. Clones share
/// it.
///
/// A source or sink whose other side is away waits and reports it here; it does not end the run.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_name: Mutex<BTreeMap<String, String>>,
    /// Whether waiting must end.
    is_over: AtomicBool,
}

impl Troubles {
    /// Reports a trouble, in place of an earlier one of the same name.
    pub fn report(&self, who: &str, what: &str) {
        let mut by_name = self.inner.by_name.lock();
        if by_name.get(who).is_none_or(|before| before != what) {
            by_name.insert(who.to_owned(), what.to_owned());
        }
    }

    /// Removes a trouble that is over.
    pub fn clear(&self, who: &str) {
        self.inner.by_name.lock().remove(who);
    }

    /// Returns all present troubles.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.inner.by_name.lock().clone()
    }

    /// Notes that the run ends, so that those who wait give up soon.
    pub fn give_up(&self) {
        self.inner.is_over.store(true, Ordering::Release);
    }

    /// Whether the run ends.
    pub fn is_over(&self) -> bool {
        self.inner.is_over.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_says_one_thing() {
        let troubles = Troubles::default();
        troubles.report("a", "one");
        troubles.clone().report("a", "two");
        troubles.report("b", "three");
        troubles.clear("b");
        assert_eq!(troubles.all(), BTreeMap::from([("a".to_owned(), "two".to_owned())]));
        assert!(!troubles.is_over());
        troubles.clone().give_up();
        assert!(troubles.is_over());
    }
}
