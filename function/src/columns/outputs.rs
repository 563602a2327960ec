//! The outputs and counts of an epoch, collected pass by pass.

use std::collections::BTreeMap;

use tidemill_core::{Batch, StreamId};
use tidemill_txn::execute::{HandlerCounts, Output};
use tidemill_txn::order::Epoch;

use super::parts::{Part, REPORTS};
use super::pass::{From, Pass};
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

    /// Collects the outputs of a pass on a stream of the whole program.
    pub(super) fn collect(
        &mut self,
        (stream, are_aborted): (StreamId, bool),
        output: Output,
        epoch: &Epoch,
        pass: &Pass,
        parts: &[Part],
    ) {
        let len = output.batch.len();
        let (mut tids, mut ordinals) = (Vec::with_capacity(len), Vec::with_capacity(len));
        let mut rows = Vec::new();
        let mut handler = 0;
        for (nth, (root, ordinal)) in output.origins.places().enumerate() {
            let ranked = epoch.order[root];
            let run = epoch.lanes[ranked.lane as usize].run as usize;
            let From::Part(part) = pass.from(run) else { continue };
            let part = &parts[part as usize];
            handler = part.handler;
            let reports = |row: u32| part.flags[row as usize] & REPORTS != 0;
            if self.all || reports(pass.original(run, ranked.row)) {
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
    let all = match pieces.len() {
        0..SCATTERED => sorted(&pieces),
        _ => scattered(&pieces).unwrap_or_else(|| sorted(&pieces)),
    };
    let batches: Vec<&Batch> = pieces.iter().map(|piece| &piece.batch).collect();
    let rows: Vec<(u32, u32)> = all.iter().map(|(.., row)| *row).collect();
    let batch = Batch::interleave(&batches, &rows);
    let (tids, ordinals) = all.iter().map(|(tid, ordinal, _)| (*tid, *ordinal)).unzip();
    ColumnOutput { stream, tids, ordinals, batch }
}

/// An output: its transaction, its place there, and its piece and row.
type Row = (u64, u32, (u32, u32));

/// Returns the outputs of a piece.
fn rows(number: usize, piece: &Piece) -> impl Iterator<Item = Row> + '_ {
    let places = piece.tids.iter().zip(&piece.ordinals).enumerate();
    places.map(move |(nth, (tid, ordinal))| {
        let row = piece.rows.as_ref().map_or(nth as u32, |rows| rows[nth]);
        (*tid, *ordinal, (number as u32, row))
    })
}

/// Returns the outputs of all pieces in order.
fn sorted(pieces: &[Piece]) -> Vec<Row> {
    let all = pieces.iter().enumerate().flat_map(|(number, piece)| rows(number, piece));
    let mut all: Vec<Row> = all.collect();
    if pieces.len() > 1 {
        // Each piece is in order, which this sort makes use of.
        all.sort_by_key(|(tid, ordinal, _)| (*tid, *ordinal));
    }
    all
}

/// The number of pieces from which scattering them takes less time than sorting.
const SCATTERED: usize = 8;

/// Returns the same, if the places of transactions are close to each other: each output goes to its
/// place at once. All outputs of a transaction are in one piece, in order.
fn scattered(pieces: &[Piece]) -> Option<Vec<Row>> {
    let first = *pieces.iter().filter_map(|piece| piece.tids.first()).min()?;
    let last = *pieces.iter().filter_map(|piece| piece.tids.last()).max()?;
    let len: usize = pieces.iter().map(|piece| piece.tids.len()).sum();
    if last - first >= 8 * len as u64 {
        return None;
    }
    let mut ends = vec![0u32; (last - first) as usize + 2];
    let tids = || pieces.iter().flat_map(|piece| &piece.tids);
    tids().for_each(|tid| ends[(tid - first) as usize + 1] += 1);
    for at in 1..ends.len() {
        ends[at] += ends[at - 1];
    }
    let mut all = vec![(0, 0, (0, 0)); len];
    for (number, piece) in pieces.iter().enumerate() {
        for row in rows(number, piece) {
            let end = &mut ends[(row.0 - first) as usize];
            all[*end as usize] = row;
            *end += 1;
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tidemill_core::Schema;

    use super::*;

    proptest! {
        #[test]
        fn scattered_outputs_are_sorted(
            of in prop::collection::vec((0..5u64, 0..4usize, 1..3u32), 1..60),
        ) {
            let empty = Batch::new(Arc::new(Schema::new(Vec::new())), Vec::new(), 0);
            let piece = || Piece {
                batch: empty.clone(),
                rows: None,
                tids: vec![],
                ordinals: vec![],
            };
            let mut pieces: Vec<Piece> = (0..4).map(|_| piece()).collect();
            let mut tid = 3;
            for (step, number, outputs) in of {
                tid += 1 + step;
                pieces[number].tids.extend((0..outputs).map(|_| tid));
                pieces[number].ordinals.extend(0..outputs);
            }
            pieces.retain(|piece| !piece.tids.is_empty());
            prop_assert_eq!(scattered(&pieces), Some(sorted(&pieces)));
        }
    }
}
