//! Asking somebody outside, on threads of its own: nobody knows how long that takes. And whoever has work done outside.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_cluster::{Input, Token};
use tidemill_core::{Key, Result, TableId};
use tidemill_durable::Log;
use tidemill_env::Env;
use tidemill_function::Stored;
use tidemill_txn::program::Ask;

use crate::drive::AGAIN_NS;
use crate::inbox::Inbox;

/// Has work done outside, as rows of outboxes ask for it. What it comes to is a request, of which the one that finds the
/// row counts.
pub trait Outboxes: Send + Sync {
    /// Begins; requests go into this log.
    ///
    /// # Errors
    /// When nobody is there to do it.
    fn begin(&self, log: Arc<dyn Log>) -> Result<()>;

    /// These rows are there, or have gone, and that is durable; `all` when no others are there. This does not wait.
    fn changed(&self, all: bool, rows: Vec<(TableId, Key, Stored)>);

    /// Nothing more is to be done. This does not wait for what is under way.
    fn end(&self);
}

/// So many are asked at once; others wait. There are no more than functions that wait for them.
const AT_ONCE: usize = 32;

/// Those that ask.
pub(crate) struct Outside {
    env: Env,
    inbox: Arc<Inbox>,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<(Token, Ask)>,
    threads: usize,
}

impl Outside {
    /// Nobody is asked yet; what they say goes there.
    pub fn new(env: &Env, inbox: &Arc<Inbox>) -> Arc<Outside> {
        Arc::new(Outside { env: env.clone(), inbox: inbox.clone(), work: Mutex::default() })
    }

    /// Asks.
    pub fn ask(self: &Arc<Outside>, token: Token, ask: Ask) {
        let mut work = self.work.lock();
        work.waiting.push_back((token, ask));
        if work.threads == AT_ONCE {
            return;
        }
        let own = self.clone();
        // Nobody waits for it when the process ends: whoever is asked may never say anything.
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
