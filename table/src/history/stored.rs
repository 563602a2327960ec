//! A version as snapshots have it.
//!
//! Its key is that of its row, and behind it its number (u64, big-endian, so that versions of a row
//! come in their order); then its time (i64, big-endian) and all columns in the canonical encoding.

/// A version of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredVersion<'a> {
    /// The key of its row.
    pub key: &'a [u8],
    /// Its number among the versions of the row.
    pub number: u64,
    /// Its time.
    pub time_us: i64,
    /// Its columns.
    pub row: &'a [u8],
}

impl<'a> StoredVersion<'a> {
    /// What stands under a key; nothing when it is not a version.
    pub fn of(key: &'a [u8], version: &'a [u8]) -> Option<StoredVersion<'a>> {
        let (key, number) = key.split_last_chunk()?;
        let (time_us, row) = version.split_first_chunk()?;
        let (number, time_us) = (u64::from_be_bytes(*number), i64::from_be_bytes(*time_us));
        Some(StoredVersion { key, number, time_us, row })
    }

    /// Makes of a row's key that of its version with this number.
    pub fn put_number(number: u64, key: &mut Vec<u8>) {
        key.extend_from_slice(&number.to_be_bytes());
    }

    /// Appends what stands before a version's columns.
    pub fn put_time(time_us: i64, out: &mut Vec<u8>) {
        out.extend_from_slice(&time_us.to_be_bytes());
    }
}
