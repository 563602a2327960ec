//! The outputs of the threads in stamp order: share after share, with deferred transactions between
//! the others.

use std::ops::Range;

use super::share::{Own, PARTS};
use crate::execute::in_place::{put_together, Part};
use crate::execute::output::Origin;
use crate::execute::sink::Sink;
use crate::execute::spans::{append, Span};
use crate::pool::Pool;

/// Moves the outputs of all threads to a sink.
pub(super) fn concat(pool: &dyn Pool, parts: &mut [Part], own: &[&mut Own], out: &mut Sink) {
    put_together(parts, out, |stream, raw, into| {
        let origins: Vec<&[Origin]> = raw.iter().map(|raw| &raw.origins[..]).collect();
        let spans = spans(stream, &origins, own);
        let len = spans.last().map_or(0, |last| last.at + last.rows.len());
        let first = |piece: usize| spans.len() * piece / raw.len();
        let of = |piece: usize| spans[first(piece)..first(piece + 1)].iter().cloned();
        // SAFETY: one span begins where the one before it ends.
        unsafe { append(pool, raw, len, &of, into) };
    });
}

/// Returns the outputs of each thread that follow one another.
fn spans(stream: usize, origins: &[&[Origin]], own: &[&mut Own]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut at = vec![0; own.len()];
    for round in 0..own[0].ends.len() {
        for (thread, own) in own.iter().enumerate() {
            let mut begin = at[thread];
            let parts = own.ends[round].each_ref().map(|ends| {
                let part = begin..ends[stream];
                begin = part.end;
                part
            });
            at[thread] = begin;
            weave(thread, origins[thread], parts, &mut spans);
        }
    }
    spans
}

/// Interleaves the outputs of the parts of a share, each of which is in stamp order.
fn weave(thread: usize, of: &[Origin], mut parts: [Range<usize>; PARTS], spans: &mut Vec<Span>) {
    let root = |part: &Range<usize>| of[part.clone()].first().map_or(u32::MAX, |o| o.root());
    loop {
        parts.sort_unstable_by_key(root);
        let [first, second, ..] = &mut parts;
        let until = root(second);
        let rows = of[first.clone()].partition_point(|o| o.root() < until);
        if rows == 0 {
            return;
        }
        let at = spans.last().map_or(0, |last| last.at + last.rows.len());
        spans.push(Span { at, thread, rows: first.start..first.start + rows });
        first.start += rows;
    }
}
