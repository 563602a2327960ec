//! The progress of event time. One rule, wherever cuts are made.

use tidemill_core::{LateRow, Position, SourceId};

use super::epoch::is_less;

/// The newest time of a source's rows so far. It decides which of the source's next rows are late:
/// those before the newest time less the out-of-orderness. So lateness depends on the source alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    newest_us: Option<i64>,
    out_of_orderness_us: i64,
}

impl Newest {
    /// Makes the state after rows of which this time is the newest.
    pub fn after(newest_us: Option<i64>, out_of_orderness_us: i64) -> Newest {
        Newest { newest_us, out_of_orderness_us }
    }

    /// Returns the newest time so far, in microseconds.
    pub fn us(&self) -> Option<i64> {
        self.newest_us
    }

    /// Adds the time of the next row. If the row is late, returns the bound that it is before.
    pub fn take(&mut self, time_us: i64) -> Option<i64> {
        let bound_us = self.newest_us.map(|newest| newest.saturating_sub(self.out_of_orderness_us));
        self.newest_us = self.newest_us.max(Some(time_us));
        bound_us.filter(|bound_us| time_us < *bound_us)
    }

    /// Adds the next rows, and returns those that are late.
    pub fn take_all(&mut self, offsets: &[u64], times: &[i64]) -> Vec<LateRow> {
        let (Some(first), Some(last)) = (times.first(), times.last()) else { return Vec::new() };
        // Rows are almost always in order. This finds that without a branch for each row.
        let goes_back = times.iter().zip(&times[1..]);
        let goes_back = goes_back.fold(0, |any, (a, b)| any | is_less(*b, *a)) < 0;
        let mut behind = *self;
        if !goes_back && behind.take(*first).is_none() {
            self.newest_us = self.newest_us.max(Some(*last));
            return Vec::new();
        }
        let late = |(offset, time_us): (&u64, &i64)| {
            let (offset, time_us) = (*offset, *time_us);
            self.take(time_us).map(|bound_us| LateRow { offset, time_us, bound_us })
        };
        offsets.iter().zip(times).filter_map(late).collect()
    }
}

/// The effect of a source on the watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatermarkEffect {
    /// The source holds the watermark back.
    Back,
    /// No effect, because the source has been silent for too long. It may resume.
    Idle,
    /// No effect, because the source has ended.
    Ended,
}

/// The progress of a source of a stream in event time, at a cut.
#[derive(Clone, Copy, Debug)]
pub struct SourceProgress {
    /// The source's number. Among events of the same time, those of the lowest number come first.
    pub source: SourceId,
    /// The group of its stream. The streams of a group share a watermark.
    pub group: usize,
    /// The newest time received from it, in microseconds.
    pub newest_us: Option<i64>,
    /// The offset of its first row that has not arrived.
    pub offset: u64,
    /// How far a row may be behind the newest time, in microseconds.
    pub out_of_orderness_us: i64,
    /// Its effect on the watermark.
    pub holds: WatermarkEffect,
}

impl SourceProgress {
    /// Returns the lowest place at which its next event may stand.
    pub fn bound(&self) -> Position {
        self.end().map_or(Position::MIN, |newest| Position {
            time_us: newest.time_us.saturating_sub(self.out_of_orderness_us),
            ..newest
        })
    }

    /// Returns the place after all of its received rows; `None` before the first.
    pub fn end(&self) -> Option<Position> {
        let (source, offset) = (self.source, self.offset);
        self.newest_us.map(|time_us| Position { time_us, source, offset })
    }
}

/// Returns, per group, the place before which all events have arrived, or `None` if no source
/// decides it. It is a multiple of the group's unit of time, unless that is 0.
///
/// If no source holds the watermark back, it advances to the end of the received rows. If all
/// sources have ended, the unit in which they ended is also over.
pub fn watermarks(
    units_us: &[i64],
    sources: impl IntoIterator<Item = SourceProgress>,
) -> Vec<Option<Position>> {
    #[derive(Clone, Default)]
    struct Group {
        bound: Option<Position>,
        end: Option<Position>,
        has_idle: bool,
    }
    let mut groups = vec![Group::default(); units_us.len()];
    for come in sources {
        let Group { bound, end, has_idle } = &mut groups[come.group];
        match come.holds {
            WatermarkEffect::Back => {
                *bound = Some(bound.map_or(come.bound(), |of| of.min(come.bound())))
            }
            WatermarkEffect::Idle | WatermarkEffect::Ended => *end = (*end).max(come.end()),
        }
        *has_idle |= come.holds == WatermarkEffect::Idle;
    }
    let mark = |(Group { bound, end, has_idle }, unit_us): (Group, &i64)| match (bound, end) {
        (Some(bound), _) => Some(whole(bound, *unit_us)),
        (None, Some(end)) if has_idle => Some(whole(end, *unit_us)),
        (None, end) => end.map(|end| over(end, *unit_us)),
    };
    groups.into_iter().zip(units_us).map(mark).collect()
}

