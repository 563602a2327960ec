//! The cost of choices, on a machine with simulated noise. A benchmark grid on a real machine
//! depends more on the hour than on a change of the chooser.

use super::*;

/// The number of options for two threads: the first ones.
const ARMS: usize = ExecutionMode::IN_PLACE.len();

/// The lengths of epochs, in transactions, and the number of good runs in 100.
const EPOCHS: [(usize, usize); 3] = [(1_000, 96), (10_000, 96), (100_000, 88)];
/// The number of runs for each kind of epochs.
const RUNS: u64 = 40;
/// The length of a run, in nanoseconds of serial execution, and its least numbers of transactions
/// and epochs. A third as many epochs come before and do not count.
const RUN_NS: f64 = 1.2e9;
const TRANSACTIONS_MIN: f64 = 300_000.0;
const EPOCHS_MIN: f64 = 12.0;

/// The relative deviation of a part's time, and its correlation with the next part's.
const NOISE: f64 = 0.045;
const NOISE_LASTS: f64 = 0.5;
/// Per option: how often other processes take the cores, and the relative delay of a part; then how
/// often they keep the cores. A long part counts as several of this many nanoseconds.
const TAKEN: [(f64, f64); ARMS] = [(0.015, 0.35), (0.06, 0.9), (0.035, 0.4), (0.035, 0.4)];
const KEPT: f64 = 0.3;
const TAKEN_NS: f64 = 5e6;

/// Epochs of one kind, as measured on two threads.
struct Kind {
    name: &'static str,
    /// The share of rows that others in a sample also use, and the rows per transaction.
    shared: f64,
    rows: f64,
    /// Per option: the time of a transaction when all is warm, in nanoseconds.
    warm_ns: [f64; ARMS],
    plan_ns: f64,
}

impl Kind {
    /// Returns the time of the best option, including delays by other processes.
    fn best_ns(&self) -> f64 {
        let mean_ns =
            |(ns, (often, longer)): (&f64, (f64, f64))| ns * (1.0 + often / (1.0 - KEPT) * longer);
        self.warm_ns.iter().zip(TAKEN).map(mean_ns).fold(f64::INFINITY, f64::min)
    }
}

const KINDS: &[Kind] = &[
    kind("few meet, 0 ns", 0.02, 3.5, [75.0, 48.0, 66.0, 95.0], 40.0),
    kind("few meet, 50 ns", 0.02, 3.5, [215.0, 122.0, 131.0, 160.0], 40.0),
    kind("few meet, 200 ns", 0.02, 3.5, [785.0, 428.0, 405.0, 440.0], 60.0),
    kind("few meet, 1000 ns", 0.02, 3.5, [3_600.0, 1_890.0, 1_860.0, 1_900.0], 80.0),
    kind("some meet, 0 ns", 0.1, 3.5, [66.0, 59.0, 88.0, 100.0], 50.0),
    kind("some meet, 200 ns", 0.1, 3.5, [780.0, 430.0, 415.0, 480.0], 60.0),
    kind("many meet, 0 ns", 0.21, 3.5, [55.0, 80.0, 105.0, 150.0], 50.0),
    kind("many meet, 50 ns", 0.21, 3.5, [215.0, 214.0, 250.0, 350.0], 60.0),
    kind("many meet, 200 ns", 0.21, 3.5, [750.0, 635.0, 530.0, 620.0], 110.0),
    kind("many meet, 1000 ns", 0.21, 3.5, [3_600.0, 3_000.0, 2_350.0, 2_220.0], 110.0),
    kind("ten records, few meet, 0 ns", 0.05, 10.0, [135.0, 116.0, 165.0, 215.0], 130.0),
    kind("ten records, few meet, 50 ns", 0.05, 10.0, [720.0, 420.0, 440.0, 600.0], 150.0),
    kind(
        "ten records, many meet, 1000 ns",
        0.5,
        10.0,
        [10_300.0, 9_900.0, 8_650.0, 6_350.0],
        290.0,
    ),
];

const fn kind(
    name: &'static str,
    shared: f64,
    rows: f64,
    warm_ns: [f64; ARMS],
    plan_ns: f64,
) -> Kind {
    Kind { name, shared, rows, warm_ns, plan_ns }
}

