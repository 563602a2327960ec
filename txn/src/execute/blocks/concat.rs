//! The outputs of the threads, concatenated in stamp order, block after block.

use std::ops::Range;

use super::walk::Own;
use crate::execute::in_place::{put_together, Part};
use crate::execute::sink::Sink;
use crate::execute::spans::{append, Span};
use crate::pool::Pool;

/// Moves the outputs of all threads, from `blocks` blocks, to a sink.
pub(super) fn concat(
    pool: &dyn Pool,
    parts: &mut [Part],
    own: &[&mut Own],
    blocks: usize,
    out: &mut Sink,
) {
    // The thread that has executed each block, and the block's place among that thread's blocks.
    let mut by_block = vec![(0, 0); blocks];
    for (thread, own) in own.iter().enumerate() {
        for (nth, block) in own.blocks.iter().enumerate() {
            by_block[*block] = (thread as u32, nth as u32);
        }
    }
    let pieces = own.len();
    let of = |piece: usize| &by_block[blocks * piece / pieces..blocks * (piece + 1) / pieces];
    put_together(parts, out, |stream, raw, into| {
        let rows = |(thread, nth): (u32, u32)| own[thread as usize].outputs(nth as usize, stream);
        // The place where each piece begins.
        let (mut begins, mut len) = (Vec::with_capacity(pieces), 0);
        for piece in 0..pieces {
            begins.push(len);
            len += of(piece).iter().map(|block| rows(*block).len()).sum::<usize>();
        }
        let begins = &begins;
        let spans = |piece: usize| {
            let span = move |at: &mut usize, block: &(u32, u32)| {
                let (begin, rows) = (*at, rows(*block));
                *at += rows.len();
                Some(Span { at: begin, thread: block.0 as usize, rows })
            };
            of(piece).iter().scan(begins[piece], span)
        };
        // SAFETY: each block was executed by one thread, and begins where the one before it ends.
        unsafe { append(pool, raw, len, &spans, into) };
    });
}

impl Own {
    /// Returns the outputs of one of the executed blocks to a stream, as a range of all of the
    /// thread's outputs.
    fn outputs(&self, nth: usize, stream: usize) -> Range<usize> {
        let end = |nth: usize| self.ends[nth * self.streams + stream];
        let begin = nth.checked_sub(1).map_or(0, end);
        begin..end(nth)
    }
}
