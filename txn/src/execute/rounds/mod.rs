//! Rounds: every thread executes its share of each round, [in place](super::in_place) and in order,
//! as the serial executor does; what meets is put off.
//!
//! A round is a stretch of the epoch, a share a stretch of that: the first thread has the first one. All
//! threads [reserve](reserve) the rows that their shares use. Whoever finds that a transaction of its
//! own uses a row of an earlier share, or of one that is put off already, puts it off, too. All that
//! is left has nothing to do with anything else of the round but what is before it in its own share,
//! so all shares run beside one another; what was put off runs behind them, in order, while earlier
//! threads are at those of their next share already that use none of its rows; the others of these follow. The rows of
//! deterministic reservations are those of Aria (Lu et al., VLDB 2020); here nothing is read from
//! snapshots and nothing is tried again, because who uses what is known before.
//!
//! There is no plan, and nothing is handed over but a list of marks and three counts a round. What it
//! costs is a hash and three bits for each row, so it pays where transactions are cheap, as long as few of them meet.

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
use super::serial::Sink;
use super::timing::Timing;
use crate::order::Epoch;

/// Transactions of a share, at least and at most, on average.
const SHARE_MIN: usize = 32;
const SHARE_MAX: usize = 1024;

/// Shares become longer when so few of an epoch's transactions were put off, and shorter when more than so many.
const PUT_OFF: (f64, f64) = (0.02, 0.05);

/// How long shares are to be after those of an epoch, of which this share was put off. Of short rounds less is put off, which
/// has to be executed alone; in long ones threads meet less often.
fn share_after(share: usize, put_off: f64) -> usize {
    match put_off {
        off if off > PUT_OFF.1 => (share / 2).max(SHARE_MIN),
        off if off < PUT_OFF.0 => (share * 2).min(SHARE_MAX),
        _ => share,
    }
}

/// Executes epochs in rounds.
pub(super) struct Rounds {
    in_place: InPlace,
    /// What each thread keeps to itself.
    own: Vec<Mutex<Own>>,
    /// Per thread: of rounds of even and of odd number, because one thread may reserve for the next
    /// round while another one still looks at what was reserved for this one.
    reserved: Vec<[Marks; 2]>,
    /// The same of what is put off: earlier threads look at it in the round after.
    put_off: Vec<[Marks; 2]>,
    /// Transactions of a share, on average.
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

    /// Executes transactions of an epoch, whose outputs go to `out`; or says why that must be done serially: then
    /// nothing has happened.
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

    /// Gives those threads more that were done sooner: the later ones look at what others reserve,
    /// and execute what they put off.
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

    /// Whether rounds can execute the epoch at all; if not, why, and whether there may be a graph for it.
    pub(super) fn check(
        &self,
        tables: &[Table],
        epoch: &Epoch,
    ) -> Result<(), (&'static str, bool)> {
        self.in_place.check(tables, epoch)
    }
}
