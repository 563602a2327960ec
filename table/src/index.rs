//! The index from key to slot, for keys that are not one word: encoded keys in a hash table.
//!
//! Keys of one word need no index. Their slots *are* an open-addressing table (see
//! [`crate::Table::find`]). With prefetching, it is several times faster than a general hash table
//! once the rows no longer fit into the cache. At ten million keys, a transaction of two to four
//! keys takes 21-28 ns instead of 82-108.

use foldhash::fast::FixedState;
use hashbrown::hash_table::{Entry, HashTable};
use std::hash::BuildHasher;
use tidemill_core::Key;

#[derive(Clone, Debug)]
pub(crate) struct KeyIndex {
    table: HashTable<u32>,
    keys: Vec<Key>,
    hasher: FixedState,
    key_bytes: usize,
}

impl KeyIndex {
    pub(crate) fn new(seed: u64) -> KeyIndex {
        KeyIndex {
            table: HashTable::new(),
            keys: Vec::new(),
            hasher: FixedState::with_seed(seed),
            key_bytes: 0,
        }
    }

    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        self.find_hashed(key, self.hash(key))
    }

    /// Returns the hash for [`KeyIndex::find_hashed`] and [`KeyIndex::insert_hashed`].
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(crate) fn find_hashed(&self, key: &Key, hash: u64) -> Option<u32> {
        self.table.find(hash, |&slot| self.keys[slot as usize] == *key).copied()
    }

    /// Adds a key that is not there yet. Returns its slot.
    pub(crate) fn insert(&mut self, key: Key) -> u32 {
        let hash = self.hash(&key);
        self.insert_hashed(key, hash)
    }

    pub(crate) fn insert_hashed(&mut self, key: Key, hash: u64) -> u32 {
        let slot = self.keys.len() as u32;
        self.key_bytes += extra_bytes(&key);
        self.keys.push(key);
        let (keys, hasher) = (&self.keys, &self.hasher);
        self.table.insert_unique(hash, slot, |&s| hasher.hash_one(&keys[s as usize]));
        slot
    }

    /// Adds a key and returns its slot, or `None` if it is there already.
    pub(crate) fn try_insert(&mut self, key: Key) -> Option<u32> {
        let hash = self.hasher.hash_one(&key);
        let (keys, hasher) = (&self.keys, &self.hasher);
        let entry = self.table.entry(
            hash,
            |&slot| keys[slot as usize] == key,
            |&slot| hasher.hash_one(&keys[slot as usize]),
        );
        let Entry::Vacant(entry) = entry else { return None };
        let slot = self.keys.len() as u32;
        entry.insert(slot);
        self.key_bytes += extra_bytes(&key);
        self.keys.push(key);
        Some(slot)
    }

    /// Removes the key of a slot. The key of the last slot gets that slot instead.
    pub(crate) fn swap_remove(&mut self, slot: u32) {
        let hash = self.hash(&self.keys[slot as usize]);
        if let Ok(entry) = self.table.find_entry(hash, |&of| of == slot) {
            entry.remove();
        }
        let last = self.keys.len() as u32 - 1;
        if last != slot {
            let hash = self.hash(&self.keys[last as usize]);
            if let Some(of) = self.table.find_mut(hash, |&of| of == last) {
                *of = slot;
            }
        }
        self.key_bytes -= extra_bytes(&self.keys.swap_remove(slot as usize));
    }

    /// Makes room for `keys` more keys.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.keys.reserve(keys);
        let (keys_now, hasher) = (&self.keys, &self.hasher);
        self.table.reserve(keys, |&slot| hasher.hash_one(&keys_now[slot as usize]));
    }

    pub(crate) fn key(&self, slot: u32) -> &Key {
        &self.keys[slot as usize]
    }

    pub(crate) fn into_keys(self) -> Vec<Key> {
        self.keys
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key_bytes
            + self.keys.capacity() * std::mem::size_of::<Key>()
            + self.table.capacity() * 5
    }
}

/// Returns the bytes of a key on the heap.
fn extra_bytes(key: &Key) -> usize {
    if key.0.spilled() {
        key.0.capacity()
    } else {
        0
    }
}
