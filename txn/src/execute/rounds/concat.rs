//! The threads' outputs, put into stamp order: share after share, and what was put off between what
//! was not.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::share::Own;
use crate::execute::in_place::{by_stream, Part};
use crate::execute::output::{Origin, OutputBuilder, RawRows};
use crate::execute::serial::Sink;
use crate::pool::Pool;

/// Some outputs of one thread that follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    thread: usize,
    rows: Range<usize>,
}

/// What all threads together have come to goes to a sink.
pub(super) fn concat(pool: &dyn Pool, parts: Vec<Part>, own: &[&mut Own], out: &mut Sink) {
    for (stream, parts) in by_stream(parts, out).into_iter().enumerate() {
        if !parts.iter().all(OutputBuilder::is_empty) {
            in_order(pool, stream, parts, own, &mut out.builders[stream]);
        }
    }
}

/// Appends the outputs of one stream.
fn in_order(
    pool: &dyn Pool,
    stream: usize,
    parts: Vec<OutputBuilder>,
    own: &[&mut Own],
    into: &mut OutputBuilder,
) {
    let raw = into.take_from(parts);
    let origins: Vec<&[Origin]> = raw.iter().map(|raw| &raw.origins[..]).collect();
    let spans = spans(stream, &origins, own);
    copy(pool, &raw, &spans, into);
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

/// Appends the spans' rows, one span after the other. Threads take column by column: memory that is written
/// for the first time is written once.
fn copy(pool: &dyn Pool, raw: &[RawRows], spans: &[Span], into: &mut OutputBuilder) {
    let len = spans.iter().map(|span| span.rows.len()).sum();
    into.append_words(len, |columns, origins| {
        let columns: Vec<Mutex<&mut Vec<i64>>> = columns.iter_mut().map(Mutex::new).collect();
        let (origins, next) = (Mutex::new(origins), AtomicUsize::new(0));
        pool.run(&|_| loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                // The widest first.
                0 => extend(&mut lock(&origins), spans, |thread| &raw[thread].origins),
                column if column <= columns.len() => {
                    let of = |thread: usize| &raw[thread].columns[column - 1][..];
                    extend(&mut lock(&columns[column - 1]), spans, of);
                }
                _ => break,
            }
        });
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends the spans' items of one column.
fn extend<'c, T: Copy + 'c>(all: &mut Vec<T>, spans: &[Span], of: impl Fn(usize) -> &'c [T]) {
    for Span { thread, rows } in spans {
        all.extend_from_slice(&of(*thread)[rows.clone()]);
    }
}
