//! Versions of rows that the transactions of an epoch have written, each with the place of its
//! write.

use smallvec::SmallVec;
use tidemill_core::{Key, TableId};

use crate::gate::Access;
use crate::keyed::Keyed;
use crate::order::{Path, Tid};
use crate::rows::Stored;

/// The row that a write left.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub tid: Tid,
    pub path: Path,
    pub row: Stored,
}

impl Version {
    fn place(&self) -> (Tid, &[u32]) {
        (self.tid, &self.path)
    }

    /// Whether others see it. A transaction with known rows writes at its own place, and its
    /// versions are visible at once. Versions of other transactions are visible when these have
    /// ended.
    pub fn is_there(&self, has_ended: impl Fn(Tid) -> bool) -> bool {
        self.path.is_empty() || has_ended(self.tid)
    }
}

/// The versions of a row. Most rows have one.
pub(crate) type Row = SmallVec<[Version; 1]>;

/// The versions of an epoch on one node, by table and key, in the order of their places. A key
/// without versions retains its entry, because earlier reads of it may have become wrong.
#[derive(Default)]
pub(crate) struct Versions {
    tables: Vec<Keyed<Row>>,
}

impl Versions {
    pub fn new(tables: usize) -> Versions {
        Versions { tables: (0..tables).map(|_| Keyed::default()).collect() }
    }

    /// Writes at a place, or replaces the write of an earlier attempt there. Returns whether it is
    /// new.
    pub fn put(&mut self, table: TableId, key: Key, version: Version) -> bool {
        let versions = self.tables[table.index()].entry(key);
        let at = versions.partition_point(|v| v.place() < version.place());
        match versions.get_mut(at) {
            Some(there) if there.place() == version.place() => {
                *there = version;
                false
            }
            _ => {
                versions.insert(at, version);
                true
            }
        }
    }

    /// Removes what a transaction has written to a row.
    pub fn remove(&mut self, tid: Tid, table: TableId, key: &Key) {
        if let Some(versions) = self.tables[table.index()].get_mut(key) {
            versions.retain(|v| v.tid != tid);
        }
    }

    /// Removes what was written at a place.
    pub fn take_back(&mut self, place: (Tid, &[u32]), table: TableId, key: &Key) {
        if let Some(versions) = self.tables[table.index()].get_mut(key) {
            if let Ok(at) = versions.binary_search_by(|version| version.place().cmp(&place)) {
                versions.remove(at);
            }
        }
    }

    /// Whether a row has been written in this epoch, even if that was undone.
    pub fn touched(&self, table: TableId, key: &Key) -> bool {
        self.tables[table.index()].get(key).is_some()
    }

    /// Returns the newest version before a place that is visible to the reader.
    pub fn before(
        &self,
        table: TableId,
        key: &Key,
        place: (Tid, &[u32]),
        is_there: impl Fn(Tid) -> bool,
    ) -> Option<&Version> {
        newest(self.tables[table.index()].get(key)?, place, is_there)
    }

    /// Returns the newest visible version of each written row from one key up to but without
    /// another.
    pub fn range<'a>(
        &'a self,
        table: TableId,
        from: &Key,
        to: &Key,
        place: (Tid, &'a [u32]),
        is_there: impl Fn(Tid) -> bool + 'a,
    ) -> impl DoubleEndedIterator<Item = (&'a Key, &'a Version)> + 'a {
        self.tables[table.index()]
            .range(from, to)
            .filter_map(move |(key, versions)| Some((key, newest(versions, place, &is_there)?)))
    }

    /// Finds the other transactions that have written what is read at a place.
    pub fn writers(
        &self,
        what: &Access,
        place: (Tid, &[u32]),
        is_there: impl Fn(Tid) -> bool,
        found: &mut Vec<Tid>,
    ) {
        let mut take = |version: Option<&Version>| {
            found.extend(version.map(|v| v.tid).filter(|tid| *tid != place.0));
        };
        match what {
            Access::Row(table, key) => take(self.before(*table, key, place, is_there)),
            Access::Range(table, from, to) => {
                let versions = self.range(*table, from, to, place, is_there);
                versions.for_each(|(_, version)| take(Some(version)));
            }
        }
    }

    /// Whether a transaction has written, before a place in it, what is read there.
    pub fn has_own(&self, what: &Access, place: (Tid, &[u32])) -> bool {
        let has_own =
            |versions: &Row| versions.iter().any(|v| v.tid == place.0 && v.place() < place);
        match what {
            Access::Row(table, key) => self.tables[table.index()].get(key).is_some_and(has_own),
            Access::Range(table, from, to) => {
                self.tables[table.index()].range(from, to).any(|(_, v)| has_own(v))
            }
        }
    }

    /// Removes and returns all versions, those of a key together.
    pub fn drain(&mut self) -> impl Iterator<Item = (TableId, Key, Row)> + '_ {
        self.tables.iter_mut().enumerate().flat_map(|(table, rows)| {
            let table = TableId(table as u16);
            rows.take().map(move |(key, versions)| (table, key, versions))
        })
    }
}

fn newest<'a>(
    versions: &'a [Version],
    place: (Tid, &[u32]),
    is_there: impl Fn(Tid) -> bool,
) -> Option<&'a Version> {
    let before = versions.partition_point(|v| v.place() < place);
    versions[..before].iter().rev().find(|v| v.tid == place.0 || v.is_there(&is_there))
}
