//! Functions that run twice, to be compared. The second run reads what the first one has read and gets
//! the same replies. It has no effect. If it does something else, the function is not deterministic.

use super::{Mode, Outcome, Turn};
use crate::program::Target;

impl Turn<'_> {
    /// Whether a function whose outcome is final differs when it runs again. Of all calls, only some
    /// run again.
    pub(super) fn differs(&mut self, outcome: &Outcome) -> bool {
        let is_own = match outcome {
            Outcome::Returned(_) => true,
            // The abort of a call that it has made is none of its own.
            Outcome::Failed(place, _) => place.len() == self.path.len() + 1,
            Outcome::Stopped | Outcome::Missed(_) => false,
        };
        let is_function = matches!(self.invocation.call.target, Target::Function(_));
        let is_first = self.mode == Mode::Fresh && !self.invocation.is_judged;
        if self.settings.rerun_every == 0 || !(is_own && is_function && is_first) {
            return false;
        }
        *self.compared += 1;
        if !self.compared.is_multiple_of(self.settings.rerun_every) {
            return false;
        }
        let again = self.invocation.repeated();
        let mut first = std::mem::replace(self.invocation, again);
        self.compares = true;
        let second = self.run();
        self.compares = false;
        first.outcome = Some(outcome.clone());
        let mut again = std::mem::replace(self.invocation, first);
        let (is_over, is_judged) = (second.is_some(), again.is_judged);
        again.outcome = second;
        // A run that waits asks for something that the first one did not.
        !is_judged && (!is_over || self.invocation.contradicts(&again))
    }
}
