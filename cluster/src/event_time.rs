//! Streams in event time: the sources of their events, the progress of their times, and the order
//! of events in an epoch.
//!
//! An epoch of a program with such streams has three parts. First come requests that are not in
//! event time (calls, and events of other streams). Then come late events, and then the events that
//! the watermark has passed since the cut before, by their times. The first two get the time of the
//! watermark of the cut before, as in one process.
//!
//! An event is late by the earlier ones of its own event source ([`Newest`]), whatever the cuts
//! are. The reader of the source finds this. A late event that is admitted gets the time at which
//! its source stood, and is buffered like any other. An event can be late for another reason only
//! if its source did not hold back the watermark. Such an event comes with the late ones of its
//! epoch.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Late, LateRow, Position, SourceId, StreamId};
use tidemill_txn::order::{common, watermarks, Newest, SourceProgress, WatermarkEffect};

use crate::effect::{Piece, Span};
use crate::records::Times;

/// The origin of events of a stream in event time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    /// The source, a log partition. Events of several streams may come from one.
    pub source: u32,
    /// The stream.
    pub stream: StreamId,
    /// The stream's group. The streams of one group share a watermark.
    pub group: usize,
    /// The out-of-orderness: how far an event may be behind the newest time, in microseconds.
    pub out_of_orderness_us: i64,
    /// The silence after which it does not hold back the watermark, in microseconds. `None` means
    /// that it always does.
    pub idle_us: Option<i64>,
    /// The treatment of late events. If they are errors, the coordinator takes none of their piece
    /// into a cut, and ends.
    pub late: Late,
}

/// A stream whose events of an interval are executed together, with the last of them. It is a
/// stream in event time, or the result of a map or filter over one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The group of its event sources.
    pub group: usize,
    /// The length of an interval, in microseconds. Intervals begin at its multiples.
    pub us: i64,
}

/// The time that marks the end of an event source. No event has it.
pub const ENDED_US: i64 = i64::MAX;

/// The maximum number of intervals in a program, because each is a bit of a word.
pub const INTERVALS_MAX: usize = 64;

/// A late event of a stream whose late events are errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateEvent {
    /// The stream.
    pub stream: StreamId,
    /// The source that it came from, and the range of offsets that it is in.
    pub source: u32,
    /// The range of offsets.
    pub offsets: std::ops::Range<u64>,
    /// Its time, in microseconds.
    pub time_us: i64,
    /// The watermark of its own source, in microseconds.
    pub watermark_us: i64,
}

/// The streams in event time of a program. It is empty if there are none.
#[derive(Clone, Debug, Default)]
pub struct EventTime {
    sources: Vec<EventSource>,
    /// The intervals. The bit of a stream is its place here.
    intervals: Vec<Interval>,
    /// The unit of each group. Its watermark stops only at multiples of the unit, so that no
    /// interval is divided. 0 means that it stops anywhere.
    units_us: Vec<i64>,
    by_stream: BTreeMap<(u32, StreamId), u32>,
}

/// The rank of a request in its epoch. Requests of one rank are ordered by their records. All
/// requests of one rank are received by one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A request of this source that is not in event time.
    Arrival(u32),
    /// A late event of this event source.
    Late(u32),
    /// An event at this time of this event source.
    OnTime(i64, u32),
}

/// The number of requests of an epoch that have one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The rank.
    pub rank: Rank,
    /// The number of requests.
    pub count: u32,
    /// The streams with [intervals](EventTime::new) that any of them belongs to, with a bit for
    /// each stream.
    pub on: u64,
}

/// The requests that a worker received and that are executed in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankReport {
    /// Their ranks, ascending.
    pub ranks: Vec<Ranked>,
    /// Whether all of them that are events on time can be executed by column.
    pub by_column: bool,
}

impl EventTime {
    /// Creates it from event sources. Of events with the same time, those of the first source come
    /// first. There may be at most [`INTERVALS_MAX`] streams with intervals.
    pub fn new(sources: Vec<EventSource>, intervals: Vec<Interval>) -> EventTime {
        assert!(intervals.len() <= INTERVALS_MAX, "each is a bit");
        let groups = sources.iter().map(|source| source.group + 1).max().unwrap_or(0);
        let by_stream = (0..).zip(&sources).map(|(nth, s)| ((s.source, s.stream), nth)).collect();
        let mut units_us = vec![0; groups];
        for Interval { group, us } in &intervals {
            units_us[*group] = common(units_us[*group], *us);
        }
        EventTime { sources, intervals, units_us, by_stream }
    }

    /// Whether no stream is in event time.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether any stream has its events of an interval executed together.
    pub(crate) fn has_intervals(&self) -> bool {
        !self.intervals.is_empty()
    }

