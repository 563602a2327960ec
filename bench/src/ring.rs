//! What was written in the last window and its sum, as a baseline keeps it: time does not go back, so
//! whatever has left a window never comes to another.

use std::collections::VecDeque;

/// Times and values, and the sum of the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring {
    written: VecDeque<(i64, i64)>,
    sum: i64,
}

impl Ring {
    /// The sum of what was written in the `size_us` up to `time_us`.
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

    /// How much of what was written has not left the window yet.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.written.len()
    }
}
