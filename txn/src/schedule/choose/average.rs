//! What is known of a value that is measured over and over, on a machine that others use, too.

/// How much of what is very much more goes into an average.
const NEW_FAR: f64 = 0.7;

/// Very different; and how much more than before is believed at a time.
pub(super) const FAR: f64 = 1.3;
pub(super) const FAR_MAX: f64 = 1.8;

/// What is known of a value that is measured over and over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    pub(super) value: f64,
    /// What was measured last, if that was far more, and how often in a row it was.
    pub(super) more: Option<(f64, u32)>,
}

impl Average {
    pub(super) fn of(value: f64) -> Average {
        Average { value, more: None }
    }

    /// What is far more does not count when it comes up to three times, because threads that had to wait for a
    /// core say nothing, and finding out what else there is takes longer; not in full when it comes once more; and
    /// then it does. What is far less counts at once, and in full: nothing is faster than it can be.
    pub(super) fn learn(&mut self, value: f64, new: f64) {
        if value <= self.value * FAR {
            self.more = None;
            let is_far = value < self.value / FAR;
            self.value += (value - self.value) * if is_far { 1.0 } else { new };
            return;
        }
        // The less of the last two, and not of all: while more than one thing changes, the first may be nothing
        // that is ever measured again.
        let (least, times) = match self.more {
            None => (value, 1),
            Some((before, times)) => (value.min(before), times + 1),
        };
        self.more = Some((value, times));
        let believed = match times {
            1..=3 => return,
            4 => least.min(self.value * FAR_MAX),
            _ => least,
        };
        self.value += (believed - self.value) * NEW_FAR;
    }
}
