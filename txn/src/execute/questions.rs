//! The questions to the outside that an epoch's functions would ask first. Known early, all of them can
//! be asked at once, because each answer may take long.

use std::sync::Arc;

use tidemill_core::SourceId;
use tidemill_table::Table;

use super::serial::call;
use crate::order::Epoch;
use crate::program::{Answers, Asker, Body, Moment, Program, QuestionId};

/// A question to the outside, and the event whose transaction asks it.
pub struct Question {
    /// The source of the event, and its row there.
    pub event: (SourceId, u64),
    /// The identity of the question.
    pub asked: QuestionId,
    /// The function that asks.
    pub ask: Asker,
}

/// Returns the questions that functions of an epoch would ask first, if each took its event on the
/// rows as they are now. It looks at so many transactions at most, and stops when it has `most`
/// questions. It changes nothing. Procedures and functions that follow from others ask later.
///
/// A function without end takes as long here as in its first run.
pub fn questions(
    program: &Program,
    tables: &[Table],
    epoch: &mut Epoch,
    (transactions, most): (usize, usize),
) -> Vec<Question> {
    let unasked = Arc::new(Answers::of(epoch.answers.all()).asking_later());
    let answers = std::mem::replace(&mut epoch.answers, unasked);
    let mut found = Vec::new();
    for ranked in epoch.order.iter().take(transactions) {
        let lane = epoch.lanes[ranked.lane as usize];
        let handler = &program.handlers[lane.handler as usize];
        if !matches!(handler.body, Body::Opaque(_)) || handler.is_procedure() {
            continue;
        }
        let event = epoch.runs[lane.run as usize].batch.row(ranked.row as usize);
        let moment = Moment::at(epoch, epoch.stamp(*ranked), lane.handler as usize);
        // Only what it asks counts.
        let _ = call(program, &tables, lane.handler as usize, &event, &moment, &mut 0);
        let event = epoch.event(*ranked);
        let unknown = epoch.answers.take_unknown().into_iter();
        found.extend(unknown.map(|(asked, ask)| Question { event, asked, ask }));
        if found.len() >= most {
            break;
        }
    }
    epoch.answers = answers;
    found
}