/// Per option, the costs after a change of option: the time to wake threads, the extra time of each
/// transaction with 3.5 rows while rows are in other caches, and the number of transactions after
/// which that is a third.
const COLD: [(f64, f64, f64); ARMS] =
    [(0.0, 4.0, 20_000.0), (100e3, 8.0, 8_000.0), (150e3, 25.0, 5_000.0), (150e3, 25.0, 5_000.0)];

/// Per option, the costs of new memory: the extra time of the first part, and the extra time of
/// each transaction with 3.5 rows beyond the longest part so far. The values of the last option are
/// a guess, equal to those before.
const NEW_MEMORY: [(f64, f64); ARMS] = [(0.0, 100.0), (1e6, 250.0), (2e6, 70.0), (2e6, 70.0)];

/// New memory for outputs: the extra time of a transaction in every second of the first epochs.
const NEW_OUTPUT_NS: f64 = 600.0;
const NEW_OUTPUT_EPOCHS: usize = 5;

/// Pseudo-random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns an approximately normal number with mean 0 and deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// The machine and its memory of the executed parts.
struct Machine {
    chance: Chance,
    last: ExecutionMode,
    /// The number of transactions in a row that the last option executed.
    in_row: f64,
    /// Per option: its longest part.
    longest: [usize; ARMS],
    noise: f64,
    is_taken: bool,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        let chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (last, longest) = (ExecutionMode::Serial, [0; ARMS]);
        Machine { chance, last, in_row: 0.0, longest, noise: 0.0, is_taken: false }
    }

    /// Returns the time of executing `n` transactions, and the factor of the machine that applies
    /// to any option.
    fn executes(
        &mut self,
        kind: &Kind,
        arm: ExecutionMode,
        n: usize,
        is_output_new: bool,
    ) -> (EpochTimes, f64) {
        let of = arm as usize;
        let more_ns = self.cold_ns(kind, arm, n, is_output_new) / n as f64;
        let slower = self.slower();
        let took = EpochTimes {
            ns: (kind.warm_ns[of] + more_ns)
                * (slower + self.taken(arm, kind.warm_ns[of] * n as f64)),
            plan_ns: (arm == ExecutionMode::Lists).then_some(kind.plan_ns * slower),
            execute_ns: (arm != ExecutionMode::Serial).then_some(kind.warm_ns[0] * 1.1 * slower),
            aborts: 0.0,
        };
        (took, slower)
    }

    /// Returns the extra time of a part that is not warm.
    fn cold_ns(&mut self, kind: &Kind, arm: ExecutionMode, n: usize, is_output_new: bool) -> f64 {
        let (of, rows, n_f) = (arm as usize, kind.rows / 3.5, n as f64);
        let ((wakes_ns, cold_ns, cools), (first_ns, new_ns)) = (COLD[of], NEW_MEMORY[of]);
        let mut more_ns = 0.0;
        if arm != self.last {
            (self.last, self.in_row) = (arm, 0.0);
            more_ns += wakes_ns;
        }
        let cold = |at: f64| (-at / cools).exp();
        more_ns += (cold(self.in_row) - cold(self.in_row + n_f)) * cools * cold_ns * rows;
        if self.longest[of] == 0 {
            more_ns += first_ns;
        }
        more_ns += n.saturating_sub(self.longest[of]) as f64 * new_ns * rows;
        if is_output_new && self.chance.unit() < 0.5 {
            more_ns += NEW_OUTPUT_NS * n_f;
        }
        self.in_row += n_f;
        self.longest[of] = self.longest[of].max(n);
        more_ns
    }

    /// Returns the factor by which any option is slower in a part.
    fn slower(&mut self) -> f64 {
        let new = (1.0 - NOISE_LASTS.powi(2)).sqrt();
        self.noise = self.noise * NOISE_LASTS + self.chance.normal() * NOISE * new;
        (1.0 + self.noise).max(0.8)
    }

    /// Returns the relative delay of a part of this many nanoseconds by other processes.
    fn taken(&mut self, arm: ExecutionMode, ns: f64) -> f64 {
        let ((often, longer), slices) = (TAKEN[arm as usize], (ns / TAKEN_NS).ceil());
        let mut taken = 0.0;
        for _ in 0..slices as usize {
            self.is_taken = self.chance.unit() < if self.is_taken { KEPT } else { often };
            taken += if self.is_taken { 2.0 * longer * self.chance.unit() } else { 0.0 };
        }
        taken / slices
    }
}

