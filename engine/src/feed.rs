//! A source as the flow sees it: with event times.

use std::sync::Arc;

use tidemill_connect::{Polled as Read, Source};
use tidemill_core::{Batch, Error, Result};
use tidemill_flow::{Bad, Chunk, Ingress, Polled};

/// Reads a source and adds each row's event time.
pub(crate) struct Feed {
    pub(crate) source: Box<dyn Source>,
    /// The column of the event time, if the stream has one.
    pub(crate) time: Option<usize>,
}

impl Ingress for Feed {
    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        let chunk = match self.source.poll(rows_max)? {
            Read::Rows(chunk) => chunk,
            Read::Pending => return Ok(Polled::Pending),
            Read::End => return Ok(Polled::End),
        };
        let times = times(&chunk.batch, self.time)?;
        let time_max = self.time.and_then(|_| times.iter().copied().max());
        let bad = chunk.bad.into_iter().map(|b| Bad {
            offset: b.offset,
            origin: Arc::clone(&b.origin),
            line: b.line,
            raw: b.raw,
            reason: b.reason,
        });
        Ok(Polled::Rows(Chunk {
            bad: bad.collect(),
            offsets: chunk.offsets,
            next_offset: chunk.next_offset,
            batch: chunk.batch,
            times,
            time_max,
        }))
    }

    fn offset(&self) -> u64 {
        self.source.offset()
    }
}

fn times(batch: &Batch, column: Option<usize>) -> Result<Vec<i64>> {
    match column {
        None => Ok(vec![0; batch.len()]),
        Some(column) => batch
            .ints(column)
            .map(<[i64]>::to_vec)
            .ok_or_else(|| Error::internal("a source gave a row without its time")),
    }
}
