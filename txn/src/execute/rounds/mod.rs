//! Rounds: every thread executes its share of each round, [in place](super::in_place) and in order,
//! as the serial executor does. Conflicting transactions are deferred.
//!
//! A round is a stretch of the epoch, and a share is a stretch of the round: the first thread has
//! the first one. All threads [reserve](reserve) the rows that their shares use. A thread defers a
//! transaction that uses a row of an earlier share, or of a deferred transaction. The other
//! transactions conflict only with earlier ones of their own share. So all shares run beside one
//! another.
//!
//! The deferred transactions run after them, in order. Meanwhile, earlier threads already execute
//! the transactions of their next share that use none of the same rows. The rest of that share
//! follows.
//!
//! The reservations are the deterministic ones of Aria (Lu et al., VLDB 2020). But nothing is read
//! from snapshots and nothing is tried again, because the used rows are known beforehand.
//!
//! There is no plan. The threads exchange only a list of marks and three counts for each round. The
//! cost is a hash and three bits for each row. So rounds pay if transactions are cheap, as long as
//! few of them conflict.

mod concat;
mod progress;
mod reserve;
mod share;

use std::sync::{Arc, Mutex, PoisonError};

use tidemill_table::Table;

use self::progress::Progress;
use self::reserve::Marks;
use self::share::{Own, Round, Shared};
use super::codes::Codes;
use super::in_place::{on_seats, Halt, InPlace, Task};
use super::sink::Sink;
use super::timing::Timing;
use crate::order::Epoch;

/// The least and the most transactions of a share, on average.
const SHARE_MIN: usize = 32;
const SHARE_MAX: usize = 1024;

/// The shares of deferred transactions: below the first, shares become longer, and above the
/// second, shorter.
const PUT_OFF: (f64, f64) = (0.02, 0.05);

/// Returns the length of shares after an epoch in which this part was deferred. Short rounds defer
/// fewer transactions, which run one by one. In long rounds, threads synchronize less often.
fn share_after(share: usize, put_off: f64) -> usize {
    match put_off {
        off if off > PUT_OFF.1 => (share / 2).max(SHARE_MIN),
        off if off < PUT_OFF.0 => (share * 2).min(SHARE_MAX),
        _ => share,
    }
}

/// The executor of epochs in rounds.
pub(super) struct Rounds {
    in_place: InPlace,
    /// The state of each thread.
    own: Vec<Mutex<Own>>,
    /// The reserved rows of each thread, for rounds of even and of odd number. One thread may
    /// reserve for the next round while another one still reads the reservations of this one.
    reserved: Vec<[Marks; 2]>,
    /// The rows of deferred transactions of each thread, for rounds of even and of odd number.
    /// Earlier threads read them in the round after.
    put_off: Vec<[Marks; 2]>,
    /// The number of transactions of a share, on average.
    share: usize,
    /// Each thread's part of a round.
    parts: Vec<f64>,
    pub(super) timing: Timing,
}

impl Rounds {
    pub(super) fn new(codes: Arc<Codes>, threads: usize) -> Rounds {
        let in_place = InPlace::new(codes, threads);
        let own = (0..threads).map(|_| Mutex::default()).collect();
        let parts = vec![1.0 / threads as f64; threads];
        let marks = || (0..threads).map(|_| <[Marks; 2]>::default()).collect();
        let (reserved, put_off, timing) = (marks(), marks(), Timing::default());
        Rounds { in_place, own, reserved, put_off, share: 512, parts, timing }
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
        let (epoch, transactions) = (section.epoch, section.ranks.len());
        let threads = self.in_place.threads;
        // Each thread has a share of at least a few rounds.
        let share = self.share.min(transactions / (4 * threads)).max(SHARE_MIN);
        let mut end = 0.0;
        let ends: Vec<f64> = (self.parts.iter())
            .map(|part| {
                end += part;
                end
            })
            .collect();
        let order = &epoch.order[..section.ranks.end];
        let round = Round { order, first: section.ranks.start, len: threads * share, ends: &ends };
        let (codes, writes) = (self.in_place.codes.clone(), self.in_place.writes.clone());
        let (own, reads) = (&self.own, self.in_place.reads());
        let (reserved, put_off) = (&self.reserved[..], &self.put_off[..]);
        let (mut prepared, mut all) = (begun, begun);
        let mut parts = self.in_place.run(task, tables, Some(out), |seats| {
            let shared = Shared {
                codes: &codes,
                writes: &writes,
                round,
                progress: Progress::new(threads),
                reserved,
                put_off,
                pool,
                before,
                halt: Halt::default(),
            };
            prepared = pool.now_ns();
            on_seats(pool, &shared.halt, seats, |member, number| {
                let mut own = own[number].lock().unwrap_or_else(PoisonError::into_inner);
                match reads {
                    true => share::walk::<true>(&shared, member, &mut own, number),
                    false => share::walk::<false>(&shared, member, &mut own, number),
                }
            });
            all = pool.now_ns();
            !shared.halt.is_set()
        })?;
        let executed = pool.now_ns();
        let own: Vec<&mut Own> = (self.own.iter_mut())
            .map(|own| own.get_mut().unwrap_or_else(PoisonError::into_inner))
            .collect();
        concat::concat(pool, &mut parts, &own, out);
        self.in_place.keep(parts);
        let put_off: u64 = own.iter().map(|own| own.put_off).sum();
        let first = &own[0];
        self.timing = Timing {
            prepare: prepared - begun,
            plan: first.reserve_ns,
            execute: (all - prepared).saturating_sub(first.reserve_ns),
            wait: first.wait_ns,
            executed: first.executed,
            put_off,
            finish: executed - all,
            merge: pool.now_ns() - executed,
        };
        self.share = share_after(share, put_off as f64 / transactions.max(1) as f64);
        self.balance();
        Ok(())
    }

    /// Gives more work to threads that were done sooner. The later threads read the reservations of
    /// others, and execute deferred transactions.
    fn balance(&mut self) {
        let busy = |own: &mut Mutex<Own>| {
            own.get_mut().unwrap_or_else(PoisonError::into_inner).busy_ns.max(1) as f64
        };
        let busy: Vec<f64> = self.own.iter_mut().map(busy).collect();
        let mean = busy.iter().sum::<f64>() / busy.len() as f64;
        for (part, busy) in self.parts.iter_mut().zip(busy) {
            *part *= (mean / busy).sqrt().clamp(0.8, 1.25);
        }
        let sum: f64 = self.parts.iter().sum();
        self.parts.iter_mut().for_each(|part| *part /= sum);
    }

    /// Checks that rounds can execute the epoch. If not, returns the reason, and whether a graph
    /// may execute it.
    pub(super) fn check(
        &self,
        tables: &[Table],
        epoch: &Epoch,
    ) -> Result<(), (&'static str, bool)> {
        self.in_place.check(tables, epoch)
    }
}
