//! The current trouble.

use parking_lot::Mutex;

/// The current trouble of something that is retried, as text.
#[derive(Debug, Default)]
pub struct Trouble(Mutex<Option<String>>);

impl Trouble {
    /// Notes a trouble.
    pub fn has(&self, what: impl Into<String>) {
        *self.0.lock() = Some(what.into());
    }

    /// Notes that the operation has succeeded.
    pub fn is_over(&self) {
        *self.0.lock() = None;
    }

    /// Returns the trouble, if there is one.
    pub fn now(&self) -> Option<String> {
        self.0.lock().clone()
    }
}
