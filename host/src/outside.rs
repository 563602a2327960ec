//! Questions to the outside, on separate threads because the answer may take any time, and the
//! interface to work outside.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_cluster::{Input, Log, Token};
use tidemill_core::{Key, Result, TableId};
use tidemill_env::Env;
use tidemill_function::Stored;
use tidemill_txn::program::Asker;

use crate::drive::AGAIN_NS;
use crate::inbox::Inbox;

/// Has work done outside, as rows of outboxes ask for it. The result of the work is a request, of
/// which only the one that finds the row counts.
pub trait Outboxes: Send + Sync {
    /// Begins. Requests are appended to this log.
    ///
    /// # Errors
    /// If the work can't be done.
    fn begin(&self, log: Arc<dyn Log>) -> Result<()>;

    /// Reports that these rows exist, or have been removed, and that this is durable. `all` means
    /// that there are no others. Does not block.
    fn changed(&self, all: bool, rows: Vec<(TableId, Key, Stored)>);

    /// Stops new work. Does not wait for work in progress.
    fn end(&self);
}

/// The maximum number of concurrent questions. Others wait. There are no more questions than
/// functions that wait for them.
const AT_ONCE: usize = 32;

/// The threads that ask.
pub(crate) struct Outside {
    env: Env,
    inbox: Arc<Inbox>,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<(Token, Asker)>,
    threads: usize,
}

impl Outside {
    /// Creates it without threads. Answers go to this inbox.
    pub fn new(env: &Env, inbox: &Arc<Inbox>) -> Arc<Outside> {
        Arc::new(Outside { env: env.clone(), inbox: inbox.clone(), work: Mutex::default() })
    }

    /// Asks a question on a thread.
    pub fn ask(self: &Arc<Outside>, token: Token, ask: Asker) {
        let mut work = self.work.lock();
        work.waiting.push_back((token, ask));
        if work.threads == AT_ONCE {
            return;
        }
        let own = self.clone();
        // The end of the process does not wait for this thread, because the answer may never come.
        match self.env.threads.spawn("outside", Box::new(move || own.run())) {
            Ok(_) => work.threads += 1,
            Err(_) if work.threads > 0 => {}
            Err(_) => {
                let at_ns = self.env.clock.monotonic_ns() + AGAIN_NS;
                for (token, _) in work.waiting.drain(..) {
                    self.inbox.push_late(at_ns, Input::Answered { token, answer: None });
                }
            }
        }
    }

    fn run(&self) {
        loop {
            let mut work = self.work.lock();
            let Some((token, ask)) = work.waiting.pop_front() else {
                work.threads -= 1;
                return;
            };
            drop(work);
            match catch_unwind(AssertUnwindSafe(|| ask.now())) {
                Ok(answer) => self.inbox.push(Input::Answered { token, answer: Some(answer) }),
                Err(_) => {
                    let at_ns = self.env.clock.monotonic_ns() + AGAIN_NS;
                    self.inbox.push_late(at_ns, Input::Answered { token, answer: None });
                }
            }
        }
    }
}
