//! The threads' outputs, put into stamp order: share after share, and what was put off between what
//! was not.

use std::ops::Range;

use super::share::Own;
use crate::execute::in_place::{put_together, Part};
use crate::execute::output::Origin;
use crate::execute::serial::Sink;
use crate::execute::spans::{append, Span};
use crate::pool::Pool;

/// What all threads together have come to goes to a sink.
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
        false => {
            let at = spans.last().map_or(0, |last| last.at + last.rows.len());
            spans.push(Span { at, thread, rows });
        }
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
