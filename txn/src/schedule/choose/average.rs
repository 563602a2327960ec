//! Averages of values that are measured repeatedly, on a machine with other load.

/// The weight of a value that is far higher.
const NEW_FAR: f64 = 0.7;

/// The factor from which a value is far off; then the most by which the average rises the first
/// time.
pub(super) const FAR: f64 = 1.3;
pub(super) const FAR_MAX: f64 = 1.8;

/// An average of repeated measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    pub(super) value: f64,
    /// The last value, if it was far higher, and the number of such values in a row.
    pub(super) more: Option<(f64, u32)>,
}

impl Average {
    pub(super) fn of(value: f64) -> Average {
        Average { value, more: None }
    }

    /// Adds a value. A value that is far higher does not count up to three times in a row: threads
    /// that waited for a core say nothing about the work. The fourth counts in part, later ones in
    /// full. A value that is far lower counts at once and in full, because nothing runs faster than
    /// it can.
    pub(super) fn learn(&mut self, value: f64, new: f64) {
        if value <= self.value * FAR {
            self.more = None;
            let is_far = value < self.value / FAR;
            self.value += (value - self.value) * if is_far { 1.0 } else { new };
            return;
        }
        // The lower one of the last two, and not of all. While several things change, the first may
        // never be measured again.
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
