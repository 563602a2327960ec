//! The choice of an epoch's strategy, before planning, from the epoch's properties and the times of
//! earlier epochs.
//!
//! MorphStream decides by thresholds on properties of the graph (MorphStream, section V-D), which
//! must be built first. Here the decision comes first, because any plan costs as much as executing
//! cheap transactions. The expected times come from a model of two costs that are measured all the
//! time: executing a transaction, and planning one. These are the costs of a transaction on `n`
//! threads:
//!
//! - serial execution: `execute`
//! - rounds: `(reserve + execute) / n`
//! - blocks: `(link + execute) / n`
//! - lists: `max(plan, (plan + execute) / n)`
//! - a graph: `(plan + execute) / n`
//!
//! All but serial execution also pay for joining outputs. A graph is for transactions that can't be
//! executed in place. Its planning is expensive, and functions that discover their accesses by
//! running may have to run twice. Hot rows make threads wait, which the model does not know. So the
//! chooser remembers, for similar epochs, how far the model was off.
//!
//! The chooser retries an option when its expected loss is a small share of the time since its last
//! use. So it detects wrong expectations at a small cost. A retried option counts after some epochs
//! in a row, or when it becomes no faster. Before that its memory is cold, rows are in the caches
//! of other cores, and threads sleep. An option that was the best and became slow is retried soon,
//! because the machine may have been the cause.

mod average;
mod expect;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

use self::average::{Average, FAR, FAR_MAX};
pub use self::expect::Expected;
use self::expect::{class, CLASSES, OFF, PLAN_NS, TOGETHER_NS};
use super::strategy::{Aborts, Explore, Strategy, Unit};

/// The properties of an epoch before it is planned. MorphStream's seven properties of a graph
/// (MorphStream, Table IV) follow from them. Of its dependencies, T times l are logical, at most as
/// many are temporal, and the rows that operations read give the parametric ones. The complexity of
/// operations (C) is the measured time of transactions. Cycles of chains do not matter to these
/// strategies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Properties {
    /// The number of transactions (MorphStream's T).
    pub transactions: usize,
    /// The average number of rows that a transaction uses, which are operations (T times l in all).
    pub rows: f64,
    /// The share of the rows in a sample of some dozens of transactions that other transactions of
    /// the sample also use. It reflects the skew (theta).
    pub shared: f64,
    /// The share of transactions that write the most written row. These can only be executed one
    /// after the other.
    pub hottest: f64,
    /// The share of aborted transactions (a) in the epoch before.
    pub aborts: f64,
    /// The share of transactions that discover their accesses only by running. In a graph they may
    /// run twice.
    pub unknown: f64,
}

/// The ways to execute an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    /// One thread, in order.
    Serial,
    /// Rounds.
    Rounds,
    /// Lists.
    Lists,
    /// Blocks.
    Blocks,
    /// The task precedence graph.
    Graph,
}

const ARMS: usize = 5;

/// The number of ways other than serial execution, which are in the order of [`ExecutionMode`].
const PARALLEL: usize = ARMS - 1;

impl ExecutionMode {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            ExecutionMode::Serial => "serial",
            ExecutionMode::Rounds => "rounds",
            ExecutionMode::Lists => "lists",
            ExecutionMode::Blocks => "blocks",
            ExecutionMode::Graph => "graph",
        }
    }

    /// The ways for epochs that can be executed in place. A graph is not among them. In each cell
    /// of the grid (`tidemill bench grid`) where a graph was faster than the others, blocks are
    /// faster still.
    pub const IN_PLACE: &[ExecutionMode] = &[
        ExecutionMode::Serial,
        ExecutionMode::Rounds,
        ExecutionMode::Lists,
        ExecutionMode::Blocks,
    ];

    /// The ways in place on many threads. In rounds, the checks of each thread grow with the number
    /// of threads.
    pub const IN_PLACE_OF_MANY: &[ExecutionMode] =
        &[ExecutionMode::Serial, ExecutionMode::Lists, ExecutionMode::Blocks];

    /// Returns the ways to execute an epoch in place on this many threads.
    pub fn in_place(threads: usize) -> &'static [ExecutionMode] {
        /// From this number of threads on, blocks are faster than rounds for all transactions.
        const MANY: usize = 9;
        if threads < MANY {
            ExecutionMode::IN_PLACE
        } else {
            ExecutionMode::IN_PLACE_OF_MANY
        }
    }

    /// The ways for epochs that can't be executed in place.
    pub const NOT_IN_PLACE: &[ExecutionMode] = &[ExecutionMode::Serial, ExecutionMode::Graph];
}

