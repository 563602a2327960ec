//! A version as snapshots have it.
//!
//! Its key is the key of its row, followed by its number (u64, big-endian), so that the versions of
//! a row are in order. Its value is the time (i64, big-endian) and all columns in the canonical
//! encoding.

/// A version of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredVersion<'a> {
    /// The key of the row.
    pub key: &'a [u8],
    /// The number among the versions of the row.
    pub number: u64,
    /// The time, in microseconds.
    pub time_us: i64,
    /// The columns, encoded.
    pub row: &'a [u8],
}

impl<'a> StoredVersion<'a> {
    /// Splits an entry of a snapshot. Returns `None` if it is not a version.
    pub fn of(key: &'a [u8], version: &'a [u8]) -> Option<StoredVersion<'a>> {
        let (key, number) = key.split_last_chunk()?;
        let (time_us, row) = version.split_first_chunk()?;
        let (number, time_us) = (u64::from_be_bytes(*number), i64::from_be_bytes(*time_us));
        Some(StoredVersion { key, number, time_us, row })
    }

    /// Turns a row's key into the key of its version with this number.
    pub fn put_number(number: u64, key: &mut Vec<u8>) {
        key.extend_from_slice(&number.to_be_bytes());
    }

    /// Appends the bytes before a version's columns.
    pub fn put_time(time_us: i64, out: &mut Vec<u8>) {
        out.extend_from_slice(&time_us.to_be_bytes());
    }
}
