//! The order of an epoch, and its sections.

use std::sync::Arc;

use tidemill_core::{Batch, Column, DataType, Schema, SourceId, StreamId, Value};

use super::epoch::{Epoch, Lane, Run};
use super::merge::{merge_two, sort};
use crate::pool::Pool;

/// A pool that runs its threads one after the other, for work that does not wait.
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

/// Returns a run of a stream with these times. Its rows are even numbers.
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

/// Returns random numbers below a limit.
fn dice(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    }
}

#[test]
fn two_runs_are_merged_as_they_are_sorted() {
    let mut roll = dice(7);
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
        // Buffered events come before new ones, in runs of their own.
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

/// Covers equal times, decided by rows, and times as far apart as possible.
#[test]
fn a_run_is_in_order_where_each_pair_is() {
    let mut roll = dice(5);
    let mut found = [0, 0];
    for len in (0..40).chain(250..264).chain(508..520).cycle().take(2_000) {
        let spread = 1 + roll(3 * len + 2);
        let far = [i64::MIN, -1, 0, i64::MAX - spread as i64][roll(4) as usize];
        let mut times: Vec<i64> = (0..len).map(|_| far + roll(spread) as i64).collect();
        times.sort_unstable();
        if roll(4) == 0 {
            times.extend([i64::MIN, i64::MAX, 0].iter().take(roll(4) as usize));
        }
        let mut run = run(0, 0, times);
        if len > 1 && roll(2) == 0 {
            let at = roll(len - 1) as usize;
            run.offsets.swap(at, at + 1);
        }
        let stamps: Vec<_> = (0..run.times.len()).map(|row| run.stamp(row)).collect();
        let is_in_order = stamps.windows(2).all(|pair| pair[0] < pair[1]);
        assert_eq!(run.is_in_order(), is_in_order, "{:?} {:?}", run.times, run.offsets);
        found[usize::from(is_in_order)] += 1;
    }
    assert!(found.iter().all(|found| *found > 300), "{found:?}");
}

/// Two handlers on one stream and one on another, of which one has a late run. Sections are
/// consecutive and never split an event.
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
            assert!(section.ranks.start == at && end >= all.min(at + len), "{len}: {section:?}");
            assert!(end == all || stamp(end) != stamp(end - 1), "{len}: {end}");
            assert!(end <= at + len + 1, "an event has two handlers at most");
            at = end;
        }
    }
    assert_eq!(epoch.section(0, all).ranks, epoch.whole().ranks);
}
