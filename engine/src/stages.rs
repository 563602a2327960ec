//! Map and filter as the flow sees them.

use std::sync::Arc;

use arrow_array::BooleanArray;
use parking_lot::Mutex;
use tidemill_core::batch::BatchBuilder;
use tidemill_core::{Result, Schema, SourceId, StreamId};
use tidemill_flow::{Parcel, Transform};
use tidemill_txn::program::Stage;

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
    pub(crate) stage: Stage,
    pub(crate) stream: StreamId,
    pub(crate) schema: Arc<Schema>,
    pub(crate) failed: FailedList,
}

impl Transform for Step {
    fn apply(&self, parcel: Parcel) -> Result<Parcel> {
        let mut keep = Vec::with_capacity(parcel.len());
        let mut mapped = BatchBuilder::new(self.schema.clone());
        let is_map = matches!(self.stage, Stage::Map { .. });
        for row in 0..parcel.len() {
            let event = parcel.batch.row(row);
            match self.stage.apply(&self.schema, &event) {
                Ok(Some(event)) => {
                    if is_map {
                        mapped.push(&event);
                    }
                    keep.push(true);
                }
                Ok(None) => keep.push(false),
                Err(fault) => {
                    keep.push(false);
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
        }
        let mut kept = parcel.retain(&BooleanArray::from(keep))?;
        kept.stream = self.stream;
        if is_map {
            kept.batch = mapped.finish();
        }
        Ok(kept)
    }
}
