//! Several data objects as one: the newest row of each key, once.

use std::cmp::Ordering;

use tidemill_core::Result;

use crate::data::Cursor;

/// The size of the windows of all cursors of a merge together, in bytes, if blocks allow.
const WINDOWS_BYTES: u64 = 32 << 20;
/// The largest number of bytes that are read at once.
const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// Returns how many bytes each of this many cursors should read at once.
pub(crate) fn window(cursors: usize) -> u64 {
    (WINDOWS_BYTES / cursors.max(1) as u64).min(WINDOW_BYTES_MAX)
}

/// Goes through the rows of several cursors in order.
pub(crate) struct Merger {
    /// The cursors, oldest first.
    cursors: Vec<Cursor>,
    /// The cursors that have rows, sorted by row; at equal keys the newest cursor comes first. When
    /// the first one has advanced, the order is usually still right: objects differ in size, and
    /// the largest has most rows.
    order: Vec<usize>,
    /// Whether the first one's row has been returned.
    given: bool,
}

impl Merger {
    /// Creates a merger of cursors, with the oldest object's first.
    pub(crate) fn new(cursors: Vec<Cursor>) -> Merger {
        Merger { cursors, order: Vec::new(), given: false }
    }

    /// Moves before the first row of a shard, with the cursors for which `takes_part` holds.
    pub(crate) fn begin(&mut self, shard: usize, takes_part: impl Fn(usize) -> bool) -> Result<()> {
        self.order.clear();
        self.given = false;
        for number in (0..self.cursors.len()).filter(|number| takes_part(*number)) {
            self.cursors[number].begin(shard);
            if self.cursors[number].advance()? {
                self.order.push(number);
            }
        }
        let cursors = &self.cursors;
        self.order.sort_unstable_by(|a, b| compare(cursors, *a, *b));
        Ok(())
    }

    /// Returns the cursor at the newest version of the next key; `None` at the end of the shard.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<&Cursor>> {
        if self.given {
            self.advance(0)?;
        }
        self.given = true;
        // These are older versions of the same key.
        while self.order.len() > 1 && self.is_second_equal() {
            self.advance(1)?;
        }
        Ok(self.order.first().map(|number| &self.cursors[*number]))
    }

    #[inline]
    fn is_second_equal(&self) -> bool {
        let (first, second) = (&self.cursors[self.order[0]], &self.cursors[self.order[1]]);
        first.spot() == second.spot() && first.key() == second.key()
    }

    /// Advances the cursor at `place`, and moves it to its new place.
    #[inline]
    fn advance(&mut self, place: usize) -> Result<()> {
        let Some(number) = self.order.get(place).copied() else { return Ok(()) };
        if !self.cursors[number].advance()? {
            self.order.remove(place);
            return Ok(());
        }
        let behind = &self.order[place + 1..];
        let is_before = |other: usize| compare(&self.cursors, other, number).is_lt();
        if behind.first().is_some_and(|next| is_before(*next)) {
            let moves = 1 + behind[1..].partition_point(|other| is_before(*other));
            self.order[place..=place + moves].rotate_left(1);
        }
        Ok(())
    }
}

#[inline]
fn compare(cursors: &[Cursor], a: usize, b: usize) -> Ordering {
    let (left, right) = (&cursors[a], &cursors[b]);
    left.spot().cmp(&right.spot()).then_with(|| left.key().cmp(right.key())).then_with(|| b.cmp(&a))
}
