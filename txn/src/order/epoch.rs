//! An epoch: runs of events, ranked.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidemill_core::stamp::Admission;
use tidemill_core::{Batch, Position, SourceId, Stamp, StreamId};

use super::batches::Closing;
use crate::pool::{Alone, Pool};
use crate::program::{Answers, Program};

/// Events of one stream from one source, by column.
#[derive(Clone, Debug)]
pub struct Run {
    /// The stream that the events are on (after map and filter).
    pub stream: StreamId,
    /// The source partition.
    pub source: SourceId,
    /// The events.
    pub batch: Batch,
    /// Per event: its row in the source.
    pub offsets: Vec<u64>,
    /// Per event: its time, or its admission's when admitted.
    pub times: Vec<i64>,
    /// Set for events that stand at a watermark instead of their own place: the watermark, and
    /// the epoch that admitted them.
    pub admitted: Option<(Position, u64)>,
}

impl Run {
    /// The stamp of an event.
    pub fn stamp(&self, row: usize) -> Stamp {
        let (source, offset) = (self.source, self.offsets[row]);
        match self.admitted {
            Some((at, epoch)) => Stamp::admitted(at, Admission { epoch, source, offset }),
            None => Stamp::of(self.position(row)),
        }
    }

    /// The event's own place among the input events.
    pub fn position(&self, row: usize) -> Position {
        Position { time_us: self.times[row], source: self.source, offset: self.offsets[row] }
    }

    /// The events at these rows.
    pub fn take(&self, rows: &[u32]) -> Run {
        let batch = self.batch.take(rows);
        let offsets = rows.iter().map(|r| self.offsets[*r as usize]).collect();
        let times = rows.iter().map(|r| self.times[*r as usize]).collect();
        Run { batch, offsets, times, ..*self }
    }

    /// Whether its events are in stamp order. Admitted events have one time, and so are in order
    /// of rows.
    pub(crate) fn is_in_order(&self) -> bool {
        self.are_in_order(0..self.times.len())
    }

    /// The same, where every thread looks at a part: it is the first look at the events, which are still in memory.
    pub(crate) fn is_in_order_by(&self, pool: &dyn Pool) -> bool {
        let len = self.times.len();
        let parts = pool.threads().min(len / PIECE);
        if parts < 2 {
            return self.is_in_order();
        }
        let is_in_order = AtomicBool::new(true);
        pool.run(&|part| {
            // With the first one of the next part.
            let rows = len * part / parts..len.min(len * (part + 1) / parts + 1);
            if part < parts && !self.are_in_order(rows) {
                is_in_order.store(false, Ordering::Relaxed);
            }
        });
        is_in_order.into_inner()
    }

    fn are_in_order(&self, rows: Range<usize>) -> bool {
        let (times, offsets) = (&self.times[rows.clone()], &self.offsets[rows]);
        // By the block and without branches: almost every run is in order.
        let pairs = times.windows(2).zip(offsets.windows(2));
        let rising = |(t, o): (&[i64], &[u64])| (t[0] < t[1]) | ((t[0] == t[1]) & (o[0] < o[1]));
        pairs.fold(true, |all, pair| all & rising(pair))
    }

    /// Puts its events in stamp order.
    pub(crate) fn put_in_order(&mut self) {
        if !self.is_in_order() {
            let mut rows: Vec<u32> = (0..self.times.len() as u32).collect();
            self.sort_rows(&mut rows);
            *self = self.take(&rows);
        }
    }

    /// Puts rows in the order of their events' stamps.
    pub(crate) fn sort_rows(&self, rows: &mut [u32]) {
        rows.sort_by_key(|&r| (self.times[r as usize], self.offsets[r as usize]));
    }

    /// Of a run in order, the row of the first event at or beyond a place.
    pub(crate) fn first_from(&self, place: Position) -> usize {
        let from = self.times.partition_point(|t| *t < place.time_us);
        let ties = self.times[from..].partition_point(|t| *t == place.time_us);
        // Among equal times the source decides, then the row.
        let at = |offset: &u64| (self.source, *offset) < (place.source, place.offset);
        from + self.offsets[from..from + ties].partition_point(at)
    }

