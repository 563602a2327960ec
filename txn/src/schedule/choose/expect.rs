//! What is expected of an epoch, by a model of what is measured: executing a transaction, and planning one.

use super::{Arm, Chooser, Properties, PARALLEL};

/// What is expected, in nanoseconds a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// Of serial execution.
    pub serial_ns: f64,
    /// Of rounds.
    pub rounds_ns: f64,
    /// Of lists.
    pub lists_ns: f64,
    /// Of blocks.
    pub blocks_ns: f64,
    /// Of a graph.
    pub graph_ns: f64,
}

impl Expected {
    pub(super) fn best(&self, among: &[Arm]) -> Arm {
        let best = among.iter().min_by(|a, b| self.of(**a).total_cmp(&self.of(**b)));
        *best.unwrap_or(&Arm::Serial)
    }

    /// What is expected of one of them.
    pub fn of(&self, arm: Arm) -> f64 {
        match arm {
            Arm::Serial => self.serial_ns,
            Arm::Rounds => self.rounds_ns,
            Arm::Lists => self.lists_ns,
            Arm::Blocks => self.blocks_ns,
            Arm::Graph => self.graph_ns,
        }
    }
}

/// Epochs are alike by how many of their rows are shared: in the sample, less than so many of its rows.
pub(super) const CLASSES: [f64; 5] = [0.03, 0.08, 0.2, 0.5, f64::INFINITY];

/// How much longer rounds, lists, blocks and graphs take than the model says, as long as nothing was measured. What
/// rounds and blocks take longer for is no part of the transactions' own work: of those that take more than so much
/// it is less.
pub(super) const OFF: [[f64; CLASSES.len()]; PARALLEL] = [
    [1.1, 1.5, 2.2, 3.5, 4.5],
    [1.1, 1.1, 1.2, 1.5, 1.8],
    [1.2, 1.4, 1.8, 3.0, 4.0],
    [1.2, 1.2, 1.2, 1.2, 1.2],
];

const OFF_OF_NS: [f64; PARALLEL] = [100.0, f64::INFINITY, 200.0, f64::INFINITY];

/// What reserving the rows of a transaction takes, and planning one of them for blocks, which all threads do.
const RESERVE_NS: f64 = 10.0;
const BLOCKS_ROW_NS: f64 = 17.0;

/// How much longer executing takes in blocks, where nobody waits: rows come from other cores more often.
const BLOCKS_LONGER: f64 = 1.08;

/// What planning one for a list takes, as long as nothing was measured: hashing its keys and looking at two
/// lines of memory for each, which are in a cache.
pub(super) const PLAN_NS: f64 = 50.0;

/// What planning a transaction of a graph, settling it and writing its versions to the tables takes; the
/// same of one that could be executed in place, too, and of one that is discovered; and how often one of these is run again, as long as nothing was measured.
const GRAPH_NS: f64 = 1_500.0;
const DISCOVERED_NS: f64 = 9_000.0;
const DISCOVERED_AGAIN: f64 = 0.35;

/// What putting the threads' outputs together takes, where they are not in their places at once, and other things that are done
/// once an epoch.
pub(super) const TOGETHER_NS: [f64; PARALLEL] = [5.0, 12.0, 5.0, 50.0];

impl Chooser {
    /// What is expected of an epoch on so many threads.
    pub fn expected(&self, seen: &Properties, threads: usize) -> Expected {
        let models = self.models(seen, threads);
        let [rounds_ns, lists_ns, blocks_ns, graph_ns] = [0, 1, 2, 3].map(|parallel| {
            let off = self.off(parallel, class(seen));
            models[parallel] * off + TOGETHER_NS[parallel] * self.slower
        });
        let serial_ns = self.serial_ns.value;
        Expected { serial_ns, rounds_ns, lists_ns, blocks_ns, graph_ns }
    }

    /// How much longer than the model says rounds, lists, blocks or a graph take. What was not measured is as far from
    /// what was thought as the most of what was: the more rows are shared, the longer it takes.
    pub(super) fn off(&self, parallel: usize, class: usize) -> f64 {
        let known = &self.off[parallel];
        if self.measured[parallel][class] {
            return known[class].value;
        }
        let part = (OFF_OF_NS[parallel] / self.serial_ns.value).min(1.0);
        let thought = |class: usize| 1.0 + (OFF[parallel][class] - 1.0) * part;
        let below = (0..class).filter(|below| self.measured[parallel][*below]);
        let worse = below.map(|below| known[below].value / thought(below)).fold(1.0, f64::max);
        thought(class) * worse
    }

    /// What rounds, lists, blocks and a graph would take if nobody had to wait.
    pub(super) fn models(&self, seen: &Properties, threads: usize) -> [f64; PARALLEL] {
        let (serial, plan, threads) = (self.serial_ns.value, self.plan_ns.value, threads as f64);
        let lists = plan.max((plan + serial) / threads);
        let known = serial + GRAPH_NS * self.slower;
        let discovered = serial * (1.0 + DISCOVERED_AGAIN) + DISCOVERED_NS * self.slower;
        let one = known * (1.0 - seen.unknown) + discovered * seen.unknown;
        // Operations on one row follow one another, on however many threads, once they are planned.
        let on_hottest = seen.hottest * serial / seen.rows.max(1.0);
        let graph = (one / threads).max((one - serial) / threads + on_hottest);
        let rounds = (serial + RESERVE_NS * self.slower) / threads;
        let planned = BLOCKS_ROW_NS * seen.rows * self.slower;
        let blocks = (serial * BLOCKS_LONGER + planned) / threads;
        [rounds, lists, blocks, graph]
    }
}

pub(super) fn class(seen: &Properties) -> usize {
    CLASSES.iter().position(|below| seen.shared < *below).unwrap_or(CLASSES.len() - 1)
}
