//! The order: which transaction is before which, and which access within one.

use smallvec::SmallVec;

/// A transaction's place in the one order; it never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u64);

/// Where in its transaction something happens: the numbers of the calls that lead to it, each counted within
/// its caller, and at the end its own number. The request itself is at the empty path.
pub type Path = SmallVec<[u32; 6]>;

/// Partitioned sequencing (Styx 5.1): each source numbers its own requests, and no two take the same number.
/// With [`Sequencing::next`] after each epoch the numbers of an epoch are above those of the one before,
/// however unequal the sources are.
///
/// ```
/// use tidemill_function::{Sequencing, Tid};
/// let order = Sequencing { sources: 3, base: 0 };
/// assert_eq!([0, 1].map(|n| order.tid(0, n)), [Tid(1), Tid(4)]);
/// assert_eq!([0, 1].map(|n| order.tid(1, n)), [Tid(2), Tid(5)]);
/// assert_eq!(order.next(2).tid(0, 0), Tid(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequencing {
    /// How many sources there are; as long as an order lasts, always the same.
    pub sources: u32,
    /// The count at which the epoch begins, for all of them.
    pub base: u64,
}

impl Sequencing {
    /// The place of the `nth` request of a source in the epoch, both counted from 0.
    pub fn tid(&self, source: u32, nth: u64) -> Tid {
        Tid(u64::from(source) + 1 + (self.base + nth) * u64::from(self.sources))
    }

    /// That of the next epoch, where the source with most requests in this one had so many.
    pub fn next(&self, most: u64) -> Sequencing {
        Sequencing { base: self.base + most, ..*self }
    }
}
