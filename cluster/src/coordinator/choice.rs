//! The choice of who executes an epoch by column: all nodes, or one of them on rows that the others
//! lend it. The outcome is the same, so it may be chosen by measured times.
//!
//! Time is measured in *phases* of several epochs in one way. Now and then a phase tries the other
//! way, and more rarely each time that it is not faster.

use std::collections::VecDeque;

use tidemill_function::NodeId;

/// The least number of transactions in an epoch for which one node may execute it alone. Smaller
/// epochs take as long as their messages, of which there are more if a node executes alone.
const TRANSACTIONS_MIN: u64 = 2048;
/// The least number of epochs in a phase, and its least time in microseconds.
const EPOCHS_MIN: u64 = 8;
const PHASE_US_MIN: u64 = 50_000;
/// The least and the most phases between two that try the other way.
const REST_MIN: u32 = 4;
const REST_MAX: u32 = 64;

/// The factor by which a way has become slower when the other one is tried at once.
const CHANGED: f64 = 1.5;

/// A way to execute an epoch, as an index.
type Way = usize;
const ALL: Way = 0;
const ONE: Way = 1;

/// The times of the two ways so far.
#[derive(Debug)]
pub(super) struct Choice {
    /// Whether the ways alternate, for tests.
    alternates: bool,
    /// The nanoseconds for each transaction, by way.
    costs: [Option<f64>; 2],
    /// The way of the present phase, and the better one. If they differ, this is a try.
    way: Way,
    best: Way,
    /// Epochs of the present phase that have been cut and not executed: their numbers, the numbers
    /// of their transactions, and whether nodes did not wait for input before.
    open: VecDeque<(u64, u64, bool)>,
    /// The time when the first epoch of the phase had been executed, and the number of epochs and
    /// transactions since then.
    since_us: Option<u64>,
    epochs: u64,
    transactions: u64,
    /// The phases until the other way is tried, and the number of them between two tries.
    left: u32,
    rest: u32,
}

impl Choice {
    pub fn new(alternates: bool) -> Choice {
        Choice {
            alternates,
            costs: [None; 2],
            way: ALL,
            best: ALL,
            open: VecDeque::new(),
            since_us: None,
            epochs: 0,
            transactions: 0,
            left: 0,
            rest: REST_MIN,
        }
    }

    /// Chooses the node that executes the next epoch, if one does. `by_node` has the number of
    /// transactions that each node receives. `is_busy` means that the nodes have
    /// not waited for input before it.
    pub fn choose(&mut self, epoch: u64, by_node: &[u64], is_busy: bool) -> Option<NodeId> {
        let nodes = by_node.len() as u64;
        if nodes < 2 {
            return None;
        }
        if self.alternates {
            return (!epoch.is_multiple_of(3)).then(|| NodeId((epoch / 2 % nodes) as u16));
        }
        let transactions: u64 = by_node.iter().sum();
        if transactions < TRANSACTIONS_MIN {
            self.pause();
            return None;
        }
        self.open.push_back((epoch, transactions, is_busy));
        let most = by_node.iter().copied().max()?;
        let node = by_node.iter().position(|of| *of == most)?;
        (self.way == ONE).then_some(NodeId(node as u16))
    }

    /// Notes that all nodes have executed an epoch.
    pub fn executed(&mut self, epoch: u64, now_us: u64) {
        while let Some((_, transactions, is_busy)) = self.open.pop_front_if(|of| of.0 <= epoch) {
            // Nothing is known of how long an epoch took for which the nodes had to wait, or of the
            // end of the one before.
            let Some(since_us) = self.since_us.filter(|_| is_busy) else {
                (self.since_us, self.epochs, self.transactions) = (Some(now_us), 0, 0);
                continue;
            };
            self.epochs += 1;
            self.transactions += transactions;
            let us = now_us.saturating_sub(since_us);
            if self.epochs >= EPOCHS_MIN && us >= PHASE_US_MIN {
                let cost = us as f64 * 1e3 / self.transactions as f64;
                let is_new = self.costs[self.way].is_some_and(|before| cost > CHANGED * before);
                self.left = if is_new { 0 } else { self.left };
                self.costs[self.way] = Some(cost);
                self.next_phase();
            }
        }
    }

    /// Begins the next phase.
    fn next_phase(&mut self) {
        if self.way == self.best {
            match self.left.checked_sub(1) {
                Some(left) => self.left = left,
                None => self.way = 1 - self.best,
            }
        } else {
            match self.costs[self.way] < self.costs[self.best] {
                true => (self.best, self.rest) = (self.way, REST_MIN),
                false => (self.way, self.rest) = (self.best, (2 * self.rest).min(REST_MAX)),
            }
            self.left = self.rest;
        }
        // Epochs that have been cut are executed in the way before.
        self.open.clear();
        self.pause();
    }

    /// Forgets the times of the present phase.
    pub fn pause(&mut self) {
        (self.since_us, self.epochs, self.transactions) = (None, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs epochs whose transactions take so many nanoseconds in each way. Returns how many epochs
    /// were executed by one node.
    fn run(choice: &mut Choice, (first, epochs): (u64, u64), costs: [u64; 2]) -> usize {
        let mut by_one = 0;
        let (mut now_us, mut before) = (first * 1_000_000, None);
        for epoch in first..first + epochs {
            let node = choice.choose(epoch, &[10_000, 30_000], epoch > first);
            assert!(node.is_none_or(|node| node == NodeId(1)), "the one with most events");
            if let Some((of, cost)) = before.replace((epoch, costs[usize::from(node.is_some())])) {
                now_us += 40_000 * cost / 1000;
                choice.executed(of, now_us);
            }
            by_one += usize::from(node.is_some());
        }
        by_one
    }

    #[test]
    fn the_better_way_is_used_and_the_other_one_is_tried() {
        let mut choice = Choice::new(false);
        let by_one = run(&mut choice, (1, 2000), [500, 100]);
        assert!((1500..1990).contains(&by_one), "{by_one}");
        // The way in use has become slower, so the other one is tried at once.
        let by_one = run(&mut choice, (2001, 2000), [100, 500]);
        assert!((20..300).contains(&by_one), "{by_one}");
    }

    #[test]
    fn small_epochs_and_single_nodes_are_not_for_one_node() {
        let mut choice = Choice::new(false);
        assert!((1..500).all(|epoch| choice.choose(epoch, &[9, 8], true).is_none()));
        assert!((500..900).all(|epoch| choice.choose(epoch, &[1 << 20], true).is_none()));
    }
}
