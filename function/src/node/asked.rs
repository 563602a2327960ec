//! What functions ask outside, and what they are told.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use tidemill_core::encode;
use tidemill_txn::program::{Ask, Asked};

use super::{Node, Outbox};
use crate::order::{Path, Tid};
use crate::program::Call;
use crate::store::Store;

/// By transaction and question.
pub(super) type Answers = BTreeMap<(Tid, Asked), Arc<[u8]>>;

/// What a function asks somebody outside.
#[derive(Clone, Debug)]
pub struct Question {
    /// The transaction.
    pub tid: Tid,
    /// The place of the call that asks.
    pub path: Path,
    /// What the question is known by within its transaction, whoever runs it.
    pub asked: Asked,
    /// How it is asked.
    pub ask: Ask,
}

impl PartialEq for Question {
    fn eq(&self, other: &Question) -> bool {
        (self.tid, &self.path, self.asked) == (other.tid, &other.path, other.asked)
    }
}

/// What a verdict of a clock about a part of a call is known by: an answer, too, to a question that nobody else asks.
pub(super) fn verdict(path: &Path, call: &Call, part: u32) -> Asked {
    hash(path, call, &part.to_le_bytes())
}

/// What a question at a place is known by. The call is in it, which says where it runs: so of one generation one node
/// asks it, and there are no two answers.
pub(super) fn hash(path: &Path, call: &Call, question: &[u8]) -> Asked {
    let mut text = String::new();
    let _ = write!(text, "{path:?}{:?}{:?}", call.target, call.table);
    let mut bytes = text.into_bytes();
    call.key.iter().chain(call.args.iter()).for_each(|value| encode::value(value, &mut bytes));
    bytes.extend_from_slice(question);
    encode::hash128(&bytes)
}

impl<S: Store> Node<S> {
    /// Makes known what outside has said before, be it to another node: functions that ask the same are told it.
    pub fn know(&mut self, tid: Tid, asked: Asked, answer: Arc<[u8]>) {
        // Of two the first one counts, which somebody may have been told.
        self.answers.entry((tid, asked)).or_insert(answer);
    }

    /// Makes known that something has left of a transaction: it and all before it have come to what they came to, and
    /// no clock may say now that one of them took too long.
    pub fn has_left(&mut self, tid: Tid) {
        self.left = self.left.max(tid);
    }

    /// What outside has said to a question; the function that has asked goes on.
    pub fn answered(&mut self, question: &Question, answer: Arc<[u8]>, out: &mut Outbox) {
        let Question { tid, path, asked, .. } = question;
        self.know(*tid, *asked, answer);
        let part = self.running.as_mut().and_then(|epoch| epoch.parts.get_mut(tid));
        let waits = part.and_then(|part| part.runs.get_mut(path));
        if waits.is_some_and(|invocation| invocation.asks.take_if(|of| of == asked).is_some()) {
            self.resume(*tid, path.clone(), out);
            self.work(out);
        }
    }
}
