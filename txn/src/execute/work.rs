//! Counted work: what executing takes, told without a clock, so that what is tried has a bound that is the same on every
//! machine. A transaction that is executed counts something, and so does each row that it uses, each version and each
//! row of a range that it looks at one by one, and each operation of a function. In a graph each step of planning
//! counts as well, and each version that has to be passed over. Whatever is executed twice counts twice.
//!
//! On the fast paths nothing is counted while they run: their transactions have so many rows each.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::order::Epoch;

/// A transaction, and a row that it uses.
pub(crate) const TRANSACTION: u64 = 4;
pub(crate) const ROW: u64 = 4;
/// A version, or a row of a range, that is looked at.
pub(crate) const LOOK: u64 = 2;
/// An operation that is planned, an entry of a row's list, a version that is passed over.
pub(crate) const STEP: u64 = 1;

/// What something may take.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    spent: AtomicU64,
}

impl Budget {
    pub(crate) fn of(limit: u64) -> Budget {
        Budget { limit, spent: AtomicU64::new(0) }
    }

    /// Whether it can be spent.
    pub(crate) fn has_end(&self) -> bool {
        self.limit < u64::MAX
    }

    /// So much work has been done.
    pub(crate) fn spend(&self, work: u64) {
        self.spent.fetch_add(work, Ordering::Relaxed);
    }

    /// What was spent.
    pub(crate) fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Whether it is spent, with so much more that is not counted there yet.
    pub(crate) fn is_over(&self, more: u64) -> bool {
        self.spent().saturating_add(more) > self.limit
    }
}

/// What transactions take in serial execution, by handler; of each with all that it sets off.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usual {
    /// How many, and what they took in all.
    of: Vec<(u64, u64)>,
}

/// So many transactions say what is usual: older ones count half.
const USUAL: u64 = 4_096;

impl Usual {
    pub(crate) fn learn(&mut self, handler: usize, transactions: u64, work: u64) {
        if self.of.len() <= handler {
            self.of.resize(handler + 1, (0, 0));
        }
        let (seen, taken) = &mut self.of[handler];
        (*seen, *taken) = (*seen + transactions, *taken + work);
        if *seen > USUAL {
            (*seen, *taken) = (*seen / 2, *taken / 2);
        }
    }

    /// What a transaction of a handler takes. Of one that was never executed nothing is known but that it is one.
    fn each(&self, handler: usize) -> f64 {
        match self.of.get(handler) {
            Some((seen, taken)) if *seen > 0 => *taken as f64 / *seen as f64,
            _ => (TRANSACTION + ROW) as f64,
        }
    }

    /// What a transaction of an epoch takes, on average. `known` are those of handlers of which it is the same each time.
    pub(crate) fn of_epoch(&self, epoch: &Epoch, known: &[Option<u64>]) -> f64 {
        let (mut transactions, mut work) = (0, 0.0);
        for lane in &epoch.lanes {
            let (len, handler) = (epoch.runs[lane.run as usize].batch.len(), lane.handler as usize);
            let each = known[handler].map_or_else(|| self.each(handler), |each| each as f64);
            (transactions, work) = (transactions + len, work + each * len as f64);
        }
        work / transactions.max(1) as f64
    }
}

/// What was done, and what of it was in vain: done twice, or thrown away. What is tried has to fit in what may be in vain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    done: u64,
    vain: u64,
    /// Whether anything that is executed in place was ever given up.
    pub(crate) has_failed: bool,
}

/// The share of all work that may be in vain: one part in so many.
const VAIN: u64 = 20;

/// So much work is remembered: older work counts half. A bad hour may not use up what a good year has saved.
const REMEMBERED: u64 = 1 << 27;

/// What is tried may take so many times what serial execution of the same transactions usually takes; then it is given
/// up.
pub(crate) const TIMES: f64 = 2.0;

impl Ledger {
    /// So much work was done, as serial execution would have done it, and so much more in vain.
    pub(crate) fn note(&mut self, done: u64, vain: u64) {
        (self.done, self.vain) = (self.done + done, self.vain + vain);
        if self.done > REMEMBERED {
            (self.done, self.vain) = (self.done / 2, self.vain / 2);
        }
    }

    /// How many transactions, which usually take so much each, may be tried: all of what that takes may be in vain.
    pub(crate) fn transactions(&self, each: f64) -> usize {
        let room = (self.done / VAIN).saturating_sub(self.vain);
        (room as f64 / (TIMES * each).max(1.0)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However bad it is what is tried, no more than a twentieth is in vain.
    #[test]
    fn no_more_than_a_share_is_in_vain() {
        let (mut ledger, mut tries) = (Ledger::default(), 0);
        let (mut done, mut vain) = (0, 0);
        for _ in 0..1_000 {
            let fits = ledger.transactions(10.0).min(10_000);
            tries += usize::from(fits > 0);
            let lost = (TIMES * 10.0) as u64 * fits as u64;
            ledger.note(100_000, lost);
            (done, vain) = (done + 100_000, vain + lost);
            assert!(vain * VAIN <= done, "{vain} of {done}");
        }
        assert!(tries > 100, "{tries}");
    }

    #[test]
    fn what_is_usual_follows_what_is_seen() {
        let mut usual = Usual::default();
        (0..100).for_each(|_| usual.learn(1, 100, 1_000));
        assert!((usual.each(1) - 10.0).abs() < 0.1, "{}", usual.each(1));
        (0..200).for_each(|_| usual.learn(1, 100, 5_000));
        assert!(usual.each(1) > 45.0, "{}", usual.each(1));
        assert_eq!(usual.each(0), (TRANSACTION + ROW) as f64);
    }
}
