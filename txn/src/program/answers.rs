//! Transactions' questions to the outside, and the answers. A run can compute all else by itself.
//! So answers are logged with the epoch, and a transaction that runs again, now or after a crash,
//! gets the same answer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// The identity of a question: a hash of the transaction, of how often it had asked before, and of
/// the question.
pub type QuestionId = u128;

/// A function that asks the outside. It may take long, and may be called twice for one question.
#[derive(Clone)]
pub struct Asker(Arc<dyn Fn() -> Vec<u8> + Send + Sync>);

impl Asker {
    /// Wraps a function.
    pub fn new(ask: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Asker {
        Asker(Arc::new(ask))
    }

    /// Asks now and returns the answer.
    pub fn now(&self) -> Vec<u8> {
        (self.0)()
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

/// The usual limit of the bytes of an answer. There is one because answers are logged.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The answers of an epoch.
#[derive(Debug)]
pub struct Answers {
    known: Mutex<BTreeMap<QuestionId, Arc<[u8]>>>,
    bytes_max: usize,
    /// The questions without an answer, where nobody is asked now.
    unknown: Option<Mutex<Vec<(QuestionId, Asker)>>>,
}

impl Default for Answers {
    fn default() -> Answers {
        Answers::of([])
    }
}

impl Answers {
    /// Starts with the answers known from the epoch's first execution.
    pub fn of(known: impl IntoIterator<Item = (QuestionId, Arc<[u8]>)>) -> Answers {
        let known = Mutex::new(known.into_iter().collect());
        Answers { known, bytes_max: ANSWER_BYTES_MAX, unknown: None }
    }

    /// Asks nobody now, and retains the questions without an answer.
    #[must_use]
    pub fn asking_later(self) -> Answers {
        Answers { unknown: Some(Mutex::default()), ..self }
    }

    /// Takes the questions without an answer.
    pub fn take_unknown(&self) -> Vec<(QuestionId, Asker)> {
        let unknown = self.unknown.as_ref();
        unknown.map_or_else(Vec::new, |unknown| std::mem::take(&mut *locked(unknown)))
    }

    /// Sets another limit of the bytes of an answer.
    pub fn with_bytes_max(self, bytes_max: usize) -> Answers {
        Answers { bytes_max, ..self }
    }

    /// Returns the limit of the bytes of an answer. A longer one is an error of its asker.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Returns all answers, in the order of their hashes.
    pub fn all(&self) -> Vec<(QuestionId, Arc<[u8]>)> {
        self.lock().iter().map(|(asked, answer)| (*asked, answer.clone())).collect()
    }

    /// Returns the answer to a question: the earlier one, or what `ask` returns now. Returns `None`
    /// if it is asked later.
    pub(crate) fn to(&self, asked: QuestionId, ask: &Asker) -> Option<Arc<[u8]>> {
        if let Some(answer) = self.lock().get(&asked) {
            return Some(answer.clone());
        }
        if let Some(unknown) = &self.unknown {
            locked(unknown).push((asked, ask.clone()));
            return None;
        }
        // No lock is held, so that others can ask meanwhile. If two ask the same, the first answer
        // counts.
        self.put(asked, ask.now());
        self.lock().get(&asked).cloned()
    }

    /// Adds the answer to a question, unless there is one.
    pub fn put(&self, asked: QuestionId, mut answer: Vec<u8>) {
        // The asker is refused then. Truncation bounds the log.
        answer.truncate(self.bytes_max + 1);
        self.lock().entry(asked).or_insert_with(|| answer.into());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<QuestionId, Arc<[u8]>>> {
        locked(&self.known)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