    /// Returns the watermark of each stream, given those of the groups.
    pub(crate) fn marks_us(&self, watermarks: &[Position]) -> Arc<[(StreamId, i64)]> {
        let mark = |source: &EventSource| (source.stream, watermarks[source.group].time_us);
        let mut marks: Vec<(StreamId, i64)> = self.sources.iter().map(mark).collect();
        marks.sort_unstable();
        marks.dedup();
        marks.into()
    }

    /// Returns the event sources.
    pub fn sources(&self) -> &[EventSource] {
        &self.sources
    }

    /// Returns the event source of a stream's events from a source.
    pub fn of(&self, source: u32, stream: StreamId) -> Option<u32> {
        self.by_stream.get(&(source, stream)).copied()
    }

    /// Returns an event of a piece that is late where that is an error, given the watermarks. If an
    /// event is late because its source was idle, only the oldest event of each event source is
    /// checked. No new event at the watermark's own time is before it.
    pub(crate) fn refused(
        &self,
        watermarks: &[Position],
        source: u32,
        from: u64,
        piece: &Piece,
    ) -> Option<LateEvent> {
        let late = |span: &Span| {
            let of = self.sources.get(span.event_source as usize);
            let of = of.filter(|of| of.late == Late::Error)?;
            if let Some(LateRow { offset, time_us, bound_us }) = span.late {
                let (stream, offsets, watermark_us) = (of.stream, offset..offset + 1, bound_us);
                return Some(LateEvent { stream, source, offsets, time_us, watermark_us });
            }
            let watermark = watermarks.get(of.group)?;
            let first = self.position(span.event_source, span.oldest_us, from);
            (first < *watermark).then_some(LateEvent {
                stream: of.stream,
                source,
                offsets: from..piece.end,
                time_us: span.oldest_us,
                watermark_us: watermark.time_us,
            })
        };
        piece.times.iter().find_map(late)
    }

    /// Returns the place of an event among those of its group.
    pub(crate) fn position(&self, event_source: u32, time_us: i64, record: u64) -> Position {
        Position { time_us, source: SourceId(event_source), offset: record }
    }

    /// Returns the progress of event time before any event has arrived.
    pub(crate) fn begin(&self) -> Times {
        Times {
            newest: vec![None; self.sources.len()],
            watermarks: vec![Position::MIN; self.units_us.len()],
            idle: Vec::new(),
            ended: Vec::new(),
            late: 0,
        }
    }

    /// Returns the newest time of each event source so far, for a reader that continues.
    pub(crate) fn newest(&self, times: &Times) -> Vec<Newest> {
        let newest = times.newest.iter().copied().chain(std::iter::repeat(None));
        let all = self.sources.iter().zip(newest);
        all.map(|(of, newest_us)| Newest::after(newest_us, of.out_of_orderness_us)).collect()
    }