/// The choice for an epoch, or for the rest of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The way of execution.
    pub arm: ExecutionMode,
    /// The number of its transactions. A part is enough for a try, and a graph has to fit in a
    /// cache.
    pub transactions: usize,
    /// The reason.
    pub why: &'static str,
}

/// The time of an epoch, in nanoseconds per transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochTimes {
    /// The whole time.
    pub ns: f64,
    /// The time of planning, if it was planned.
    pub plan_ns: Option<f64>,
    /// The time of execution without waits, if several threads executed it.
    pub execute_ns: Option<f64>,
    /// The share of aborted transactions.
    pub aborts: f64,
}

/// The cost of retries, as a share of the whole time.
const TRIES: f64 = 0.002;

/// The previous best is retried after the new best has run for this many epochs' time, then after
/// this many times as long, and so on. The machine may have been slow, and then every option would
/// have been.
const LOST_EPOCHS: f64 = 4.0;
const LOST_LONGER: f64 = 4.0;
/// The relative time below which a new best replaces the old one. A change costs cold memory.
const HOLDS: f64 = 0.98;

/// The count for an option that was never the best.
const NEVER: u32 = 1000;

/// The cost of first tries, as a share of the whole time. A first try allocates memory, which takes
/// as long as the best takes for the same transactions, at most this many nanoseconds per
/// transaction.
const FIRST_TRIES: f64 = 0.05;
const NEW_NS: f64 = 500.0;
/// The cost of second tries. In the first try memory was new, also that of the outputs.
const SECOND_TRIES: f64 = 0.02;

/// The least number of serially executed epochs at the start, of which the fastest counts. In the
/// first ones all memory is new.
const SERIAL_FIRST: u64 = 4;

/// The most that a try is charged, in times of the best. More than that is new memory or another
/// process on the core, which does not recur.
const CHARGE_MAX: f64 = 3.0;

/// First tries need an expected time of at most this many times the best's. For cheap transactions,
/// a first try of blocks or a graph would cost many times as much.
const BLOCKS_HOPE: f64 = 1.0;
const GRAPH_HOPE: f64 = 1.1;

/// A try lasts for this many transactions, as long as its time is below this many times the best's.
/// Caches and threads warm up slowly: by a quarter over five epochs of 10,000. The difference
/// between two epochs does not show that.
const TRY_LASTS: usize = 50_000;
const TRY_HOPE: f64 = 1.35;

/// A try executes as much of an epoch as the best executes in this time, between these numbers of
/// transactions. Then the fixed cost of a part is small, and two parts can be compared.
const PART_NS: f64 = 1e6;
const PART: (f64, f64) = (1_024.0, 16_384.0);

/// An option whose time is below this share of its last time is still warming up and used again.
/// This goes on for at most this many uses, and below this many times the best's time.
const WARMER: f64 = 0.95;
const WARM_MAX: u32 = 12;
const WARM_HOPE: f64 = 2.0;

/// Above this time per transaction, one execution is enough to judge: cold memory and waking
/// threads are a small part. The limit is lower for serial execution, which wakes no threads.
const DEAR_NS: f64 = 5_000.0;
const DEAR_SERIAL_NS: f64 = 2_000.0;
/// The limit after two serial executions: a part of the first epoch, and the rest of it.
const DEAR_SERIAL_TWICE_NS: f64 = 300.0;

