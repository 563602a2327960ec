//! The values written in the last window and their sum, as a baseline stores them. Time never goes
//! back, so values that have left a window are in no later one.

use std::collections::VecDeque;

/// The times and values, and the sum of the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring {
    written: VecDeque<(i64, i64)>,
    sum: i64,
}

impl Ring {
    /// Returns the sum of the values written in the `size_us` microseconds up to `time_us`.
    #[inline(always)]
    pub(crate) fn sum(&mut self, size_us: i64, time_us: i64) -> i64 {
        let has_left = |(written_us, _): &mut (i64, i64)| *written_us <= time_us - size_us;
        while let Some((_, value)) = self.written.pop_front_if(has_left) {
            self.sum -= value;
        }
        self.sum
    }

    /// Writes a value.
    #[inline(always)]
    pub(crate) fn push(&mut self, size_us: i64, time_us: i64, value: i64) {
        self.sum(size_us, time_us);
        self.written.push_back((time_us, value));
        self.sum += value;
    }

    /// Returns the number of values that have not left the window.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.written.len()
    }
}
