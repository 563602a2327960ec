//! The moment of a transaction: its time and its place in the one order. Its clock and its random
//! numbers come from there.

use tidemill_core::{encode, Stamp};

use super::answers::{Answers, QuestionId};

use crate::order::{Epoch, Ranked};

/// The moment of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Moment<'e> {
    /// The clock of the cut, in microseconds since 1970.
    pub(crate) now_us: i64,
    /// The stamp of the transaction's event; in a round, that of the input event.
    pub(crate) stamp: Stamp,
    /// The taker of the event: the handler's number, or the step of the turn.
    pub(crate) step: usize,
    /// The answers of the epoch from outside.
    pub(crate) answers: &'e Answers,
}

impl<'e> Moment<'e> {
    /// Returns the moment of an input event's transaction.
    pub(crate) fn of(epoch: &'e Epoch, ranked: Ranked) -> Moment<'e> {
        let step = epoch.lanes[ranked.lane as usize].handler as usize;
        Moment::at(epoch, epoch.stamp(ranked), step)
    }

    /// Returns the moment of any transaction of an epoch.
    pub(crate) fn at(epoch: &'e Epoch, stamp: Stamp, step: usize) -> Moment<'e> {
        Moment { now_us: epoch.clock_us, stamp, step, answers: &epoch.answers }
    }

    /// Returns the time of the stamp.
    pub(crate) fn time_us(&self) -> i64 {
        self.stamp.at.time_us
    }

    /// Returns the transaction's random number `count`, from 0. It is a hash of the moment, so
    /// every run of the transaction gets the same number, wherever cuts fall.
    pub(crate) fn random(&self, seed: u64, count: u64) -> u128 {
        encode::hash128(&self.bytes(seed, count))
    }

    /// Returns the identity of the transaction's question `count`, from 0.
    pub(crate) fn question_id(&self, count: u64, question: &[u8]) -> QuestionId {
        let mut bytes = self.bytes(0, count);
        bytes.extend_from_slice(question);
        encode::hash128(&bytes)
    }

    fn bytes(&self, seed: u64, count: u64) -> Vec<u8> {
        let (source, offset) = (u64::from(self.stamp.source().0), self.stamp.offset());
        let mut bytes = Vec::with_capacity(64);
        let mut put = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
        [seed, source, offset, self.step as u64, count].into_iter().for_each(&mut put);
        for (handler, output) in &self.stamp.path {
            put(u64::from(*handler) << 32 | u64::from(*output));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Position, SourceId};

    use super::*;

    #[test]
    fn a_number_depends_on_the_event_who_takes_it_and_the_count() {
        let stamp = Stamp::of(Position { time_us: 5, source: SourceId(1), offset: 7 });
        let answers = Answers::default();
        let of = |stamp: &Stamp, step, now_us| Moment {
            now_us,
            stamp: stamp.clone(),
            step,
            answers: &answers,
        };
        let first = of(&stamp, 0, 1).random(3, 0);
        assert_eq!(first, of(&stamp, 0, 2).random(3, 0));
        let others = [
            of(&stamp, 1, 1).random(3, 0),
            of(&stamp, 0, 1).random(4, 0),
            of(&stamp, 0, 1).random(3, 1),
            of(&stamp.derived(0, 0), 0, 1).random(3, 0),
        ];
        assert!(others.iter().all(|other| *other != first));
    }
}
