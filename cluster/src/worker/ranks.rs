//! The order of an epoch in which events stand by their times: which of those that have come are executed, and which
//! place each has.
//!
//! What waits for its watermark is a function of the inputs and of the recorded watermarks: of the events up to a
//! snapshot's cut those that are not before its watermark. So no snapshot has them, and they are read again.

use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;

use tidemill_core::{Position, StreamId};
use tidemill_function::{output_bytes, Call, Fault, Functions, NodeId, Sequencing};

use super::run::Parts;
use crate::event_time::{EventTime, Rank, Ranked, ENDED_US};
use crate::records::{CutRecord, Parked, Request, Times};

/// About how many bytes an event takes that waits, beside its values.
const EVENT_BYTES: usize = 200;

/// A request that has been read.
pub(super) struct Read {
    /// The offset of its record, and its number there.
    pub at: (u64, u32),
    pub request: Request,
    /// Of which event source it is, and its time, if it is an event in event time.
    pub timed: Option<(u32, i64)>,
}

impl Read {
    /// Request `at` of a source.
    pub fn new(
        at: (u64, u32),
        request: Request,
        source: u32,
        event_time: &EventTime,
        functions: &dyn Functions,
    ) -> Read {
        let timed = |call: &Call| {
            let (stream, time_us) = functions.timed(call)?;
            // Others may have written it: the end of all times means that nothing more comes.
            Some((event_time.of(source, stream)?, time_us.min(ENDED_US - 1)))
        };
        let timed = if event_time.is_empty() { None } else { timed(&request.call) };
        Read { at, request, timed }
    }
}

/// An event's place among those of its group: its position, and its number in its record.
type At = (Position, u32);

/// A request that is executed in an epoch: its rank, its place among those of that rank, its source, and on which streams
/// with intervals it is.
struct Placed {
    rank: Rank,
    at: (u64, u32),
    source: u32,
    on: u64,
    request: Request,
}

/// The part of a worker that ranks.
pub(super) struct Ranks {
    event_time: Arc<EventTime>,
    /// By group: that of the last cut.
    watermarks: Vec<Position>,
    /// By group: the events that wait for it, and how many bytes all of them take.
    waiting: Vec<BTreeMap<At, Request>>,
    bytes: u64,
    /// Where late ones of the last cut stand: at that of the cut before, by group; and how many there are.
    late_at: Vec<Position>,
    late: u64,
    /// What of the epoch that is to begin has come in here.
    own: Option<Vec<Placed>>,
    /// What others have said of epochs that have not begun here.
    told: BTreeMap<u64, BTreeMap<NodeId, Vec<Ranked>>>,
    fault: Option<Fault>,
}

impl Ranks {
    /// Behind a snapshot, which leaves event time there. Nothing waits yet.
    pub fn behind(event_time: Arc<EventTime>, times: &Times, fault: Option<Fault>) -> Ranks {
        let watermarks = match times.watermarks.is_empty() {
            true => event_time.begin().watermarks,
            false => times.watermarks.clone(),
        };
        let waiting = watermarks.iter().map(|_| BTreeMap::new()).collect();
        let (own, told, late_at) = (None, BTreeMap::new(), watermarks.clone());
        Ranks { event_time, watermarks, waiting, bytes: 0, late_at, late: 0, own, told, fault }
    }

    /// The group of an event and its place in it.
    fn place(&self, (event_source, time_us): (u32, i64), (record, nth): (u64, u32)) -> (usize, At) {
        let group = self.event_time.sources()[event_source as usize].group;
        (group, (self.event_time.position(event_source, time_us, record), nth))
    }

    /// Takes what the snapshot's cut has, of which only events can wait: those that are before the watermark were
    /// executed, or late.
    pub fn restore(&mut self, read: Read) {
        let Some(timed) = read.timed else { return };
        let (group, at) = self.place(timed, read.at);
        if at.0 >= self.watermarks[group] || self.fault == Some(Fault::ParkAgain) {
            self.park(group, at, read.request);
        }
    }

    fn park(&mut self, group: usize, at: At, request: Request) {
        self.bytes += bytes(&request);
        self.waiting[group].insert(at, request);
    }

    /// What waits.
    pub fn parked(&self) -> Parked {
        let events = self.waiting.iter().map(|waiting| waiting.len() as u64).sum();
        Parked { events, bytes: self.bytes, late: self.late }
    }

    /// Of each source of which something waits the first record.
    pub fn first(&self) -> Vec<(u32, u64)> {
        let mut first: BTreeMap<u32, u64> = BTreeMap::new();
        for (position, _) in self.waiting.iter().flat_map(BTreeMap::keys) {
            let source = self.event_time.sources()[position.source.index()].source;
            let record = first.entry(source).or_insert(position.offset);
            *record = (*record).min(position.offset);
        }
        first.into_iter().collect()
    }