/// The time of an epoch from which one execution is enough, however cheap its transactions are.
const LONG_EPOCH_NS: f64 = 50e6;

/// The number of transactions for which a sample holds. So not every short epoch is sampled.
const SAMPLE_HOLDS: usize = 4_096;

/// The weight of a sample in the average share of shared rows, because samples are small. A sample
/// that differs by more than this, absolutely and relatively, replaces the average.
const NEW_SHARED: f64 = 0.15;
const SHARED_OFF: (f64, f64) = (0.1, 0.4);

/// The work has changed if parallel execution takes this many times the serial time of a
/// transaction. It is normally somewhat slower, because rows are in the cache of their last user.
const CHANGED: f64 = 4.0;

/// The change in the share of aborts from which earlier times no longer count.
const ABORTS_CHANGED: f64 = 0.1;

/// The weights of new values in averages: of a usual epoch, and of a try of several epochs or
/// parts.
const NEW: f64 = 0.2;
const NEW_TRY: f64 = 0.6;

/// Chooses between serial execution and the parallel strategies.
#[derive(Clone, Debug)]
pub struct Chooser {
    /// The times of executing a transaction serially, and of planning one.
    serial_ns: Average,
    plan_ns: Average,
    /// The share of aborted transactions at the last measurement of `serial_ns`.
    aborts: f64,
    /// How many times as long planning takes here as on the machine that gave the costs.
    slower: f64,
    /// The options. Serial execution is the first.
    among: &'static [ExecutionMode],
    /// Per parallel option and class: how many times as long it took as expected.
    off: [[Average; CLASSES.len()]; PARALLEL],
    /// Whether that was measured.
    measured: [[bool; CLASSES.len()]; PARALLEL],
    /// Per option: the time since it was used.
    since_ns: [f64; ARMS],
    /// Per option: the number of its uses.
    used: [u64; ARMS],
    /// Per option: the number of its uses after another option, or as the first.
    tried: [u32; ARMS],
    /// Per option: its uses since it was the best, and the extra cost of the last use over the
    /// best.
    lost: [u32; ARMS],
    lost_ns: [f64; ARMS],
    /// The best so far.
    holds: ExecutionMode,
    /// The last used option, the number of its uses in a row, and the time of the last use.
    last: ExecutionMode,
    in_row: u32,
    last_ns: f64,
    /// Whether that option became faster with each use and is to be used again.
    is_cold: bool,
    /// The share of shared rows over the last epochs.
    shared: Option<f64>,
    /// The last sample, and the number of transactions since.
    seen: Option<(Properties, usize)>,
}

impl Chooser {
    /// Makes a chooser among these options. `slower` is how many times as long planning takes on
    /// this machine as the costs here say.
    pub fn new(among: &'static [ExecutionMode], slower: f64) -> Chooser {
        Chooser {
            serial_ns: Average::of(60.0),
            plan_ns: Average::of(PLAN_NS * slower),
            aborts: 0.0,
            slower,
            among,
            off: OFF.map(|of| of.map(Average::of)),
            measured: [[false; CLASSES.len()]; PARALLEL],
            since_ns: [0.0; ARMS],
            used: [0; ARMS],
            tried: [0; ARMS],
            lost: [NEVER; ARMS],
            lost_ns: [0.0; ARMS],
            holds: ExecutionMode::Serial,
            last: ExecutionMode::Serial,
            in_row: 0,
            last_ns: 0.0,
            is_cold: false,
            shared: None,
            seen: None,
        }
    }

    /// Returns the properties of an epoch, from a sample of it if one is due, and from earlier
    /// epochs.
    pub fn look_at(
        &mut self,
        transactions: usize,
        sample: impl FnOnce() -> Properties,
    ) -> Properties {
        let (seen, since) = match self.seen {
            Some((seen, since)) if since + transactions <= SAMPLE_HOLDS => {
                (seen, since + transactions)
            }
            _ => (self.look(sample()), transactions),
        };
        self.seen = Some((seen, since));
        Properties { transactions, ..seen }
    }

