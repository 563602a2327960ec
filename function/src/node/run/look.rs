//! Rows as seen from a place.

use tidemill_core::{Key, TableId};
use tidemill_txn::program::Take;

use crate::gate::Access;
use crate::node::part::ReadResult;
use crate::order::Tid;
use crate::rows::{Rows, Stored};
use crate::versions::Versions;

/// Returns a row as seen from a place.
pub(in crate::node) fn look_at(
    rows: &Rows,
    versions: &Versions,
    place: (Tid, &[u32]),
    table: TableId,
    key: &Key,
    is_there: &dyn Fn(Tid) -> bool,
) -> Stored {
    let version = versions.before(table, key, place, is_there);
    version.map_or_else(|| rows.get(table, key), |v| v.row.clone())
}

/// Returns rows as seen from a place: with the visible writes of earlier transactions, and the
/// transaction's own writes before it.
pub(in crate::node) fn look(
    rows: &Rows,
    versions: &Versions,
    place: (Tid, &[u32]),
    what: &Access,
    take: Take,
    is_there: &dyn Fn(Tid) -> bool,
) -> ReadResult {
    match what {
        Access::Row(table, key) => {
            [look_at(rows, versions, place, *table, key, is_there)].into_iter().collect()
        }
        Access::Range(table, from, to) => {
            let (reverse, limit) = (take.is_reverse(), take.limit());
            let mut written = versions.range(*table, from, to, place, is_there);
            let written =
                std::iter::from_fn(|| if reverse { written.next_back() } else { written.next() });
            let mut written = written.map(|(key, version)| (key, &version.row)).peekable();
            let mut saw = ReadResult::new();
            rows.range(*table, from, to, reverse, &mut |key, row| {
                let is_first = |other: &Key| if reverse { other > key } else { other < key };
                while let Some((_, row)) = written.next_if(|(k, _)| is_first(k)) {
                    saw.extend(row.clone().map(Some));
                }
                match written.next_if(|(k, _)| *k == key) {
                    Some((_, row)) => saw.extend(row.clone().map(Some)),
                    None => saw.push(Some(row.clone())),
                }
                saw.len() < limit
            });
            let left = limit.saturating_sub(saw.len());
            saw.extend(written.filter_map(|(_, row)| row.clone().map(Some)).take(left));
            saw.truncate(limit);
            saw
        }
    }
}