    /// Whether the requests of the epoch that is to begin have been taken.
    pub fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Takes the requests of a cut that have come in here, each with its source; what the others are told of them.
    pub fn take(
        &mut self,
        cut: &CutRecord,
        requests: Vec<(u32, Read)>,
        functions: &dyn Functions,
    ) -> Vec<Ranked> {
        self.late_at = replace(&mut self.watermarks, cut.times.watermarks.clone());
        let late_before = match self.fault {
            Some(Fault::LateByItsCut) => self.watermarks.clone(),
            _ => self.late_at.clone(),
        };
        self.late = 0;
        let has_intervals = self.event_time.has_intervals();
        let on = |request: &Request| match has_intervals {
            true => functions.intervals(&request.call),
            false => 0,
        };
        let mut placed = Vec::new();
        for (source, Read { at, mut request, timed }) in requests {
            let rank = match timed {
                None => Rank::Arrival(source),
                Some(timed) => {
                    let (group, place) = self.place(timed, at);
                    if place.0 >= late_before[group] {
                        self.park(group, place, request);
                        continue;
                    }
                    self.late += 1;
                    request.call = functions.late(request.call);
                    Rank::Late(timed.0)
                }
            };
            placed.push(Placed { rank, at, source, on: on(&request), request });
        }
        for (waiting, watermark) in self.waiting.iter_mut().zip(&self.watermarks) {
            let later = waiting.split_off(&(*watermark, 0));
            for ((position, nth), request) in replace(waiting, later) {
                self.bytes -= bytes(&request);
                let event_source = position.source.0;
                let source = self.event_time.sources()[event_source as usize].source;
                let rank = match self.fault {
                    Some(Fault::RankByArrival) => Rank::OnTime(0, event_source),
                    _ => Rank::OnTime(position.time_us, event_source),
                };
                let (at, on) = ((position.offset, nth), on(&request));
                placed.push(Placed { rank, at, source, on, request });
            }
        }
        placed.sort_by_key(|placed| (placed.rank, placed.at));
        let ranked = |some: &[Placed]| Ranked {
            rank: some[0].rank,
            count: some.len() as u32,
            on: some.iter().fold(0, |on, one| on | one.on),
        };
        let ranks = placed.chunk_by(|one, other| one.rank == other.rank).map(ranked).collect();
        self.own = Some(placed);
        ranks
    }

    /// Takes what has come in at another.
    pub fn told(&mut self, epoch: u64, from: NodeId, ranks: Vec<Ranked>) {
        self.told.entry(epoch).or_default().insert(from, ranks);
    }

    /// The requests of the epoch that is to begin, each with its place, and how many places all of them have; nothing
    /// before so many others have said what has come in at them. Where a watermark goes far at once an epoch is long: then
    /// it is executed in parts of so many, the same everywhere.
    pub fn places(
        &mut self,
        epoch: u64,
        order: Sequencing,
        others: usize,
        part_max: u64,
        functions: &dyn Functions,
    ) -> Option<(Parts, u64)> {
        let told = self.told.get(&epoch).map_or(0, BTreeMap::len);
        if told < others && self.fault != Some(Fault::RankAlone) {
            return None;
        }
        let mut own = self.own.take()?;
        let told = self.told.remove(&epoch).unwrap_or_default();
        let mut before: Vec<Ranked> = told.into_values().flatten().collect();
        before.sort_unstable_by_key(|ranked| ranked.rank);
        self.close(&mut own, &before, functions);
        let of_others: u64 = before.iter().map(|ranked| u64::from(ranked.count)).sum();
        let total = own.len() as u64 + of_others;
        let mut parts = Vec::new();
        let is_parted_alone = self.fault == Some(Fault::PartAlone);
        let of_part = if is_parted_alone { own.len() as u64 } else { total };
        parts.resize_with(of_part.div_ceil(part_max).max(1) as usize, Vec::new);
        let (mut before, mut place) = (before.into_iter().peekable(), 0);
        for Placed { rank, source, request, .. } in own {
            while let Some(other) = before.next_if(|other| other.rank < rank) {
                place += u64::from(other.count);
            }
            let nth = ((place / part_max) as usize).min(parts.len() - 1);
            let part: &mut Vec<_> = &mut parts[nth];
            part.push((order.tid(source, place), request));
            place += 1;
        }
        Some((parts, total))
    }

    /// Says of the events with which intervals end that they do, where others have events of these ranks.
    fn close(&self, own: &mut [Placed], others: &[Ranked], functions: &dyn Functions) {
        if !self.event_time.has_intervals() {
            return;
        }
        let mine = own.iter().enumerate().map(|(nth, placed)| (placed.rank, placed.on, Some(nth)));
        let mut all: Vec<(Rank, u64, Option<usize>)> =
            mine.chain(others.iter().map(|ranked| (ranked.rank, ranked.on, None))).collect();
        // All of one rank are at one worker.
        all.sort_by_key(|(rank, ..)| *rank);
        let ranks = all.iter().map(|(rank, on, _)| (*rank, *on));
        for (place, streams) in self.event_time.endings(ranks, &self.late_at) {
            if let Some(nth) = all[place].2 {
                let call = &mut own[nth].request.call;
                *call = functions.closes(call.clone(), streams);
            }
        }
    }

    /// Where what has no time of its own stands in the epoch that has been taken last, by stream in event time.
    pub fn marks_us(&self) -> Arc<[(StreamId, i64)]> {
        self.event_time.marks_us(&self.late_at)
    }
}

/// About how many bytes of memory a request takes.
pub(super) fn bytes(request: &Request) -> u64 {
    let Request { id, call } = request;
    let values = output_bytes(&call.key) + output_bytes(&call.args);
    (EVENT_BYTES + id.len() + values) as u64
}

#[cfg(test)]
mod tests;
