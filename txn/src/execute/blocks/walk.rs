//! The work of one thread: note the uses of its share of a chunk, link a partition, execute blocks.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidemill_table::Seq;

use super::cut::{Chunk, Cut};
use super::done::{Done, Meeting, Next};
use crate::execute::codes::Codes;
use crate::execute::in_place::{Events, Halt, Member};
use crate::execute::segment::{InOrder, Turns};
use crate::order::Ranked;
use crate::plan::blocks::{Cells, Links, Use};
use crate::pool::{self, Pool};

/// The uses that a thread has noted of a partition, in order.
pub(super) type Noted = Vec<Use>;

/// The data that all threads share.
pub(super) struct Shared<'s> {
    pub(super) codes: &'s Codes,
    /// Whether each row is written, by handler.
    pub(super) writes: &'s [Vec<bool>],
    pub(super) cut: Cut,
    /// The epoch's order, up to the last transaction.
    pub(super) order: &'s [Ranked],
    pub(super) threads: usize,
    /// The noted uses, by thread and partition.
    pub(super) noted: &'s [Vec<Mutex<Noted>>],
    /// The links of chunks of even and of odd number.
    pub(super) links: &'s [Links; 2],
    pub(super) done: &'s Done,
    pub(super) next: &'s [Next; 2],
    pub(super) meeting: Meeting,
    /// The number of transactions that were ever executed before.
    pub(super) number: u64,
    pub(super) pool: &'s dyn Pool,
    /// The number of the transaction before the first one.
    pub(super) before: Seq,
    pub(super) halt: Halt,
}

impl Shared<'_> {
    /// Waits until `holds` returns true. Returns whether to continue.
    fn wait(&self, wait_ns: &mut u64, mut holds: impl FnMut() -> bool) -> bool {
        if !holds() {
            let begun = self.pool.now_ns();
            pool::wait(self.pool, || self.halt.is_set() || holds());
            *wait_ns += self.pool.now_ns() - begun;
        }
        !self.halt.is_set()
    }

    /// Whether a transaction in another block of the chunk is done.
    fn has_done(&self, chunk: &Chunk, rank: usize) -> bool {
        self.done.has(chunk.block_of(rank), self.number_of(rank))
    }

    /// Returns a number of the transaction that no other one ever has, above 0.
    fn number_of(&self, rank: usize) -> u64 {
        self.number + (rank - self.cut.first) as u64 + 1
    }

    /// Executes transactions. Returns whether that was possible.
    fn execute(&self, member: &mut Member<'_>, ranks: Range<usize>) -> bool {
        let seq = self.before + (ranks.start - self.cut.first) as Seq;
        let order = &self.order[..ranks.end];
        let mut turns = Turns::InOrder(InOrder { order, at: ranks.start, seq, prefetch: true });
        // SAFETY: earlier users of these transactions' rows are done, by links within the chunk and
        // because earlier chunks are done. Later users wait until these transactions are done.
        unsafe { member.walk(self.codes, &mut turns) }
    }
}

