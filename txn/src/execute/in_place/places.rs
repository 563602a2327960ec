//! The choice of outputs that are written directly to their
//! [places](crate::execute::output::Places).

use std::collections::BTreeSet;
use std::ops::Range;

use super::member::Part;
use super::Events;
use crate::execute::codes::Codes;
use crate::execute::output::Places;
use crate::execute::sink::Sink;
use crate::order::{Lane, Section};
use crate::pool::Pool;

/// One in this many transactions may abort, because each abort moves all rows after it.
const ABORTS: u64 = 100;

/// The most attempts for which nothing is placed after an output had no place.
const PAUSE_MAX: u32 = 1 << 12;

/// The knowledge about the streams that transactions send to.
#[derive(Debug, Default)]
pub(super) struct Prediction {
    /// Whether each committed transaction sent one event the last time, and hardly any aborted, by
    /// stream.
    is_exact: Vec<bool>,
    /// The number of attempts for which nothing is placed, and that number for the next time.
    pause: u32,
    next_pause: u32,
}

/// The destinations of the outputs of a section.
#[derive(Debug, Default)]
pub(super) struct Placements {
    /// The handler that sends to the stream, and the places, if there are any, by stream.
    pub(super) by_stream: Vec<Option<(usize, Places)>>,
    /// The offset from an event's number to the place of its outputs, by lane.
    pub(super) from: Vec<usize>,
}

impl Placements {
    /// Whether nothing is placed.
    pub(super) fn is_empty(&self) -> bool {
        self.by_stream.is_empty()
    }

    /// Returns the places of a handler's events that have aborted.
    fn holes(&self, handler: usize, section: &Section<'_>, parts: &[Part]) -> Vec<usize> {
        let lanes = &section.epoch.lanes;
        let hole = |(lane, event): &(usize, usize)| {
            let place = event.wrapping_add(self.from[*lane]);
            (lanes[*lane].handler as usize == handler).then_some(place)
        };
        parts.iter().flat_map(|part| part.aborted.iter().filter_map(hole)).collect()
    }
}

/// Returns the handler that sends to each stream, if it is only one.
fn senders(codes: &Codes, section: &Section<'_>) -> Vec<Option<usize>> {
    let mut senders = vec![(0, 0); codes.program.streams.len()];
    let handlers = section.epoch.lanes.iter().map(|lane| lane.handler as usize);
    for handler in handlers.collect::<BTreeSet<_>>() {
        for stream in codes.code[handler].streams().unwrap_or_default() {
            senders[*stream] = (senders[*stream].0 + 1, handler);
        }
    }
    senders.into_iter().map(|(count, of)| (count == 1).then_some(of)).collect()
}

/// Returns the events of each lane.
fn events(section: &Section<'_>) -> Vec<Range<usize>> {
    let epoch = section.epoch;
    let len = |lane: &Lane| epoch.runs[lane.run as usize].batch.len();
    if section.ranks.len() == epoch.order.len() {
        return epoch.lanes.iter().map(|lane| 0..len(lane)).collect();
    }
    let mut found = Vec::new();
    // The rows of the events are not needed.
    Events::find_of(&mut found, epoch.lanes.iter().map(|_| 0), section.order());
    found.into_iter().map(|events| events.range).collect()
}

/// Numbers the events of each handler.
///
/// Returns the offset to add, by lane, and the number of events, by handler. Returns `None` if the
/// events of a handler are in several lanes that overlap in order, or if some are left out.
fn numbered(section: &Section<'_>, handlers: usize) -> Option<(Vec<usize>, Vec<usize>)> {
    let epoch = section.epoch;
    let events = events(section);
    if events.iter().map(|events| events.len()).sum::<usize>() != section.ranks.len() {
        return None;
    }
    let stamp = |lane: usize, row: usize| epoch.runs[epoch.lanes[lane].run as usize].stamp(row);
    let mut lanes: Vec<usize> = (0..events.len()).filter(|lane| events[*lane].end > 0).collect();
    if lanes.len() > 1 {
        lanes.sort_by_key(|lane| stamp(*lane, events[*lane].start));
    }
    let (mut from, mut counts) = (vec![0; events.len()], vec![0; handlers]);
    let mut last: Vec<Option<usize>> = vec![None; handlers];
    for lane in lanes {
        let (of, events_of) = (epoch.lanes[lane].handler as usize, &events[lane]);
        let is_behind =
            |before| stamp(before, events[before].end - 1) < stamp(lane, events_of.start);
        if !last[of].replace(lane).is_none_or(is_behind) {
            return None;
        }
        from[lane] = usize::wrapping_sub(counts[of], events_of.start);
        counts[of] += events_of.len();
    }
    Some((from, counts))
}

