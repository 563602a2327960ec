//! What one thread has of an epoch: its own openings of the tables, its own outputs.

use tidemill_table::Opened;

use crate::execute::codes::{Code, Codes};
use crate::execute::lane::{Lane, WordColumns};
use crate::execute::output::{Origin, OutputBuilder};
use crate::execute::segment::{run_words, End, Turns};
use crate::execute::serial::HandlerCounts;
use crate::execute::words::Frame;
use crate::order::Epoch;

/// One of the threads.
pub(crate) struct Member<'e> {
    pub(crate) lanes: Vec<Lane<'e>>,
    /// By table; what lanes point at.
    open: Vec<Option<Opened<'e>>>,
    /// By stream; what lanes point at.
    pub(crate) builders: Vec<OutputBuilder>,
    frames: Vec<Frame>,
    counts: Vec<HandlerCounts>,
}

/// What a thread has come to.
pub(crate) struct Part {
    pub(crate) builders: Vec<OutputBuilder>,
    pub(crate) counts: Vec<HandlerCounts>,
}

// SAFETY: the pointers in lanes lead to the openings and builders beside them, on the heap, and to
// the epoch's columns, which nobody writes.
unsafe impl Send for Member<'_> {}

impl<'e> Member<'e> {
    pub(super) fn new(
        codes: &Codes,
        rooms: &[usize],
        epoch: &'e Epoch,
        columns: &'e [WordColumns<'e>],
        mut open: Vec<Option<Opened<'e>>>,
        moves: u64,
    ) -> Member<'e> {
        let mut lanes = codes.lanes(epoch, columns);
        let mut builders = codes.builders(rooms);
        for lane in lanes.iter_mut().filter(|lane| lane.fast) {
            let streams = codes.code[lane.handler].streams();
            lane.attach(&mut open, &mut builders, streams, moves);
        }
        let counts = vec![HandlerCounts::default(); codes.code.len()];
        Member { lanes, open, builders, frames: codes.frames(), counts }
    }

    /// Whether words can do what all lanes want.
    pub(super) fn is_fast(&self) -> bool {
        self.lanes.iter().all(|lane| lane.fast)
    }

    /// Closes the lanes; what is left of it.
    pub(super) fn end(self) -> (Vec<Option<Opened<'e>>>, Part) {
        (self.open, Part { builders: self.builders, counts: self.counts })
    }

    /// Executes the transactions whose turn it is, one after the other, until there are no more of
    /// them; whether it could.
    ///
    /// # Safety
    /// Nobody else uses the rows of a transaction while it has its turn; this thread's openings have
    /// room for a version of each of its rows.
    #[must_use]
    pub(crate) unsafe fn walk(&mut self, codes: &Codes, turns: &mut Turns<'_>) -> bool {
        while let Some(lane) = turns.lane() {
            let lane = &mut self.lanes[lane];
            let handler = lane.handler;
            let before = turns.at();
            // SAFETY: the lane is attached to this thread's openings and outputs; the rest is as the
            // caller says.
            let end = unsafe {
                match &codes.code[handler] {
                    Code::Words(code) => run_words(turns, lane, code, &mut self.frames[handler]),
                    Code::Native(code, body) => body.run(turns, lane, code),
                    Code::General => End::General,
                }
            };
            self.counts[handler].committed += (turns.at() - before) as u64;
            match end {
                End::Lane if turns.have_stopped() => return true,
                End::Lane => {}
                End::Aborts(reason) => {
                    let (_, rank) = turns.ranked();
                    let origin = Origin::new(rank as u32, 0, handler);
                    self.builders[codes.aborted[handler]].note_abort(origin, reason);
                    self.counts[handler].aborted += 1;
                    turns.skip();
                }
                End::Emitted | End::General => return false,
            }
        }
        true
    }
}
