//! Which strategy an epoch is executed by: decided before it is planned, from what it looks like and
//! from what earlier ones took.
//!
//! MorphStream decides by thresholds on properties of the graph (its V-D), which has to be made
//! first. Here the decision comes first, because making any plan costs as much as executing cheap
//! transactions. What is expected is a model of two costs that are measured all the time: executing a
//! transaction, and planning one. With `n` threads, rounds take `(reserve + execute) / n` a
//! transaction, blocks `(link + execute) / n`, lists `max(plan, (plan + execute) / n)`, all something for putting outputs together;
//! serial execution takes `execute`. What can't be executed in place goes into a graph, at
//! `(plan + execute) / n`, where planning is dear, and functions that tell what they touch by running
//! may have to run twice. How far that was off is remembered for epochs that
//! look alike, because rows that many want make threads wait, and the model knows nothing of that.
//!
//! What was not tried for long is tried again, once its expected loss is a small share of the time
//! that has passed. So a wrong expectation is found out, and finding out costs little. What is tried counts
//! when it has been used for some epochs in a row, or becomes no faster any more: its memory was not used for long,
//! rows are in the caches of other cores, and threads have gone to sleep. What was the best and became slow is
//! tried again soon, because that may have been the machine.

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

/// What an epoch looks like, before it is planned: what MorphStream's seven properties of a graph (its Table
/// IV) come from. Of dependencies there are T times l logical ones, as many temporal ones at most, and
/// parametric ones by how many rows an operation reads; how dear operations are (C) is what transactions
/// take, which is measured; and whether chains have cycles does not matter to what is chosen from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Properties {
    /// Its transactions (MorphStream's T).
    pub transactions: usize,
    /// Rows that they use, which are operations (T times l), on average.
    pub rows: f64,
    /// Of the rows in a sample of some dozens of transactions, the share that others in the sample use, too: what
    /// becomes of the skew (theta) there.
    pub shared: f64,
    /// The share of its transactions that write the row that most of them write: these can only be executed one after
    /// the other.
    pub hottest: f64,
    /// The share of the transactions of the epoch before that aborted (a).
    pub aborts: f64,
    /// The share of transactions of which only a run tells what they touch: for a graph they may run twice.
    pub unknown: f64,
}

/// What an epoch can be executed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
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

/// All but serial execution, in the order of [`Arm`].
const PARALLEL: usize = ARMS - 1;

impl Arm {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Serial => "serial",
            Arm::Rounds => "rounds",
            Arm::Lists => "lists",
            Arm::Blocks => "blocks",
            Arm::Graph => "graph",
        }
    }

    /// What an epoch can be executed by that can be executed in place. A graph is none of it: in the cells of a grid
    /// (`tidemill bench grid`) where it was faster than the others, blocks are faster yet.
    pub const IN_PLACE: &[Arm] = &[Arm::Serial, Arm::Rounds, Arm::Lists, Arm::Blocks];

    /// The same on many threads: what each of them has to look at in rounds grows with their number.
    pub const IN_PLACE_OF_MANY: &[Arm] = &[Arm::Serial, Arm::Lists, Arm::Blocks];

    /// What an epoch can be executed by in place, on so many threads.
    pub fn in_place(threads: usize) -> &'static [Arm] {
        /// On so many threads blocks are faster than rounds, whatever transactions are like.
        const MANY: usize = 9;
        if threads < MANY {
            Arm::IN_PLACE
        } else {
            Arm::IN_PLACE_OF_MANY
        }
    }

    /// The same of one that can't.
    pub const ELSEWHERE: &[Arm] = &[Arm::Serial, Arm::Graph];
}

/// What an epoch, or what is left of it, is executed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// By what.
    pub arm: Arm,
    /// So many of its transactions: for a try a part is enough, and a graph has to fit in a cache.
    pub transactions: usize,
    /// Why.
    pub why: &'static str,
}

