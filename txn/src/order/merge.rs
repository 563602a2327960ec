//! Merges the events of runs into stamp order, on all threads.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::epoch::{Lane, Ranked, Run, PIECE};
use crate::pool::Pool;

/// Returns the transactions of runs in stamp order. Each run is in stamp order already.
pub(super) fn order(pool: &dyn Pool, runs: &[Run], lanes: &[Lane]) -> Vec<Ranked> {
    let one_each = lanes.windows(2).all(|w| w[0].run != w[1].run);
    if one_each && runs.iter().all(|r| r.admitted.is_none()) {
        match &chains(runs, lanes)[..] {
            [] => Vec::new(),
            [only] => concatenated(runs, lanes, only),
            [a, b] => merge_two(pool, runs, lanes, a, b),
            _ => sort(runs, lanes),
        }
    } else {
        sort(runs, lanes)
    }
}

/// Returns the events of a lane, in order.
fn ranked(lane: usize, run: &Run) -> impl Iterator<Item = Ranked> {
    (0..run.times.len() as u32).map(move |row| Ranked { lane: lane as u32, row })
}

/// Returns the events of lanes, lane after lane.
fn concatenated(runs: &[Run], lanes: &[Lane], chain: &[usize]) -> Vec<Ranked> {
    let run = |lane: usize| &runs[lanes[lane].run as usize];
    let mut order = Vec::with_capacity(chain.iter().map(|lane| run(*lane).times.len()).sum());
    // Each lane's number of events is known, so the compiler can write several at a time.
    chain.iter().for_each(|lane| order.extend(ranked(*lane, run(*lane))));
    order
}

/// Concatenates lanes whose events all come before those of the next: buffered events come before
/// new ones. Returns few chains, each in stamp order. They are not always as few as possible.
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

/// The ratio of lengths above which the events of the shorter run are searched in the longer one.
const FEW: usize = 16;

/// Returns the first of `count` places from which on a condition holds. It finds near places
/// faster.
fn rising(count: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut step) = (0, 1);
    while low + step <= count && !holds(low + step - 1) {
        low += step;
        step *= 2;
    }
    // The condition does not hold below `low`.
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

/// Merges two chains in order without branches that depend on the data, which the processor could
/// not predict.
pub(super) fn merge_two(
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
        // order of handlers.
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
            // Each of the few events is searched among the many.
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
            merge_in_parts(pool, [i..na, j..nb], &b_is_first, &ranked, &mut order);
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

/// Appends the merge of the rest of two runs to the order. Each thread makes a piece of the result.
/// `b_is_first` says whether a row of the second run comes before one of the first. `ranked`
/// returns the transaction of a row of either run.
fn merge_in_parts(
    pool: &dyn Pool,
    [a, b]: [Range<usize>; 2],
    b_is_first: &(impl Fn(usize, usize) -> bool + Sync),
    ranked: &(impl Fn(bool, usize, usize) -> Ranked + Sync),
    order: &mut Vec<Ranked>,
) {
    let (before, len) = (order.len(), a.len() + b.len());
    let pieces = pool.threads().min(len / PIECE).max(1);
    // The number of the first run's rows among the first `first` rows of both.
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
    // SAFETY: the pieces have `len` items together, and each has been written to its end. A panic
    // in a piece also ends this thread.
    unsafe { order.set_len(before + len) };
}

/// Merges two runs into a slice of exactly their length, from both ends at once. The steps of one
/// end depend on each other, but not on those of the other end.
fn merge_from_both_ends(
    a: Range<usize>,
    b: Range<usize>,
    b_is_first: &impl Fn(usize, usize) -> bool,
    ranked: &impl Fn(bool, usize, usize) -> Ranked,
    into: &mut [MaybeUninit<Ranked>],
) {
    assert_eq!(into.len(), a.len() + b.len(), "the slice has the length of both runs");
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

/// Merges in the general case. The standard library's stable sort finds ordered runs and merges
/// them.
pub(super) fn sort(runs: &[Run], lanes: &[Lane]) -> Vec<Ranked> {
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
