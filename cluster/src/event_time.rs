//! Streams in event time: which sources their events come from, how far their times have come, and how events
//! stand in an epoch.
//!
//! An epoch of a program with such streams has three parts: first what is not in event time (calls, and events of
//! other streams), then late events, then those that the watermark has passed since the cut before, by their times. The first
//! two stand at the watermark of the cut before, as in one process.
//!
//! An event is late by the earlier ones of its own event source ([`Newest`]), whatever the cuts are: whoever reads the source finds
//! it. One that is executed nevertheless stands where its source stood, and waits for that as any other. Only behind a source
//! that did not hold the watermark back can an event be late otherwise; such a one stands among the late ones of its epoch.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Late, LateRow, Position, SourceId, StreamId};
use tidemill_txn::order::{come_to, common, Come, Holds, Newest};

use crate::effect::{Piece, Span};
use crate::records::Times;

/// Where events of a stream in event time come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    /// The source, which is a log partition; events of several streams may come by one.
    pub source: u32,
    /// The stream.
    pub stream: StreamId,
    /// The stream's group: those of one group share a watermark.
    pub group: usize,
    /// How far behind its newest time an event may come.
    pub disorder_us: i64,
    /// After so long without an event it does not hold the watermark back; never when absent.
    pub idle_us: Option<i64>,
    /// What becomes of a late event. Where it is an error, the coordinator takes none of its piece into a cut, and ends.
    pub late: Late,
}

/// A stream of which the events of an interval are executed together, with the last of them: a stream in event time, or
/// what a map or filter makes of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The group of its event sources.
    pub group: usize,
    /// How long each is, in microseconds; they begin at the multiples.
    pub us: i64,
}

/// The time that says of an event source that it has ended: no event has it.
pub const ENDED_US: i64 = i64::MAX;

/// So many a program may have: each is a bit of a word.
pub const INTERVALS_MAX: usize = 64;

/// An event has come too late of a stream where that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateEvent {
    /// The stream.
    pub stream: StreamId,
    /// By which source it has come, and between which offsets it is.
    pub source: u32,
    /// See there.
    pub offsets: std::ops::Range<u64>,
    /// Its time.
    pub time_us: i64,
    /// Where the watermark was: that of its own source.
    pub watermark_us: i64,
}

/// The streams in event time of a program; none where it has none.
#[derive(Clone, Debug, Default)]
pub struct EventTime {
    sources: Vec<EventSource>,
    /// Their places are the bits that say on which of them an event is.
    intervals: Vec<Interval>,
    /// By group the unit at whose multiples its watermark stops, so that no interval is cut in two; 0 where it need not.
    units_us: Vec<i64>,
    by_stream: BTreeMap<(u32, StreamId), u32>,
}

/// Where a request stands in its epoch, but for others of its rank, which are in the order of their records. All of
/// one rank come in at one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Not in event time, of a source.
    Arrival(u32),
    /// A late event of an event source.
    Late(u32),
    /// An event of a time, of an event source.
    OnTime(i64, u32),
}

/// How many requests of an epoch are of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// See there.
    pub rank: Rank,
    /// How many.
    pub count: u32,
    /// On which streams with [intervals](EventTime::new) any of them is: a bit for each.
    pub on: u64,
}

impl EventTime {
    /// These sources: of events with one time those of the first come first. Of streams that come in intervals there are
    /// at most [`INTERVALS_MAX`].
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

    /// Whether events of some streams are executed together.
    pub(crate) fn has_intervals(&self) -> bool {
        !self.intervals.is_empty()
    }

    /// How far each stream has come, where its group has come so far.
    pub(crate) fn marks_us(&self, watermarks: &[Position]) -> Arc<[(StreamId, i64)]> {
        let mark = |source: &EventSource| (source.stream, watermarks[source.group].time_us);
        let mut marks: Vec<(StreamId, i64)> = self.sources.iter().map(mark).collect();
        marks.sort_unstable();
        marks.dedup();
        marks.into()
    }

    /// The sources of events.
    pub fn sources(&self) -> &[EventSource] {
        &self.sources
    }

    /// The one that events of a stream are of that come by a source.
    pub(crate) fn of(&self, source: u32, stream: StreamId) -> Option<u32> {
        self.by_stream.get(&(source, stream)).copied()
    }