    /// Takes away the events from `row` on, without a copy of the others.
    pub(crate) fn split_off(&mut self, row: usize) -> Run {
        let rest = self.slice(row, self.offsets.len() - row);
        self.batch = self.batch.slice(0, row);
        self.offsets.truncate(row);
        self.times.truncate(row);
        rest
    }

    /// The events from `start` on, `len` of them.
    pub fn slice(&self, start: usize, len: usize) -> Run {
        Run {
            batch: self.batch.slice(start, len),
            offsets: self.offsets[start..start + len].to_vec(),
            times: self.times[start..start + len].to_vec(),
            ..*self
        }
    }
}

/// Transactions of an epoch that follow one another in its order.
#[derive(Clone, Debug)]
pub(crate) struct Section<'e> {
    /// The epoch.
    pub(crate) epoch: &'e Epoch,
    /// Their places in its order.
    pub(crate) ranks: Range<usize>,
}

impl<'e> Section<'e> {
    /// The transactions.
    pub(crate) fn order(&self) -> &'e [Ranked] {
        &self.epoch.order[self.ranks.clone()]
    }
}

/// A run as one handler sees it: each of its events is one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Index of the run.
    pub run: u32,
    /// Index of the handler.
    pub handler: u32,
}

/// A transaction of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Index of the lane.
    pub lane: u32,
    /// The event's row in the lane's run.
    pub row: u32,
}

/// Events in stamp order, ready to be executed.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// The events.
    pub runs: Vec<Run>,
    /// Runs by handler, in the handlers' declaration order within a run.
    pub lanes: Vec<Lane>,
    /// One entry for each transaction of an input event, in stamp order; the handlers on one
    /// event in declaration order.
    pub order: Vec<Ranked>,
    /// The clock of the cut, in microseconds since 1970.
    pub clock_us: i64,
    /// The events that are the last of their batches.
    pub closings: BTreeSet<Closing>,
    /// What its transactions ask of outside. Whoever executes it again gives it what it was told.
    pub answers: Arc<Answers>,
}

impl Epoch {
    /// Ranks events. They may come in any order, in runs and within them; afterwards each run is
    /// in stamp order, so that every lane is walked from front to back.
    pub fn rank(program: &Program, mut runs: Vec<Run>) -> Epoch {
        runs.iter_mut().for_each(Run::put_in_order);
        Epoch::rank_in_order(&Alone, program, runs)
    }

    /// Ranks events of runs each of which is in stamp order.
    pub(crate) fn rank_in_order(pool: &dyn Pool, program: &Program, runs: Vec<Run>) -> Epoch {
        debug_assert!(runs.iter().all(Run::is_in_order));
        let mut lanes = Vec::new();
        for (run, events) in runs.iter().enumerate() {
            for handler in program.handlers_on(events.stream) {
                lanes.push(Lane { run: run as u32, handler: handler as u32 });
            }
        }
        let one_each = lanes.windows(2).all(|w| w[0].run != w[1].run);
        let order = if one_each && runs.iter().all(|r| r.admitted.is_none()) {
            match &chains(&runs, &lanes)[..] {
                [] => Vec::new(),
                [only] => {
                    let all = only.iter().flat_map(|l| ranked(*l, &runs[lanes[*l].run as usize]));
                    all.collect()
                }
                [a, b] => merge_two(pool, &runs, &lanes, a, b),
                _ => sort(&runs, &lanes),
            }
        } else {
            sort(&runs, &lanes)
        };
        Epoch { runs, lanes, order, ..Epoch::default() }
    }

    /// Leaves out events: nobody takes them, and their batches go without.
    pub fn leave_out(&mut self, events: &BTreeSet<(SourceId, u64)>) {
        let (runs, lanes) = (&self.runs, &self.lanes);
        let event = |ranked: &Ranked| {
            let run = &runs[lanes[ranked.lane as usize].run as usize];
            (run.stream, run.source, run.offsets[ranked.row as usize])
        };
        // The last one that stays of a batch is its last; where none does, there is no batch.
        let mut last: Option<Closing> = None;
        for stream in self.closings.iter().map(|closing| closing.0).collect::<BTreeSet<_>>() {
            for at in self.order.iter().map(event).filter(|at| at.0 == stream) {
                let stays = !events.contains(&(at.1, at.2));
                let closes = self.closings.contains(&at);
                last = if stays { Some(at) } else { last };
                if closes {
                    self.closings.remove(&at);
                    self.closings.extend(last.take());
                }
            }
            last = None;
        }
        self.order.retain(|ranked| {
            let (_, source, offset) = event(ranked);
            !events.contains(&(source, offset))
        });
    }

