//! What can be read of a source, and is in no cut.

use std::collections::VecDeque;

use crate::effect::Piece;

/// What can be read of a source, and is in no cut.
#[derive(Clone, Debug, Default)]
pub(super) struct Available {
    /// Behind all that cuts have.
    upto: u64,
    /// What is there from then on, each piece behind the one before.
    pieces: VecDeque<Piece>,
    /// How many requests cuts have taken, since the generation began.
    taken: u64,
}

impl Available {
    /// Nothing, behind an offset.
    pub fn behind(upto: u64) -> Available {
        Available { upto, ..Available::default() }
    }

    /// Behind all that cuts have.
    pub fn upto(&self) -> u64 {
        self.upto
    }

    /// How many requests cuts have taken, since the generation began.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many requests there are.
    pub fn requests(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.requests).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Takes up what is there from an offset on; some of it may be known, or in a cut. Where something before it
    /// is not known, nothing is: it is told again.
    pub fn add(&mut self, mut from: u64, pieces: &[Piece]) {
        if from > self.pieces.back().map_or(self.upto, |last| last.behind) {
            return;
        }
        for piece in pieces {
            let there = self.pieces.back().map_or(self.upto, |last| last.behind);
            if let Some(rest) = piece.rest(from, from.max(there)) {
                self.pieces.push_back(rest);
            }
            from = piece.behind;
        }
    }

    /// What is before an offset is in a cut.
    pub fn skip(&mut self, upto: u64) {
        let mut from = self.upto;
        while let Some(first) = self.pieces.front_mut().filter(|_| from < upto) {
            let behind = first.behind;
            match first.rest(from, upto) {
                Some(rest) => *first = rest,
                None => drop(self.pieces.pop_front()),
            }
            from = behind;
        }
        self.upto = self.upto.max(upto);
    }

    /// Takes so many requests at most, but one record at least, if there is one: how many.
    pub fn take(&mut self, max: u64) -> u64 {
        let mut taken = 0;
        while let Some(first) = self.pieces.front_mut() {
            let room = max - taken.min(max);
            let upto = match first.requests <= room || (taken == 0 && !first.is_run(self.upto)) {
                true => first.behind,
                false if first.is_run(self.upto) => self.upto + room,
                false => self.upto,
            };
            if upto == self.upto {
                break;
            }
            let had = first.requests;
            taken += match first.rest(self.upto, upto) {
                Some(rest) => {
                    let left = rest.requests;
                    *first = rest;
                    had - left
                }
                None => {
                    self.pieces.pop_front();
                    had
                }
            };
            self.upto = upto;
        }
        self.taken += taken;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(behind: u64, requests: u64) -> Piece {
        Piece { behind, requests }
    }

    /// Three records of one request, a gap of two, one record of five requests, and one of one.
    fn some() -> Available {
        let mut found = Available::behind(10);
        found.add(10, &[piece(13, 3), piece(15, 0), piece(16, 5), piece(17, 1)]);
        found
    }

    #[test]
    fn a_cut_takes_no_part_of_a_record() {
        let mut found = some();
        assert_eq!((found.requests(), found.upto()), (9, 10));
        assert_eq!((found.take(2), found.upto()), (2, 12));
        // The gap goes along, the record behind it has no room.
        assert_eq!((found.take(4), found.upto()), (1, 15));
        // What is more than a cut may have is one of its own.
        assert_eq!((found.take(4), found.upto()), (5, 16));
        assert_eq!((found.take(4), found.upto()), (1, 17));
        assert_eq!((found.take(4), found.is_empty()), (0, true));
        assert_eq!((some().take(9), some().take(8)), (9, 8));
    }

    #[test]
    fn what_is_known_or_in_a_cut_is_not_taken_up_again() {
        let mut found = some();
        found.add(10, &[piece(13, 3), piece(15, 0), piece(16, 5), piece(20, 4)]);
        assert_eq!(found.requests(), 12);
        found.skip(12);
        assert_eq!((found.requests(), found.upto()), (10, 12));
        found.skip(14);
        assert_eq!((found.requests(), found.upto()), (9, 14));
        found.skip(18);
        assert_eq!((found.requests(), found.upto()), (2, 18));
        found.skip(30);
        assert_eq!((found.is_empty(), found.upto()), (true, 30));
        found.add(17, &[piece(29, 12)]);
        assert!(found.is_empty());
        found.add(29, &[piece(32, 3)]);
        assert_eq!((found.requests(), found.take(9), found.upto()), (2, 2, 32));
        found.add(33, &[piece(34, 1)]);
        assert!(found.is_empty(), "what is at 32 was missed");
    }
}
