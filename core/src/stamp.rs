//! Stamps: the places of events in the one order.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::ids::SourceId;

/// A point in the order of input events: everything before it is *earlier*.
///
/// Watermarks are positions, because a time is too coarse: one time (a day, say) may hold ten
/// thousand rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The event time in microseconds since 1970 (UTC).
    pub time_us: i64,
    /// The source partition. Between sources at the same time, the one declared first is earlier.
    pub source: SourceId,
    /// The row in the source. Bad rows count.
    pub offset: u64,
}

impl Position {
    /// The position before every event.
    pub const MIN: Position = Position { time_us: i64::MIN, source: SourceId(0), offset: 0 };
    /// The position after every event: the watermark of a stream that no source in event time
    /// feeds.
    pub const MAX: Position =
        Position { time_us: i64::MAX, source: SourceId(u32::MAX), offset: u64::MAX };
}

/// The steps from an input event to a derived one, outermost first. Empty for input events.
///
/// A step has the ordinal of the handler in the declaration and the ordinal of its output.
pub type Path = SmallVec<[(u16, u32); 2]>;

/// The admission of an event that could not have its own time.
///
/// Such an event is one of a stream without event time. Or it arrives behind a watermark that an
/// idle source no longer held back. It stands where the watermark stood at the cut before. The last
/// event of a batch that ends with its stream stands where the stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Admission {
    /// The epoch whose cut admitted the event. At the same position, later epochs are later.
    pub epoch: u64,
    /// The source of the event.
    pub source: SourceId,
    /// The row of the event in its source.
    pub offset: u64,
}

/// An event's place in the one order: (time, source, offset, path). Stamps never change.
///
/// An admitted event stands just before the position `at`, the watermark at its admission, and
/// after everything that was executed before. Its own source and offset are in `admitted`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The place among the input events.
    pub at: Position,
    /// The admission, if `at` is not the event's own place.
    pub admitted: Option<Admission>,
    /// The steps from the input event to this derived one.
    pub path: Path,
}

impl Stamp {
    /// Creates the stamp of an input event at its own place.
    pub fn of(at: Position) -> Stamp {
        Stamp { at, admitted: None, path: Path::new() }
    }

    /// Creates the stamp of an event admitted at the watermark `at`.
    pub fn admitted(at: Position, admission: Admission) -> Stamp {
        Stamp { at, admitted: Some(admission), path: Path::new() }
    }

    /// Returns the stamp of output `output` of handler `handler` for the event with this stamp.
    pub fn derived(&self, handler: u16, output: u32) -> Stamp {
        let mut path = self.path.clone();
        path.push((handler, output));
        Stamp { at: self.at, admitted: self.admitted, path }
    }

    /// Returns the source partition of the event.
    pub fn source(&self) -> SourceId {
        self.admitted.map_or(self.at.source, |a| a.source)
    }

    /// Returns the row in that source.
    pub fn offset(&self) -> u64 {
        self.admitted.map_or(self.at.offset, |a| a.offset)
    }
}

impl Ord for Stamp {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // An admitted event is before the event at the position itself.
        let own = |s: &Stamp| s.admitted.is_none();
        self.at
            .cmp(&other.at)
            .then_with(|| own(self).cmp(&own(other)))
            .then_with(|| self.admitted.cmp(&other.admitted))
            .then_with(|| self.path.cmp(&other.path))
    }
}

impl PartialOrd for Stamp {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}", self.at.time_us, self.source().0, self.offset())?;
        for (handler, output) in &self.path {
            write!(f, "/{handler}.{output}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time_us: i64, source: u32, offset: u64) -> Position {
        Position { time_us, source: SourceId(source), offset }
    }

    #[test]
    fn a_cascade_comes_depth_first_and_before_the_next_event() {
        let event = Stamp::of(at(5, 0, 1));
        let first = event.derived(0, 0);
        let nested = first.derived(2, 0);
        let second = event.derived(0, 1);
        let next = Stamp::of(at(5, 0, 2));
        let order = [event, first, nested, second, next];
        assert!(order.windows(2).all(|w| w[0] < w[1]));
    }

    #[test]
    fn admitted_events_stand_before_the_watermark_and_after_all_before_it() {
        let watermark = at(5, 1, 10);
        let before = Stamp::of(at(5, 1, 9));
        let on = Stamp::of(watermark);
        let admit = |epoch, source| {
            Stamp::admitted(watermark, Admission { epoch, source: SourceId(source), offset: 0 })
        };
        // A later epoch is later although its source is smaller.
        let order = [before, admit(3, 2), admit(4, 0), on];
        assert!(order.windows(2).all(|w| w[0] < w[1]));
    }
}
