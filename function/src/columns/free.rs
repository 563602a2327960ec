//! A set of transactions that gives the first one.
//!
//! It is bits, because a heap of the same numbers takes several branches for each, and nothing
//! foretells them.

/// Numbers of transactions.
#[derive(Debug, Default)]
pub(super) struct Free {
    /// A bit for each number, and a bit for each word of these.
    bits: Vec<u64>,
    words: Vec<u64>,
    /// The first word of `words` that may have a bit.
    first: usize,
}

impl Free {
    /// Removes all, and makes room for so many numbers.
    pub(super) fn clear(&mut self, numbers: usize) {
        self.bits.clear();
        self.bits.resize(numbers.div_ceil(64), 0);
        self.words.clear();
        self.words.resize(self.bits.len().div_ceil(64), 0);
        self.first = self.words.len();
    }

    /// Adds a number.
    #[inline]
    pub(super) fn add(&mut self, number: u32) {
        let at = number as usize / 64;
        self.bits[at] |= 1 << (number % 64);
        self.words[at / 64] |= 1 << (at % 64);
        self.first = self.first.min(at / 64);
    }

    /// Removes and returns the first number, if it is less than `before`.
    #[inline]
    pub(super) fn next(&mut self, before: u32) -> Option<u32> {
        while *self.words.get(self.first)? == 0 {
            self.first += 1;
        }
        let at = self.first * 64 + self.words[self.first].trailing_zeros() as usize;
        let number = at as u32 * 64 + self.bits[at].trailing_zeros();
        if number >= before {
            return None;
        }
        self.bits[at] &= self.bits[at] - 1;
        if self.bits[at] == 0 {
            self.words[self.first] &= self.words[self.first] - 1;
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_gives_the_first(steps in prop::collection::vec((0..20_000u32, 0..4u32), 0..200)) {
            let (mut free, mut model) = (Free::default(), BTreeSet::new());
            free.clear(20_000);
            for (number, takes) in steps {
                free.add(number);
                model.insert(number);
                for _ in 0..takes {
                    let first = model.first().copied().filter(|first| *first < 15_000);
                    prop_assert_eq!(free.next(15_000), first);
                    first.map(|first| model.remove(&first));
                }
            }
            let rest: Vec<u32> = std::iter::from_fn(|| free.next(u32::MAX)).collect();
            prop_assert_eq!(rest, model.into_iter().collect::<Vec<_>>());
        }
    }
}
