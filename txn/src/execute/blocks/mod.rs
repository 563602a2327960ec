//! Blocks: all threads plan together. Then they take block after block of transactions, and execute
//! them [in place](super::in_place).
//!
//! The epoch is planned and executed chunk by chunk. First, every thread [notes](walk) the rows
//! that its share of a chunk uses, by partition of the rows. Then each links the uses of one
//! partition: every use with the one before it ([`plan::blocks`](crate::plan::blocks)). Then they
//! take short stretches of the chunk, its blocks, one after the other, and execute each in order. A
//! transaction waits for the earlier users of its rows. Blocks are taken in order. So a transaction
//! waits only for blocks that have begun, and the first block that is not done waits for none.
//!
//! No step is done by one thread for all, and transactions without common rows do not wait for each
//! other. So this strategy is for many threads. With two threads, [rounds](super::rounds) cost
//! less, because they plan nothing.

mod concat;
mod cut;
mod done;
mod walk;

use std::sync::{Arc, Mutex, PoisonError};

use tidemill_table::Table;

use self::cut::Cut;
use self::done::{Done, Meeting, Next};
use self::walk::{Noted, Own, Shared};
use super::codes::Codes;
use super::in_place::{on_seats, Halt, InPlace, Task};
use super::sink::Sink;
use super::timing::Timing;
use crate::plan::blocks::{Links, USES_MAX};

/// The most transactions that are planned at a time.
const CHUNK: usize = 1 << 14;

/// The most uses of rows by them.
const CHUNK_USES: usize = 1 << 20;

/// The least and the most transactions of a block, as powers of two.
const BLOCK: (usize, usize) = (1, 64);

/// The length of blocks at the beginning. Short blocks take little longer when no thread waits.
/// Long blocks take far longer when all wait, and a trial of them would show nothing.
const BLOCK_FIRST: usize = 4;

/// The wanted duration of a block, in nanoseconds. Taking one costs some hundreds of nanoseconds,
/// and in the end threads wait for the last one.
const BLOCK_NS: f64 = 10_000.0;

/// The shares of time that threads wait. Below the first, blocks become longer. Above the second,
/// they become shorter, and above the third, much shorter.
const WAITED: [f64; 3] = [0.04, 0.15, 0.5];

/// The executor of epochs in blocks.
pub(super) struct Blocks {
    in_place: InPlace,
    /// The state of each thread.
    own: Vec<Mutex<Own>>,
    /// The uses that each thread has noted, by partition.
    noted: Vec<Vec<Mutex<Noted>>>,
    /// The links of chunks of even and of odd number.
    links: [Links; 2],
    done: Done,
    /// The most transactions of a chunk, and the transactions of a block.
    chunk: usize,
    block: usize,
    /// The least and the greatest length of a block.
    bounds: (usize, usize),
    /// The number of all transactions that have ever been executed.
    number: u64,
    pub(super) timing: Timing,
}

impl Blocks {
    pub(super) fn new(codes: Arc<Codes>, threads: usize) -> Blocks {
        let noted = || (0..threads).map(|_| Mutex::default()).collect();
        Blocks {
            in_place: InPlace::new(codes, threads),
            own: (0..threads).map(|_| Mutex::default()).collect(),
            noted: (0..threads).map(|_| noted()).collect(),
            links: Default::default(),
            done: Done::default(),
            chunk: CHUNK,
            block: BLOCK_FIRST,
            bounds: BLOCK,
            number: 0,
            timing: Timing::default(),
        }
    }

    /// Uses short chunks and blocks, so that short epochs have many of them: for tests.
    pub(super) fn with_small_limits(self) -> Blocks {
        Blocks { chunk: 16, block: 1, bounds: (1, 4), ..self }
    }

