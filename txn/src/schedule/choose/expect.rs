//! The expected times of an epoch, by a model of two measured costs: executing a transaction, and
//! planning one.

use super::{Chooser, ExecutionMode, Properties, PARALLEL};

/// The expected times, in nanoseconds per transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// The time of serial execution.
    pub serial_ns: f64,
    /// The time of rounds.
    pub rounds_ns: f64,
    /// The time of lists.
    pub lists_ns: f64,
    /// The time of blocks.
    pub blocks_ns: f64,
    /// The time of a graph.
    pub graph_ns: f64,
}

impl Expected {
    pub(super) fn best(&self, among: &[ExecutionMode]) -> ExecutionMode {
        let best = among.iter().min_by(|a, b| self.of(**a).total_cmp(&self.of(**b)));
        *best.unwrap_or(&ExecutionMode::Serial)
    }

    /// Returns the expected time of an option.
    pub fn of(&self, arm: ExecutionMode) -> f64 {
        match arm {
            ExecutionMode::Serial => self.serial_ns,
            ExecutionMode::Rounds => self.rounds_ns,
            ExecutionMode::Lists => self.lists_ns,
            ExecutionMode::Blocks => self.blocks_ns,
            ExecutionMode::Graph => self.graph_ns,
        }
    }
}

/// The classes of similar epochs: upper limits of the share of shared rows in a sample.
pub(super) const CLASSES: [f64; 5] = [0.03, 0.08, 0.2, 0.5, f64::INFINITY];

/// The initial factors by which rounds, lists, blocks and graphs take longer than the model says.
/// In rounds and blocks, the extra time does not depend on the transactions' own work. So it counts
/// less for transactions that take longer than `OFF_OF_NS`.
pub(super) const OFF: [[f64; CLASSES.len()]; PARALLEL] = [
    [1.1, 1.5, 2.2, 3.5, 4.5],
    [1.1, 1.1, 1.2, 1.5, 1.8],
    [1.2, 1.4, 1.8, 3.0, 4.0],
    [1.2, 1.2, 1.2, 1.2, 1.2],
];

const OFF_OF_NS: [f64; PARALLEL] = [100.0, f64::INFINITY, 200.0, f64::INFINITY];

/// The time of reserving a transaction's rows, and of planning a row for blocks, which all threads
/// do.
const RESERVE_NS: f64 = 10.0;
const BLOCKS_ROW_NS: f64 = 17.0;

/// The factor for execution in blocks without waits: rows come from other cores more often.
const BLOCKS_LONGER: f64 = 1.08;

/// The initial time of planning a transaction for a list: hashing its keys, and accessing two
/// cached lines of memory for each.
pub(super) const PLAN_NS: f64 = 50.0;

/// The times of planning a transaction of a graph, settling it and writing its versions to the
/// tables. The first is for known accesses, the second for discovered ones. The third is the
/// initial share of the latter that run again.
const GRAPH_NS: f64 = 1_500.0;
const DISCOVERED_NS: f64 = 9_000.0;
const DISCOVERED_AGAIN: f64 = 0.35;

/// The time of joining the threads' outputs, unless they are in their places at once, and of other
/// work once an epoch.
pub(super) const TOGETHER_NS: [f64; PARALLEL] = [5.0, 12.0, 5.0, 50.0];

impl Chooser {
    /// Returns the expected times of an epoch on this many threads.
    pub fn expected(&self, seen: &Properties, threads: usize) -> Expected {
        let models = self.models(seen, threads);
        let [rounds_ns, lists_ns, blocks_ns, graph_ns] = [0, 1, 2, 3].map(|parallel| {
            let off = self.off(parallel, class(seen));
            models[parallel] * off + TOGETHER_NS[parallel] * self.slower
        });
        let serial_ns = self.serial_ns.value;
        Expected { serial_ns, rounds_ns, lists_ns, blocks_ns, graph_ns }
    }

    /// Returns the factor by which an option takes longer than the model says. Without a
    /// measurement of this class, the factor is off by as much as the worst measured class with
    /// fewer shared rows.
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

    /// Returns the times of rounds, lists, blocks and a graph without waits.
    pub(super) fn models(&self, seen: &Properties, threads: usize) -> [f64; PARALLEL] {
        let (serial, plan, threads) = (self.serial_ns.value, self.plan_ns.value, threads as f64);
        let lists = plan.max((plan + serial) / threads);
        let known = serial + GRAPH_NS * self.slower;
        let discovered = serial * (1.0 + DISCOVERED_AGAIN) + DISCOVERED_NS * self.slower;
        let one = known * (1.0 - seen.unknown) + discovered * seen.unknown;
        // Operations on one row follow one another on any number of threads, once they are planned.
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
