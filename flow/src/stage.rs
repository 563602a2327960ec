//! The stages of a branch: map computes new columns from a parcel's rows, and filter drops rows.

use tidemill_core::{Error, Result};

use crate::parcel::Parcel;
use crate::spec::Stage;

/// Applies stages to a parcel. Returns `None` if no row is left: the source itself reports how far
/// it was read, so such a parcel goes no further.
///
/// # Errors
/// The error of a transform, or that it has lost the offsets or times of rows. These would stamp
/// wrong events.
pub(crate) fn apply(stages: &[Stage], mut parcel: Parcel) -> Result<Option<Parcel>> {
    let (source, stream) = (parcel.source, parcel.stream);
    for stage in stages {
        let rows = parcel.len();
        let (what, transform) = match stage {
            Stage::Map(transform) => ("map made", transform),
            Stage::Filter(transform) => ("filter left", transform),
        };
        parcel = transform.apply(parcel)?;
        let left = parcel.len();
        if left > rows || [parcel.offsets.len(), parcel.times.len()] != [left; 2] {
            return Err(Error::internal(format!(
                "a {what} {left} rows, {} offsets and {} times of {rows} rows of stream {}",
                parcel.offsets.len(),
                parcel.times.len(),
                stream.0
            )));
        }
        if left == 0 {
            return Ok(None);
        }
    }
    Ok(Some(Parcel { source, stream, ..parcel }))
}
