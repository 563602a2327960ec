//! A thread's share of an epoch: its own openings of the tables, and its own outputs.

use tidemill_table::Opened;

use super::places::Placements;
use crate::execute::codes::{Code, Codes};
use crate::execute::lane::{Lane, WordColumns};
use crate::execute::output::{Origin, OutputBuilder, Placed, RawRows};
use crate::execute::segment::{run_words, End, Turns};
use crate::execute::serial::HandlerCounts;
use crate::execute::sink::Sink;
use crate::execute::words::Frame;
use crate::order::Epoch;

/// The data of an epoch that all members share.
pub(super) struct Start<'e> {
    pub(super) codes: &'e Codes,
    /// The expected number of outputs of each member, by stream.
    pub(super) rooms: Vec<usize>,
    pub(super) epoch: &'e Epoch,
    pub(super) columns: &'e [WordColumns<'e>],
    /// The places of outputs that have one.
    pub(super) placements: &'e Placements,
    /// The number of times that slots of any table have moved.
    pub(super) moves: u64,
}

/// One of the threads.
pub(crate) struct Member<'e> {
    start: &'e Start<'e>,
    pub(crate) lanes: Vec<Lane<'e>>,
    /// The openings by table, to which lanes point.
    open: Vec<Option<Opened<'e>>>,
    /// The results of the thread. Lanes point to its builders.
    part: Part,
}

/// The results of a thread, and its memory that is reused in every epoch and is in its core's
/// cache.
#[derive(Default)]
pub(crate) struct Part {
    /// The output builders, by stream.
    pub(crate) builders: Vec<OutputBuilder>,
    frames: Vec<Frame>,
    pub(super) counts: Vec<HandlerCounts>,
    /// The outputs that were written to their places, by stream.
    pub(super) placed: Vec<Option<Placed>>,
    /// The aborted transactions, if outputs have places: the lane, and the event in it.
    pub(super) aborted: Vec<(usize, usize)>,
}

// SAFETY: the pointers in lanes point to the openings and builders beside them, on the heap, and to
// the epoch's columns, which no thread writes.
unsafe impl Send for Member<'_> {}

impl<'e> Member<'e> {
    /// Creates a member that has not [begun](Member::begin) yet, with its part of the epoch before.
    pub(super) fn new(
        start: &'e Start<'e>,
        open: Vec<Option<Opened<'e>>>,
        part: Part,
    ) -> Member<'e> {
        Member { start, lanes: Vec::new(), open, part }
    }

    /// Creates the thread's own data, which takes some microseconds. Does nothing if it has begun.
    pub(super) fn begin(&mut self) {
        if !self.lanes.is_empty() {
            return;
        }
        let Start { codes, rooms, epoch, columns, placements, moves } = self.start;
        let Part { builders, frames, counts, aborted, .. } = &mut self.part;
        if builders.is_empty() {
            (*builders, *frames) = (codes.builders(rooms), codes.frames());
        }
        builders.iter_mut().zip(rooms).for_each(|(builder, room)| builder.expect(*room));
        for (builder, placement) in builders.iter_mut().zip(&placements.by_stream) {
            if let (Some(rows), Some((_, places))) = (builder.words(), placement) {
                // SAFETY: the sink owns them as long as the epoch lasts, and each event belongs to
                // one thread.
                unsafe { rows.place(places) };
            }
        }
        aborted.clear();
        counts.clear();
        counts.resize(codes.code.len(), HandlerCounts::default());
        self.lanes = codes.lanes(epoch, columns);
        for lane in self.lanes.iter_mut().filter(|lane| lane.fast) {
            let streams = codes.code[lane.handler].streams();
            lane.attach(&self.open, builders, streams, *moves);
        }
        for (lane, from) in self.lanes.iter_mut().zip(&placements.from) {
            lane.outs.places_from = *from;
        }
    }

    /// Whether all lanes can be executed over words.
    pub(super) fn is_fast(&self) -> bool {
        self.lanes.iter().all(|lane| lane.fast)
    }

    /// Returns the number of outputs, by stream.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = usize> + '_ {
        self.part.builders.iter().map(|builder| builder.len())
    }

    /// Detaches the thread from the epoch.
    pub(super) fn leave(&mut self) {
        self.lanes = Vec::new();
    }

    /// Returns its openings and its part.
    pub(super) fn end(mut self) -> (Vec<Option<Opened<'e>>>, Part) {
        let Part { builders, placed, .. } = &mut self.part;
        placed.clear();
        placed.extend(builders.iter_mut().map(|of| of.words().and_then(|rows| rows.unplace())));
        (self.open, self.part)
    }

    /// Executes the transactions whose turn it is, one after the other, until there are no more.
    /// Returns whether that was possible.
    ///
    /// # Safety
    /// No other thread uses the rows of a transaction during its turn. This thread's openings have
    /// room for a version of each of its rows.
    #[must_use]
    pub(crate) unsafe fn walk(&mut self, codes: &Codes, turns: &mut Turns<'_>) -> bool {
        let Part { builders, frames, counts, aborted, .. } = &mut self.part;
        while let Some(lane) = turns.lane() {
            let lane = &mut self.lanes[lane];
            let handler = lane.handler;
            let before = turns.at();
            // SAFETY: the lane is attached to this thread's openings and outputs. The caller
            // guarantees the rest.
            let end = unsafe {
                match &codes.code[handler] {
                    Code::Words(code) => run_words(turns, lane, code, &mut frames[handler]),
                    Code::Native(code, body) => body.run(turns, lane, code),
                    Code::General => End::General,
                }
            };
            counts[handler].committed += (turns.at() - before) as u64;
            match end {
                End::Lane if turns.have_stopped() => return true,
                End::Lane => {}
                End::Aborts(reason) => {
                    let (ranked, rank) = turns.ranked();
                    if !self.start.placements.is_empty() {
                        aborted.push((ranked.lane as usize, ranked.row as usize));
                    }
                    let origin = Origin::new(rank as u32, 0, handler);
                    builders[codes.aborted[handler]].note_abort(origin, reason);
                    counts[handler].aborted += 1;
                    turns.skip();
                }
                End::Emitted | End::General => return false,
            }
        }
        true
    }
}

/// Adds the counts of all threads to a sink, and their outputs, stream by stream. `append` appends
/// the rows of a stream, given by thread.
pub(crate) fn put_together(
    parts: &mut [Part],
    out: &mut Sink,
    mut append: impl FnMut(usize, &[RawRows], &mut OutputBuilder),
) {
    for Part { counts, .. } in &*parts {
        for (sum, of) in out.counts.iter_mut().zip(counts) {
            sum.committed += of.committed;
            sum.aborted += of.aborted;
            sum.faults += of.faults;
        }
    }
    for (stream, into) in out.builders.iter_mut().enumerate() {
        if parts.iter().all(|part| part.builders[stream].is_empty()) {
            continue;
        }
        let of = parts.iter_mut().map(|part| &mut part.builders[stream]);
        let raw: Vec<RawRows> = of.map(|builder| into.take_from(builder)).collect();
        append(stream, &raw, into);
        for (part, raw) in parts.iter_mut().zip(raw) {
            part.builders[stream].reuse(raw);
        }
    }
}
