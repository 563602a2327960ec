//! Requests of a source that can be read and are in no cut.

use std::collections::VecDeque;

use crate::effect::{Piece, Span};

/// Requests of a source that can be read and are in no cut.
#[derive(Clone, Debug, Default)]
pub(super) struct Available {
    /// The end of the records that are in cuts.
    upto: u64,
    /// The records from there, in pieces that follow one another.
    pieces: VecDeque<Piece>,
    /// The number of requests that cuts have taken since the generation began.
    taken: u64,
}

impl Available {
    /// Creates an empty queue that begins at an offset.
    pub fn after(upto: u64) -> Available {
        Available { upto, ..Available::default() }
    }

    /// Returns the end of the records that are in cuts.
    pub fn upto(&self) -> u64 {
        self.upto
    }

    /// Returns the number of requests that cuts have taken since the generation began.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the number of available requests.
    pub fn requests(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.requests).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether a cut would take something, even if it may take no events in event time.
    pub fn has_some(&self, is_paused: bool) -> bool {
        self.pieces.front().is_some_and(|first| !is_paused || first.times.is_empty())
    }

    /// Adds records from an offset. Some of them may be known, or in a cut. If records before them
    /// are missing, it adds nothing, and the worker reports them again.
    pub fn add(&mut self, mut from: u64, pieces: &[Piece]) {
        if from > self.pieces.back().map_or(self.upto, |last| last.end) {
            return;
        }
        for piece in pieces {
            let there = self.pieces.back().map_or(self.upto, |last| last.end);
            let end = piece.end;
            self.pieces.extend(piece.clone().rest(from, from.max(there)));
            from = end;
        }
    }

    /// Removes records before an offset, because they are in a cut.
    pub fn skip(&mut self, upto: u64) {
        let mut from = self.upto;
        while let Some(first) = self.pieces.front_mut().filter(|_| from < upto) {
            let end = first.end;
            match first.clone().rest(from, upto) {
                Some(rest) => *first = rest,
                None => drop(self.pieces.pop_front()),
            }
            from = end;
        }
        self.upto = self.upto.max(upto);
    }

    /// Returns the piece that would be taken next, and its first offset.
    pub fn first(&self) -> Option<(u64, &Piece)> {
        Some((self.upto, self.pieces.front()?))
    }

    /// Whether calls are among the first `few` requests, and whether all of these can be executed by
    /// column.
    pub fn first_kinds(&self, few: u64) -> (bool, bool) {
        let mut seen = 0;
        for piece in self.pieces.iter().filter(|piece| piece.requests > 0) {
            if !piece.by_column {
                return (true, false);
            }
            seen += piece.requests;
            if seen >= few {
                return (false, true);
            }
        }
        (false, false)
    }

    /// Takes at most `max` requests, but at least one record if there is one. For an epoch by column,
    /// it stops before calls. Returns the number of requests taken. If `is_paused`, it takes no events in event time. The times of taken
    /// events are added to `times`. It stops before a piece that `is_refused`, given the offset where
    /// the piece begins.
    pub fn take(
        &mut self,
        (kind, max): (Kind, u64),
        is_paused: bool,
        is_refused: &dyn Fn(u64, &Piece) -> bool,
        times: &mut Vec<Span>,
    ) -> u64 {
        let mut taken = 0;
        while let Some(first) = self.pieces.front_mut() {
            let stops = kind == Kind::Columns && first.requests > 0 && !first.by_column;
            if is_refused(self.upto, first) || stops {
                break;
            }
            let room = max - taken.min(max);
            let each = first.each(self.upto).max(1);
            let is_divided = first.end - self.upto > 1 && first.times.is_empty();
            let upto = match first.requests <= room || (taken == 0 && !is_divided) {
                _ if is_paused && !first.times.is_empty() => self.upto,
                true => first.end,
                // At least one record is taken.
                false if is_divided => self.upto + (room / each).max(u64::from(taken == 0)),
                false => self.upto,
            };
            if upto == self.upto {
                break;
            }
            let had = first.requests;
            times.extend(&first.times);
            taken += match first.clone().rest(self.upto, upto) {
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

/// A kind of epochs. Events are executed by column only if nothing else is in their epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Calls, and the events between them.
    Calls,
    /// Events that can be executed by column.
    Columns,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(end: u64, requests: u64) -> Piece {
        Piece { end, requests, by_column: false, times: [].into() }
    }

    fn take(found: &mut Available, max: u64) -> u64 {
        found.take((Kind::Calls, max), false, &|_, _| false, &mut Vec::new())
    }

    /// Creates three records of one request, a gap of two, one record of five requests, and one of
    /// one.
    fn some() -> Available {
        let mut found = Available::after(10);
        found.add(10, &[piece(13, 3), piece(15, 0), piece(16, 5), piece(17, 1)]);
        found
    }

    #[test]
    fn a_cut_takes_no_part_of_a_record() {
        let mut found = some();
        assert_eq!((found.requests(), found.upto()), (9, 10));
        assert_eq!((take(&mut found, 2), found.upto()), (2, 12));
        // The gap is taken, too, but the record after it has no room.
        assert_eq!((take(&mut found, 4), found.upto()), (1, 15));
        // A record with more requests than a cut may have is a cut by itself.
        assert_eq!((take(&mut found, 4), found.upto()), (5, 16));
        assert_eq!((take(&mut found, 4), found.upto()), (1, 17));
        assert_eq!((take(&mut found, 4), found.is_empty()), (0, true));
        assert_eq!((take(&mut some(), 9), take(&mut some(), 8)), (9, 8));
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
        assert_eq!((found.requests(), take(&mut found, 9), found.upto()), (2, 2, 32));
        found.add(33, &[piece(34, 1)]);
        assert!(found.is_empty(), "what is at 32 was missed");
    }

    #[test]
    fn events_in_event_time_are_taken_with_their_times_and_not_where_they_must_wait() {
        let mut found = Available::after(10);
        let timed = |end, requests, times: &[(u32, i64)]| Piece {
            times: times.iter().map(|(of, at)| Span::of(*of, *at)).collect(),
            ..piece(end, requests)
        };
        found.add(10, &[piece(12, 2), timed(15, 3, &[(0, 70), (2, 5)]), timed(17, 2, &[(0, 60)])]);
        let mut times = Vec::new();
        let any = &|_: u64, _: &Piece| false;
        assert!(found.has_some(true));
        assert_eq!((found.take((Kind::Calls, 9), true, any, &mut times), found.upto()), (2, 12));
        assert!(!found.has_some(true) && found.has_some(false) && times.is_empty());
        // A piece with events in event time is not divided.
        assert_eq!((found.take((Kind::Calls, 2), false, any, &mut times), found.upto()), (3, 15));
        // A refused piece is not taken, and nothing after it.
        let is_late = |_: u64, piece: &Piece| piece.times.iter().any(|of| of.oldest_us < 61);
        assert_eq!(
            (found.take((Kind::Calls, 9), false, &is_late, &mut times), found.upto()),
            (0, 15)
        );
        assert_eq!(found.first().map(|(from, piece)| (from, piece.end)), Some((15, 17)));
        assert_eq!((found.take((Kind::Calls, 1), false, any, &mut times), found.upto()), (2, 17));
        assert_eq!(times, [(0, 70), (2, 5), (0, 60)].map(|(of, at)| Span::of(of, at)));
    }
}
