//! Lists: every thread walks one of its own, in place, and waits for the others where it must.
//!
//! The first thread plans by the chunk and executes its own list in between; the others begin with the
//! first chunk. Rows are written in their slots, as the serial executor does it, because a
//! transaction has its turn only when whoever used its rows before is done. So nothing is ever run
//! twice; but what only the general path can decide ends the attempt: the tables become what they
//! were, and the epoch is executed serially.

mod feed;
mod member;
mod merge;
mod stage;
mod walk;

pub(crate) use self::walk::InList;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidemill_table::{Opened, Seq, Table};

use self::member::Member;
use self::stage::Stage;
use self::walk::{Appenders, List};
use super::codes::{moved, Code, Codes};
use super::lane::Lane;
use super::serial::Outcome;
use crate::order::{Epoch, Ranked};
use crate::plan::lists::{Planner, Use, LISTS_MAX};
use crate::pool::Pool;

/// Transactions that are planned at a time.
const CHUNK: usize = 256;

/// Links of versions are 32 bits, and every thread may have to write all of them.
const VERSION_WORDS_MAX: usize = 1 << 30;

/// What all threads see.
struct Shared<'s> {
    codes: &'s Codes,
    order: &'s [Ranked],
    lists: &'s [List],
    pool: &'s dyn Pool,
    /// The number of the last transaction of earlier epochs.
    before: Seq,
    /// Somebody met what lists can't do: all stop.
    failed: AtomicBool,
}

impl Shared<'_> {
    fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Where the time of an epoch went, in nanoseconds, as the first thread saw it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    /// Until all threads could begin.
    pub(super) prepare: u64,
    pub(super) plan: u64,
    /// Executing, and waiting for the others in between.
    pub(super) execute: u64,
    pub(super) wait: u64,
    /// How many transactions the first thread executed.
    pub(super) executed: u64,
    /// From its last transaction to the last one of all.
    pub(super) finish: u64,
    pub(super) merge: u64,
}

/// Executes epochs in lists.
pub(super) struct Lists {
    codes: Arc<Codes>,
    planner: Planner,
    lists: Vec<List>,
    /// Per handler: whether each of its rows is written.
    writes: Vec<Vec<bool>>,
    /// Rows are as good as their partitions, of which there is one for each thread.
    by_partition: bool,
    /// What planning a transaction costs, in executions of one.
    planning: f64,
    /// A transaction could not be executed before, perhaps because there was no slot left for a row
    /// that was missing.
    short: bool,
    pub(super) timing: Timing,
}

impl Lists {
    pub(super) fn new(codes: Arc<Codes>, threads: usize, by_partition: bool) -> Lists {
        let writes = |code: &Code| match code {
            Code::Words(code) => {
                let written = |row: usize| code.written >> row & 1 == 1;
                (0..code.rows.len()).map(written).collect()
            }
            Code::Native(code, _) => vec![true; code.rows.len()],
            Code::General => Vec::new(),
        };
        let writes = codes.code.iter().map(writes).collect();
        Lists {
            codes,
            planner: Planner::new(threads),
            lists: (0..threads).map(|_| List::default()).collect(),
            writes,
            by_partition,
            planning: 0.3,
            short: false,
            timing: Timing::default(),
        }
    }