    /// Executes transactions of an epoch, whose outputs go to `out`.
    ///
    /// If they must be executed serially, returns the reason. In this case nothing has happened.
    pub(super) fn run(
        &mut self,
        task: &Task<'_>,
        tables: &mut [Table],
        out: &mut Sink,
    ) -> Result<(), &'static str> {
        let Task { pool, section, before, .. } = *task;
        let begun = pool.now_ns();
        let (threads, transactions) = (self.in_place.threads, section.ranks.len());
        let [_, widest] = self.in_place.rows_of(section.epoch, 1);
        let cut = Cut::new(section.ranks.clone(), widest, (self.chunk, CHUNK_USES), self.block);
        if cut.uses() > USES_MAX {
            return Err("its transactions use too many rows");
        }
        let reads = self.in_place.reads();
        if self.links[0].room() < cut.uses() || self.links[0].reads() != reads {
            self.links = [0, 1].map(|_| Links::new(cut.uses(), reads));
        }
        if self.done.room() < cut.blocks() {
            self.done = Done::new(cut.blocks());
        }
        let (codes, writes) = (self.in_place.codes.clone(), self.in_place.writes.clone());
        let next: [Next; 2] = Default::default();
        next[0].begin(threads);
        let (own, noted, links, done) = (&self.own, &self.noted[..], &self.links, &self.done);
        let number = self.number;
        let mut prepared = begun;
        let parts = self.in_place.run(task, tables, Some(out), |seats| {
            let shared = Shared {
                codes: &codes,
                writes: &writes,
                cut,
                order: &section.epoch.order[..section.ranks.end],
                threads,
                noted,
                links,
                done,
                next: &next,
                meeting: Meeting::new(threads),
                number,
                pool,
                before,
                halt: Halt::default(),
            };
            prepared = pool.now_ns();
            on_seats(pool, &shared.halt, seats, |member, thread| {
                let mut own = own[thread].lock().unwrap_or_else(PoisonError::into_inner);
                match reads {
                    true => own.walk::<true>(&shared, member, thread),
                    false => own.walk::<false>(&shared, member, thread),
                }
            });
            !shared.halt.is_set()
        });
        // The count rises whatever the result is, so that no number is used twice.
        self.number += transactions as u64;
        let mut parts = parts?;
        let executed = pool.now_ns();
        let own: Vec<&mut Own> = (self.own.iter_mut())
            .map(|own| own.get_mut().unwrap_or_else(PoisonError::into_inner))
            .collect();
        concat::concat(pool, &mut parts, &own, cut.all_blocks(), out);
        self.in_place.keep(parts);
        let first = &own[0];
        self.timing = Timing {
            prepare: prepared - begun,
            plan: first.plan_ns,
            execute: first.execute_ns + first.wait_ns,
            wait: first.wait_ns,
            executed: first.executed,
            put_off: 0,
            finish: (executed - prepared)
                .saturating_sub(first.plan_ns + first.execute_ns + first.wait_ns),
            merge: pool.now_ns() - executed,
        };
        let busy = (own.iter().map(|own| own.execute_ns).sum::<u64>()).max(1) as f64;
        let waited = own.iter().map(|own| own.wait_for_ns).sum::<u64>() as f64;
        let each_ns = busy / transactions.max(1) as f64;
        self.block = block_after(self.block, self.bounds, waited / (busy + waited), each_ns);
        Ok(())
    }
}

/// Returns the length of blocks after an epoch in which threads waited this share of their time for
/// earlier users of rows.
fn block_after(block: usize, (least, most): (usize, usize), waited: f64, each_ns: f64) -> usize {
    let wanted = ((BLOCK_NS / each_ns.max(1.0)).ceil() as usize).next_power_of_two();
    let most = wanted.clamp(least, most);
    let block = match waited {
        waited if waited > WAITED[2] => block / 4,
        waited if waited > WAITED[1] => block / 2,
        waited if waited < WAITED[0] => block * 2,
        _ => block,
    };
    block.clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the length of blocks after some epochs in which the waiting share grows with the
    /// length.
    fn settled(waited: f64, each_ns: f64) -> usize {
        (0..10).fold(BLOCK_FIRST, |block, _| {
            block_after(block, BLOCK, (waited * block as f64).min(0.9), each_ns)
        })
    }

    #[test]
    fn blocks_are_short_where_threads_wait_for_rows_or_transactions_are_dear() {
        assert_eq!([10.0, 200.0, 3_600.0, 1e6].map(|ns| settled(0.0, ns)), [64, 64, 4, 1]);
        assert_eq!([0.002, 0.02, 0.3].map(|waited| settled(waited, 200.0)), [32, 4, 1]);
    }
}
