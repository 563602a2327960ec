//! Map: computes new columns from a parcel's rows.

use std::sync::Arc;

use tidemill_core::Error;

use crate::spec::Transform;
use crate::stage::stage;
use crate::worker::{Hand, Loads};

/// Builds the operator of a map.
pub(crate) fn map<'scope>(
    stream: Loads<'scope>,
    hand: &Hand,
    transform: Arc<dyn Transform>,
) -> Loads<'scope> {
    stage("Map", stream, hand, move |parcel| {
        let rows = parcel.len();
        let mapped = transform.apply(parcel)?;
        // Each row has an offset and a time. A wrong number of them would stamp wrong events.
        let left = mapped.len();
        if left > rows || [mapped.offsets.len(), mapped.times.len()] != [left; 2] {
            return Err(Error::internal(format!(
                "a map made {left} rows, {} offsets and {} times of {rows} rows of stream {}",
                mapped.offsets.len(),
                mapped.times.len(),
                mapped.stream.0
            )));
        }
        Ok((left > 0).then_some(mapped))
    })
}
