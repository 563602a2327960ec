//! The moment of a transaction: its time and its place in the one order. Its clock and its random
//! numbers come from there.

use tidemill_core::{encode, Position, SourceId, Stamp};

use super::answers::{Answers, QuestionId};

use crate::order::{Epoch, Ranked};

/// The moment of a transaction.
#[derive(Clone, Debug)]
pub struct Moment<'e> {
    /// The clock of the cut, in microseconds since 1970.
    pub now_us: i64,
    /// The stamp of the transaction's event; in a round, that of the input event.
    pub stamp: Stamp,
    /// The taker of the event: the handler's number, or the step of the turn.
    pub step: usize,
    /// The answers of the epoch from outside.
    pub answers: &'e Answers,
    /// Whether no clock may end the transaction.
    pub ignores_deadlines: bool,
    /// Distinguishes its random numbers where events are numbered from 0 again; 0 at first.
    pub salt: u64,
}

impl<'e> Moment<'e> {
    /// Returns the moment of an input event's transaction.
    pub fn of(epoch: &'e Epoch, ranked: Ranked) -> Moment<'e> {
        let step = epoch.lanes[ranked.lane as usize].handler as usize;
        Moment::at(epoch, epoch.stamp(ranked), step)
    }

    /// Returns the moment of any transaction of an epoch.
    pub fn at(epoch: &'e Epoch, stamp: Stamp, step: usize) -> Moment<'e> {
        let Epoch { clock_us: now_us, answers, ignores_deadlines, salt, .. } = epoch;
        let (now_us, ignores_deadlines, salt) = (*now_us, *ignores_deadlines, *salt);
        Moment { now_us, stamp, step, answers, ignores_deadlines, salt }
    }

    /// Returns the time of the stamp.
    pub fn time_us(&self) -> i64 {
        self.stamp.at.time_us
    }

    /// Returns the transaction's random number `count`, from 0. It is a hash of the moment, so
    /// every run of the transaction gets the same number, wherever cuts fall.
    pub fn random(&self, seed: u64, count: u64) -> u128 {
        encode::hash128(&self.bytes(seed, count))
    }

    /// Returns the identity of the transaction's question `count`, from 0.
    pub fn question_id(&self, count: u64, question: &[u8]) -> QuestionId {
        let mut bytes = self.bytes(0, count);
        bytes.extend_from_slice(question);
        encode::hash128(&bytes)
    }

    fn bytes(&self, seed: u64, count: u64) -> Vec<u8> {
        let (source, offset) = (u64::from(self.stamp.source().0), self.stamp.offset());
        let mut bytes = Vec::with_capacity(64);
        let mut put = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
        [seed, source, offset, self.step as u64, count].into_iter().for_each(&mut put);
        if self.salt != 0 {
            put(self.salt);
        }
        for (handler, output) in &self.stamp.path {
            put(u64::from(*handler) << 32 | u64::from(*output));
        }
        bytes
    }
}

/// The time of a transaction, and the source of its random numbers.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// The clock, in microseconds since 1970.
    pub now_us: i64,
    /// The transaction's time: that of its event, or event time at the cut before; without event
    /// time, the clock.
    pub time_us: i64,
    /// A number that no other transaction has. Random numbers are made of it.
    pub chance: u64,
}

impl When {
    /// Returns the moment of a transaction whose event this handler or turn takes.
    pub fn moment<'a>(&self, step: usize, answers: &'a Answers) -> Moment<'a> {
        let When { now_us, time_us, chance } = *self;
        let at = Position { time_us, source: SourceId(0), offset: chance };
        Moment { now_us, stamp: Stamp::of(at), step, answers, ignores_deadlines: false, salt: 0 }
    }
}

#[cfg(test)]
mod tests {
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
            ignores_deadlines: false,
            salt: 0,
        };
        let first = of(&stamp, 0, 1).random(3, 0);
        assert_eq!(first, of(&stamp, 0, 2).random(3, 0));
        let others = [
            of(&stamp, 1, 1).random(3, 0),
            of(&stamp, 0, 1).random(4, 0),
            of(&stamp, 0, 1).random(3, 1),
            of(&stamp.derived(0, 0), 0, 1).random(3, 0),
            Moment { salt: 1, ..of(&stamp, 0, 1) }.random(3, 0),
        ];
        assert!(others.iter().all(|other| *other != first));
    }
}