/// Returns the last multiple of a unit of time up to a position; the position itself if the unit is
/// 0.
fn whole(mark: Position, unit_us: i64) -> Position {
    match unit_us {
        0 => mark,
        _ if mark == Position::MIN => mark,
        unit => at(mark.time_us.div_euclid(unit).saturating_mul(unit)),
    }
}

/// Returns the first multiple of a unit of time after a position; the position itself if the unit
/// is 0.
pub(super) fn over(mark: Position, unit_us: i64) -> Position {
    match unit_us {
        0 => mark,
        unit => at(mark.time_us.div_euclid(unit).saturating_add(1).saturating_mul(unit)),
    }
}

/// Returns the position before all events of a time.
pub(super) fn at(time_us: i64) -> Position {
    Position { time_us, source: SourceId(0), offset: 0 }
}

/// Returns the least common multiple of two units of time, where 0 means none.
pub fn common(one_us: i64, other_us: i64) -> i64 {
    let (mut a, mut b) = (one_us, other_us);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    match (one_us, other_us) {
        (0, other) => other,
        (one, 0) => one,
        (one, other) => one / a * other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(source: u32, newest_us: i64, holds: WatermarkEffect) -> SourceProgress {
        let (group, offset, out_of_orderness_us) = (0, 9, 5);
        let source = SourceId(source);
        SourceProgress {
            source,
            group,
            newest_us: Some(newest_us),
            offset,
            out_of_orderness_us,
            holds,
        }
    }

    #[test]
    fn rows_are_late_by_those_before_them() {
        let times = [10, 7, 6, 12, 7, 12, 6, i64::MIN, i64::MAX, 0];
        let offsets: Vec<u64> = (0..times.len() as u64).map(|nth| 3 * nth).collect();
        let late = |from: Option<i64>, out_of_orderness_us, cuts: &[usize]| {
            let mut newest = Newest::after(from, out_of_orderness_us);
            let (mut found, mut at) = (Vec::new(), 0);
            for end in cuts.iter().copied().chain([times.len()]) {
                found.extend(newest.take_all(&offsets[at..end], &times[at..end]));
                at = end;
            }
            assert_eq!(newest.us(), Some(i64::MAX));
            found.iter().map(|row| (row.offset / 3, row.bound_us)).collect::<Vec<_>>()
        };
        let by_three = [(2, 7), (4, 9), (6, 9), (7, 9), (9, i64::MAX - 3)];
        for cuts in [&[][..], &[1], &[2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            assert_eq!(late(None, 3, cuts), by_three);
        }
        let first = [(0, 11), (1, 11), (2, 11)];
        assert_eq!(late(Some(11), 0, &[5])[..3], first);
        assert_eq!(late(None, i64::MAX, &[]), [(7, 12 - i64::MAX)]);
    }

    #[test]
    fn a_watermark_goes_no_further_than_what_has_come() {
        let mark = |unit_us, all: &[SourceProgress]| watermarks(&[unit_us], all.iter().copied())[0];
        let place = |source, time_us| Position { time_us, source: SourceId(source), offset: 9 };
        let (back, idle, ended) =
            (WatermarkEffect::Back, WatermarkEffect::Idle, WatermarkEffect::Ended);
        // An ended or idle source may be ahead or behind without effect.
        for other in [idle, ended] {
            for time_us in [3, 300] {
                let all = [some(0, 30, back), some(1, time_us, other)];
                assert_eq!(mark(0, &all), Some(place(0, 25)));
                assert_eq!(mark(10, &all), Some(at(20)));
            }
        }
        assert_eq!(mark(0, &[some(0, 30, ended), some(1, 20, ended)]), Some(place(0, 30)));
        assert_eq!(mark(0, &[some(0, 30, idle), some(1, 40, ended)]), Some(place(1, 40)));
        // The unit in which a source ended is over. An idle source may resume in its unit.
        assert_eq!(mark(10, &[some(0, 39, ended), some(1, 30, ended)]), Some(at(40)));
        assert_eq!(mark(10, &[some(0, 30, ended)]), Some(at(40)));
        assert_eq!(mark(10, &[some(0, 39, idle), some(1, 30, ended)]), Some(at(30)));
        let none = SourceProgress { newest_us: None, ..some(0, 0, ended) };
        assert_eq!((mark(10, &[none]), mark(10, &[])), (None, None));
        let none = SourceProgress { holds: back, ..none };
        assert_eq!(mark(10, &[none, some(1, 30, ended)]), Some(Position::MIN));
    }
}