/// What an epoch took, in nanoseconds a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Took {
    /// In all.
    pub ns: f64,
    /// Planning, where it was planned.
    pub plan_ns: Option<f64>,
    /// Executing one, without waiting, where several threads did.
    pub execute_ns: Option<f64>,
    /// The share of them that aborted.
    pub aborts: f64,
}

/// What trying something again may cost, as a share of all time.
const TRIES: f64 = 0.002;

/// What was the best until now is tried again when the best has run for so many epochs' time, then for so many times
/// as long, and so on: that it was slow may have been the machine, and then all would have been.
const LOST_EPOCHS: f64 = 4.0;
const LOST_LONGER: f64 = 4.0;
/// What is the best has to be better by so much: changing costs memory that was not used for long.
const HOLDS: f64 = 0.98;

/// What was never the best is not.
const NEVER: u32 = 1000;

/// What trying may cost of something that was never tried. It makes room for itself then, which takes as long again
/// as the best takes, or so long.
const FIRST_TRIES: f64 = 0.05;
const NEW_NS: f64 = 500.0;
/// And of what was tried once: memory was new then, also that of what goes out.
const SECOND_TRIES: f64 = 0.02;

/// How many epochs are executed serially in the beginning, at least, of which the fastest counts: in the first
/// ones all memory is new.
const SERIAL_FIRST: u64 = 4;

/// A try is charged no more times of what the best takes: the rest is memory that is used for the first time, or
/// somebody else had the core, and won't be so again.
const CHARGE_MAX: f64 = 3.0;

/// Blocks are tried where they are expected to be the best, and a graph where it is expected to take no more times as long:
/// to find out where transactions are cheap would cost many times as long.
const BLOCKS_HOPE: f64 = 1.0;
const GRAPH_HOPE: f64 = 1.1;

/// A try lasts for so many transactions, as long as it takes no more times as long as the best: caches and threads
/// get used to what several do a little more from epoch to epoch (by a quarter over five epochs of 10,000), and
/// one epoch is not told from the next by that.
const TRY_LASTS: usize = 50_000;
const TRY_HOPE: f64 = 1.35;

/// What is tried executes as much of an epoch as the best does in so long, but at least and at most so many
/// transactions: what is done once for each part is little beside it, and one part is told from the next.
const PART_NS: f64 = 1e6;
const PART: (f64, f64) = (1_024.0, 16_384.0);

/// What takes less than so much of what it took the time before becomes faster still, if it is used again; for so
/// many times in a row, and where it takes no more times as long as the best.
const WARMER: f64 = 0.95;
const WARM_MAX: u32 = 12;
const WARM_HOPE: f64 = 2.0;

/// What takes longer says all when it is executed once: memory and threads that have to wake up are little of it. Of
/// serial execution, which wakes nobody, it is less.
const DEAR_NS: f64 = 5_000.0;
const DEAR_SERIAL_NS: f64 = 2_000.0;
/// And when it is executed twice: a part of the first epoch, and the rest of it.
const DEAR_SERIAL_TWICE_NS: f64 = 300.0;

/// An epoch that takes so long says all, too, however cheap its transactions are.
const LONG_EPOCH_NS: f64 = 50e6;

/// A sample holds for so many transactions: of short epochs not each is looked at.
const SAMPLE_HOLDS: usize = 4_096;

/// How much of a sample's share of shared rows goes into what is taken for it, and how far that may be
/// off, in itself and of what it is, before it counts alone: samples are small.
const NEW_SHARED: f64 = 0.15;
const SHARED_OFF: (f64, f64) = (0.1, 0.4);

/// When transactions beside others take so many times what serial execution took, the work has
/// changed. They do take longer: rows are in the cache of whoever used them last.
const CHANGED: f64 = 4.0;

/// Where the share of transactions that abort has changed by so much, what they take is another matter.
const ABORTS_CHANGED: f64 = 0.1;

