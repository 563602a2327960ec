//! Questions to the outside in one process. Those of an epoch's functions are asked before the
//! functions run, many at once, because each answer may take long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_env::Env;
use tidemill_table::Table;
use tidemill_txn::execute::{questions, Question};
use tidemill_txn::order::Epoch;
use tidemill_txn::program::{Asker, Program, QuestionId};

/// The most questions that are asked at once.
const AT_ONCE: usize = 32;
/// The time of an answer that comes quickly, in nanoseconds.
const QUICK_NS: u64 = 500_000;
/// The most transactions of an epoch that are looked at for its first question. Where functions seldom
/// ask, more would cost more than they bring.
const LOOKED_AT: usize = 32;
/// The most times that the next questions of functions are looked for. Further ones are asked when the
/// functions run.
const ROUNDS: usize = 16;

/// An answer, and how long it took.
struct Answered {
    asked: QuestionId,
    answer: Vec<u8>,
    took_ns: u64,
}

type Unasked = Mutex<VecDeque<(QuestionId, Asker)>>;

/// Asks the questions of functions before they run.
pub(crate) struct Lookups {
    env: Env,
    /// The longest wait for answers. A function whose answer takes longer asks again when it runs, and
    /// then exceeds its deadline.
    wait: Duration,
    /// The number of threads that ask. Those of answers that took too long still wait.
    running: Arc<AtomicUsize>,
}

impl Lookups {
    /// `deadline_us` is the deadline of a function in microseconds, if it has one.
    pub(crate) fn new(env: &Env, deadline_us: Option<i64>) -> Lookups {
        let wait = deadline_us.map_or(Duration::MAX, |us| Duration::from_micros(us.unsigned_abs()));
        Lookups { env: env.clone(), wait, running: Arc::default() }
    }

    /// Asks the questions of an epoch's functions, round by round: a function asks its second question
    /// when it knows the first answer. Where an answer comes quickly, the rest is left for the run of
    /// the functions, because to look for questions costs more.
    pub(crate) fn ask(&self, program: &Program, tables: &[Table], epoch: &mut Epoch) {
        if epoch.order.len() < 2 {
            return;
        }
        for _ in 0..ROUNDS {
            let first = questions(program, tables, epoch, (LOOKED_AT, 1));
            if self.all(first, epoch).is_none_or(|took_ns| took_ns < QUICK_NS) {
                return;
            }
            let rest = questions(program, tables, epoch, (usize::MAX, usize::MAX));
            if self.all(rest, epoch).is_none() {
                return;
            }
        }
    }

    /// Asks these questions. Returns the longest time of an answer, in nanoseconds, if there are
    /// questions, and all of them are answered.
    fn all(&self, found: Vec<Question>, epoch: &Epoch) -> Option<u64> {
        let found: BTreeMap<QuestionId, Asker> =
            found.into_iter().map(|of| (of.asked, of.ask)).collect();
        let count = found.len();
        let unasked: Arc<Unasked> = Arc::new(Mutex::new(found.into_iter().collect()));
        let (tell, told) = channel();
        for _ in 0..count.min(AT_ONCE) {
            self.start(&unasked, &tell);
        }
        drop(tell);
        let (mut answered, mut longest_ns) = (0, 0);
        while let Ok(Answered { asked, answer, took_ns }) = told.recv_timeout(self.wait) {
            epoch.answers.put(asked, answer);
            answered += 1;
            longest_ns = took_ns.max(longest_ns);
        }
        unasked.lock().clear();
        (count > 0 && answered == count).then_some(longest_ns)
    }

    /// Starts a thread that asks. Where none can be started, the functions ask when they run.
    fn start(&self, unasked: &Arc<Unasked>, tell: &Sender<Answered>) {
        if self.running.fetch_add(1, Ordering::AcqRel) >= AT_ONCE {
            self.running.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (unasked, tell, runs) = (unasked.clone(), tell.clone(), Runs(self.running.clone()));
        let clock = self.env.clock.clone();
        let body = move || {
            let _runs = runs;
            loop {
                // No lock is held while it asks.
                let next = unasked.lock().pop_front();
                let Some((asked, ask)) = next else { return };
                let begun_ns = clock.monotonic_ns();
                let answer = ask.now();
                let took_ns = clock.monotonic_ns() - begun_ns;
                // Nobody waits for an answer that took too long.
                let _ = tell.send(Answered { asked, answer, took_ns });
            }
        };
        // The end of the process does not wait for this thread, because the answer may never come.
        drop(self.env.threads.spawn("lookup", Box::new(body)));
    }
}

/// A thread that asks, until this is dropped.
struct Runs(Arc<AtomicUsize>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