/// Returns the best options' time, relative to the time taken, where kinds follow one another in
/// phases. Each phase is as long as a run.
fn run(kinds: &[&Kind], phases: usize, epoch: usize, seed: u64) -> f64 {
    let (mut machine, mut chooser) =
        (Machine::new(seed), Chooser::new(ExecutionMode::IN_PLACE, 1.0));
    let epochs = |kind: &Kind| {
        let transactions = (RUN_NS / kind.warm_ns[0]).max(TRANSACTIONS_MIN);
        (transactions / epoch as f64).max(EPOCHS_MIN) as usize
    };
    let before = epochs(kinds[0]) / 3;
    let of_phases = (0..phases).map(|phase| kinds[phase % kinds.len()]);
    let of_epochs = of_phases.flat_map(|kind| std::iter::repeat_n(kind, epochs(kind)));
    let of_epochs = std::iter::repeat_n(kinds[0], before).chain(of_epochs);
    let (mut took_ns, mut would_ns) = (0.0, 0.0);
    for (nth, kind) in of_epochs.enumerate() {
        let shared = kind.shared * (1.0 + 0.05 * machine.chance.normal());
        let sample =
            Properties { transactions: epoch, rows: kind.rows, shared, ..Properties::default() };
        let seen = chooser.look_at(epoch, || sample);
        let mut left = epoch;
        while left > 0 {
            let choice = chooser.choose(&Properties { transactions: left, ..seen }, 2);
            let Choice { arm, transactions: n, .. } = choice;
            left -= n;
            let (took, slower) = machine.executes(kind, arm, n, nth < NEW_OUTPUT_EPOCHS);
            chooser.learn(&Properties { transactions: n, ..seen }, 2, arm, took);
            if nth >= before {
                took_ns += took.ns * n as f64;
                would_ns += kind.best_ns() * slower * n as f64;
            }
        }
    }
    would_ns / took_ns
}

/// In 96 of 100 runs, the chosen options take at most a twentieth longer than the best would,
/// including all tries. No run takes much longer. A run with epochs of 100,000 has only a dozen,
/// and the first ones teach little: 88 of 100.
#[test]
fn the_choice_costs_little_on_a_machine_that_others_use() {
    for (epoch, good_of_100) in EPOCHS {
        let mut good = 0;
        for kind in KINDS {
            let of_run = |seed| run(&[kind], 1, epoch, seed);
            let mut shares: Vec<f64> = (1..=RUNS).map(of_run).collect();
            shares.sort_by(f64::total_cmp);
            let (least, middle) = (shares[0], shares[shares.len() / 2]);
            let is_well = least >= 0.85 && middle >= 0.95;
            assert!(is_well, "epochs of {epoch}, {}: {least} {middle}", kind.name);
            good += shares.iter().filter(|share| **share >= 0.95).count();
        }
        let runs = KINDS.len() * RUNS as usize;
        assert!(good * 100 >= runs * good_of_100, "epochs of {epoch}: {good} of {runs} are good");
    }
}

/// A change in the share of shared rows is detected within some epochs.
#[test]
fn a_change_of_kind_costs_little() {
    for ns in [", 0 ns", ", 200 ns", ", 1000 ns"] {
        let is_of = |kind: &&Kind| kind.name.ends_with(ns) && kind.rows < 10.0;
        let kinds: Vec<&Kind> = KINDS.iter().filter(is_of).collect();
        let shares = (1..=RUNS).map(|seed| run(&kinds, 6, 10_000, seed));
        let mean = shares.sum::<f64>() / RUNS as f64;
        assert!(mean >= 0.95, "{ns}: {mean}");
    }
}
