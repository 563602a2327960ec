//! The rows of a range that a scan returns.

/// The rows of a range that a scan returns, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The first rows, at most this many, in key order.
    First(u32),
    /// The last rows, at most this many, in reverse key order.
    Last(u32),
}

impl Take {
    /// All rows, in key order.
    pub const ALL: Take = Take::First(u32::MAX);

    /// Returns the largest number of rows.
    pub fn limit(self) -> usize {
        let (Take::First(limit) | Take::Last(limit)) = self;
        limit as usize
    }

    /// Whether the rows are in reverse key order.
    pub fn is_reverse(self) -> bool {
        matches!(self, Take::Last(_))
    }

    /// Returns the same with this many more rows.
    pub fn and(self, more: usize) -> Take {
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        match self {
            Take::First(limit) => Take::First(limit.saturating_add(more)),
            Take::Last(limit) => Take::Last(limit.saturating_add(more)),
        }
    }

    /// Returns these of some items, which are in key order.
    pub fn of<T>(self, items: impl DoubleEndedIterator<Item = T>) -> Vec<T> {
        match self.is_reverse() {
            false => items.take(self.limit()).collect(),
            true => items.rev().take(self.limit()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rows_begin_with_the_last_one() {
        assert_eq!(Take::First(2).of(0..5), [0, 1]);
        assert_eq!(Take::Last(2).of(0..5), [4, 3]);
        assert_eq!(Take::Last(9).of(0..2), [1, 0]);
        assert_eq!(Take::Last(0).of(0..2), [0; 0]);
        assert_eq!(Take::Last(2).and(3), Take::Last(5));
        assert_eq!(Take::ALL.and(3), Take::ALL);
    }
}
