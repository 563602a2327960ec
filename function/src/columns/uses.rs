//! The rows of transactions, by column: key, owner and identity for each event and mentioned row.

use tidemill_core::{Batch, TableId, TableSpec};
use tidemill_place::{hash_of_bytes, hash_of_word, partition_of_bytes, partition_of_hash};
use tidemill_txn::execute::ColumnRow;
use tidemill_txn::program::{KeyValues, Keys};

use crate::node::Owners;

/// The owner of a row without a key. Its transaction aborts where it uses that row.
pub(super) const NOBODY: u16 = u16::MAX;

/// A mentioned row of a handler's transactions, by event.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) table: TableId,
    pub(super) writes: bool,
    pub(super) keys: KeyValues,
    /// The identity of each row: a hash. If two rows share one, transactions of them wait for each
    /// other without need, and no more.
    pub(super) ids: Vec<u64>,
    /// The owner of each row.
    pub(super) owners: Vec<u16>,
    /// Whether the row is that of an earlier use of the same transaction. `None` if none is.
    repeats: Option<Vec<bool>>,
}

impl Use {
    /// Whether the row of an event is that of an earlier use of the same transaction.
    pub(super) fn repeats(&self, event: usize) -> bool {
        self.repeats.as_ref().is_some_and(|repeats| repeats[event])
    }

    /// Whether this is the first use of a row with this owner, in the transaction of an event.
    pub(super) fn is_first_of(&self, owner: u16, event: usize) -> bool {
        self.owners[event] == owner && !self.repeats(event)
    }
}

/// Returns the rows that the transactions of events mention.
pub(super) fn uses(
    rows: &[ColumnRow],
    tables: &[TableSpec],
    owners: &Owners,
    events: &Batch,
) -> Vec<Use> {
    let mut found: Vec<Use> = Vec::with_capacity(rows.len());
    for row in rows {
        let spec = &tables[row.table.index()];
        let Keys { of: keys, missing } = row.key.of(events);
        let (ids, owner) = identify(spec, row.table, owners, &keys, &missing);
        let (table, writes) = (row.table, row.writes);
        let mut new = Use { table, writes, keys, ids, owners: owner, repeats: None };
        for earlier in found.iter().filter(|earlier| earlier.table == table) {
            for event in 0..events.len() {
                if new.ids[event] == earlier.ids[event]
                    && new.owners[event] != NOBODY
                    && earlier.owners[event] != NOBODY
                    && are_equal((&new.keys, event), (&earlier.keys, event))
                {
                    new.repeats.get_or_insert_with(|| vec![false; events.len()])[event] = true;
                }
            }
        }
        found.push(new);
    }
    found
}

/// Returns the identity and the owner of each row of a table. Those in `missing` have no key.
fn identify(
    spec: &TableSpec,
    table: TableId,
    owners: &Owners,
    keys: &KeyValues,
    missing: &[usize],
) -> (Vec<u64>, Vec<u16>) {
    let salt = (u64::from(table.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (mut ids, mut of) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
    match keys {
        KeyValues::Words(words) => {
            let ty = &spec.schema.columns[spec.key[0]].ty;
            for word in words {
                let hash = hash_of_word(ty, *word);
                ids.push(hash ^ salt);
                of.push(owners.of(partition_of_hash(hash)).0);
            }
            if spec.partition_prefix == Some(0) {
                of.fill(owners.of(partition_of_bytes(spec, &[])).0);
            }
        }
        KeyValues::Columns(batch) => {
            let (mut bytes, mut missing) = (Vec::new(), missing.iter().peekable());
            for row in 0..batch.len() {
                if missing.next_if_eq(&&row).is_some() {
                    ids.push(0);
                    of.push(NOBODY);
                    continue;
                }
                bytes.clear();
                batch.encode_row(row, &mut bytes);
                let hash = hash_of_bytes(&bytes);
                ids.push(hash ^ salt);
                let partition = match spec.partition_prefix {
                    None => partition_of_hash(hash),
                    Some(_) => partition_of_bytes(spec, &bytes),
                };
                of.push(owners.of(partition).0);
            }
        }
    }
    missing.iter().for_each(|event| of[*event] = NOBODY);
    (ids, of)
}

/// Whether two keys of one table are equal.
pub(super) fn are_equal(one: (&KeyValues, usize), other: (&KeyValues, usize)) -> bool {
    match (one, other) {
        ((KeyValues::Words(one), at), (KeyValues::Words(other), of)) => one[at] == other[of],
        ((KeyValues::Columns(one), at), (KeyValues::Columns(other), of)) => {
            encoded(one, at) == encoded(other, of)
        }
        _ => false,
    }
}

/// Returns the bytes of a key.
pub(super) fn encoded(keys: &Batch, row: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    keys.encode_row(row, &mut bytes);
    bytes
}
