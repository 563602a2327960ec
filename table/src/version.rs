//! The version log: superseded versions in stamp order.

use tidemill_core::Value;

use crate::layout::Layout;

/// The dense rank of a transaction in the one order, from 1. 0 is the initial state.
pub type Seq = u64;

/// No older version.
pub(crate) const NO_LINK: u32 = u32::MAX;

/// A version's stamp word: the sequence number and whether the row is there.
#[inline(always)]
pub(crate) fn stamp_word(seq: Seq, present: bool) -> u64 {
    seq << 1 | u64::from(present)
}

/// Superseded versions. Each entry is two words (slot and link to the next older version; stamp)
/// and the version's body; the values beside it stand in `values`.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionLog {
    words: Vec<u64>,
    values: Vec<Value>,
    len: usize,
    values_bytes: usize,
}

pub(crate) const ENTRY_HEADER: usize = 2;

impl VersionLog {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.values.clear();
        self.len = 0;
        self.values_bytes = 0;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words.capacity() * 8
            + self.values.capacity() * std::mem::size_of::<Value>()
            + self.values_bytes
    }

    /// Appends the version that `slot` is about to lose; gives its link.
    #[inline(always)]
    pub(crate) fn push(&mut self, slot: u32, link: u32, stamp: u64, body: &[u64]) -> u32 {
        let at = self.len as u32;
        self.words.push(u64::from(slot) << 32 | u64::from(link));
        self.words.push(stamp);
        self.words.extend_from_slice(body);
        self.len += 1;
        at
    }

    /// Appends the values beside the version that was pushed last.
    pub(crate) fn push_values(&mut self, values: &[Value]) {
        self.values_bytes += values.iter().map(Value::heap_bytes).sum::<usize>();
        self.values.extend_from_slice(values);
    }

    pub(crate) fn entry(&self, at: u32, layout: &Layout) -> Entry<'_> {
        let stride = ENTRY_HEADER + layout.body_words();
        let words = &self.words[at as usize * stride..][..stride];
        Entry {
            slot: (words[0] >> 32) as u32,
            link: words[0] as u32,
            stamp: words[1],
            body: &words[ENTRY_HEADER..],
            values: &self.values[at as usize * layout.values..][..layout.values],
        }
    }

    /// Slots have moved: `moved[old] = new`.
    pub(crate) fn remap(&mut self, moved: &[u32], layout: &Layout) {
        let stride = ENTRY_HEADER + layout.body_words();
        for entry in self.words.chunks_exact_mut(stride) {
            let slot = moved[(entry[0] >> 32) as usize];
            entry[0] = u64::from(slot) << 32 | (entry[0] & u64::from(u32::MAX));
        }
    }
}

pub(crate) struct Entry<'a> {
    pub(crate) slot: u32,
    pub(crate) link: u32,
    pub(crate) stamp: u64,
    pub(crate) body: &'a [u64],
    pub(crate) values: &'a [Value],
}