/// The state of a thread.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The rows of the thread's partition.
    cells: Cells,
    /// The events of each lane, in the share, in the block and in the next block.
    share: Vec<Events>,
    block: Vec<Events>,
    ahead: Vec<Events>,
    /// The hash of each row of each event in the share, by lane.
    hashes: Vec<u64>,
    /// The blocks that the thread has executed, and the number of outputs after each, by stream.
    pub(super) blocks: Vec<usize>,
    pub(super) ends: Vec<usize>,
    pub(super) streams: usize,
    meetings: u64,
    pub(super) executed: u64,
    pub(super) plan_ns: u64,
    /// The time of execution without waiting, in nanoseconds.
    pub(super) execute_ns: u64,
    /// The waiting time, in nanoseconds: in all (except while planning), and for earlier users of
    /// rows.
    pub(super) wait_ns: u64,
    pub(super) wait_for_ns: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Own {
    /// Does a thread's work in an epoch. `READS` says whether any transaction reads rows that it
    /// does not write.
    pub(super) fn walk<const READS: bool>(
        &mut self,
        shared: &Shared<'_>,
        member: &mut Member<'_>,
        thread: usize,
    ) {
        self.blocks.clear();
        self.ends.clear();
        self.streams = member.outputs().count();
        (self.meetings, self.executed, self.plan_ns) = (0, 0, 0);
        (self.execute_ns, self.wait_ns, self.wait_for_ns) = (0, 0, 0);
        let now = || shared.pool.now_ns();
        for number in 0..shared.cut.chunks() {
            let chunk = shared.cut.chunk(number);
            let begun = now();
            // Other threads may still execute the chunk before. They do not look at these notes.
            self.note::<READS>(shared, member, &chunk, thread);
            let noted = now();
            self.plan_ns += noted - begun;
            if !self.meet(shared, thread) {
                return;
            }
            let begun = now();
            // The threads wait for the end of execution, and not for the planning.
            self.wait_ns += begun - noted;
            self.link::<READS>(shared, &chunk, thread);
            if !self.meet(shared, thread) {
                return;
            }
            let planned = now();
            self.plan_ns += planned - begun;
            let waited = self.wait_for_ns;
            if !self.execute(shared, member, &chunk, thread) {
                return shared.halt.set();
            }
            let waited = self.wait_for_ns - waited;
            self.wait_ns += waited;
            self.execute_ns += (now() - planned).saturating_sub(waited);
        }
    }

    /// Waits for all other threads. Returns whether to continue.
    fn meet(&mut self, shared: &Shared<'_>, thread: usize) -> bool {
        self.meetings += 1;
        shared.meeting.reach(thread, self.meetings);
        shared.wait(&mut 0, || shared.meeting.are_here(self.meetings))
    }

    /// Notes the uses of the share of a chunk, by partition.
    #[inline(never)]
    fn note<const READS: bool>(
        &mut self,
        shared: &Shared<'_>,
        member: &Member<'_>,
        chunk: &Chunk,
        thread: usize,
    ) {
        let share = chunk.share(thread, shared.threads);
        let order = &shared.order[share.clone()];
        Events::find(&mut self.share, member, order);
        self.hashes.clear();
        for (events, lane) in self.share.iter_mut().zip(&member.lanes) {
            if events.is_empty() {
                continue;
            }
            let Events { range, rows, first } = events;
            *first = self.hashes.len();
            self.hashes.resize(*first + range.len() * *rows, 0);
            for of in 0..*rows {
                let mut at = *first + of;
                lane.homes_of(of, range.clone(), |_, hash| {
                    self.hashes[at] = hash;
                    at += *rows;
                });
            }
        }
        let links = &shared.links[chunk.number % 2];
        let mut noted: Vec<_> = shared.noted[thread].iter().map(lock).collect();
        noted.iter_mut().for_each(|noted| noted.clear());
        let partitions = shared.threads as u64;
        for (ranked, rank) in order.iter().zip(share) {
            let Events { range, rows, first } = &self.share[ranked.lane as usize];
            let from = first + (ranked.row as usize - range.start) * rows;
            let at = chunk.uses(rank);
            links.clear::<READS>(at..at + rows);
            let writes = &shared.writes[member.lanes[ranked.lane as usize].handler];
            let hashes = &self.hashes[from..from + rows];
            for (of, (hash, writes)) in hashes.iter().zip(writes).enumerate() {
                let partition = ((hash >> 32) * partitions) >> 32;
                noted[partition as usize].push(Use::of(*hash as u32, *writes, at + of));
            }
        }
    }

    /// Links the uses of the rows of a partition.
    #[inline(never)]
    fn link<const READS: bool>(&mut self, shared: &Shared<'_>, chunk: &Chunk, partition: usize) {
        if partition == 0 {
            // No thread takes blocks of the chunk before any more, and none takes blocks of this
            // one yet.
            shared.next[(chunk.number + 1) % 2].begin(shared.threads);
        }
        let links = &shared.links[chunk.number % 2];
        self.cells.begin(shared.cut.uses() / shared.threads);
        for by in shared.noted {
            for used in &*lock(&by[partition]) {
                self.cells.link::<READS>(*used, links, |one, other| chunk.is_one_block(one, other));
            }
        }
    }

    /// Takes and executes blocks until there are no more. Returns whether that was possible.
    fn execute(
        &mut self,
        shared: &Shared<'_>,
        member: &mut Member<'_>,
        chunk: &Chunk,
        thread: usize,
    ) -> bool {
        let (blocks, next) = (chunk.blocks(), &shared.next[chunk.number % 2]);
        let mut block = thread;
        self.look_ahead(shared, member, chunk, block);
        while block < blocks {
            std::mem::swap(&mut self.block, &mut self.ahead);
            let after = next.take();
            Events::stage(&self.block, member);
            self.look_ahead(shared, member, chunk, after);
            if !self.execute_block(shared, member, chunk, block) {
                return false;
            }
            block = after;
        }
        true
    }

    /// Finds the events of the next block, if there is one, and prefetches their rows.
    fn look_ahead(
        &mut self,
        shared: &Shared<'_>,
        member: &Member<'_>,
        chunk: &Chunk,
        block: usize,
    ) {
        if block >= chunk.blocks() {
            return;
        }
        let ranks = chunk.block(block);
        Events::find(&mut self.ahead, member, &shared.order[ranks]);
        for (events, lane) in self.ahead.iter().zip(&member.lanes) {
            if !events.is_empty() {
                lane.ask_for(events.range.clone());
                lane.ask_for_rows(events.range.clone());
            }
        }
    }

    /// Executes a block. Each transaction starts as soon as the earlier users of its rows are done.
    fn execute_block(
        &mut self,
        shared: &Shared<'_>,
        member: &mut Member<'_>,
        chunk: &Chunk,
        block: usize,
    ) -> bool {
        let (ranks, links) = (chunk.block(block), &shared.links[chunk.number % 2]);
        let mut at = ranks.start;
        for rank in ranks.clone() {
            let rows = member.lanes[shared.order[rank].lane as usize].rows();
            let uses = chunk.uses(rank)..chunk.uses(rank) + rows;
            if !links.any(uses.clone()) {
                continue;
            }
            let is_over = |used: usize| {
                let before = chunk.rank(used);
                chunk.block_of(before) == block || shared.has_done(chunk, before)
            };
            for used in uses {
                while let Some(open) = links.open(used, is_over) {
                    if at < rank {
                        if !shared.execute(member, at..rank) {
                            return false;
                        }
                        shared.done.set(block, shared.number_of(rank - 1));
                        at = rank;
                    }
                    let open = chunk.rank(open);
                    let waited = &mut self.wait_for_ns;
                    if !shared.wait(waited, || shared.has_done(chunk, open)) {
                        return false;
                    }
                }
            }
        }
        if !shared.execute(member, at..ranks.end) {
            return false;
        }
        shared.done.set(block, shared.number_of(ranks.end - 1));
        self.executed += ranks.len() as u64;
        self.blocks.push(chunk.number_of(block));
        self.ends.extend(member.outputs());
        true
    }
}
