//! What one thread has of an epoch: its own openings of the tables, its own outputs.

use tidemill_table::Opened;

use super::walk::InList;
use super::Shared;
use crate::execute::codes::{aborted, Code, Codes};
use crate::execute::lane::{Lane, WordColumns};
use crate::execute::output::{Origin, OutputBuilder};
use crate::execute::segment::{run_words, End, Turns};
use crate::execute::serial::HandlerCounts;
use crate::execute::words::Frame;
use crate::order::Epoch;
use crate::pool;

/// One of the threads.
pub(super) struct Member<'e> {
    pub(super) lanes: Vec<Lane<'e>>,
    /// By table; what lanes point at.
    open: Vec<Option<Opened<'e>>>,
    /// By stream; what lanes point at.
    builders: Vec<OutputBuilder>,
    frames: Vec<Frame>,
    counts: Vec<HandlerCounts>,
}

/// What a thread has come to.
pub(super) struct Part {
    pub(super) builders: Vec<OutputBuilder>,
    pub(super) counts: Vec<HandlerCounts>,
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

    /// Walks a list to its end, while it is made.
    pub(super) fn follow(&mut self, shared: &Shared<'_>, list: usize) {
        let mut walk = InList::new(shared, list);
        let made = &shared.lists[list];
        loop {
            let mut closed = false;
            pool::wait(shared.pool, || {
                closed = made.is_closed() || shared.has_failed();
                closed || made.published() > walk.at as usize
            });
            self.walk(shared, &mut walk, made.published());
            if shared.has_failed() || (closed && walk.at as usize == made.published()) {
                return;
            }
        }
    }

    /// Goes on until a position of its list, which has been published.
    pub(super) fn walk(&mut self, shared: &Shared<'_>, walk: &mut InList<'_>, end: usize) {
        walk.go_to(end);
        while let Some(lane) = walk.lane() {
            let lane = &mut self.lanes[lane];
            let handler = lane.handler;
            let before = walk.at;
            let mut turns = Turns::InList(*walk);
            // SAFETY: the lane is attached to this thread's openings and outputs. A transaction has
            // its turn when all those that have used its rows are done, and none that will use them
            // begins before it is; the openings have room for a version of each row of all
            // transactions.
            let end = unsafe {
                match &shared.codes.code[handler] {
                    Code::Words(code) => {
                        run_words(&mut turns, lane, code, &mut self.frames[handler])
                    }
                    Code::Native(code, body) => body.run(&mut turns, lane, code),
                    Code::General => End::General,
                }
            };
            if let Turns::InList(now) = turns {
                *walk = now;
            }
            self.counts[handler].committed += u64::from(walk.at - before);
            match end {
                End::Lane if walk.stopped => return,
                End::Lane => {}
                End::Aborts(reason) => {
                    let (ranked, rank) = walk.ranked();
                    let code = &shared.codes.code[handler];
                    let event = aborted(code, lane.batch, ranked, reason);
                    let origin = Origin::new(rank as u32, 0, handler);
                    self.builders[shared.codes.aborted[handler]].push(&event, origin);
                    self.counts[handler].aborted += 1;
                    walk.skip();
                }
                End::Emitted | End::General => {
                    shared.fail();
                    return;
                }
            }
        }
    }
}