    /// All its transactions.
    pub(crate) fn whole(&self) -> Section<'_> {
        Section { epoch: self, ranks: 0..self.order.len() }
    }

    /// So many transactions from `start` on, or some more: the handlers on one event stay together.
    pub(crate) fn section(&self, start: usize, transactions: usize) -> Section<'_> {
        let mut end = (start + transactions).min(self.order.len());
        let event = |at: usize| {
            let Ranked { lane, row } = self.order[at];
            (self.lanes[lane as usize].run, row)
        };
        while start < end && end < self.order.len() && event(end) == event(end - 1) {
            end += 1;
        }
        Section { epoch: self, ranks: start..end }
    }

    /// Number of input events.
    pub fn events(&self) -> usize {
        self.runs.iter().map(|r| r.batch.len()).sum()
    }

    /// The time in the stamp of a transaction's input event.
    pub fn time_us(&self, ranked: Ranked) -> i64 {
        let run = &self.runs[self.lanes[ranked.lane as usize].run as usize];
        run.admitted.map_or(run.times[ranked.row as usize], |(at, _)| at.time_us)
    }

    /// A transaction's input event: its source, and its row there.
    pub fn event(&self, ranked: Ranked) -> (SourceId, u64) {
        let run = &self.runs[self.lanes[ranked.lane as usize].run as usize];
        (run.source, run.offsets[ranked.row as usize])
    }

    /// The stamp of a transaction's input event.
    pub fn stamp(&self, ranked: Ranked) -> Stamp {
        let lane = self.lanes[ranked.lane as usize];
        self.runs[lane.run as usize].stamp(ranked.row as usize)
    }
}

/// The events of a lane, in order.
fn ranked(lane: usize, run: &Run) -> impl Iterator<Item = Ranked> {
    (0..run.times.len() as u32).map(move |row| Ranked { lane: lane as u32, row })
}

/// Lanes put one behind the other where all events of the one come before all of the other: what
/// was parked comes before what is new. As few chains as come easily, each in stamp order.
fn chains(runs: &[Run], lanes: &[Lane]) -> Vec<Vec<usize>> {
    let run = |lane: usize| &runs[lanes[lane].run as usize];
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for lane in 0..lanes.len() {
        let Some(last) = run(lane).times.len().checked_sub(1) else { continue };
        let first = run(lane).position(0);
        let follows = |chain: &&mut Vec<usize>| {
            let before = *chain.last().expect("no chain is empty");
            let end = run(before).times.len() - 1;
            run(before).position(end) < first && run(before).source == run(lane).source
        };
        debug_assert!(run(lane).position(last) >= first);
        match chains.iter_mut().find(follows) {
            Some(chain) => chain.push(lane),
            None => chains.push(vec![lane]),
        }
    }
    chains
}

/// Fewer events are looked at, or merged, before another thread has begun.
const PIECE: usize = 1024;

/// Of two runs one is looked for in the other where that has more than so many times as many events.
const FEW: usize = 16;

