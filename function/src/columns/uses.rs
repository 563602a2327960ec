//! The rows of transactions, by column: key, owner and identity for each event and mentioned row.

use tidemill_core::{Batch, TableId, TableSpec};
use tidemill_place::{hash_of_bytes, hash_of_word, partition_of_bytes, partition_of_hash};
use tidemill_txn::execute::ColumnRow;
use tidemill_txn::program::{KeyValues, Keys};

use crate::node::Owners;

/// The owner of a row without a key. Its transaction aborts where it uses that row.
pub(super) const NOBODY: u16 = u16::MAX;

/// A bit for each mentioned row of a transaction. The number of rows is [`ROWS_MAX`] at most.
///
/// [`ROWS_MAX`]: tidemill_txn::execute::ColumnProgram::ROWS_MAX
pub(super) type UseBits = u64;

/// The mentioned rows of a handler's transactions, by event.
///
/// Which of them are here is random. So they are found by bits, without a branch for each.
#[derive(Debug, Default)]
pub(super) struct Uses {
    pub(super) rows: Vec<Use>,
    /// The rows that transactions may write.
    writes: UseBits,
    /// The identity of each row: a hash. All rows of an event are together. If two rows share one,
    /// transactions of them wait for each other without need, and no more.
    ids: Vec<u64>,
    /// The owner of each row, arranged in the same way.
    owners: Vec<u16>,
    /// The rows that this node owns, by event.
    own: Vec<UseBits>,
    /// The rows of other owners, by event. Each is there once.
    given: Vec<UseBits>,
    /// The rows that are those of an earlier use of the same transaction, by event. Empty if none
    /// is.
    repeats: Vec<UseBits>,
}

/// A mentioned row.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) table: TableId,
    pub(super) keys: KeyValues,
}

impl Uses {
    /// Finds the rows that the transactions of events mention.
    pub(super) fn of(
        rows: &[ColumnRow],
        tables: &[TableSpec],
        (owners, me): (&Owners, u16),
        events: &Batch,
    ) -> Uses {
        let (len, width) = (events.len(), rows.len());
        let mut uses = Uses {
            rows: Vec::with_capacity(width),
            writes: 0,
            ids: vec![0; len * width],
            owners: vec![NOBODY; len * width],
            own: vec![0; len],
            given: vec![0; len],
            repeats: Vec::new(),
        };
        for (nth, row) in rows.iter().enumerate() {
            uses.writes |= UseBits::from(row.writes) << nth;
            let keys = uses.add(row, &tables[row.table.index()], owners, nth, events);
            uses.rows.push(Use { table: row.table, keys });
            uses.find_repeats(nth);
        }
        for event in 0..len {
            let (mut own, mut given) = (0, 0);
            for (nth, owner) in uses.owners[event * width..][..width].iter().enumerate() {
                own |= UseBits::from(*owner == me) << nth;
                given |= UseBits::from(*owner != me && *owner != NOBODY) << nth;
            }
            uses.own[event] = own;
            uses.given[event] = given & !uses.repeats(event);
        }
        uses
    }

    /// Computes the identities and owners of a row, and returns its keys.
    fn add(
        &mut self,
        row: &ColumnRow,
        spec: &TableSpec,
        owners: &Owners,
        nth: usize,
        events: &Batch,
    ) -> KeyValues {
        let width = self.ids.len() / events.len().max(1);
        let salt = (u64::from(row.table.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let Keys { of: keys, missing } = row.key.of(events);
        match &keys {
            KeyValues::Words(words) => {
                let ty = &spec.schema.columns[spec.key[0]].ty;
                let one = (spec.partition_prefix == Some(0)).then(|| partition_of_bytes(spec, &[]));
                for (event, word) in words.iter().enumerate() {
                    let hash = hash_of_word(ty, *word);
                    self.ids[event * width + nth] = hash ^ salt;
                    let partition = one.unwrap_or(partition_of_hash(hash));
                    self.owners[event * width + nth] = owners.of(partition).0;
                }
                missing.iter().for_each(|event| self.owners[event * width + nth] = NOBODY);
            }
            KeyValues::Columns(batch) => {
                let (mut bytes, mut missing) = (Vec::new(), missing.iter().peekable());
                for event in 0..batch.len() {
                    if missing.next_if_eq(&&event).is_some() {
                        continue;
                    }
                    bytes.clear();
                    batch.encode_row(event, &mut bytes);
                    let hash = hash_of_bytes(&bytes);
                    self.ids[event * width + nth] = hash ^ salt;
                    let partition = match spec.partition_prefix {
                        None => partition_of_hash(hash),
                        Some(_) => partition_of_bytes(spec, &bytes),
                    };
                    self.owners[event * width + nth] = owners.of(partition).0;
                }
            }
        }
        keys
    }

    /// Finds the events whose last row is also an earlier one.
    fn find_repeats(&mut self, last: usize) {
        let (new, events) = (&self.rows[last], self.own.len());
        let width = self.ids.len() / events.max(1);
        for (nth, earlier) in self.rows[..last].iter().enumerate() {
            if earlier.table != new.table {
                continue;
            }
            for event in 0..events {
                let (one, other) = (event * width + nth, event * width + last);
                if self.ids[one] == self.ids[other]
                    && self.owners[one] != NOBODY
                    && self.owners[other] != NOBODY
                    && are_equal((&earlier.keys, event), (&new.keys, event))
                {
                    self.repeats.resize(events, 0);
                    self.repeats[event] |= 1 << last;
                }
            }
        }
    }

    #[inline]
    fn repeats(&self, event: usize) -> UseBits {
        self.repeats.get(event).copied().unwrap_or(0)
    }

    /// Returns the rows of an event that this node owns.
    #[inline]
    pub(super) fn own(&self, event: usize) -> UseBits {
        self.own[event]
    }

    /// Returns the rows of an event that this node owns, each once.
    #[inline]
    pub(super) fn exported(&self, event: usize) -> UseBits {
        self.own[event] & !self.repeats(event)
    }

    /// Returns the rows of an event that other nodes own, each once.
    #[inline]
    pub(super) fn given(&self, event: usize) -> UseBits {
        self.given[event]
    }

    /// Returns the identity of a row, and whether it may be written.
    #[inline]
    pub(super) fn id(&self, event: usize, nth: usize) -> (u64, bool) {
        (self.ids[event * self.rows.len() + nth], self.writes >> nth & 1 == 1)
    }

    /// Whether a row may be written, by this use or another one of the same row.
    #[inline]
    pub(super) fn may_write(&self, event: usize, nth: usize) -> bool {
        self.writes >> nth & 1 == 1 || (self.writes != 0 && self.repeats(event) != 0)
    }

    /// Returns the owner of a row.
    #[inline]
    pub(super) fn owner(&self, event: usize, nth: usize) -> u16 {
        self.owners[event * self.rows.len() + nth]
    }

    /// Returns the most rows of this node that the transactions use.
    pub(super) fn own_rows(&self) -> usize {
        self.own.iter().map(|own| own.count_ones() as usize).sum()
    }
}

/// Returns the numbers of rows whose bits are set.
#[inline]
pub(super) fn numbers(bits: UseBits) -> impl Iterator<Item = usize> {
    let mut left = bits;
    std::iter::from_fn(move || {
        let next = left.trailing_zeros() as usize;
        (left != 0).then(|| {
            left &= left - 1;
            next
        })
    })
}

/// Whether two keys of one table are equal.
#[inline]
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
