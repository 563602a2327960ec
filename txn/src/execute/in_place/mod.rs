//! Execution in place on several threads.
//!
//! Rows are written where they are. The strategy makes sure that only one thread uses a row at a
//! time, so nothing is ever run twice.
//!
//! A case that only the general path can decide ends the attempt. The tables get back their old
//! state, and the epoch is executed serially.

mod events;
mod member;
mod places;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidemill_table::{Opened, Seq, Table};

pub(super) use self::events::Events;
use self::member::Start;
pub(super) use self::member::{put_together, Member, Part};
use self::places::{Placements, Prediction};
use super::codes::{moved, Code, Codes};
use super::sink::Sink;
use crate::order::{Epoch, Section};
use crate::pool::Pool;

/// The most words of versions. Links of versions have 32 bits, and every thread may have to write
/// all versions.
const VERSION_WORDS_MAX: usize = 1 << 30;

/// The reason why an epoch of a program with procedures is executed serially.
pub(super) const PROCEDURES: &str = "procedures run one after the other";

/// The transactions to be executed in place, and their environment.
pub(super) struct Task<'t> {
    pub(super) pool: &'t dyn Pool,
    pub(super) section: &'t Section<'t>,
    /// The number of the transaction before the first one.
    pub(super) before: Seq,
    /// The expected number of outputs, by stream.
    pub(super) rooms: &'t [usize],
}

/// The shared state of execution in place.
pub(super) struct InPlace {
    pub(super) codes: Arc<Codes>,
    pub(super) threads: usize,
    /// Whether each row is written, by handler.
    pub(super) writes: Vec<Vec<bool>>,
    foreseen: Prediction,
    /// The reused memory of each thread.
    parts: Vec<Part>,
    /// Whether a transaction could not be executed before, perhaps because there was no slot left
    /// for a missing row.
    short: bool,
}

impl InPlace {
    pub(super) fn new(codes: Arc<Codes>, threads: usize) -> InPlace {
        let writes = |code: &Code| match code {
            Code::Words(code) => {
                let written = |row: usize| code.written >> row & 1 == 1;
                (0..code.rows.len()).map(written).collect()
            }
            Code::Native(code, _) => {
                (0..code.rows.len()).map(|row| code.written >> row & 1 == 1).collect()
            }
            Code::General => Vec::new(),
        };
        let writes = codes.code.iter().map(writes).collect();
        let foreseen = Prediction::default();
        InPlace { codes, threads, writes, foreseen, parts: Vec::new(), short: false }
    }

    /// Whether some handler reads a row that it does not write.
    pub(super) fn reads(&self) -> bool {
        self.writes.iter().flatten().any(|writes| !writes)
    }

    /// Returns how many rows all transactions of the epoch use, and at most how many one uses. The
    /// rows of each transaction are rounded up to a multiple of `group`.
    pub(super) fn rows_of(&self, epoch: &Epoch, group: usize) -> [usize; 2] {
        let (mut all, mut widest) = (0, 0);
        for lane in &epoch.lanes {
            let rows = self.writes[lane.handler as usize].len().next_multiple_of(group);
            all += epoch.runs[lane.run as usize].batch.len() * rows;
            widest = widest.max(rows);
        }
        [all, widest]
    }

    /// Checks that the epoch can be executed in place. If not, returns the reason, and whether a
    /// graph may execute it.
    pub(super) fn check(
        &self,
        tables: &[Table],
        epoch: &Epoch,
    ) -> Result<(), (&'static str, bool)> {
        let codes = &*self.codes;
        if !codes.turns.is_empty() {
            return Err((PROCEDURES, false));
        }
        for lane in &epoch.lanes {
            let handler = lane.handler as usize;
            let code = &codes.code[handler];
            if matches!(code, Code::General) {
                return Err(("a handler needs the general path", true));
            }
            if code.streams().is_none() || codes.consumed[codes.aborted[handler]] {
                return Err(("other handlers take the events of a handler", true));
            }
        }
        let words = tables
            .iter()
            .zip(&codes.rows_max)
            .map(|(table, rows)| rows * epoch.order.len() * table.logged_words() * self.threads);
        match words.max() {
            Some(words) if words > VERSION_WORDS_MAX => {
                Err(("it may have too many versions", false))
            }
            _ => Ok(()),
        }
    }