impl Prediction {
    /// Returns the destinations of the outputs of a section, as far as they are foreseen.
    pub(super) fn places(
        &mut self,
        codes: &Codes,
        section: &Section<'_>,
        out: &mut Sink,
    ) -> Placements {
        if self.pause > 0 || !self.is_exact.contains(&true) {
            self.pause = self.pause.saturating_sub(1);
            return Placements::default();
        }
        let Some((from, counts)) = numbered(section, codes.code.len()) else {
            return Placements::default();
        };
        let of = |(stream, handler): (usize, Option<usize>)| {
            let handler = handler.filter(|_| self.is_exact[stream])?;
            Some((handler, out.builders[stream].words()?.places(counts[handler])?))
        };
        let by_stream = senders(codes, section).into_iter().enumerate().map(of).collect();
        Placements { by_stream, from }
    }

    /// Checks the placed outputs: each has a place, and no place is empty except those of aborted
    /// transactions. If so, the places become rows of the sink.
    pub(super) fn check(
        &mut self,
        placements: &Placements,
        section: &Section<'_>,
        parts: &[Part],
        pool: &dyn Pool,
        out: &mut Sink,
    ) -> bool {
        let holes = |placement: &Option<(usize, Places)>| {
            placement.map_or(Vec::new(), |(handler, _)| placements.holes(handler, section, parts))
        };
        let holes: Vec<Vec<usize>> = placements.by_stream.iter().map(holes).collect();
        let is_right = |(stream, placement): (usize, &Option<(usize, Places)>)| {
            let Some((_, places)) = placement else { return true };
            let placed = || parts.iter().filter_map(|part| part.placed[stream]);
            let rows = placed().map(|placed| placed.rows).sum::<usize>();
            !placed().any(|placed| placed.is_wrong) && rows + holes[stream].len() == places.len
        };
        if !placements.by_stream.iter().enumerate().all(is_right) {
            self.next_pause = (self.next_pause * 4).clamp(16, PAUSE_MAX);
            self.pause = self.next_pause;
            return false;
        }
        for ((placement, holes), builder) in
            placements.by_stream.iter().zip(holes).zip(&mut out.builders)
        {
            if let (Some((_, places)), Some(rows)) = (placement, builder.words()) {
                // SAFETY: the counts show that no place was written twice, and that all empty
                // places are holes.
                unsafe { rows.have_been_placed(pool, places, holes) };
            }
        }
        true
    }

    /// Learns from the executed section.
    pub(super) fn learn(&mut self, codes: &Codes, section: &Section<'_>, parts: &[Part]) {
        let is_exact = |(stream, handler): (usize, Option<usize>)| {
            let Some(handler) = handler else { return false };
            let counts = || parts.iter().map(|part| part.counts[handler]);
            let committed = counts().map(|count| count.committed).sum::<u64>();
            let aborted = counts().map(|count| count.aborted).sum::<u64>();
            let sent = |part: &Part| match part.placed[stream] {
                Some(placed) => placed.rows,
                None => part.builders[stream].len(),
            };
            let sent = parts.iter().map(sent).sum::<usize>() as u64;
            sent == committed && aborted * ABORTS <= committed
        };
        self.is_exact = senders(codes, section).into_iter().enumerate().map(is_exact).collect();
    }
}
