//! Shares of an acknowledgement (Styx, section 5.3). They tell the node that began a graph of calls
//! when all of it has ended, though the graph is unknown before it has run.
//!
//! The request holds the whole share. A function that makes a call passes on part of its share.
//! When it ends, it sends the rest to the request's home. When these sum up to the whole, no call
//! is under way. Shares are powers of two, and the sum has as many digits as it needs, so nothing
//! is rounded, however deep or wide a graph is. The `n`th call gets 2^-(2⌊log2 n⌋ + 2) of its
//! caller's share. All calls together never get more than half, and a share's exponent grows with
//! the logarithm of their number.

/// Returns the share of a function's `nth` call, as the exponent of 1/2, counted from 0. `share` is
/// the function's own.
pub(crate) fn of_call(share: u32, nth: u32) -> u32 {
    share + 2 * (nth + 1).ilog2() + 2
}

/// A sum of shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    whole: u64,
    /// The binary digits after the point, the first in the highest bit.
    digits: Vec<u64>,
}

impl Sum {
    /// Adds the rest of a share after this many calls.
    pub fn add_rest(&mut self, share: u32, calls: u32) {
        self.add(share);
        let (mut level, mut left) = (0, calls);
        while left > 0 {
            // The 2^level calls of one share each; the last level may have fewer.
            let here = left.min(1 << level);
            let each = share + 2 * level + 2;
            for bit in (0..=level).filter(|bit| here & (1 << bit) != 0) {
                self.subtract(each - bit);
            }
            left -= here;
            level += 1;
        }
    }

    /// Whether the whole has come back.
    pub fn is_whole(&self) -> bool {
        self.whole == 1 && self.digits.iter().all(|&digits| digits == 0)
    }

    fn add(&mut self, share: u32) {
        let Some(mut at) = self.digit(share) else {
            self.whole += 1;
            return;
        };
        let mut more = 1 << (63 - (share - 1) % 64);
        loop {
            let carries;
            (self.digits[at], carries) = self.digits[at].overflowing_add(more);
            match (carries, at) {
                (false, _) => return,
                (true, 0) => {
                    self.whole += 1;
                    return;
                }
                (true, _) => (at, more) = (at - 1, 1),
            }
        }
    }

    fn subtract(&mut self, share: u32) {
        let mut at = self.digit(share).expect("calls get less than the whole");
        let mut less = 1 << (63 - (share - 1) % 64);
        loop {
            let borrows;
            (self.digits[at], borrows) = self.digits[at].overflowing_sub(less);
            match (borrows, at) {
                (false, _) => return,
                (true, 0) => {
                    self.whole -= 1;
                    return;
                }
                (true, _) => (at, less) = (at - 1, 1),
            }
        }
    }

    fn digit(&mut self, share: u32) -> Option<usize> {
        let at = (share.checked_sub(1)? / 64) as usize;
        if self.digits.len() <= at {
            self.digits.resize(at + 1, 0);
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_function_without_calls_returns_its_share() {
        let mut sum = Sum::default();
        assert!(!sum.is_whole());
        sum.add_rest(0, 0);
        assert!(sum.is_whole());
    }

    #[test]
    fn depth_and_width_lose_nothing() {
        let mut sum = Sum::default();
        let mut share = 0;
        for _ in 0..1000 {
            sum.add_rest(share, 1);
            share = of_call(share, 0);
            assert!(!sum.is_whole());
        }
        sum.add_rest(share, 100_000);
        for nth in 0..100_000 {
            assert!(!sum.is_whole());
            sum.add_rest(of_call(share, nth), 0);
        }
        assert!(sum.is_whole());
    }

    proptest! {
        #[test]
        fn the_whole_comes_back_with_the_last(calls in prop::collection::vec(0u32..40, 1..60), order: u64) {
            // A graph: the next call makes this many calls, as long as any are waiting.
            let (mut waiting, mut ended) = (vec![0u32], Vec::new());
            for calls in calls {
                let Some(share) = waiting.pop() else { break };
                waiting.extend((0..calls).map(|nth| of_call(share, nth)));
                ended.push((share, calls));
            }
            ended.extend(waiting.into_iter().map(|share| (share, 0)));
            let mut order = order;
            let mut sum = Sum::default();
            while !ended.is_empty() {
                prop_assert!(!sum.is_whole());
                order = order.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let (share, calls) = ended.swap_remove((order >> 33) as usize % ended.len());
                sum.add_rest(share, calls);
            }
            prop_assert!(sum.is_whole());
        }
    }
}