    /// Lets `work` execute transactions of an epoch on members, one for each thread.
    ///
    /// `work` returns whether it was able to. The result is the members' parts, which are to be
    /// [given back](InPlace::keep). If the epoch must be executed serially, returns the reason. In
    /// this case nothing has happened. If a sink is given, outputs that have places in it are there
    /// afterwards.
    pub(super) fn run(
        &mut self,
        task: &Task<'_>,
        tables: &mut [Table],
        mut placing: Option<&mut Sink>,
        work: impl FnOnce(&[Mutex<Member<'_>>]) -> bool,
    ) -> Result<Vec<Part>, &'static str> {
        let (epoch, transactions) = (task.section.epoch, task.section.ranks.len());
        self.check(tables, epoch).map_err(|(why, _)| why)?;
        let codes = &*self.codes;
        let columns = codes.columns(epoch);
        if self.short {
            for (table, rows) in tables.iter_mut().zip(&codes.rows_max) {
                let more = table.len().max(1024);
                table.reserve(more.min(rows * transactions));
            }
        }
        let moves = moved(tables);
        // Room for the thread's share of the outputs, and somewhat more. A thread with still more
        // outputs makes room itself.
        let room = |room: &usize| room.div_ceil(self.threads) * 5 / 4;
        let rooms: Vec<usize> = task.rooms.iter().map(room).collect();
        // An opening for each thread, by table.
        let mut openings: Vec<Vec<Opened<'_>>> = Vec::new();
        for (table, rows) in tables.iter_mut().zip(&codes.rows_max) {
            openings.push(match rows {
                0 => Vec::new(),
                rows => table.open_for(&vec![rows * transactions; self.threads]),
            });
        }
        let placements = match &mut placing {
            Some(out) => self.foreseen.places(codes, task.section, out),
            None => Placements::default(),
        };
        let placements = &placements;
        let start = Start { codes, rooms, epoch, columns: &columns, placements, moves };
        let mut parts = std::mem::take(&mut self.parts);
        parts.resize_with(self.threads, Part::default);
        let mut members = Vec::new();
        let mut openings: Vec<_> = openings.into_iter().map(Vec::into_iter).collect();
        for part in parts {
            let open = openings.iter_mut().map(Iterator::next);
            members.push(Member::new(&start, open.collect(), part));
        }
        // The first member is that of the calling thread. The others begin by themselves.
        members[0].begin();
        if !members[0].is_fast() {
            return Err("a column has nulls");
        }
        let seats: Vec<Mutex<Member<'_>>> = members.into_iter().map(Mutex::new).collect();
        let done = work(&seats);
        let members = seats.into_iter().map(|member| {
            member.into_inner().expect("a panic of a member ends this thread, too").end()
        });
        let (openings, parts): (Vec<_>, Vec<_>) = members.unzip();
        if !done {
            let mut by_table: Vec<Vec<Opened<'_>>> = tables_of(openings);
            by_table.drain(..).for_each(Opened::roll_back);
            self.short = true;
            return Err("a transaction needs the general path");
        }
        if let Some(out) = placing {
            if !self.foreseen.check(placements, task.section, &parts, task.pool, out) {
                tables_of(openings).into_iter().for_each(Opened::roll_back);
                return Err("transactions sent other events than those before");
            }
            self.foreseen.learn(codes, task.section, &parts);
        }
        drop(openings);
        Ok(parts)
    }

    /// Takes back the members' parts, whose results were taken, to reuse them.
    pub(super) fn keep(&mut self, parts: Vec<Part>) {
        self.parts = parts;
    }
}

/// Regroups openings from threads to tables.
fn tables_of<'t>(by_thread: Vec<Vec<Option<Opened<'t>>>>) -> Vec<Vec<Opened<'t>>> {
    let mut by_table: Vec<Vec<Opened<'t>>> = Vec::new();
    for openings in by_thread {
        by_table.resize_with(openings.len(), Vec::new);
        for (table, opened) in by_table.iter_mut().zip(openings) {
            table.extend(opened);
        }
    }
    by_table
}

/// Lets all threads do their work on their members. `halt` is set if one of them panics.
pub(super) fn on_seats(
    pool: &dyn Pool,
    halt: &Halt,
    seats: &[Mutex<Member<'_>>],
    work: impl Fn(&mut Member<'_>, usize) + Sync,
) {
    pool.run(&|thread| {
        let guard = halt.guard();
        let mut member = seats[thread].lock().unwrap_or_else(PoisonError::into_inner);
        // The thread creates its own data, so that they are in its core's cache.
        member.begin();
        work(&mut member, thread);
        member.leave();
        guard.done();
    });
}

/// Whether threads must stop, because one of them has a case that can't be executed in place.
#[derive(Debug, Default)]
pub(super) struct Halt(AtomicBool);

impl Halt {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns a guard that sets it when dropped: a thread that panics must not leave the others
    /// waiting.
    fn guard(&self) -> Halting<'_> {
        Halting(self)
    }
}

/// A guard: see [`Halt::guard`].
struct Halting<'h>(&'h Halt);

impl Halting<'_> {
    /// Ends the guard: no thread waits for this one any more.
    fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Halting<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}