/// How much of what is new goes into an average, and how much of what a try of several epochs, or parts of them, came
/// to.
const NEW: f64 = 0.2;
const NEW_TRY: f64 = 0.6;

/// Chooses between serial execution and what several threads do together.
#[derive(Clone, Debug)]
pub struct Chooser {
    /// Executing a transaction serially, and planning one.
    serial_ns: Average,
    plan_ns: Average,
    /// The share of transactions that aborted when the former was measured last.
    aborts: f64,
    /// How much longer planning takes here than the costs say that are given here.
    slower: f64,
    /// What is chosen from; serial execution is the first.
    among: &'static [Arm],
    /// Of rounds, lists, blocks and graphs, by class: how much longer they took than expected.
    off: [[Average; CLASSES.len()]; PARALLEL],
    /// Of which that was measured.
    measured: [[bool; CLASSES.len()]; PARALLEL],
    /// By arm: time that has passed since it was used.
    since_ns: [f64; ARMS],
    /// By arm: how often it was used.
    used: [u64; ARMS],
    /// By arm: how often it was used behind another one, or first of all.
    tried: [u32; ARMS],
    /// By arm: how often it was used since it was the best, and what the last time cost more than the
    /// best would have.
    lost: [u32; ARMS],
    lost_ns: [f64; ARMS],
    /// What was the best until now.
    holds: Arm,
    /// What was used last, how often in a row, and what the last time took.
    last: Arm,
    in_row: u32,
    last_ns: f64,
    /// Whether that became faster from one time to the next, and is to be used again.
    is_cold: bool,
    /// The share of rows that are shared, over the last epochs.
    shared: Option<f64>,
    /// What the last sample said, and how many transactions there were since.
    seen: Option<(Properties, usize)>,
}