    /// Executes an epoch of transactions that are numbered from `before + 1`, or says why that must
    /// be done serially; then nothing has happened.
    pub(super) fn run(
        &mut self,
        rooms: &[usize],
        pool: &dyn Pool,
        tables: &mut [Table],
        epoch: &Epoch,
        before: Seq,
    ) -> Result<Outcome, &'static str> {
        let begun = pool.now_ns();
        self.timing = Timing::default();
        self.check(tables, epoch)?;
        let codes = &*self.codes.clone();
        let columns = codes.columns(epoch);
        let threads = self.lists.len();
        let rows = self.writes.iter().map(Vec::len).max().unwrap_or(0);
        let uses = epoch.order.len() * rows;
        let widest = rows.next_multiple_of(Use::GROUP);
        self.planner.begin(epoch.order.len(), uses);
        if self.short {
            for (table, rows) in tables.iter_mut().zip(&codes.rows_max) {
                let more = table.len().max(1024);
                table.reserve(more.min(rows * epoch.order.len()));
            }
        }
        let moves = moved(tables);
        // Per table, an opening for each thread.
        let mut openings: Vec<Vec<Opened<'_>>> = Vec::new();
        for (table, rows) in tables.iter_mut().zip(&codes.rows_max) {
            openings.push(match rows {
                0 => Vec::new(),
                rows => table.open_for(&vec![rows * epoch.order.len(); threads]),
            });
        }
        for list in &mut self.lists {
            list.make_room(epoch.order.len(), epoch.order.len() * widest);
        }
        let mut members = Vec::new();
        for _ in 0..threads {
            let open = openings.iter_mut().map(|of| (!of.is_empty()).then(|| of.remove(0)));
            members.push(Member::new(codes, rooms, epoch, &columns, open.collect(), moves));
        }
        if !members.iter().all(Member::is_fast) {
            return Err("a column has nulls");
        }
        let prepared = pool.now_ns();
        let failed = self.execute(codes, pool, epoch, &mut members, before);
        let executed = pool.now_ns();
        let (openings, parts): (Vec<_>, Vec<_>) = members.into_iter().map(Member::end).unzip();
        if failed {
            let mut by_table: Vec<Vec<Opened<'_>>> = tables_of(openings);
            by_table.drain(..).for_each(Opened::roll_back);
            self.short = true;
            return Err("a transaction needs the general path");
        }
        drop(openings);
        let mut outcome = merge::merge(pool, parts, epoch.order.len());
        let Timing { plan, execute, .. } = self.timing;
        self.timing.prepare = prepared - begun;
        self.timing.finish = (executed - prepared).saturating_sub(plan + execute);
        self.timing.merge = pool.now_ns() - executed;
        outcome.seq = before + epoch.order.len() as Seq;
        Ok(outcome)
    }

    /// Whether lists can execute the epoch at all.
    pub(super) fn check(&self, tables: &[Table], epoch: &Epoch) -> Result<(), &'static str> {
        let codes = &*self.codes;
        for lane in &epoch.lanes {
            let handler = lane.handler as usize;
            let code = &codes.code[handler];
            if matches!(code, Code::General) {
                return Err("a handler needs the general path");
            }
            if code.streams().is_none() || codes.consumed[codes.aborted[handler]] {
                return Err("other handlers take what a handler emits");
            }
        }
        let words = tables.iter().zip(&codes.rows_max).map(|(table, rows)| {
            rows * epoch.order.len() * table.layout().slot_words() * self.lists.len()
        });
        if self.lists.len() > LISTS_MAX || !Planner::can_plan(epoch.order.len()) {
            return Err("there are too many threads or transactions");
        }
        match words.max() {
            Some(words) if words > VERSION_WORDS_MAX => Err("it may have too many versions"),
            _ => Ok(()),
        }
    }

    /// Plans and executes; whether that failed.
    fn execute(
        &mut self,
        codes: &Codes,
        pool: &dyn Pool,
        epoch: &Epoch,
        members: &mut Vec<Member<'_>>,
        before: Seq,
    ) -> bool {
        self.lists.iter_mut().for_each(List::begin);
        let lists = &self.lists[..];
        let appenders: Vec<Appenders<'_>> = lists.iter().map(Appenders::of).collect();
        let shared = Shared {
            codes,
            order: &epoch.order,
            lists,
            pool,
            before,
            failed: AtomicBool::new(false),
        };
        let costs = (&mut self.planning, &mut self.timing);
        let planning = Mutex::new((&mut self.planner, appenders, costs));
        let places: Vec<Mutex<&mut Member<'_>>> = members.iter_mut().map(Mutex::new).collect();
        pool.run(&|number| {
            let mut member = places[number].lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever panics must not leave the others waiting.
            let guard = Failing(&shared);
            if number > 0 {
                member.follow(&shared, number);
            } else {
                let mut planning = planning.lock().unwrap_or_else(PoisonError::into_inner);
                let (planner, appenders, costs) = &mut *planning;
                lead(
                    &shared,
                    &mut member,
                    planner,
                    appenders,
                    costs,
                    (&self.writes, self.by_partition),
                );
            }
            std::mem::forget(guard);
        });
        shared.has_failed()
    }
}

/// Tells all threads to stop when it is dropped.
struct Failing<'s, 'a>(&'s Shared<'a>);

impl Drop for Failing<'_, '_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}

/// Openings by table, of those by thread.
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

/// The first thread: plans a chunk, executes its share of it, and so on.
fn lead(
    shared: &Shared<'_>,
    member: &mut Member<'_>,
    planner: &mut Planner,
    appenders: &mut [Appenders<'_>],
    (cost, timing): &mut (&mut f64, &mut Timing),
    (writes, by_partition): (&[Vec<bool>], bool),
) {
    let stage = |lane: &Lane<'_>| {
        Stage::new(&writes[lane.handler], planner, by_partition.then_some(appenders.len()))
    };
    let mut stages: Vec<Stage> = member.lanes.iter().map(stage).collect();
    let (mut rank, mut waits) = (0, Vec::new());
    let reads = writes.iter().flatten().any(|writes| !writes);
    let mut walk = InList::new(shared, 0);
    let chunks = shared.order.chunks(CHUNK);
    let last = chunks.len().saturating_sub(1);
    for (number, chunk) in chunks.enumerate() {
        if shared.has_failed() {
            break;
        }
        // So many transactions are executed while a chunk is planned.
        let meanwhile = (**cost * chunk.len() as f64) as u64;
        planner.set_load(0, if number == last { meanwhile } else { 2 * meanwhile });
        for (list, appender) in appenders.iter().enumerate().skip(1) {
            planner.set_load(list, (appender.len() - shared.lists[list].done()) as u64);
        }
        let begun = shared.pool.now_ns();
        for ranked in chunk {
            let lane = ranked.lane as usize;
            let (uses, slots) = stages[lane].of(ranked.row as usize, &member.lanes[lane], planner);
            waits.clear();
            let list = match (by_partition, reads) {
                (true, _) => planner.place_in_partition(uses, &mut waits),
                (false, true) => planner.place::<true>(uses, &mut waits),
                (false, false) => planner.place::<false>(uses, &mut waits),
            };
            appenders[list].push(rank, *ranked, slots, &waits);
            rank += 1;
        }
        match number == last {
            true => appenders.iter().for_each(Appenders::close),
            false => appenders.iter().for_each(Appenders::publish),
        }
        let planned = shared.pool.now_ns();
        let mine = appenders[0].len() - shared.lists[0].done();
        member.walk(shared, &mut walk, shared.lists[0].published());
        let executed = shared.pool.now_ns();
        timing.plan += planned - begun;
        timing.execute += executed - planned;
        timing.executed += mine as u64;
        if mine > 0 && executed > planned {
            let a_plan = (planned - begun) as f64 / chunk.len() as f64;
            let an_execution = (executed - planned) as f64 / mine as f64;
            **cost = (**cost * 0.9 + 0.1 * a_plan / an_execution).min(2.0);
        }
    }
    timing.wait = walk.waited_ns;
    if shared.order.is_empty() {
        appenders.iter().for_each(Appenders::close);
    }
}
