//! Troubles: the reasons why sources and sinks wait for another system.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::{debug, info, warn};

/// Logs an event about a source, a sink, or something else of the app.
macro_rules! say {
    ($level:ident, $who:ident, $event:literal $(, $what:ident)?) => {
        if $who.starts_with("sink") {
            $level!(target: "tidemill::sink", who = $who, $($what,)? $event);
        } else if $who.starts_with("source") {
            $level!(target: "tidemill::source", who = $who, $($what,)? $event);
        } else {
            $level!(target: "tidemill::engine", who = $who, $($what,)? $event);
        }
    };
}

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
        if by_name.get(who).is_some_and(|before| before == what) {
            return;
        }
        // A wait is a warning once, however often its reason changes.
        match by_name.insert(who.to_owned(), what.to_owned()) {
            None => say!(warn, who, "waits", what),
            Some(_) => say!(debug, who, "waits", what),
        }
    }

    /// Removes a trouble that is over.
    pub fn clear(&self, who: &str) {
        if self.inner.by_name.lock().remove(who).is_some() {
            say!(info, who, "continues");
        }
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
