//! The conversion of a table's retained versions to another version of its program.
//!
//! A snapshot may have versions that are beyond the history, because they are dropped only when
//! that is cheap. The versions within the history at the snapshot's cut are a function of the cut,
//! and these are carried over.

use tidemill_core::{History, Result, TableSpec};
use tidemill_table::StoredVersion;

/// A retained version of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetainedVersion<'a> {
    /// Its number in the new program.
    pub(crate) number: u64,
    pub(crate) time_us: i64,
    pub(crate) row: &'a [u8],
}

/// The versions of one row of a snapshot, oldest first.
#[derive(Debug, Default)]
pub(crate) struct RowVersions {
    table: usize,
    key: Vec<u8>,
    /// Number, time, and the end of its columns in `bytes`.
    versions: Vec<(u64, i64, usize)>,
    bytes: Vec<u8>,
}

impl RowVersions {
    /// The table of the row.
    pub(crate) fn table(&self) -> usize {
        self.table
    }

    /// Whether a version belongs to another row, so that all versions of this row are here.
    pub(crate) fn ends_before(&self, table: usize, version: &StoredVersion<'_>) -> bool {
        !self.versions.is_empty() && (table, version.key) != (self.table, &self.key[..])
    }

    /// Adds the next version.
    pub(crate) fn push(&mut self, table: usize, version: &StoredVersion<'_>) {
        if self.versions.is_empty() {
            self.table = table;
            self.key.clear();
            self.key.extend_from_slice(version.key);
        }
        self.bytes.extend_from_slice(version.row);
        self.versions.push((version.number, version.time_us, self.bytes.len()));
    }

    /// Calls back with the versions that a history retains at a frontier, and clears the row. Their
    /// numbers count from the first of them, unless the history is by count.
    pub(crate) fn finish(
        &mut self,
        history: History,
        frontier_us: i64,
        mut take: impl FnMut(RetainedVersion<'_>) -> Result<()>,
    ) -> Result<()> {
        let end = self.versions.last().map_or(0, |(number, ..)| number + 1);
        let from_us = history.retained_from(frontier_us);
        let (mut from, mut first) = (0, None);
        for (number, time_us, to) in self.versions.drain(..) {
            let row = &self.bytes[std::mem::replace(&mut from, to)..to];
            let is_kept = history.versions.is_some_and(|kept| number + kept >= end)
                || from_us.is_some_and(|from_us| time_us >= from_us);
            if is_kept {
                let base = *first.get_or_insert(number);
                let base = if history.versions.is_some() { 0 } else { base };
                take(RetainedVersion { number: number - base, time_us, row })?;
            }
        }
        self.bytes.clear();
        Ok(())
    }
}

/// Describes a history.
pub(crate) fn shown(history: Option<History>) -> String {
    match history.map_or((None, None), |history| (history.time_us, history.versions)) {
        (None, None) => "no history".to_owned(),
        (Some(us), None) => format!("a history of {us} us"),
        (None, Some(versions)) => format!("a history of {versions} versions"),
        (Some(us), Some(versions)) => format!("a history of {us} us and {versions} versions"),
    }
}

/// Whether a table retains less than before.
pub(crate) fn is_shorter(from: &TableSpec, to: &TableSpec) -> bool {
    let (from, to) = (from.history.unwrap_or_default(), to.history.unwrap_or_default());
    from.time_us > to.time_us || from.versions > to.versions
}
