//! Map and filter as the flow sees them.

use std::sync::Arc;

use arrow_array::BooleanArray;
use parking_lot::Mutex;
use tidemill_core::batch::BatchBuilder;
use tidemill_core::rules::Fault;
use tidemill_core::{Error, Result, SourceId, StreamId, Value};
use tidemill_flow::{Parcel, Transform};
use tidemill_txn::program::{Applied, ColumnStage};

/// An event that a stage could not compute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Failed {
    pub(crate) source: SourceId,
    pub(crate) offset: u64,
    /// The stream that the event did not reach.
    pub(crate) stream: StreamId,
    pub(crate) reason: String,
    /// The event, for people.
    pub(crate) raw: String,
}

/// Events that stages could not compute, until the cut that covers them. The gate bounds them,
/// because each entry belongs to a row that was charged there.
pub(crate) type FailedList = Arc<Mutex<Vec<Failed>>>;

/// One stage of a derived stream. An event that it can't compute is dropped and noted.
pub(crate) struct Step {
    pub(crate) stage: ColumnStage,
    pub(crate) stream: StreamId,
    pub(crate) failed: FailedList,
}

impl Transform for Step {
    fn apply(&self, mut parcel: Parcel) -> Result<Parcel> {
        let Some(Applied { keep, failed, mapped }) = self.stage.apply(&parcel.batch) else {
            return self.row_by_row(parcel);
        };
        for row in failed {
            let event = parcel.batch.row(row);
            match self.stage.stage().apply(self.stage.schema(), &event) {
                Err(fault) => self.note(&parcel, row, &event, &fault),
                Ok(_) => {
                    let what = "a map or filter computes a row, but not by columns";
                    return Err(Error::internal(what));
                }
            }
        }
        parcel.stream = self.stream;
        if let Some(mapped) = mapped {
            parcel.batch = mapped;
        }
        parcel.retain(&keep)
    }
}

impl Step {
    /// Computes one row after another.
    fn row_by_row(&self, mut parcel: Parcel) -> Result<Parcel> {
        let (stage, schema) = (self.stage.stage(), self.stage.schema());
        let mut keep = Vec::with_capacity(parcel.len());
        let mut kept = BatchBuilder::new(schema.clone());
        for row in 0..parcel.len() {
            let event = parcel.batch.row(row);
            let new = stage.apply(schema, &event);
            keep.push(matches!(new, Ok(Some(_))));
            match new {
                Ok(Some(event)) => kept.push(&event),
                Ok(None) => {}
                Err(fault) => self.note(&parcel, row, &event, &fault),
            }
        }
        parcel.stream = self.stream;
        let retained = parcel.retain(&BooleanArray::from(keep))?;
        Ok(Parcel { batch: kept.finish(), ..retained })
    }

    /// Notes an event that it can't compute.
    fn note(&self, parcel: &Parcel, row: usize, event: &[Value], fault: &Fault) {
        let values: Vec<String> = event.iter().map(ToString::to_string).collect();
        self.failed.lock().push(Failed {
            source: parcel.source,
            offset: parcel.offsets[row],
            stream: self.stream,
            reason: fault.to_string(),
            raw: values.join(", "),
        });
    }
}