    /// Returns the spans that mark the end of the event sources of a source.
    pub(crate) fn end_of(&self, source: u32) -> impl Iterator<Item = Span> + '_ {
        let own = (0..).zip(&self.sources).filter(move |(_, of)| of.source == source);
        own.map(|(nth, _)| Span::of(nth, ENDED_US))
    }

    /// Returns the event sources as they are at a cut that has all records of each source up to
    /// `upto`.
    fn come<'a>(
        &'a self,
        times: &'a Times,
        upto: &'a [u64],
    ) -> impl Iterator<Item = SourceProgress> + 'a {
        (0..).zip(&self.sources).map(|(nth, source)| SourceProgress {
            source: SourceId(nth),
            group: source.group,
            newest_us: times.newest[nth as usize],
            offset: upto[source.source as usize],
            out_of_orderness_us: source.out_of_orderness_us,
            holds: match times.ended.contains(&nth) {
                true => WatermarkEffect::Ended,
                false if times.idle.contains(&nth) => WatermarkEffect::Idle,
                false => WatermarkEffect::Back,
            },
        })
    }

    /// Sets the watermarks after a cut that has all records of each source up to `upto`. The newest
    /// times, the idle sources, and the ended ones must be set before.
    pub(crate) fn advance(&self, times: &mut Times, upto: &[u64]) {
        let marks = watermarks(&self.units_us, self.come(times, upto));
        for (watermark, mark) in times.watermarks.iter_mut().zip(marks) {
            *watermark = mark.map_or(*watermark, |mark| mark.max(*watermark));
        }
    }

    /// Returns the places of the events with which intervals end, each with a bit for each of these
    /// intervals. `all` has the ranks of all events in the order, with the bits of their streams.
    /// `late_at` has the watermarks of the cut before, which late events get as their time.
    pub(crate) fn endings(
        &self,
        all: impl Iterator<Item = (Rank, u64)>,
        late_at: &[Position],
    ) -> BTreeMap<usize, u64> {
        let mut last: Vec<Option<(i64, usize)>> = vec![None; self.intervals.len()];
        let mut endings: BTreeMap<usize, u64> = BTreeMap::new();
        let mut ends = |place: usize, nth: usize| *endings.entry(place).or_default() |= 1 << nth;
        for (place, (rank, on)) in all.enumerate() {
            let time_us = match rank {
                Rank::Arrival(_) => continue,
                Rank::Late(of) => late_at[self.sources[of as usize].group].time_us,
                Rank::OnTime(time_us, _) => time_us,
            };
            for (nth, Interval { us, .. }) in self.intervals.iter().enumerate() {
                if on & (1 << nth) == 0 {
                    continue;
                }
                let interval = time_us.div_euclid(*us);
                match last[nth].replace((interval, place)) {
                    Some((before, place)) if before != interval => ends(place, nth),
                    _ => {}
                }
            }
        }
        for (nth, last) in last.into_iter().enumerate() {
            if let Some((_, place)) = last {
                ends(place, nth);
            }
        }
        endings
    }

    /// Returns for each source whether others wait for its events, because it is behind all others
    /// of a group.
    pub(crate) fn are_behind(&self, times: &Times, upto: &[u64]) -> Vec<bool> {
        let mut behind: Vec<Option<(Position, u32)>> = vec![None; self.units_us.len()];
        for come in self.come(times, upto) {
            if come.holds == WatermarkEffect::Back {
                let source = &self.sources[come.source.index()];
                let (bound, first) = ((come.bound(), source.source), &mut behind[come.group]);
                *first = Some(first.map_or(bound, |first| first.min(bound)));
            }
        }
        let mut are = vec![false; upto.len()];
        behind.into_iter().flatten().for_each(|(_, source)| are[source as usize] = true);
        are
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(source: u32, stream: u16, group: usize, out_of_orderness_us: i64) -> EventSource {
        EventSource {
            source,
            stream: StreamId(stream),
            group,
            out_of_orderness_us,
            idle_us: None,
            late: if stream == 1 { Late::Error } else { Late::Side },
        }
    }

    /// Creates two groups: stream 0 of both sources, and stream 1 of the second.
    fn some() -> EventTime {
        EventTime::new(vec![source(0, 0, 0, 5), source(1, 0, 0, 0), source(1, 1, 1, 0)], Vec::new())
    }

    #[test]
    fn a_group_is_where_the_one_is_that_is_behind() {
        let (of, upto) = (some(), [7, 9]);
        let mut times = of.begin();
        times.newest = vec![Some(20), None, Some(50)];
        of.advance(&mut times, &upto);
        assert_eq!(times.watermarks, [Position::MIN, of.position(2, 50, 9)]);
        times.newest[1] = Some(15);
        of.advance(&mut times, &upto);
        // Of two events at one time, the first source's next event comes first.
        assert_eq!(times.watermarks[0], of.position(0, 15, 7));
        assert_eq!(of.are_behind(&times, &upto), [true, true]);
        times.newest[0] = Some(30);
        of.advance(&mut times, &[8, 9]);
        assert_eq!(times.watermarks[0], of.position(1, 15, 9));
        assert_eq!(of.are_behind(&times, &upto), [false, true]);
    }

    #[test]
    fn what_is_idle_holds_nothing_back_and_the_watermark_never_goes_back() {
        let (of, upto) = (some(), [7, 9]);
        let mut times = of.begin();
        times.newest = vec![Some(20), None, None];
        times.idle = vec![1, 2];
        of.advance(&mut times, &upto);
        assert_eq!(times.watermarks, [of.position(0, 15, 7), Position::MIN]);
        // When all are idle, the watermark reaches the newest time.
        times.idle = vec![0, 1, 2];
        of.advance(&mut times, &upto);
        assert_eq!(times.watermarks, [of.position(0, 20, 7), Position::MIN]);
        times.idle.clear();
        times.newest[1] = Some(3);
        of.advance(&mut times, &upto);
        assert_eq!(times.watermarks[0], of.position(0, 20, 7));
    }

    #[test]
    fn what_has_ended_holds_nothing_back_and_with_all_of_a_group_what_has_come_is_let_out() {
        let (of, upto) = (some(), [7, 9]);
        let mut times = of.begin();
        times.newest = vec![Some(20), Some(90), None];
        times.ended = of.end_of(0).map(|span| span.event_source).collect();
        of.advance(&mut times, &upto);
        assert_eq!(times.watermarks, [of.position(1, 90, 9), Position::MIN]);
        assert_eq!(of.are_behind(&times, &upto), [false, true]);
        let ends: Vec<u32> = of.end_of(1).map(|span| span.event_source).collect();
        assert_eq!(ends, [1, 2]);
        times.ended = vec![0, 1, 2];
        of.advance(&mut times, &upto);
        // The last source had delivered nothing, and all may deliver more when they have grown.
        assert_eq!(times.watermarks, [of.position(1, 90, 9), Position::MIN]);
        assert_eq!(of.are_behind(&times, &upto), [false; 2]);
        times.newest[0] = Some(95);
        of.advance(&mut times, &[8, 9]);
        assert_eq!(times.watermarks[0], of.position(0, 95, 8));
    }

    #[test]
    fn a_late_event_is_an_error_where_its_stream_says_so() {
        let of = some();
        let watermarks = [of.position(1, 30, 9), of.position(2, 30, 9)];
        let refused = |event_source, time_us, from| {
            let times = Box::new([Span::of(event_source, 40).with(time_us)]);
            let piece = Piece { end: 20, requests: 3, by_column: false, times };
            of.refused(&watermarks, 1, from, &piece)
        };
        assert_eq!((refused(1, 29, 9), refused(2, 30, 9)), (None, None));
        let late = refused(2, 29, 12).unwrap();
        assert_eq!((late.stream, late.offsets), (StreamId(1), 12..20));
        assert_eq!((late.time_us, late.watermark_us), (29, 30));
        // An event may be late by those before it, though the watermark is not there yet.
        let row = LateRow { offset: 15, time_us: 33, bound_us: 38 };
        let refused = |event_source| {
            let span = Span { late: Some(row), ..Span::of(event_source, 40).with(33) };
            let piece = Piece { end: 20, requests: 3, by_column: false, times: Box::new([span]) };
            of.refused(&watermarks, 1, 12, &piece)
        };
        assert_eq!(refused(1), None);
        let late = refused(2).unwrap();
        assert_eq!((late.offsets, late.time_us, late.watermark_us), (15..16, 33, 38));
    }

    #[test]
    fn intervals_are_whole_and_end_with_their_last_event() {
        let sources = vec![source(0, 0, 0, 0), source(1, 0, 0, 0), source(1, 1, 0, 0)];
        let intervals = [10, 4, 10].map(|us| Interval { group: 0, us });
        let of = EventTime::new(sources, intervals.to_vec());
        let mut times = of.begin();
        times.newest = vec![Some(47), Some(59), Some(52)];
        of.advance(&mut times, &[1, 1]);
        // The last multiple of both ten and four.
        assert_eq!(times.watermarks, [Position { time_us: 40, source: SourceId(0), offset: 0 }]);
        assert_eq!(*of.marks_us(&times.watermarks), [(StreamId(0), 40), (StreamId(1), 40)]);
        // Stream 0 has intervals of ten, and so has a part of it. Stream 1 has intervals of four.
        let all = [
            (Rank::Arrival(0), 0),
            (Rank::Late(0), 0b001),
            (Rank::Late(1), 0),
            (Rank::OnTime(7, 1), 0b101),
            (Rank::OnTime(9, 0), 0b001),
            (Rank::OnTime(9, 2), 0b010),
            (Rank::OnTime(10, 0), 0b001),
            (Rank::OnTime(10, 2), 0b010),
            (Rank::OnTime(18, 1), 0b101),
            (Rank::OnTime(19, 1), 0b001),
        ];
        let late_at = [of.position(0, 0, 0)];
        let endings = |some: &[(Rank, u64)], late_at: &[Position]| {
            let found = of.endings(some.iter().copied(), late_at).into_iter();
            found.collect::<Vec<(usize, u64)>>()
        };
        // Of stream 0 these are 9 and 19, and of its part 7 and 18. Of stream 1, both are in the
        // interval from 8 on.
        let wanted = [(3, 0b100), (4, 0b001), (7, 0b010), (8, 0b100), (9, 0b001)];
        assert_eq!(endings(&all, &late_at), wanted);
        // Late events get the watermark's time. Those that go to another stream have no place.
        assert_eq!(endings(&all[..3], &late_at), [(1, 0b001)]);
        assert_eq!(endings(&all[2..3], &late_at), []);
        let before = [of.position(0, -10, 0)];
        assert_eq!(endings(&all[1..5], &before), [(0, 0b001), (2, 0b100), (3, 0b001)]);
    }

    #[test]
    fn late_ones_come_behind_arrivals_and_before_what_is_on_time() {
        let order = [
            Rank::Arrival(0),
            Rank::Arrival(3),
            Rank::Late(0),
            Rank::OnTime(-5, 9),
            Rank::OnTime(1, 0),
        ];
        assert!(order.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
