//! How far event time has come: one rule, whoever makes the cuts.

use tidemill_core::{Position, SourceId};

/// A source of a stream in event time, as it is at a cut, while it has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Come {
    /// Its place among sources: of events with one time those of the first come first.
    pub source: SourceId,
    /// The group of its stream: those of one group share a watermark.
    pub group: usize,
    /// The newest time that has come of it.
    pub newest_us: Option<i64>,
    /// The first of its rows that has not come.
    pub offset: u64,
    /// How far behind its newest time a row may come.
    pub disorder_us: i64,
    /// Whether it has been silent too long to hold the watermark back.
    pub is_idle: bool,
}

impl Come {
    /// The lowest place at which its next event may stand.
    pub fn bound(&self) -> Position {
        self.newest().map_or(Position::MIN, |newest| Position {
            time_us: newest.time_us.saturating_sub(self.disorder_us),
            ..newest
        })
    }

    fn newest(&self) -> Option<Position> {
        let (source, offset) = (self.source, self.offset);
        self.newest_us.map(|time_us| Position { time_us, source, offset })
    }
}

/// Per group the place before which everything has come; nothing where no source says so. With all of its sources
/// idle nothing holds back what has come.
pub fn come_to(groups: usize, sources: impl IntoIterator<Item = Come>) -> Vec<Option<Position>> {
    let mut marks: Vec<Option<Position>> = vec![None; groups];
    let mut newest: Vec<Option<Position>> = vec![None; groups];
    for come in sources {
        if come.is_idle {
            newest[come.group] = newest[come.group].max(come.newest());
        } else {
            let (mark, bound) = (&mut marks[come.group], come.bound());
            *mark = Some(mark.map_or(bound, |mark| mark.min(bound)));
        }
    }
    marks.into_iter().zip(newest).map(|(mark, newest)| mark.or(newest)).collect()
}

/// The last multiple of a unit of time that is not behind a position; the position itself where the unit is 0.
pub fn whole(mark: Position, unit_us: i64) -> Position {
    match unit_us {
        0 => mark,
        _ if mark == Position::MIN => mark,
        unit => {
            let time_us = mark.time_us.div_euclid(unit).saturating_mul(unit);
            Position { time_us, source: SourceId(0), offset: 0 }
        }
    }
}

/// The least unit of time of which two are parts, where 0 is none.
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
