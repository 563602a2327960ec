//! The outputs of the threads, merged in stamp order.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::execute::in_place::{put_together, Part};
use crate::execute::output::{Origin, OutputBuilder, RawRows};
use crate::execute::sink::Sink;
use crate::pool::Pool;

/// Moves the outputs of all threads, from transactions with these ranks, to a sink.
pub(super) fn merge(pool: &dyn Pool, parts: &mut [Part], ranks: &Range<usize>, out: &mut Sink) {
    put_together(parts, out, |_, raw, into| {
        let raw: Vec<&RawRows> = raw.iter().filter(|raw| !raw.origins.is_empty()).collect();
        in_order(pool, &raw, ranks, into);
    });
}

/// Appends the outputs of one stream, from parts that are in stamp order. No transaction is in two
/// parts.
fn in_order(pool: &dyn Pool, raw: &[&RawRows], ranks: &Range<usize>, into: &mut OutputBuilder) {
    // Every thread orders a range of transactions.
    let of: Vec<&[Origin]> = raw.iter().map(|raw| &raw.origins[..]).collect();
    let len = of.iter().map(|of| of.len()).sum();
    let pieces = pool.threads();
    let cut = |of: &[Origin], piece: usize| {
        let first = ranks.start + (ranks.len() * piece).div_ceil(pieces);
        of.partition_point(|origin| (origin.root() as usize) < first)
    };
    into.append_words(len, |columns, origins| {
        let mut rest = Piece {
            of: Vec::new(),
            columns: columns
                .iter_mut()
                .map(|column| &mut column.spare_capacity_mut()[..len])
                .collect(),
            origins: &mut origins.spare_capacity_mut()[..len],
        };
        let work: Vec<Mutex<Piece<'_>>> = (0..pieces)
            .map(|piece| {
                let of = of.iter().map(|of| cut(of, piece)..cut(of, piece + 1)).collect();
                Mutex::new(rest.split(of))
            })
            .collect();
        assert!(rest.origins.is_empty(), "all outputs belong to these transactions");
        pool.run(&|member| {
            let mut piece = work[member].lock().unwrap_or_else(PoisonError::into_inner);
            piece.fill(raw, &of);
        });
        drop(work);
        // SAFETY: the pieces are `len` items of each, and have been filled. A panic in between ends
        // this thread, too.
        unsafe {
            columns.iter_mut().for_each(|column| column.set_len(column.len() + len));
            origins.set_len(origins.len() + len);
        }
    });
}

/// A range of an output that is being merged.
struct Piece<'p> {
    /// The rows of each part that belong here.
    of: Vec<Range<usize>>,
    columns: Vec<&'p mut [MaybeUninit<i64>]>,
    origins: &'p mut [MaybeUninit<Origin>],
}

impl<'p> Piece<'p> {
    /// Splits off the first rows: as many as `of` has.
    fn split(&mut self, of: Vec<Range<usize>>) -> Piece<'p> {
        let len = of.iter().map(ExactSizeIterator::len).sum();
        let columns = self.columns.iter_mut().map(|column| take_first(column, len)).collect();
        Piece { of, columns, origins: take_first(&mut self.origins, len) }
    }

    /// Writes the whole piece.
    fn fill(&mut self, raw: &[&RawRows], of: &[&[Origin]]) {
        let mut rows: Vec<(u32, u32)> = Vec::with_capacity(self.origins.len());
        walk(of, &self.of, |part, row| rows.push((part as u32, row as u32)));
        assert!(rows.len() == self.origins.len(), "a piece has room for just its rows");
        for (origin, (part, row)) in self.origins.iter_mut().zip(&rows) {
            origin.write(of[*part as usize][*row as usize]);
        }
        for (number, column) in self.columns.iter_mut().enumerate() {
            let columns: Vec<&[i64]> = raw.iter().map(|raw| &raw.columns[number][..]).collect();
            for (word, (part, row)) in column.iter_mut().zip(&rows) {
                word.write(columns[*part as usize][*row as usize]);
            }
        }
    }
}

fn take_first<'p, T>(slice: &mut &'p mut [T], len: usize) -> &'p mut [T] {
    let (first, rest) = std::mem::take(slice).split_at_mut(len);
    *slice = rest;
    first
}

/// Calls `each` with the part and the row of every output in these ranges, in stamp order.
fn walk(of: &[&[Origin]], ranges: &[Range<usize>], mut each: impl FnMut(usize, usize)) {
    let mut heads: Vec<usize> = ranges.iter().map(|range| range.start).collect();
    let next = |part: usize, at: usize| match at < ranges[part].end {
        true => u64::from(of[part][at].root()),
        false => u64::MAX,
    };
    let mut roots: Vec<u64> = (0..of.len()).map(|part| next(part, heads[part])).collect();
    for _ in 0..ranges.iter().map(ExactSizeIterator::len).sum() {
        let mut first = 0;
        for part in 1..roots.len() {
            // No predictor can guess this choice, so it must not become a branch.
            first = if roots[part] < roots[first] { part } else { first };
        }
        each(first, heads[first]);
        heads[first] += 1;
        roots[first] = next(first, heads[first]);
    }
}