impl Chooser {
    /// One that chooses from what epochs of a kind can be executed by, on a machine on which planning takes so many times
    /// what the costs here say.
    pub fn new(among: &'static [Arm], slower: f64) -> Chooser {
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
            holds: Arm::Serial,
            last: Arm::Serial,
            in_row: 0,
            last_ns: 0.0,
            is_cold: false,
            shared: None,
            seen: None,
        }
    }

    /// What an epoch of so many transactions looks like, given a sample of it, if one is due, and those of the
    /// epochs before.
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

    /// What an epoch looks like, given its sample and those of the epochs before.
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

    /// What is chosen from.
    pub fn among(&self) -> &'static [Arm] {
        self.among
    }

    /// How a graph is walked, by the decision model of MorphStream (its V-D): as operations become ready, because functions are
    /// one stratum each where they meet at all; aborts are dealt with in the end where they are many and running again
    /// is cheap.
    pub fn graph(&self, seen: &Properties) -> Strategy {
        const ABORTS_MANY: f64 = 0.4;
        const CHEAP_NS: f64 = 10_000.0;
        let is_lazy = seen.aborts > ABORTS_MANY && self.serial_ns.value < CHEAP_NS;
        let aborts = if is_lazy { Aborts::Lazy } else { Aborts::Eager };
        Strategy::Graph(Explore::Ns, Unit::Op, aborts)
    }

    /// Whether what it chooses for can be executed in place.
    fn is_in_place(&self) -> bool {
        self.among.contains(&Arm::Lists)
    }

    /// Another one than the last, whatever it costs, for half of what is left, if that can be divided.
    pub fn in_turn(&self, left: &Properties) -> Choice {
        let arm = self.among[self.used.iter().sum::<u64>() as usize % self.among.len()];
        let all = left.transactions;
        let transactions = if self.is_in_place() { all.div_ceil(2) } else { all };
        Choice { arm, transactions, why: "it is its turn" }
    }

    /// How many transactions of what is left of an epoch are enough for a try.
    fn part(&self, left: &Properties, threads: usize) -> usize {
        let all = left.transactions;
        let part = match self.used[Arm::Serial as usize] {
            // Nothing is known yet, not even whether they are dear.
            0 => PART.0 as usize,
            _ => {
                let expected = self.expected(left, threads);
                let best_ns = expected.of(expected.best(self.among)).max(1.0);
                (PART_NS / best_ns).clamp(PART.0, PART.1) as usize
            }
        };
        without_rest(all, part)
    }

    /// What is the best: what was until now, unless something else is faster by more than can be told.
    fn best(&self, expected: &Expected) -> Arm {
        let best = expected.best(self.among);
        match expected.of(self.holds) * HOLDS <= expected.of(best) {
            true => self.holds,
            false => best,
        }
    }

    /// What is to be used for what is left of an epoch, or a part of it, and why.
    pub fn choose(&self, left: &Properties, threads: usize) -> Choice {
        /// Fewer transactions are done before other threads have woken up.
        const TRANSACTIONS_MIN: usize = 512;
        let all = left.transactions;
        let part = self.part(left, threads);
        let chosen = |arm, transactions, why| Choice { arm, transactions, why };
        if threads < 2 || all < TRANSACTIONS_MIN {
            return chosen(Arm::Serial, all, "there are few transactions");
        }
        let serially = self.used[Arm::Serial as usize];
        let dear_ns = if serially > 1 { DEAR_SERIAL_TWICE_NS } else { DEAR_SERIAL_NS };
        let is_dear = serially > 0 && self.serial_ns.value > dear_ns;
        if serially < SERIAL_FIRST && !is_dear {
            // A part says all of what is dear, and of what is not nothing as long as memory is new.
            let transactions = if serially == 0 { part } else { all };
            return chosen(Arm::Serial, transactions, "to find out what it takes");
        }
        let expected = self.expected(left, threads);
        let cost = |arm: &Arm| expected.of(*arm);
        let best = self.best(&expected);
        if self.is_cold {
            // What is the best needs no try.
            let transactions = if self.last == best { all } else { part };
            return chosen(self.last, transactions, "to find out what it takes once it is warm");
        }
        let is_due = |arm: &Arm| {
            let (nth, more) = (*arm as usize, cost(arm) - cost(&best));
            let hope = match arm {
                Arm::Blocks => BLOCKS_HOPE,
                Arm::Graph => GRAPH_HOPE,
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

    /// An epoch took so long.
    pub fn learn(&mut self, seen: &Properties, threads: usize, arm: Arm, took: Took) {
        let was_cold = std::mem::take(&mut self.is_cold);
        if self.last != arm {
            self.in_row = 0;
        }
        self.is_cold = self.becomes_faster(seen, &self.expected(seen, threads), was_cold, took);
        self.tried[arm as usize] += u32::from(self.in_row == 0);
        self.in_row += 1;
        // When it becomes no faster the time before is what it takes.
        let least_ns = if was_cold { took.ns.min(self.last_ns) } else { took.ns };
        (self.last, self.last_ns) = (arm, took.ns);
        // What says all when it is executed once has been tried as well then.
        let is_try = was_cold || self.in_row == 1 && !self.is_cold;
        let new = if is_try { NEW_TRY } else { NEW };
        self.measure(seen, threads, arm, Took { ns: least_ns, ..took }, new);
        let (expected, n) = (self.expected(seen, threads), seen.transactions as f64);
        let best = self.best(&expected);
        self.holds = best;
        let best_ns = expected.of(best);
        let lost_ns = ((took.ns.min(best_ns * CHARGE_MAX) - best_ns) * n).max(0.0);
        // Of a try all times.
        let before_ns = if was_cold { self.lost_ns[arm as usize] } else { 0.0 };
        self.lost[arm as usize] += u32::from(!self.is_cold);
        self.lost_ns[arm as usize] = lost_ns + before_ns;
        (self.lost[best as usize], self.lost_ns[best as usize]) = (0, 0.0);
    }

    /// Whether what was used now, in `took`, is expected to take less the next time, and may become the best then: in the
    /// beginning, and as long as it was so the time before.
    fn becomes_faster(
        &self,
        seen: &Properties,
        expected: &Expected,
        did_before: bool,
        took: Took,
    ) -> bool {
        let times = took.ns / expected.of(expected.best(self.among));
        let lasts = self.in_row + 1 < lasts(seen) && times < TRY_HOPE;
        let does = took.ns < self.last_ns * WARMER && self.in_row < WARM_MAX && times < WARM_HOPE;
        let says_all = took.ns > DEAR_NS || is_long(seen, took.ns);
        !says_all && (self.in_row == 0 || did_before && (lasts || does))
    }

    fn measure(&mut self, seen: &Properties, threads: usize, arm: Arm, took: Took, new: f64) {
        let ns = took.ns * seen.transactions as f64;
        self.since_ns.iter_mut().for_each(|since| *since += ns);
        self.since_ns[arm as usize] = 0.0;
        let used = &mut self.used[arm as usize];
        *used += 1;
        let serially = *used;
        if (took.aborts - self.aborts).abs() > ABORTS_CHANGED {
            self.aborts = took.aborts;
            // Nobody has to ask whether that was the machine.
            match (arm, took.execute_ns) {
                (Arm::Serial, _) => return self.serial_ns = Average::of(took.ns),
                (_, Some(execute_ns)) => self.serial_ns = Average::of(execute_ns),
                _ => {}
            }
        }
        let parallel = match arm {
            Arm::Serial if serially <= SERIAL_FIRST => {
                let least = if serially == 1 { took.ns } else { took.ns.min(self.serial_ns.value) };
                return self.serial_ns = Average::of(least);
            }
            Arm::Serial if self.is_cold && took.ns > self.serial_ns.value => return,
            Arm::Serial => return self.serial_ns.learn(took.ns, new),
            Arm::Rounds => 0,
            Arm::Lists => 1,
            Arm::Blocks => 2,
            Arm::Graph => 3,
        };
        if self.is_cold {
            return;
        }
        // What is the best comes back when something else was tried, and has to become warm again.
        let is_back = self.measured[parallel][class(seen)] && self.in_row < lasts(seen);
        let expected = self.expected(seen, threads);
        if is_back && expected.best(self.among) == arm && took.ns > expected.of(arm) {
            return;
        }
        if let (Arm::Lists, Some(plan_ns)) = (arm, took.plan_ns) {
            self.plan_ns.learn(plan_ns, NEW);
        }
        // Serial execution takes no longer than what threads do beside one another; and when that takes
        // much longer than it did, the work itself has changed. Lists find rows where planning has
        // looked them up.
        let found_ns = if arm == Arm::Lists { self.plan_ns.value / 2.0 } else { 0.0 };
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
            // Where it was mostly waited, once says nothing: while an executor is new that is for memory, too.
            None if off > thought * FAR && has_waited => known.more = Some((off, 1)),
            before => {
                let least = before.map_or(off, |(before, _)| before.min(off));
                (*known, *is_measured) = (Average::of(least.min(thought * FAR_MAX)), true);
            }
        }
    }
}

/// A part of what is left of an epoch, or all of it where the rest would be too little for anything.
fn without_rest(all: usize, part: usize) -> usize {
    if all < part + part / 2 {
        all
    } else {
        part
    }
}

/// Whether an epoch like this one is long, at so many nanoseconds a transaction.
fn is_long(seen: &Properties, ns: f64) -> bool {
    ns * seen.transactions as f64 > LONG_EPOCH_NS
}

/// For how many epochs like this one a try lasts.
fn lasts(seen: &Properties) -> u32 {
    (TRY_LASTS / seen.transactions.max(1)).min(WARM_MAX as usize) as u32
}
