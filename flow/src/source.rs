//! A source, as its worker reads it: it is polled for the epoch that is open at that time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use tidemill_core::{Error, Result, SourceId, StreamId};

use crate::deposit::{Item, What};
use crate::gate::Gate;
use crate::parcel::{Chunk, Parcel, Report};
use crate::spec::{Branch, Ingress, Polled};
use crate::stage::apply;

/// The epoch that a source is read for. Everything of earlier epochs is in the mailbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

/// The progress of a source that has ended, or that nobody reads.
const ENDED: u64 = u64::MAX;

impl Progress {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, epoch: u64) {
        self.0.store(epoch, Ordering::Release);
    }
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Rows were read, and there may be more.
    Rows,
    /// It has gone on to the next epoch, without rows.
    Epoch,
    /// There is nothing now.
    Nothing,
    /// It has ended.
    Ended,
}

pub(crate) struct Reader {
    pub(crate) source: SourceId,
    /// The next row's offset.
    offset: u64,
    ingress: Box<dyn Ingress>,
    branches: Vec<Branch>,
    progress: Progress,
}

impl Reader {
    pub(crate) fn new(
        source: SourceId,
        ingress: Box<dyn Ingress>,
        branches: Vec<Branch>,
        progress: Progress,
    ) -> Reader {
        Reader { source, offset: ingress.offset(), ingress, branches, progress }
    }

    /// Polls once, if that is allowed now, and adds the items to `items`. The caller puts them into
    /// the mailbox before it reads again.
    pub(crate) fn read(
        &mut self,
        gate: &Gate,
        rows_max: usize,
        items: &mut Vec<Item>,
    ) -> Result<Outcome> {
        let ticket = gate.ticket(self.source);
        let is_new = self.progress.get() < ticket.epoch;
        if is_new {
            self.progress.set(ticket.epoch);
        }
        let nothing = if is_new { Outcome::Epoch } else { Outcome::Nothing };
        let room = ticket.limit.saturating_sub(self.offset);
        // Nothing is read before the first epoch is opened.
        let shut = ticket.epoch == 0 || ticket.paused || room == 0;
        if shut || gate.is_full() {
            return Ok(nothing);
        }
        let rows_max = rows_max.min(usize::try_from(room).unwrap_or(usize::MAX));
        match self.ingress.poll(rows_max)? {
            Polled::Rows(chunk) => {
                self.check(&chunk, ticket.limit)?;
                self.give(ticket.epoch, chunk, gate, items)?;
                Ok(Outcome::Rows)
            }
            Polled::Pending => Ok(nothing),
            Polled::End => {
                let report = Report {
                    source: self.source,
                    next_offset: self.offset,
                    rows: 0,
                    time_max: None,
                    late: vec![],
                    ended: true,
                    bad: vec![],
                };
                items.push(charged(gate, ticket.epoch, What::Report(report)));
                Ok(Outcome::Ended)
            }
        }
    }

    /// Notes that nothing more comes. All items are in the mailbox.
    pub(crate) fn end(&self) {
        self.progress.set(ENDED);
    }

    fn give(&mut self, epoch: u64, chunk: Chunk, gate: &Gate, items: &mut Vec<Item>) -> Result<()> {
        let rows = chunk.next_offset - self.offset;
        self.offset = chunk.next_offset;
        let report = Report {
            source: self.source,
            next_offset: chunk.next_offset,
            rows,
            time_max: chunk.time_max,
            late: chunk.late,
            ended: false,
            bad: chunk.bad,
        };
        items.push(charged(gate, epoch, What::Report(report)));
        if chunk.batch.is_empty() {
            return Ok(());
        }
        let parcel = Parcel {
            source: self.source,
            stream: StreamId(0),
            batch: chunk.batch,
            offsets: chunk.offsets,
            times: chunk.times,
        };
        // All get copies except the last one. Most sources have one branch.
        let copies = std::iter::repeat_n(parcel, self.branches.len());
        for (branch, parcel) in self.branches.iter().zip(copies) {
            let parcel = Parcel { stream: branch.stream, ..parcel };
            if let Some(parcel) = apply(&branch.stages, parcel)? {
                items.push(charged(gate, epoch, What::Rows(parcel)));
            }
        }
        Ok(())
    }

    /// Refuses a chunk that would break the order or the limit. The checks do not iterate over the
    /// rows.
    fn check(&self, chunk: &Chunk, limit: u64) -> Result<()> {
        let rows = chunk.batch.len();
        let wrong = if [chunk.offsets.len(), chunk.times.len()] != [rows; 2] {
            "has not one offset and one time for each row"
        } else if chunk.next_offset < self.offset {
            "goes back"
        } else if chunk.next_offset > limit {
            "reads past its limit"
        } else if chunk.next_offset != self.ingress.offset() {
            "does not end where the source stands"
        } else if chunk.offsets.first().is_some_and(|first| *first < self.offset)
            || chunk.offsets.last().is_some_and(|last| *last >= chunk.next_offset)
        {
            "has rows outside its offsets"
        } else {
            return Ok(());
        };
        Err(Error::internal(format!(
            "a chunk of source {} {wrong}: {rows} rows from offset {} to {}, limit {limit}",
            self.source.0, self.offset, chunk.next_offset
        )))
    }
}

/// Returns an item, charged to the gate.
fn charged(gate: &Gate, epoch: u64, what: What) -> Item {
    let bytes = match &what {
        What::Rows(parcel) => parcel.bytes(),
        What::Report(report) => report.bytes(),
    };
    gate.charge(bytes);
    Item { epoch, bytes, what }
}