    /// What of a piece has come too late and is an error, when watermarks are known. Of those that are late by an idle source
    /// the oldest event of an event source speaks for all: of those at the watermark's own time none that comes is before it.
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
                offsets: from..piece.behind,
                time_us: span.oldest_us,
                watermark_us: watermark.time_us,
            })
        };
        piece.times.iter().find_map(late)
    }

    /// The place of an event among those of its group.
    pub(crate) fn position(&self, event_source: u32, time_us: i64, record: u64) -> Position {
        Position { time_us, source: SourceId(event_source), offset: record }
    }

    /// How far event time has come before anything has.
    pub(crate) fn begin(&self) -> Times {
        Times {
            newest: vec![None; self.sources.len()],
            watermarks: vec![Position::MIN; self.units_us.len()],
            idle: Vec::new(),
            ended: Vec::new(),
            late: 0,
        }
    }

    /// For each event source the newest time so far, for whoever reads on.
    pub(crate) fn newest(&self, times: &Times) -> Vec<Newest> {
        let newest = times.newest.iter().copied().chain(std::iter::repeat(None));
        let all = self.sources.iter().zip(newest);
        all.map(|(of, newest_us)| Newest::behind(newest_us, of.disorder_us)).collect()
    }

    /// The times of the event sources of a source that ends.
    pub(crate) fn end_of(&self, source: u32) -> impl Iterator<Item = Span> + '_ {
        let own = (0..).zip(&self.sources).filter(move |(_, of)| of.source == source);
        own.map(|(nth, _)| Span::of(nth, ENDED_US))
    }

    /// The sources as they are at a cut that has all of each source up to a record.
    fn come<'a>(&'a self, times: &'a Times, upto: &'a [u64]) -> impl Iterator<Item = Come> + 'a {
        (0..).zip(&self.sources).map(|(nth, source)| Come {
            source: SourceId(nth),
            group: source.group,
            newest_us: times.newest[nth as usize],
            offset: upto[source.source as usize],
            disorder_us: source.disorder_us,
            holds: match times.ended.contains(&nth) {
                true => Holds::Ended,
                false if times.idle.contains(&nth) => Holds::Idle,
                false => Holds::Back,
            },
        })
    }

    /// Sets the watermarks behind a cut that has all of each source up to a record, when the newest times, the idle
    /// sources, and those that have ended are known.
    pub(crate) fn advance(&self, times: &mut Times, upto: &[u64]) {
        let marks = come_to(&self.units_us, self.come(times, upto));
        for (watermark, mark) in times.watermarks.iter_mut().zip(marks) {
            *watermark = mark.map_or(*watermark, |mark| mark.max(*watermark));
        }
    }

    /// With which events of an epoch intervals end, each a bit of what is given back: their places in the order, given the
    /// ranks of all in it, on which streams with intervals each is, and the watermarks of the cut before, where late ones
    /// stand.
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

    /// For each source whether what comes by it is what others wait for: it is behind all others of a group.
    pub(crate) fn are_behind(&self, times: &Times, upto: &[u64]) -> Vec<bool> {
        let mut behind: Vec<Option<(Position, u32)>> = vec![None; self.units_us.len()];
        for come in self.come(times, upto) {
            if come.holds == Holds::Back {
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

    fn source(source: u32, stream: u16, group: usize, disorder_us: i64) -> EventSource {
        EventSource {
            source,
            stream: StreamId(stream),
            group,
            disorder_us,
            idle_us: None,
            late: if stream == 1 { Late::Error } else { Late::Side },
        }
    }

    /// Two groups: stream 0 of both sources, and stream 1 of the second.
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
        // Of two at one time the first source's next event comes first.
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
        // All of them: up to the newest.
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
        // Nothing had come of the last one, and more may come of all when they have grown.
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
            let piece = Piece { behind: 20, requests: 3, times };
            of.refused(&watermarks, 1, from, &piece)
        };
        assert_eq!((refused(1, 29, 9), refused(2, 30, 9)), (None, None));
        let late = refused(2, 29, 12).unwrap();
        assert_eq!((late.stream, late.offsets), (StreamId(1), 12..20));
        assert_eq!((late.time_us, late.watermark_us), (29, 30));
        // Late by the events before it, though the watermark is not there yet.
        let row = LateRow { offset: 15, time_us: 33, bound_us: 38 };
        let refused = |event_source| {
            let span = Span { late: Some(row), ..Span::of(event_source, 40).with(33) };
            let piece = Piece { behind: 20, requests: 3, times: Box::new([span]) };
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
        // The last multiple of ten and of four.
        assert_eq!(times.watermarks, [Position { time_us: 40, source: SourceId(0), offset: 0 }]);
        assert_eq!(*of.marks_us(&times.watermarks), [(StreamId(0), 40), (StreamId(1), 40)]);
        // Stream 0 comes in intervals of ten, and some of it by itself; stream 1 in those of four.
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
        // Of stream 0: 9 and 19, and of its part 7 and 18; of stream 1: both in the one from 8 on.
        let wanted = [(3, 0b100), (4, 0b001), (7, 0b010), (8, 0b100), (9, 0b001)];
        assert_eq!(endings(&all, &late_at), wanted);
        // Late ones stand at the watermark, those that are told to others nowhere.
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
