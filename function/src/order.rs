//! The order of transactions, and of the accesses within one.

use smallvec::SmallVec;

/// The place of a transaction in the one order. It never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u64);

/// The place of something within its transaction: the numbers of the calls that lead to it, each
/// counted within its caller, and at the end its own number. The request itself has the empty path.
pub type Path = SmallVec<[u32; 6]>;

/// Partitioned sequencing (Styx, section 5.1): each source numbers its own requests, and no two
/// take the same number. With [`Sequencing::next`] after each epoch, the numbers of an epoch are
/// above those of the epoch before, however unequal the sources are.
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
    /// The number of sources. It stays the same as long as an order lasts.
    pub sources: u32,
    /// The count at which the epoch begins, the same for all sources.
    pub base: u64,
}

impl Sequencing {
    /// Returns the place of the `nth` request of a source in the epoch, both counted from 0.
    pub fn tid(&self, source: u32, nth: u64) -> Tid {
        Tid(u64::from(source) + 1 + (self.base + nth) * u64::from(self.sources))
    }

    /// Returns the sequencing of the next epoch. `most` is the highest number of requests that any
    /// source had in this one.
    pub fn next(&self, most: u64) -> Sequencing {
        Sequencing { base: self.base + most, ..*self }
    }
}
