//! Questions of functions to the outside, and work outside. A question is asked once the cut of its
//! epoch is durable, and the function continues once the answer is durable. Work outside is in rows
//! of outboxes, and must be done as long as its row is there.
//!
//! So no one outside learns of an epoch that may still change, and nothing depends on an answer
//! that a recovery would not find. A recovery finds all answers that an epoch after its snapshot
//! may need. A cut is made when all have executed the one before. So nothing of an epoch is asked
//! before all members have reported where the outputs of later epochs may begin.

use std::mem::{replace, take};
use std::sync::Arc;

use tidemill_function::{Outbox, Question};

use super::run::Running;
use super::{Pending, Stage, Worker};
use crate::effect::{Effect, Packet};
use crate::records::{Record, Topic};

impl Worker {
    /// Asks all questions whose cuts are durable.
    pub(super) fn ask_outside(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let durable = running.durable;
        let mut asking = Vec::new();
        while let Some((_, question)) =
            running.questions.pop_front_if(|(epoch, _)| *epoch <= durable)
        {
            asking.push(question);
        }
        for question in asking {
            let ask = question.ask.clone();
            let token = self.token(Pending::Outside(question));
            effects.push(Effect::Ask { token, ask });
        }
    }

    /// Appends an answer. If no one could be asked, asks again.
    pub(super) fn answered(
        &mut self,
        question: Question,
        answer: Option<Vec<u8>>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(mut answer) = answer else {
            let ask = question.ask.clone();
            let token = self.token(Pending::Outside(question));
            return effects.push(Effect::Ask { token, ask });
        };
        // The function refuses a longer answer, and this bounds the log.
        answer.truncate(self.settings.function.output_bytes_max + 1);
        let answer: Arc<[u8]> = answer.into();
        let (tid, asked, generation) = (question.tid, question.asked, self.generation);
        let source = ((tid.0 - 1) % u64::from(self.settings.sources)) as u32;
        let record = Record::Answer { tid, asked, answer: answer.clone() };
        let (token, topic) = (self.token(Pending::Answer(question, answer)), Topic::Output(source));
        effects.push(Effect::Append { token, topic, generation, record });
    }

    /// Passes on an answer that is in the outputs.
    pub(super) fn answer_durable(
        &mut self,
        question: &Question,
        answer: Arc<[u8]>,
        at: u64,
        effects: &mut Vec<Effect>,
    ) {
        let Stage::Running(running) = &mut self.stage else { return };
        let source = (question.tid.0 - 1) % u64::from(self.settings.sources);
        let end = &mut running.ends[source as usize];
        *end = (*end).max(at + 1);
        self.report_answer(question, answer, effects);
    }

    /// Reports changes in the outboxes, and at first all of their rows. It does so when everything
    /// that was recorded before this generation has been executed, and everything executed is
    /// released. Work of epochs that a recovery repeats may already be done and answered.
    pub(super) fn report_outbox(&mut self, effects: &mut Vec<Effect>) {
        let outboxes = self.functions.outboxes();
        let Stage::Running(running) = &mut self.stage else { return };
        let Running { executed, released, recorded, .. } = &**running;
        let is_due = executed <= released && recorded.is_some_and(|recorded| *executed >= recorded);
        if outboxes.is_empty() || !is_due {
            return;
        }
        let changed = take(&mut running.outbox);
        let all = !replace(&mut running.tells_outbox, true);
        let rows = changed.into_iter().map(|((table, key), row)| (table, key, row));
        let rows: Vec<_> = rows.filter(|(.., row)| !all || row.is_some()).collect();
        for (table, key, row) in &rows {
            let at = (*table, key.clone());
            match row {
                Some(_) => running.outside.insert(at),
                None => running.outside.remove(&at),
            };
        }
        let (epoch, count) = (running.executed, running.outside.len() as u64);
        if all || !rows.is_empty() {
            effects.push(Effect::Outbox { epoch, all, rows });
        }
        let generation = self.generation;
        self.send(Packet::Outside { generation, epoch, rows: count }, effects);
    }

    /// Passes the answer to the function, which continues.
    fn report_answer(&mut self, question: &Question, answer: Arc<[u8]>, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let mut out = Outbox::default();
        running.node.answered(question, answer, &mut out);
        self.take(out, effects);
        self.go_on(effects);
    }
}
