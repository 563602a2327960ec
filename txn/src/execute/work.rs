//! Counted work: the cost of execution, measured without a clock. So the bound of trials is the
//! same on every machine.
//!
//! The following counts: a transaction that is executed, a row that it uses, a version or a row of
//! a range that it reads one by one, and an operation of a function. In a graph, a step of planning
//! and a version that has to be passed count as well. Whatever is executed twice counts twice.
//!
//! Nothing is counted while fast paths run, because each of their transactions has a fixed number
//! of rows.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::order::Epoch;

/// The work of a transaction, and of a row that it uses.
pub(crate) const TRANSACTION: u64 = 4;
pub(crate) const ROW: u64 = 4;
/// The work of reading a version, or a row of a range.
pub(crate) const LOOK: u64 = 2;
/// The work of planning an operation, of an entry in a row's list, or of passing a version.
pub(crate) const STEP: u64 = 1;

/// The budget of a trial.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    spent: AtomicU64,
}

impl Budget {
    pub(crate) fn of(limit: u64) -> Budget {
        Budget { limit, spent: AtomicU64::new(0) }
    }

    /// Whether the budget is limited.
    pub(crate) fn has_end(&self) -> bool {
        self.limit < u64::MAX
    }

    /// Charges this much work.
    pub(crate) fn spend(&self, work: u64) {
        self.spent.fetch_add(work, Ordering::Relaxed);
    }

    /// Returns the charged work.
    pub(crate) fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Whether the budget is spent, if `more` work that is not charged yet is included.
    pub(crate) fn is_over(&self, more: u64) -> bool {
        self.spent().saturating_add(more) > self.limit
    }
}

/// The usual work of transactions in serial execution, by handler, with everything that they
/// trigger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usual {
    /// The number of transactions and their total work, by handler.
    of: Vec<(u64, u64)>,
}

/// The number of transactions that show the usual work. Older ones count half.
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

    /// Returns the usual work of a handler's transaction. If none was executed yet, only the
    /// transaction itself counts.
    fn each(&self, handler: usize) -> f64 {
        match self.of.get(handler) {
            Some((seen, taken)) if *seen > 0 => *taken as f64 / *seen as f64,
            _ => (TRANSACTION + ROW) as f64,
        }
    }

    /// Returns the average work of an epoch's transaction. `known` is the work of handlers for
    /// which it is always the same.
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

/// The useful and the wasted work. Work is wasted if it was done twice, or thrown away. A trial has
/// to fit into the work that may be wasted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    done: u64,
    wasted: u64,
    /// Whether execution in place was ever given up.
    pub(crate) has_failed: bool,
}

/// The share of all work that may be wasted: one part in this number.
const WASTED: u64 = 20;

/// The amount of work after which older work counts half. A bad hour must not use up the savings of
/// a good year.
const REMEMBERED: u64 = 1 << 27;

/// The most work of a trial, as a multiple of the usual work of the same transactions in serial
/// execution. Then it is given up.
pub(crate) const TIMES: f64 = 2.0;

impl Ledger {
    /// Records useful work, as in serial execution, and wasted work.
    pub(crate) fn note(&mut self, done: u64, vain: u64) {
        (self.done, self.wasted) = (self.done + done, self.wasted + vain);
        if self.done > REMEMBERED {
            (self.done, self.wasted) = (self.done / 2, self.wasted / 2);
        }
    }

    /// Returns how many transactions may be tried, if each usually takes this much work. All of
    /// that work may be wasted.
    pub(crate) fn transactions(&self, each: f64) -> usize {
        let room = (self.done / WASTED).saturating_sub(self.wasted);
        (room as f64 / (TIMES * each).max(1.0)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However bad trials are, no more than a twentieth of all work is wasted.
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
            assert!(vain * WASTED <= done, "{vain} of {done}");
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