    /// Returns the properties of an epoch, from its sample and earlier epochs.
    fn look(&mut self, sample: Properties) -> Properties {
        let (least, part) = SHARED_OFF;
        let is_near = |known: &f64| (sample.shared - known).abs() < least.max(known * part);
        let shared = match self.shared.filter(is_near) {
            Some(known) => known + (sample.shared - known) * NEW_SHARED,
            None => sample.shared,
        };
        self.shared = Some(shared);
        Properties { shared, ..sample }
    }

    /// Returns the options.
    pub fn among(&self) -> &'static [ExecutionMode] {
        self.among
    }

    /// Returns the strategy for graphs, by MorphStream's decision model (MorphStream, section V-D).
    /// The walk is by readiness, because conflicting functions are one stratum each. Aborts are
    /// handled at the end if they are many and running again is cheap.
    pub fn graph(&self, seen: &Properties) -> Strategy {
        const ABORTS_MANY: f64 = 0.4;
        const CHEAP_NS: f64 = 10_000.0;
        let is_lazy = seen.aborts > ABORTS_MANY && self.serial_ns.value < CHEAP_NS;
        let aborts = if is_lazy { Aborts::Lazy } else { Aborts::Eager };
        Strategy::Graph(Explore::Ns, Unit::Op, aborts)
    }

    /// Whether the options execute in place.
    fn is_in_place(&self) -> bool {
        self.among.contains(&ExecutionMode::Lists)
    }

    /// Returns the next option in turn, whatever it costs, for half of the rest if that can be
    /// divided.
    pub fn in_turn(&self, left: &Properties) -> Choice {
        let arm = self.among[self.used.iter().sum::<u64>() as usize % self.among.len()];
        let all = left.transactions;
        let transactions = if self.is_in_place() { all.div_ceil(2) } else { all };
        Choice { arm, transactions, why: "it is its turn" }
    }

    /// Returns the number of transactions, of the rest of an epoch, that are enough for a try.
    fn part(&self, left: &Properties, threads: usize) -> usize {
        let all = left.transactions;
        let part = match self.used[ExecutionMode::Serial as usize] {
            // The cost of transactions is still unknown.
            0 => PART.0 as usize,
            _ => {
                let expected = self.expected(left, threads);
                let best_ns = expected.of(expected.best(self.among)).max(1.0);
                (PART_NS / best_ns).clamp(PART.0, PART.1) as usize
            }
        };
        without_rest(all, part)
    }

    /// Returns the best option: the previous best, unless another one is clearly faster.
    fn best(&self, expected: &Expected) -> ExecutionMode {
        let best = expected.best(self.among);
        match expected.of(self.holds) * HOLDS <= expected.of(best) {
            true => self.holds,
            false => best,
        }
    }

    /// Returns the option for the rest of an epoch, or for a part of it, with the reason.
    pub fn choose(&self, left: &Properties, threads: usize) -> Choice {
        /// Below this number, transactions are done before other threads have woken up.
        const TRANSACTIONS_MIN: usize = 512;
        let all = left.transactions;
        let part = self.part(left, threads);
        let chosen = |arm, transactions, why| Choice { arm, transactions, why };
        if threads < 2 || all < TRANSACTIONS_MIN {
            return chosen(ExecutionMode::Serial, all, "there are few transactions");
        }
        let serially = self.used[ExecutionMode::Serial as usize];
        let dear_ns = if serially > 1 { DEAR_SERIAL_TWICE_NS } else { DEAR_SERIAL_NS };
        let is_dear = serially > 0 && self.serial_ns.value > dear_ns;
        if serially < SERIAL_FIRST && !is_dear {
            // A part is enough to judge expensive transactions. For others it is not, while memory
            // is new.
            let transactions = if serially == 0 { part } else { all };
            return chosen(ExecutionMode::Serial, transactions, "to find out what it takes");
        }
        let expected = self.expected(left, threads);
        let cost = |arm: &ExecutionMode| expected.of(*arm);
        let best = self.best(&expected);
        if self.is_cold {
            // The best needs no try.
            let transactions = if self.last == best { all } else { part };
            return chosen(self.last, transactions, "to find out what it takes once it is warm");
        }
        let is_due = |arm: &ExecutionMode| {
            let (nth, more) = (*arm as usize, cost(arm) - cost(&best));
            let hope = match arm {
                ExecutionMode::Blocks => BLOCKS_HOPE,
                ExecutionMode::Graph => GRAPH_HOPE,
                _ => f64::INFINITY,
            };
            let (loss, lost_ns, tries) = match self.tried[nth] {
                0 if cost(arm) > cost(&best) * hope => return false,
                0 => (more + cost(&best).min(NEW_NS * self.slower), 0.0, FIRST_TRIES),
                1 => (more, 0.0, SECOND_TRIES),
                _ => (more, self.lost_ns[nth], TRIES),
            };
            let n = part as f64;
            let loss_ns = (loss * n).max(lost_ns);
            let patience = LOST_EPOCHS * LOST_LONGER.powi(self.lost[nth] as i32);
            let is_due = loss_ns < self.since_ns[nth] * tries
                || self.since_ns[nth] > cost(&best) * n * patience;
            *arm != best && is_due
        };
        match self.among.iter().copied().find(is_due) {
            Some(arm) => chosen(arm, part, "to find out what it takes now"),
            None => chosen(best, all, "it is expected to be faster"),
        }
    }

    /// Learns from the time of an epoch.
    pub fn learn(
        &mut self,
        seen: &Properties,
        threads: usize,
        arm: ExecutionMode,
        took: EpochTimes,
    ) {
        let was_cold = std::mem::take(&mut self.is_cold);
        if self.last != arm {
            self.in_row = 0;
        }
        self.is_cold = self.becomes_faster(seen, &self.expected(seen, threads), was_cold, took);
        self.tried[arm as usize] += u32::from(self.in_row == 0);
        self.in_row += 1;
        // If it became no faster, its time is the lower one of the last two.
        let least_ns = if was_cold { took.ns.min(self.last_ns) } else { took.ns };
        (self.last, self.last_ns) = (arm, took.ns);
        // An option that one execution is enough to judge has been tried with it.
        let is_try = was_cold || self.in_row == 1 && !self.is_cold;
        let new = if is_try { NEW_TRY } else { NEW };
        self.measure(seen, threads, arm, EpochTimes { ns: least_ns, ..took }, new);
        let (expected, n) = (self.expected(seen, threads), seen.transactions as f64);
        let best = self.best(&expected);
        self.holds = best;
        let best_ns = expected.of(best);
        let lost_ns = ((took.ns.min(best_ns * CHARGE_MAX) - best_ns) * n).max(0.0);
        // For a try, the costs of all its uses count.
        let before_ns = if was_cold { self.lost_ns[arm as usize] } else { 0.0 };
        self.lost[arm as usize] += u32::from(!self.is_cold);
        self.lost_ns[arm as usize] = lost_ns + before_ns;
        (self.lost[best as usize], self.lost_ns[best as usize]) = (0, 0.0);
    }

    /// Whether the used option is expected to be faster next time, and may become the best then. It
    /// is at the start of a try, and as long as it was with each use before.
    fn becomes_faster(
        &self,
        seen: &Properties,
        expected: &Expected,
        did_before: bool,
        took: EpochTimes,
    ) -> bool {
        let times = took.ns / expected.of(expected.best(self.among));
        let lasts = self.in_row + 1 < lasts(seen) && times < TRY_HOPE;
        let does = took.ns < self.last_ns * WARMER && self.in_row < WARM_MAX && times < WARM_HOPE;
        let says_all = took.ns > DEAR_NS || is_long(seen, took.ns);
        !says_all && (self.in_row == 0 || did_before && (lasts || does))
    }

    fn measure(
        &mut self,
        seen: &Properties,
        threads: usize,
        arm: ExecutionMode,
        took: EpochTimes,
        new: f64,
    ) {
        let ns = took.ns * seen.transactions as f64;
        self.since_ns.iter_mut().for_each(|since| *since += ns);
        self.since_ns[arm as usize] = 0.0;
        let used = &mut self.used[arm as usize];
        *used += 1;
        let serially = *used;
        if (took.aborts - self.aborts).abs() > ABORTS_CHANGED {
            self.aborts = took.aborts;
            // The machine can't be the cause.
            match (arm, took.execute_ns) {
                (ExecutionMode::Serial, _) => return self.serial_ns = Average::of(took.ns),
                (_, Some(execute_ns)) => self.serial_ns = Average::of(execute_ns),
                _ => {}
            }
        }
        let parallel = match arm {
            ExecutionMode::Serial if serially <= SERIAL_FIRST => {
                let least = if serially == 1 { took.ns } else { took.ns.min(self.serial_ns.value) };
                return self.serial_ns = Average::of(least);
            }
            ExecutionMode::Serial if self.is_cold && took.ns > self.serial_ns.value => return,
            ExecutionMode::Serial => return self.serial_ns.learn(took.ns, new),
            ExecutionMode::Rounds => 0,
            ExecutionMode::Lists => 1,
            ExecutionMode::Blocks => 2,
            ExecutionMode::Graph => 3,
        };
        if self.is_cold {
            return;
        }
        // The best returns after a try of another option, and must warm up again.
        let is_back = self.measured[parallel][class(seen)] && self.in_row < lasts(seen);
        let expected = self.expected(seen, threads);
        if is_back && expected.best(self.among) == arm && took.ns > expected.of(arm) {
            return;
        }
        if let (ExecutionMode::Lists, Some(plan_ns)) = (arm, took.plan_ns) {
            self.plan_ns.learn(plan_ns, NEW);
        }
        // Serial execution takes no longer than parallel execution without waits. If that takes
        // much longer than before, the work itself has changed. Lists use rows that planning has
        // looked up.
        let found_ns = if arm == ExecutionMode::Lists { self.plan_ns.value / 2.0 } else { 0.0 };
        if let Some(execute_ns) = took.execute_ns.map(|ns| ns + found_ns) {
            if execute_ns > self.serial_ns.value * CHANGED || execute_ns < self.serial_ns.value {
                self.serial_ns.learn(execute_ns, NEW);
            }
        }
        let model = self.models(seen, threads)[parallel];
        let together_ns = TOGETHER_NS[parallel] * self.slower;
        let off = ((took.ns - together_ns) / model.max(1.0)).clamp(0.3, 20.0);
        let thought = self.off(parallel, class(seen));
        let has_waited = took.execute_ns.is_some_and(|alone_ns| took.ns > alone_ns);
        let known = &mut self.off[parallel][class(seen)];
        let is_measured = &mut self.measured[parallel][class(seen)];
        match known.more {
            _ if *is_measured => known.learn(off, new),
            // If the epoch mostly waited, one measurement says nothing. A new executor also waits
            // for memory.
            None if off > thought * FAR && has_waited => known.more = Some((off, 1)),
            before => {
                let least = before.map_or(off, |(before, _)| before.min(off));
                (*known, *is_measured) = (Average::of(least.min(thought * FAR_MAX)), true);
            }
        }
    }
}

/// Returns a part of the rest of an epoch, or the whole rest if too little would remain.
fn without_rest(all: usize, part: usize) -> usize {
    if all < part + part / 2 {
        all
    } else {
        part
    }
}

/// Whether an epoch like this one is long, at this many nanoseconds per transaction.
fn is_long(seen: &Properties, ns: f64) -> bool {
    ns * seen.transactions as f64 > LONG_EPOCH_NS
}

/// Returns the number of epochs like this one that a try lasts.
fn lasts(seen: &Properties) -> u32 {
    (TRY_LASTS / seen.transactions.max(1)).min(WARM_MAX as usize) as u32
}
