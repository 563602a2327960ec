//! Filter: drops rows. How far the source was read is reported by the source itself, so a parcel
//! of which nothing is left goes no further.

use std::sync::Arc;

use tidemill_core::Error;

use crate::spec::Transform;
use crate::stage::stage;
use crate::worker::{Hand, Loads};

/// The operator of a filter.
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
