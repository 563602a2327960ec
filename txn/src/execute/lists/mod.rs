//! Lists: every thread walks a list of its own, [in place](super::in_place), and waits for the
//! others where it must.
//!
//! The first thread plans chunk by chunk, and executes its own list in between. The others begin
//! with the first chunk. A transaction has its turn only when the earlier users of its rows are
//! done. Only some chunks are planned ahead. So the plan is as large as these, and not as the
//! epoch.

mod done;
mod feed;
mod merge;
mod stage;
mod walk;

pub(crate) use self::walk::InList;

use std::sync::{Arc, Mutex, PoisonError};

use tidemill_table::{Seq, Table};

use self::stage::Stage;
use self::walk::{Appenders, List};
use super::codes::Codes;
use super::in_place::{on_seats, Halt, InPlace, Member, Task};
use super::lane::Lane;
use super::segment::Turns;
use super::sink::Sink;
use super::timing::Timing;
use crate::order::Ranked;
use crate::plan::lists::{Planner, Use, LISTS_MAX};
use crate::pool::{self, Pool};

/// The number of transactions that are planned at a time.
const CHUNK: usize = 256;

/// The number of unfinished chunks for each list, including the chunk that is being planned. Their
/// data fits into a core's cache.
const CHUNKS: usize = 4;

/// The data that all threads share.
struct Shared<'s> {
    codes: &'s Codes,
    order: &'s [Ranked],
    /// The rank of the first transaction.
    first: usize,
    /// The number of transactions that are planned at a time.
    chunk: usize,
    lists: &'s [List],
    pool: &'s dyn Pool,
    /// The number of the transaction before the first one.
    before: Seq,
    halt: Halt,
}

/// The executor of epochs in lists.
pub(super) struct Lists {
    in_place: InPlace,
    planner: Planner,
    /// The number of transactions that are planned at a time.
    chunk: usize,
    lists: Vec<List>,
    /// Whether rows are planned by their partitions, of which there is one for each thread.
    by_partition: bool,
    /// The cost of planning a transaction, as a multiple of executing one.
    planning: f64,
    pub(super) timing: Timing,
}

impl Lists {
    pub(super) fn new(codes: Arc<Codes>, threads: usize, by_partition: bool) -> Lists {
        Lists {
            in_place: InPlace::new(codes, threads),
            planner: Planner::new(threads.min(LISTS_MAX)),
            chunk: CHUNK,
            lists: (0..threads).map(|_| List::default()).collect(),
            by_partition,
            planning: 0.3,
            timing: Timing::default(),
        }
    }

    /// Plans few transactions at a time, so that the room of the lists is reused many times even in
    /// a short epoch: for tests.
    pub(super) fn with_small_limits(self) -> Lists {
        const CHUNK: usize = 4;
        Lists { chunk: CHUNK, ..self }
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
        let (ranks, transactions) = (section.ranks.clone(), section.ranks.len());
        if self.lists.len() > LISTS_MAX || !Planner::can_plan(transactions) {
            return Err("there are too many threads or transactions");
        }
        let [rows, widest] = self.in_place.rows_of(section.epoch, Use::GROUP);
        if rows > u32::MAX as usize {
            return Err("its transactions use too many rows");
        }
        let at_a_time = transactions.min(self.chunk * CHUNKS * self.lists.len());
        let rows = rows.min(at_a_time * widest);
        self.planner.begin(transactions, rows);
        for list in &mut self.lists {
            list.make_room(at_a_time, rows);
            list.begin();
        }
        let Lists { in_place, planner, chunk, lists, by_partition, planning, timing } = self;
        *timing = Timing::default();
        let (codes, writes) = (in_place.codes.clone(), in_place.writes.clone());
        let mut parts = in_place.run(task, tables, None, |seats| {
            let appenders: Vec<Appenders<'_>> = lists.iter().map(Appenders::of).collect();
            let shared = Shared {
                codes: &codes,
                order: section.order(),
                first: ranks.start,
                chunk: *chunk,
                lists,
                pool,
                before,
                halt: Halt::default(),
            };
            let prepared = pool.now_ns();
            let leading = Mutex::new((planner, appenders, (planning, &mut *timing)));
            on_seats(pool, &shared.halt, seats, |member, number| {
                if number > 0 {
                    follow(&shared, member, number);
                } else {
                    let mut leading = leading.lock().unwrap_or_else(PoisonError::into_inner);
                    let (planner, appenders, costs) = &mut *leading;
                    let how = (&writes[..], *by_partition);
                    lead(&shared, member, planner, appenders, costs, how);
                }
            });
            drop(leading);
            timing.prepare = prepared - begun;
            timing.finish = (pool.now_ns() - prepared).saturating_sub(timing.plan + timing.execute);
            !shared.halt.is_set()
        })?;
        let executed = pool.now_ns();
        merge::merge(pool, &mut parts, &ranks, out);
        self.in_place.keep(parts);
        self.timing.merge = pool.now_ns() - executed;
        Ok(())
    }
}

/// Runs another thread: it walks its list to the end, while the list is built.
fn follow(shared: &Shared<'_>, member: &mut Member<'_>, list: usize) {
    let mut walk = InList::new(shared, list);
    let made = &shared.lists[list];
    loop {
        let mut closed = false;
        pool::wait(shared.pool, || {
            closed = made.is_closed() || shared.halt.is_set();
            closed || made.published() > walk.at as usize
        });
        execute(shared, member, &mut walk, made.published());
        if shared.halt.is_set() || (closed && walk.at as usize == made.published()) {
            return;
        }
    }
}

/// Continues to a position of a list that has been published.
fn execute<'s>(shared: &'s Shared<'_>, member: &mut Member<'_>, walk: &mut InList<'s>, end: usize) {
    walk.go_to(end);
    let mut turns = Turns::InList(*walk);
    // SAFETY: a transaction has its turn when all earlier users of its rows are done, and no later
    // user begins before it is done.
    if !unsafe { member.walk(shared.codes, &mut turns) } {
        shared.halt.set();
    }
    if let Turns::InList(now) = turns {
        *walk = now;
    }
}

/// Runs the first thread: it plans a chunk, executes its share of it, and so on.
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
    let at_a_time = CHUNKS * appenders.len();
    let chunks = shared.order.chunks(shared.chunk);
    let last = chunks.len().saturating_sub(1);
    for (number, chunk) in chunks.enumerate() {
        let waiting = shared.pool.now_ns();
        for appender in appenders.iter_mut() {
            pool::wait(shared.pool, || shared.halt.is_set() || appender.make_room(at_a_time));
        }
        if shared.halt.is_set() {
            break;
        }
        planner.set_done((number + 1).saturating_sub(at_a_time) * shared.chunk);
        // The number of transactions that are executed while a chunk is planned.
        let meanwhile = (**cost * chunk.len() as f64) as u64;
        planner.set_load(0, if number == last { meanwhile } else { 2 * meanwhile });
        for (list, appender) in appenders.iter().enumerate().skip(1) {
            planner.set_load(list, (appender.len() - shared.lists[list].done()) as u64);
        }
        let begun = shared.pool.now_ns();
        walk.waited_ns += begun - waiting;
        timing.execute += begun - waiting;
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
            false => appenders.iter_mut().for_each(Appenders::publish),
        }
        let planned = shared.pool.now_ns();
        let mine = appenders[0].len() - shared.lists[0].done();
        execute(shared, member, &mut walk, shared.lists[0].published());
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
