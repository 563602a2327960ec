//! The threads' outputs, put into stamp order: share after share, and what was put off between what
//! was not.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidemill_core::Batch;

use super::share::Own;
use crate::execute::in_place::{by_stream, Part};
use crate::execute::output::{Origin, Origins, Output, OutputBuilder, RawRows};
use crate::execute::serial::Outcome;
use crate::pool::Pool;

/// Some outputs of one thread that follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    thread: usize,
    rows: Range<usize>,
}

/// What all threads together have come to.
pub(super) fn concat(pool: &dyn Pool, parts: Vec<Part>, own: &mut [&mut Own]) -> Outcome {
    let (counts, by_stream) = by_stream(parts);
    let of = |(stream, parts)| in_order(pool, stream, parts, own);
    let outputs = by_stream.into_iter().enumerate().filter_map(of).collect();
    Outcome { outputs, counts, ..Outcome::default() }
}

/// Outputs of one stream as one.
fn in_order(
    pool: &dyn Pool,
    stream: usize,
    mut parts: Vec<OutputBuilder>,
    own: &[&mut Own],
) -> Option<Output> {
    if parts.iter().all(OutputBuilder::is_empty) {
        return None;
    }
    let raw: Option<Vec<RawRows>> = parts.iter_mut().map(OutputBuilder::take_raw).collect();
    if let Some(raw) = raw {
        let origins: Vec<&[Origin]> = raw.iter().map(|raw| &raw.origins[..]).collect();
        let spans = spans(stream, &origins, own);
        return parts[0].finish_raw(copy(pool, &raw, &spans));
    }
    let parts: Vec<Option<Output>> = parts.iter_mut().map(OutputBuilder::finish).collect();
    let of = |part: &Option<Output>| part.as_ref().map_or(Vec::new(), |o| o.origins.of.clone());
    let of: Vec<Vec<Origin>> = parts.iter().map(of).collect();
    let origins: Vec<&[Origin]> = of.iter().map(Vec::as_slice).collect();
    let spans = spans(stream, &origins, own);
    // Threads that have no outputs have no batch.
    let mut batches: Vec<&Batch> = Vec::new();
    let mut number = vec![0; parts.len()];
    for (thread, part) in parts.iter().enumerate() {
        number[thread] = batches.len() as u32;
        batches.extend(part.iter().map(|part| &part.batch));
    }
    let rows = spans.iter().flat_map(|s| s.rows.clone().map(|row| (number[s.thread], row as u32)));
    let batch = Batch::interleave(&batches, &rows.collect::<Vec<_>>());
    let rows = spans.iter().flat_map(|s| &origins[s.thread][s.rows.clone()]);
    let origins = Origins { of: rows.copied().collect() };
    let stream = parts.iter().flatten().next()?.stream;
    Some(Output { stream, batch, origins })
}

/// Which outputs of which thread follow one another.
fn spans(stream: usize, origins: &[&[Origin]], own: &[&mut Own]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut at = vec![0; own.len()];
    for round in 0..own[0].ends.len() {
        for (thread, own) in own.iter().enumerate() {
            let [share, late] = [0, 1].map(|of| own.ends[round][of][stream]);
            weave(thread, origins[thread], at[thread]..share, share..late, &mut spans);
            at[thread] = late;
        }
    }
    spans
}

/// The outputs of a share, and those of what was put off of it, both in stamp order.
fn weave(
    thread: usize,
    of: &[Origin],
    mut share: Range<usize>,
    mut late: Range<usize>,
    spans: &mut Vec<Span>,
) {
    let mut push = |rows: Range<usize>| match rows.is_empty() {
        true => {}
        false => spans.push(Span { thread, rows }),
    };
    while !late.is_empty() {
        let root = of[late.start].root();
        let cut = share.start + of[share.clone()].partition_point(|o| o.root() < root);
        push(share.start..cut);
        share.start = cut;
        let until = of[share.clone()].first().map_or(u32::MAX, |next| next.root());
        let cut = late.start + of[late.clone()].partition_point(|o| o.root() < until);
        push(late.start..cut);
        late.start = cut;
    }
    push(share);
}

/// The spans' rows, one span after the other. Threads take column by column: memory that is written for
/// the first time is written once.
fn copy(pool: &dyn Pool, raw: &[RawRows], spans: &[Span]) -> RawRows {
    let len = spans.iter().map(|span| span.rows.len()).sum();
    let columns = raw[0].columns.len();
    let done: Vec<Mutex<Vec<i64>>> = (0..columns).map(|_| Mutex::default()).collect();
    let (origins, next) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    pool.run(&|_| loop {
        match next.fetch_add(1, Ordering::Relaxed) {
            // The widest first.
            0 => *lock(&origins) = together(len, spans, |thread| &raw[thread].origins),
            column if column <= columns => {
                let of = |thread: usize| &raw[thread].columns[column - 1][..];
                *lock(&done[column - 1]) = together(len, spans, of);
            }
            _ => break,
        }
    });
    let into =
        |column: Mutex<Vec<i64>>| column.into_inner().unwrap_or_else(PoisonError::into_inner);
    let origins = origins.into_inner().unwrap_or_else(PoisonError::into_inner);
    RawRows { columns: done.into_iter().map(into).collect(), origins }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The spans' items of one column, `len` in number.
fn together<'c, T: Copy + 'c>(len: usize, spans: &[Span], of: impl Fn(usize) -> &'c [T]) -> Vec<T> {
    let mut all = Vec::with_capacity(len);
    for Span { thread, rows } in spans {
        all.extend_from_slice(&of(*thread)[rows.clone()]);
    }
    all
}
