//! Which strategy an epoch is executed by: decided before it is planned, from what it looks like and
//! from what earlier ones took.
//!
//! MorphStream decides by thresholds on properties of the graph (its V-D), which has to be made
//! first. Here the decision comes first, because making any plan costs as much as executing cheap
//! transactions. What is expected is a model of two costs that are measured all the time: executing a
//! transaction, and planning one. With `n` threads, lists take `max(plan, (plan + execute) / n)` a
//! transaction and something for putting outputs together; serial execution takes `execute`. How far
//! that was off is remembered for epochs that look alike, because rows that many want make threads
//! wait, and the model knows nothing of that.
//!
//! What was not tried for long is tried again, once its expected loss is a small share of the time
//! that has passed. So a wrong expectation is found out, and finding out costs little.

/// What an epoch looks like, before it is planned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Properties {
    /// Its transactions (MorphStream's T).
    pub transactions: usize,
    /// Rows that they use, which are operations (T times l), on average.
    pub rows: f64,
    /// Of the rows in a sample, the share that others in the sample use, too: what becomes of the
    /// skew (theta) in so many transactions.
    pub shared: f64,
    /// The share of the transactions of the epoch before that aborted (a).
    pub aborts: f64,
}

/// How an epoch was executed, in nanoseconds a transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Took {
    /// Serially.
    Serial {
        /// In all.
        ns: f64,
    },
    /// In lists.
    Lists {
        /// In all.
        ns: f64,
        /// Planning.
        plan_ns: f64,
        /// Executing, on all threads together, without waiting.
        execute_ns: f64,
    },
}

/// What is expected, in nanoseconds a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// Of serial execution.
    pub serial_ns: f64,
    /// Of lists.
    pub lists_ns: f64,
}

/// Epochs are alike by how many of their rows are shared: in so many classes.
const CLASSES: usize = 8;

/// What trying something again may cost, as a share of all time.
const TRIES: f64 = 0.004;

/// What putting the threads' outputs together takes, and other things that are done once an epoch.
const TOGETHER_NS: f64 = 12.0;

/// How much of what is new goes into an average.
const NEW: f64 = 0.2;

/// Chooses between serial execution and lists.
#[derive(Clone, Debug)]
pub struct Chooser {
    /// Executing a transaction serially, and planning one.
    serial_ns: f64,
    plan_ns: f64,
    /// By class: how much longer lists took than expected.
    off: [f64; CLASSES],
    /// Time that has passed since each of both was used.
    since_serial_ns: f64,
    since_lists_ns: f64,
    is_new: bool,
}

impl Default for Chooser {
    fn default() -> Chooser {
        // Planning a row takes about as long as it takes to hash a key and to look at two lines of
        // memory that are in a cache. A transaction's is measured as soon as one is planned.
        Chooser {
            serial_ns: 60.0,
            plan_ns: 50.0,
            off: [1.0; CLASSES],
            since_serial_ns: 0.0,
            since_lists_ns: 0.0,
            is_new: true,
        }
    }
}

impl Chooser {
    /// What is expected of an epoch on so many threads.
    pub fn expected(&self, seen: &Properties, threads: usize) -> Expected {
        let together = self.plan_ns.max((self.plan_ns + self.serial_ns) / threads as f64);
        let lists_ns = together * self.off[class(seen)] + TOGETHER_NS;
        Expected { serial_ns: self.serial_ns, lists_ns }
    }

    /// Whether lists are to be used.
    pub fn takes_lists(&self, seen: &Properties, threads: usize) -> bool {
        /// Fewer transactions are done before other threads have woken up.
        const TRANSACTIONS_MIN: usize = 512;
        if self.is_new || threads < 2 || seen.transactions < TRANSACTIONS_MIN {
            return false;
        }
        let Expected { serial_ns, lists_ns } = self.expected(seen, threads);
        let loss = (lists_ns - serial_ns).abs() * seen.transactions as f64;
        match lists_ns < serial_ns {
            true => loss > self.since_serial_ns * TRIES,
            false => loss < self.since_lists_ns * TRIES,
        }
    }

    /// An epoch took so long.
    pub fn learn(&mut self, seen: &Properties, threads: usize, took: Took) {
        let expected = self.expected(seen, threads);
        let all = seen.transactions as f64;
        match took {
            Took::Serial { ns } => {
                // Other work may be much dearer or cheaper than what was before: then at once.
                let is_other = ns > self.serial_ns * 1.5 || ns < self.serial_ns / 1.5;
                let new = if self.is_new || is_other { 1.0 } else { NEW };
                self.serial_ns += (ns - self.serial_ns) * new;
                self.is_new = false;
                self.since_serial_ns = 0.0;
                self.since_lists_ns += ns * all;
            }
            Took::Lists { ns, plan_ns, execute_ns } => {
                self.plan_ns += (plan_ns - self.plan_ns) * NEW;
                // Lists find rows where planning has looked them up; serial execution looks up itself.
                // What both have in common says when the work itself has changed.
                let is_other =
                    execute_ns > self.serial_ns * 1.5 || execute_ns < self.serial_ns / 2.0;
                if is_other {
                    self.serial_ns += (execute_ns - self.serial_ns) * NEW;
                }
                let off = &mut self.off[class(seen)];
                let model = (expected.lists_ns - TOGETHER_NS) / *off;
                let new = ((ns - TOGETHER_NS) / model.max(1.0)).clamp(0.3, 20.0);
                *off += (new - *off) * NEW;
                self.since_lists_ns = 0.0;
                self.since_serial_ns += ns * all;
            }
        }
    }
}

fn class(seen: &Properties) -> usize {
    ((seen.shared * CLASSES as f64) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Properties =
        Properties { transactions: 10_000, rows: 3.5, shared: 0.1, aborts: 0.0 };

    /// Lets a chooser run for so many epochs where the two take so long; gives how many lists ran.
    fn run(chooser: &mut Chooser, epochs: usize, serial_ns: f64, lists_ns: f64) -> usize {
        let mut lists = 0;
        for _ in 0..epochs {
            let took = match chooser.takes_lists(&SEEN, 2) {
                true => {
                    lists += 1;
                    Took::Lists { ns: lists_ns, plan_ns: 45.0, execute_ns: serial_ns * 0.9 }
                }
                false => Took::Serial { ns: serial_ns },
            };
            chooser.learn(&SEEN, 2, took);
        }
        lists
    }

    #[test]
    fn cheap_transactions_are_executed_serially_but_for_a_try_now_and_then() {
        let lists = run(&mut Chooser::default(), 10_000, 55.0, 95.0);
        assert!(lists < 150, "{lists} of 10000 epochs in lists");
    }

    #[test]
    fn dear_ones_are_executed_in_lists() {
        let lists = run(&mut Chooser::default(), 10_000, 600.0, 340.0);
        assert!(lists > 9_800, "{lists} of 10000 epochs in lists");
    }

    #[test]
    fn a_change_is_noticed_both_ways() {
        let mut chooser = Chooser::default();
        run(&mut chooser, 500, 55.0, 95.0);
        assert!(run(&mut chooser, 100, 3_000.0, 1_600.0) > 90);
        assert!(run(&mut chooser, 100, 55.0, 95.0) < 30);
    }

    #[test]
    fn what_waits_too_much_is_left_alone() {
        // Rows that everybody wants: lists take longer than the model says.
        let lists = run(&mut Chooser::default(), 10_000, 200.0, 260.0);
        assert!(lists < 300, "{lists} of 10000 epochs in lists");
    }
}
