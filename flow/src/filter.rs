//! Filter: drops rows. The source itself reports how far it was read, so a parcel without remaining
//! rows goes no further.

use std::sync::Arc;

use tidemill_core::Error;

use crate::spec::Transform;
use crate::stage::stage;
use crate::worker::{Hand, Loads};

/// Builds the operator of a filter.
pub(crate) fn filter<'scope>(
    stream: Loads<'scope>,
    hand: &Hand,
    transform: Arc<dyn Transform>,
) -> Loads<'scope> {
    stage("Filter", stream, hand, move |parcel| {
        let rows = parcel.len();
        let kept = transform.apply(parcel)?;
        let left = kept.len();
        if left > rows || [kept.offsets.len(), kept.times.len()] != [left; 2] {
            return Err(Error::internal(format!(
                "a filter left {left} rows, {} offsets and {} times of {rows} rows of stream {}",
                kept.offsets.len(),
                kept.times.len(),
                kept.stream.0
            )));
        }
        Ok((left > 0).then_some(kept))
    })
}
