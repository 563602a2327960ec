//! Versions of rows on their way into a snapshot.
//!
//! These are the versions that the snapshot before does not have, and the dropped versions that it
//! has. Written rows are scanned. A row whose versions were dropped by age is taken for that
//! reason.

use tidemill_core::Value;
use tidemill_place::{partition_of_bytes, Partition};

use super::{Changed, Rows};
use crate::history::StoredVersion;
use crate::layout::Layout;
use crate::table::{Table, KEY};

/// Copies of versions, in the order in which their rows were found.
#[derive(Clone, Debug)]
pub(super) struct ChangedVersions {
    /// The new versions. After the key's word: number and time, then null bits and columns.
    come: Rows,
    /// The dropped versions. After the key's word: the number.
    gone: Rows,
}

impl ChangedVersions {
    pub(super) fn new(layout: &Layout) -> ChangedVersions {
        let key_words = usize::from(layout.word_key);
        ChangedVersions {
            come: Rows::new(key_words + 2 + layout.body_words()),
            gone: Rows::new(key_words + 1),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.come.bytes() + self.gone.bytes()
    }
}

impl Table {
    /// Takes the changes among the versions of the row in this slot.
    #[cold]
    #[inline(never)]
    pub(super) fn take_versions(&mut self, slot: usize, changed: &mut ChangedVersions) {
        let Some(versions) = self.versions_in(slot) else { return };
        let put = |rows: &mut Rows, words: &[u64]| {
            rows.len += 1;
            match &self.keys {
                None => rows.words.push(self.slots.words()[slot * self.stride + KEY]),
                Some(keys) => {
                    rows.key_bytes.extend_from_slice(&keys.key(slot as u32).0);
                    rows.key_ends.push(rows.key_bytes.len());
                }
            }
            rows.words.extend_from_slice(words);
        };
        let (first, end) = (versions.first(), versions.end());
        let stored = versions.history.stored();
        for number in stored.start..stored.end.min(first) {
            put(&mut changed.gone, &[number]);
        }
        for number in first.max(stored.end)..end {
            let (body, values) = versions.body(number);
            put(&mut changed.come, &[number, versions.time_us(number) as u64]);
            changed.come.words.extend_from_slice(body);
            changed.come.values.extend_from_slice(values);
        }
        self.histories[slot].store(first..end);
    }
}

impl Changed {
    /// Calls `visit` for each version that the snapshot before does not have, and with `None` for
    /// each dropped version that it has.
    ///
    /// The arguments are the partition, the key (see [`StoredVersion`]) and the version, in no
    /// order. [`Loading::version`](crate::Loading::version) reads them back.
    pub fn for_each_version(&self, mut visit: impl FnMut(Partition, &[u8], Option<&[u8]>)) {
        let ChangedVersions { come, gone } = &self.versions;
        let (key_words, beside) = (usize::from(self.layout.word_key), self.layout.values);
        let (mut scratch, mut key, mut version) = (Vec::new(), Vec::new(), Vec::new());
        let mut key_of = |rows: &Rows, at: usize, key: &mut Vec<u8>| {
            let row_key = self.key_in(rows, at, &mut scratch);
            key.clear();
            key.extend_from_slice(row_key);
            StoredVersion::put_number(rows.words[at * rows.width + key_words], key);
            partition_of_bytes(&self.spec, row_key)
        };
        for at in 0..gone.len {
            visit(key_of(gone, at, &mut key), &key, None);
        }
        for at in 0..come.len {
            let partition = key_of(come, at, &mut key);
            let words = &come.words[at * come.width..][..come.width];
            let values: &[Value] = &come.values[at * beside..][..beside];
            version.clear();
            StoredVersion::put_time(words[key_words + 1] as i64, &mut version);
            self.encode(words[0], &words[key_words + 2..], values, &mut version);
            visit(partition, &key, Some(&version));
        }
    }
}
