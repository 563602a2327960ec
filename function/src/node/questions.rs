//! Questions of functions to the outside, and their answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use tidemill_core::encode;
use tidemill_txn::program::{Asker, QuestionId};

use super::by_column::{ByColumn, Way};
use super::{Node, Outbox};
use crate::order::{Path, Tid};
use crate::program::Call;

/// Answers by transaction and question.
pub(super) type Answers = BTreeMap<(Tid, QuestionId), Arc<[u8]>>;

/// A question of a function to somebody outside.
#[derive(Clone, Debug)]
pub struct Question {
    /// The transaction.
    pub tid: Tid,
    /// The place of the call that asks.
    pub path: Path,
    /// The identity of the question within its transaction, whichever node runs it.
    pub asked: QuestionId,
    /// The way to ask it.
    pub ask: Asker,
}

impl PartialEq for Question {
    fn eq(&self, other: &Question) -> bool {
        (self.tid, &self.path, self.asked) == (other.tid, &other.path, other.asked)
    }
}

/// Returns the identity of a clock's verdict on a part of a call. A verdict is an answer, too, to a
/// question that no function asks.
pub(super) fn verdict(path: &Path, call: &Call, part: u32) -> QuestionId {
    hash(path, call, &part.to_le_bytes())
}

/// Returns the identity of a question at a place. The call is part of it, because the call
/// determines where it runs. So only one node of a generation asks it, and there are no two
/// answers.
pub(super) fn hash(path: &Path, call: &Call, question: &[u8]) -> QuestionId {
    let mut text = String::new();
    let _ = write!(text, "{path:?}{:?}{:?}", call.target, call.table);
    let mut bytes = text.into_bytes();
    call.key.iter().chain(call.args.iter()).for_each(|value| encode::value(value, &mut bytes));
    bytes.extend_from_slice(question);
    encode::hash128(&bytes)
}

impl Node {
    /// Notes an earlier answer from outside, possibly to another node. Functions that ask the same
    /// receive it.
    pub fn know(&mut self, tid: Tid, asked: QuestionId, answer: Arc<[u8]>) {
        // The first of two answers counts, because a function may have received it.
        self.answers.entry((tid, asked)).or_insert(answer);
    }

    /// Notes that output of a transaction has left. The results of this transaction and of all
    /// before it are fixed, so no clock may decide now that one of them took too long.
    pub fn output_left(&mut self, tid: Tid) {
        self.left = self.left.max(tid);
    }

    /// Passes the answer from outside to the function that asked, which continues.
    pub fn answered(&mut self, question: &Question, answer: Arc<[u8]>, out: &mut Outbox) {
        let Question { tid, path, asked, .. } = question;
        self.know(*tid, *asked, answer);
        if let Some(ByColumn { epoch: Way::Sole(epoch), .. }) = &mut self.by_column {
            epoch.is_recorded(*tid, *asked);
            self.go_on_sole(out);
            return self.work(out);
        }
        let part = self.running.as_mut().and_then(|epoch| epoch.parts.get_mut(tid));
        let waits = part.and_then(|part| part.runs.get_mut(path));
        if waits.is_some_and(|invocation| invocation.asks.take_if(|of| of == asked).is_some()) {
            self.resume(*tid, path.clone(), out);
            self.work(out);
        }
    }
}
