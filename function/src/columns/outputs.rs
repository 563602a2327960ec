//! The outputs and counts of an epoch, collected pass by pass.

use std::collections::BTreeMap;

use tidemill_core::{Batch, StreamId};
use tidemill_txn::execute::{HandlerCounts, Output};
use tidemill_txn::order::Epoch;

use super::parts::{Part, REPORTS};
use super::pass::From;
use super::{ColumnOutput, ABORTED};

/// The outputs of transactions that this node reports.
#[derive(Debug)]
pub(super) struct Outputs {
    streams: BTreeMap<StreamId, Vec<Piece>>,
    /// The number of aborted transactions, by handler.
    aborted: Vec<u64>,
    /// Whether this node reports all transactions that it runs.
    pub(super) all: bool,
}

/// The outputs of a pass. All columns are ascending.
#[derive(Debug)]
struct Piece {
    batch: Batch,
    /// The rows of the batch that count. `None` if all do.
    rows: Option<Vec<u32>>,
    /// The transaction and the number in it, of each row that counts.
    tids: Vec<u64>,
    ordinals: Vec<u32>,
}

impl Outputs {
    pub(super) fn new(handlers: usize) -> Outputs {
        Outputs { streams: BTreeMap::new(), aborted: vec![0; handlers], all: false }
    }

    /// Collects the outputs of a pass on a stream of the whole program. `original` returns the row of
    /// an event in its part.
    pub(super) fn collect(
        &mut self,
        (stream, are_aborted): (StreamId, bool),
        output: Output,
        epoch: &Epoch,
        from: &[From],
        parts: &[Part],
        original: impl Fn(usize, u32) -> u32,
    ) {
        let len = output.batch.len();
        let (mut tids, mut ordinals) = (Vec::with_capacity(len), Vec::with_capacity(len));
        let mut rows = Vec::new();
        let mut handler = 0;
        for (nth, (root, ordinal)) in output.origins.places().enumerate() {
            let ranked = epoch.order[root];
            let run = epoch.lanes[ranked.lane as usize].run as usize;
            let From::Part(part) = from[run] else { continue };
            let part = &parts[part as usize];
            handler = part.handler;
            let row = original(run, ranked.row);
            if self.all || part.flags[row as usize] & REPORTS != 0 {
                rows.push(nth as u32);
                tids.push(epoch.runs[run].offsets[ranked.row as usize]);
                ordinals.push(if are_aborted { ABORTED } else { ordinal });
            }
        }
        if are_aborted {
            self.aborted[handler] += rows.len() as u64;
        }
        if !rows.is_empty() {
            let rows = (rows.len() < len).then_some(rows);
            let piece = Piece { batch: output.batch, rows, tids, ordinals };
            self.streams.entry(stream).or_default().push(piece);
        }
    }

    /// Returns the outputs by stream, each in order, and the counts by handler.
    pub(super) fn finish(self, parts: &[Part]) -> (Vec<ColumnOutput>, Vec<HandlerCounts>) {
        let outputs = self.streams.into_iter().map(|(stream, pieces)| joined(stream, pieces));
        let mut counts = vec![HandlerCounts::default(); self.aborted.len()];
        parts.iter().for_each(|part| counts[part.handler].committed += part.reported());
        for (counts, aborted) in counts.iter_mut().zip(self.aborted) {
            counts.committed -= aborted;
            counts.aborted = aborted;
        }
        (outputs.collect(), counts)
    }
}

/// Returns the outputs of all passes on a stream as one.
fn joined(stream: StreamId, mut pieces: Vec<Piece>) -> ColumnOutput {
    if let [Piece { rows: None, .. }] = &pieces[..] {
        let Piece { batch, tids, ordinals, .. } = pieces.remove(0);
        return ColumnOutput { stream, tids, ordinals, batch };
    }
    let mut all = Vec::with_capacity(pieces.iter().map(|piece| piece.tids.len()).sum());
    for (number, piece) in (0..).zip(&pieces) {
        let places = piece.tids.iter().zip(&piece.ordinals).enumerate();
        all.extend(places.map(|(nth, (tid, ordinal))| {
            let row = piece.rows.as_ref().map_or(nth as u32, |rows| rows[nth]);
            (*tid, *ordinal, (number, row))
        }));
    }
    if pieces.len() > 1 {
        // Each piece is in order, which this sort makes use of.
        all.sort_by_key(|(tid, ordinal, _)| (*tid, *ordinal));
    }
    let batches: Vec<&Batch> = pieces.iter().map(|piece| &piece.batch).collect();
    let rows: Vec<(u32, u32)> = all.iter().map(|(.., row)| *row).collect();
    let batch = Batch::interleave(&batches, &rows);
    let (tids, ordinals) = all.iter().map(|(tid, ordinal, _)| (*tid, *ordinal)).unzip();
    ColumnOutput { stream, tids, ordinals, batch }
}