/// The first of so many places from which on something holds; near ones are found sooner.
fn rising(count: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut step) = (0, 1);
    while low + step <= count && !holds(low + step - 1) {
        low += step;
        step *= 2;
    }
    // What is below `low` does not hold.
    let mut high = count.min(low + step);
    while low < high {
        let middle = low + (high - low) / 2;
        match holds(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

/// Merges two chains in order without a branch that depends on the data: which comes next is not
/// to be predicted.
fn merge_two(
    pool: &dyn Pool,
    runs: &[Run],
    lanes: &[Lane],
    a: &[usize],
    b: &[usize],
) -> Vec<Ranked> {
    let run = |lane: usize| &runs[lanes[lane].run as usize];
    let total = a.iter().chain(b).map(|l| run(*l).times.len()).sum();
    let mut order = Vec::with_capacity(total);
    let (mut i, mut j) = (0, 0);
    let (mut a, mut b) = (a, b);
    while let (Some(&la), Some(&lb)) = (a.first(), b.first()) {
        let (ra, rb) = (run(la), run(lb));
        let (na, nb) = (ra.times.len(), rb.times.len());
        // Among equal times the source decides, then (one source, two streams) the row, then the
        // handlers' order.
        let tie = ra.source.cmp(&rb.source);
        let own = lanes[la].handler.cmp(&lanes[lb].handler);
        let by_rows = tie.is_eq();
        let (ta, tb) = (&ra.times[..], &rb.times[..]);
        let b_is_first = |i: usize, j: usize| {
            if by_rows {
                let rows = ra.offsets[i].cmp(&rb.offsets[j]);
                (tb[j] < ta[i]) | ((tb[j] == ta[i]) & rows.then(own).is_gt())
            } else {
                (tb[j] < ta[i]) | ((tb[j] == ta[i]) & tie.is_gt())
            }
        };
        let ranked = |is_b: bool, i: usize, j: usize| {
            let (lane, row) = if is_b { (lb, j) } else { (la, i) };
            Ranked { lane: lane as u32, row: row as u32 }
        };
        let (left_a, left_b) = (na - i, nb - j);
        let is_few = left_a.max(left_b) > FEW * left_a.min(left_b);
        if let ([_], [_], true) = (a, b, is_few) {
            // The few are looked for among the many.
            let few_are_b = left_b < left_a;
            let (few, (mut from, many)) = match few_are_b {
                true => (j..nb, (i, na)),
                false => (i..na, (j, nb)),
            };
            let comes_first = |few: usize, many: usize| match few_are_b {
                true => b_is_first(many, few),
                false => !b_is_first(few, many),
            };
            for nth in few {
                let behind = from + rising(many - from, |at| comes_first(nth, from + at));
                order.extend((from..behind).map(|row| ranked(!few_are_b, row, row)));
                order.push(ranked(few_are_b, nth, nth));
                from = behind;
            }
            order.extend((from..many).map(|row| ranked(!few_are_b, row, row)));
            return order;
        }
        if let ([_], [_]) = (a, b) {
            merge_in_pieces(pool, [i..na, j..nb], &b_is_first, &ranked, &mut order);
            return order;
        }
        while i < na && j < nb {
            let is_b = b_is_first(i, j);
            order.push(ranked(is_b, i, j));
            (i, j) = (i + usize::from(!is_b), j + usize::from(is_b));
        }
        if i == na {
            (a, i) = (&a[1..], 0);
        }
        if j == nb {
            (b, j) = (&b[1..], 0);
        }
    }
    for (lanes_left, first) in [(a, i), (b, j)] {
        for (nth, &lane) in lanes_left.iter().enumerate() {
            let from = if nth == 0 { first } else { 0 };
            let rows = from..run(lane).times.len();
            order.extend(rows.map(|row| Ranked { lane: lane as u32, row: row as u32 }));
        }
    }
    order
}

/// Merges the rest of two runs behind what is in order already: every thread a piece of what comes out. `b_is_first`
/// says whether a row of the second run comes before one of the first, and `ranked` which transaction one of either is.
fn merge_in_pieces(
    pool: &dyn Pool,
    [a, b]: [Range<usize>; 2],
    b_is_first: &(impl Fn(usize, usize) -> bool + Sync),
    ranked: &(impl Fn(bool, usize, usize) -> Ranked + Sync),
    order: &mut Vec<Ranked>,
) {
    let (before, len) = (order.len(), a.len() + b.len());
    let pieces = pool.threads().min(len / PIECE).max(1);
    // How many of the first run are among the first so many of both.
    let of_a = |first: usize| {
        let (mut low, mut high) = (first.saturating_sub(b.len()), first.min(a.len()));
        while low < high {
            let middle = low + (high - low) / 2;
            match b_is_first(a.start + middle, b.start + first - middle - 1) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low
    };
    let place = |piece: usize| {
        let first = len * piece / pieces;
        let of_a = if piece == pieces { a.len() } else { of_a(first) };
        [a.start + of_a, b.start + first - of_a]
    };
    let mut rest = &mut order.spare_capacity_mut()[..len];
    let mut from = place(0);
    let mut cut = |piece: usize| {
        let to = place(piece + 1);
        let [i, j] = std::mem::replace(&mut from, to);
        let (first, behind) = std::mem::take(&mut rest).split_at_mut(to[0] - i + to[1] - j);
        rest = behind;
        Mutex::new((i..to[0], j..to[1], first))
    };
    let work: Vec<_> = (0..pieces).map(&mut cut).collect();
    let merge = |piece: usize| {
        let mut piece = work[piece].lock().unwrap_or_else(PoisonError::into_inner);
        let (a, b, into) = &mut *piece;
        merge_from_both_ends(a.clone(), b.clone(), b_is_first, ranked, into);
    };
    match pieces {
        1 => merge(0),
        _ => pool.run(&|thread| {
            if thread < pieces {
                merge(thread);
            }
        }),
    }
    drop(work);
    // SAFETY: the pieces are `len` items together, and each has been written to its end: whoever panics meanwhile takes
    // this thread along.
    unsafe { order.set_len(before + len) };
}

/// Merges two runs into what has room for just both, from both ends at once: each step waits for the one before it, but not for those at the
/// other end.
fn merge_from_both_ends(
    a: Range<usize>,
    b: Range<usize>,
    b_is_first: &impl Fn(usize, usize) -> bool,
    ranked: &impl Fn(bool, usize, usize) -> Ranked,
    into: &mut [MaybeUninit<Ranked>],
) {
    assert_eq!(into.len(), a.len() + b.len(), "there is room for just both");
    let (mut i, mut j, mut i_end, mut j_end) = (a.start, b.start, a.end, b.end);
    let (mut at, mut end) = (0, into.len());
    while i + 1 < i_end && j + 1 < j_end {
        let is_b = b_is_first(i, j);
        into[at].write(ranked(is_b, i, j));
        let last_is_a = b_is_first(i_end - 1, j_end - 1);
        into[end - 1].write(ranked(!last_is_a, i_end - 1, j_end - 1));
        (at, end) = (at + 1, end - 1);
        (i, j) = (i + usize::from(!is_b), j + usize::from(is_b));
        i_end -= usize::from(last_is_a);
        j_end -= usize::from(!last_is_a);
    }
    while at < end {
        let is_b = i == i_end || (j < j_end && b_is_first(i, j));
        into[at].write(ranked(is_b, i, j));
        at += 1;
        (i, j) = (i + usize::from(!is_b), j + usize::from(is_b));
    }
}

/// The general case. The standard library's stable sort finds runs in order and merges them.
fn sort(runs: &[Run], lanes: &[Lane]) -> Vec<Ranked> {
    let mut order = Vec::new();
    if runs.iter().all(|r| r.admitted.is_none()) {
        let mut keyed = Vec::new();
        for (index, lane) in lanes.iter().enumerate() {
            let run = &runs[lane.run as usize];
            for row in 0..run.times.len() {
                let ranked = Ranked { lane: index as u32, row: row as u32 };
                keyed.push((run.times[row], run.source, run.offsets[row], lane.handler, ranked));
            }
        }
        keyed.sort_by_key(|k| (k.0, k.1, k.2, k.3));
        order.extend(keyed.into_iter().map(|k| k.4));
    } else {
        let mut keyed = Vec::new();
        for (index, lane) in lanes.iter().enumerate() {
            let run = &runs[lane.run as usize];
            for row in 0..run.times.len() {
                let ranked = Ranked { lane: index as u32, row: row as u32 };
                keyed.push(((run.stamp(row), lane.handler), ranked));
            }
        }
        keyed.sort_by(|a, b| a.0.cmp(&b.0));
        order.extend(keyed.into_iter().map(|k| k.1));
    }
    order
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, Schema, Value};

    use super::*;

    /// So many threads, one after the other: for those who do not wait for one another.
    struct Pieces(usize);

    impl Pool for Pieces {
        fn threads(&self) -> usize {
            self.0
        }

        fn run(&self, work: &(dyn Fn(usize) + Sync)) {
            (0..self.0).for_each(work);
        }

        fn pause(&self) {}

        fn now_ns(&self) -> u64 {
            0
        }
    }

    /// A run of a stream with these times, whose rows are by two apart.
    fn run(stream: u16, source: u32, times: Vec<i64>) -> Run {
        let schema = Arc::new(Schema::new(vec![Column::new("n", DataType::Int)]));
        let rows: Vec<[Value; 1]> = times.iter().map(|time| [Value::Int(*time)]).collect();
        Run {
            stream: StreamId(stream),
            source: SourceId(source),
            batch: Batch::from_rows(schema, rows.iter().map(|row| &row[..])),
            offsets: (0..times.len() as u64).map(|nth| 2 * nth + u64::from(stream)).collect(),
            times,
            admitted: None,
        }
    }

    #[test]
    fn two_runs_are_merged_as_they_are_sorted() {
        let mut dice = 7u64;
        let mut roll = |below: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 33) % below
        };
        for round in 0..400 {
            let few = if round % 2 == 0 { roll(90) } else { roll(200) };
            let spread = [30, 100_000][round % 2];
            let mut times = |count: u64| {
                let mut times: Vec<i64> = (0..count).map(|_| roll(spread) as i64).collect();
                times.sort_unstable();
                times
            };
            let (few, many) = (times(few), times(3_000));
            let sources = [(0, 0), (0, 1), (1, 0)][round % 3];
            let mut runs = vec![run(0, sources.0, few), run(1, sources.1, many)];
            if round % 5 < 2 {
                runs.swap(0, 1);
            }
            let mut lanes = vec![Lane { run: 0, handler: 1 }, Lane { run: 1, handler: 0 }];
            // What was parked comes before what is new, in runs of its own.
            let mut chains = [vec![0], vec![1]];
            for (of, chain) in chains.iter_mut().enumerate() {
                let rows = runs[of].times.len();
                let rest = runs[of].split_off(rows / 2);
                lanes.push(Lane { run: runs.len() as u32, ..lanes[of] });
                chain.push(runs.len());
                runs.push(rest);
                chain.retain(|lane| !runs[*lane].times.is_empty());
            }
            let [a, b] = &chains;
            let pool = Pieces([1, 2, 5][round % 3]);
            assert_eq!(merge_two(&pool, &runs, &lanes, a, b), sort(&runs, &lanes), "{round}");
        }
    }

    #[test]
    fn who_looks_by_parts_finds_what_is_out_of_order() {
        for at in [0, 1, 1_999, 2_000, 2_001, 4_000, 4_999, 5_000] {
            let mut run = run(0, 0, (0..5_001).collect());
            assert!(run.is_in_order_by(&Pieces(4)));
            if at > 0 {
                run.times.swap(at - 1, at);
                assert!(!run.is_in_order_by(&Pieces(4)), "{at}");
            }
        }
    }

    /// Two handlers on one stream and one on another, of which one has a run that is late: sections follow one
    /// another, and divide no event.
    #[test]
    fn no_section_divides_an_event() {
        let runs =
            vec![run(0, 0, (0..40).collect()), run(1, 1, vec![3, 9, 9, 33]), run(0, 2, vec![38])];
        let on = |run, handler| Lane { run, handler };
        let lanes = vec![on(0, 0), on(0, 2), on(1, 1), on(2, 0), on(2, 2)];
        let order = sort(&runs, &lanes);
        let epoch = Epoch { runs, lanes, order, ..Epoch::default() };
        let all = epoch.order.len();
        let stamp = |at: usize| epoch.stamp(epoch.order[at]);
        for len in 1..all {
            let mut at = 0;
            while at < all {
                let section = epoch.section(at, len);
                let end = section.ranks.end;
                assert!(
                    section.ranks.start == at && end >= all.min(at + len),
                    "{len}: {section:?}"
                );
                assert!(end == all || stamp(end) != stamp(end - 1), "{len}: {end}");
                assert!(end <= at + len + 1, "an event has two handlers at most");
                at = end;
            }
        }
        assert_eq!(epoch.section(0, all).ranks, epoch.whole().ranks);
    }
}
