//! What transactions have asked of outside, and what it said: the only thing that a run can't know by
//! itself. So it is logged with the epoch, and a transaction that runs again, now or after a crash, is told
//! the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// What was asked, as a hash: of the transaction, of how often it had asked before, and of the question.
pub type Asked = u128;

/// Asks somebody outside, which may take its time. Who is asked may be asked again.
#[derive(Clone)]
pub struct Ask(Arc<dyn Fn() -> Vec<u8> + Send + Sync>);

impl Ask {
    /// Asks so.
    pub fn new(ask: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Ask {
        Ask(Arc::new(ask))
    }

    /// What outside says.
    pub fn now(&self) -> Vec<u8> {
        (self.0)()
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

/// An answer has at most so many bytes: it is logged.
pub(crate) const ANSWER_MAX: usize = 1 << 20;

/// The answers of an epoch.
#[derive(Debug, Default)]
pub struct Answers(Mutex<BTreeMap<Asked, Arc<[u8]>>>);

impl Answers {
    /// Those that are known from the epoch's first execution.
    pub fn of(known: impl IntoIterator<Item = (Asked, Arc<[u8]>)>) -> Answers {
        Answers(Mutex::new(known.into_iter().collect()))
    }

    /// All that were given, in the order of their hashes.
    pub fn all(&self) -> Vec<(Asked, Arc<[u8]>)> {
        self.lock().iter().map(|(asked, answer)| (*asked, answer.clone())).collect()
    }

    /// The answer to a question: as it was given before, or as `ask` gives it now.
    pub(crate) fn to(&self, asked: Asked, ask: &Ask) -> Arc<[u8]> {
        if let Some(answer) = self.lock().get(&asked) {
            return answer.clone();
        }
        // Others may ask meanwhile, and of two who ask the same the first is right.
        let mut answer = ask.now();
        // Whoever asked is refused, and what is logged is bounded.
        answer.truncate(ANSWER_MAX + 1);
        let answer = answer.into();
        self.lock().entry(asked).or_insert(answer).clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Asked, Arc<[u8]>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
