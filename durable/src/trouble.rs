//! What is wrong at the moment.

use parking_lot::Mutex;

/// What is wrong at the moment with something that is tried again, in words for people.
#[derive(Debug, Default)]
pub struct Trouble(Mutex<Option<String>>);

impl Trouble {
    /// It has this trouble now.
    pub fn has(&self, what: impl Into<String>) {
        *self.0.lock() = Some(what.into());
    }

    /// It has succeeded.
    pub fn is_over(&self) {
        *self.0.lock() = None;
    }

    /// What it is, if there is one.
    pub fn now(&self) -> Option<String> {
        self.0.lock().clone()
    }
}
