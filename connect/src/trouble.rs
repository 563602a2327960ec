//! What sources and sinks have to say while they wait for somebody.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

/// What holds sources and sinks up, by who says it, for whoever looks after a run. Clones share it.
///
/// A source or sink whose other side is away waits and says so here; it does not end the run.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_name: Mutex<BTreeMap<String, String>>,
    /// Nobody is to wait any longer.
    is_over: AtomicBool,
}

impl Troubles {
    /// Says what is wrong, in the place of what the same one has said before.
    pub fn tell(&self, who: &str, what: &str) {
        let mut by_name = self.inner.by_name.lock();
        if by_name.get(who).is_none_or(|before| before != what) {
            by_name.insert(who.to_owned(), what.to_owned());
        }
    }

    /// It is over.
    pub fn clear(&self, who: &str) {
        self.inner.by_name.lock().remove(who);
    }

    /// All that is wrong now.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.inner.by_name.lock().clone()
    }

    /// The run ends: who waits gives up soon.
    pub fn give_up(&self) {
        self.inner.is_over.store(true, Ordering::Release);
    }

    /// Whether the run ends.
    pub fn gives_up(&self) -> bool {
        self.inner.is_over.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_says_one_thing() {
        let troubles = Troubles::default();
        troubles.tell("a", "one");
        troubles.clone().tell("a", "two");
        troubles.tell("b", "three");
        troubles.clear("b");
        assert_eq!(troubles.all(), BTreeMap::from([("a".to_owned(), "two".to_owned())]));
        assert!(!troubles.gives_up());
        troubles.clone().give_up();
        assert!(troubles.gives_up());
    }
}
