//! Map: makes new columns out of a parcel's rows.

use std::sync::Arc;

use tidemill_core::Error;

use crate::spec::Transform;
use crate::stage::stage;
use crate::worker::{Hand, Loads};

/// The operator of a map.
pub(crate) fn map<'scope>(
    stream: Loads<'scope>,
    hand: &Hand,
    transform: Arc<dyn Transform>,
) -> Loads<'scope> {
    stage("Map", stream, hand, move |parcel| {
        let rows = parcel.len();
        let mapped = transform.apply(parcel)?;
        // Offsets and times belong to rows one by one; a wrong number would stamp wrong events.
        if [mapped.len(), mapped.offsets.len(), mapped.times.len()] != [rows; 3] {
            return Err(Error::internal(format!(
                "a map made {} rows, {} offsets and {} times of {rows} rows of stream {}",
                mapped.len(),
                mapped.offsets.len(),
                mapped.times.len(),
                mapped.stream.0
            )));
        }
        Ok(Some(mapped))
    })
}
