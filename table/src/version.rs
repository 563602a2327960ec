//! The version log: superseded versions in stamp order.

use tidemill_core::Value;

use crate::layout::{Layout, HEADER_WORDS, KEY_WORD};
use crate::table::{LINK, STAMP};

/// The dense rank of a transaction in the one order, from 1. 0 is the initial state.
pub type Seq = u64;

/// No older version.
pub(crate) const NO_LINK: u32 = u32::MAX;

/// A version's stamp word: the sequence number and whether the row is there.
#[inline(always)]
pub(crate) fn stamp_word(seq: Seq, present: bool) -> u64 {
    seq << 1 | u64::from(present)
}

/// Superseded versions. Each entry is the slot as it was, word for word: its key (or, in a table
/// whose keys are not words, the slot's number), stamp, link and columns; the values beside it stand
/// in `values`. A link is the index of an entry's first word.
///
/// Whole slots, although their keys are known from elsewhere: a slot of four words is copied in two
/// instructions, and leaving words out would take more.
///
/// The link of a version that was committed before the log was last cleared is stale. Nobody
/// follows it: whoever reads the past stops at such a version at the latest.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionLog {
    words: Vec<u64>,
    values: Vec<Value>,
    values_bytes: usize,
}

/// How far ahead of its end the log asks for memory, in words. It is read and written so seldom
/// that each epoch finds it gone from the caches.
pub(crate) const LOG_AHEAD: usize = 64;

impl VersionLog {
    /// Number of entries.
    pub(crate) fn len(&self, layout: &Layout) -> usize {
        self.words.len() / layout.slot_words()
    }

    /// Their links.
    pub(crate) fn links(&self, layout: &Layout) -> impl Iterator<Item = u32> {
        (0..self.words.len() as u32).step_by(layout.slot_words())
    }

    /// The first word of each entry's slot.
    pub(crate) fn keys(&self, layout: &Layout) -> impl Iterator<Item = u64> + '_ {
        self.words.chunks_exact(layout.slot_words()).map(|words| words[KEY_WORD])
    }

    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.values.clear();
        self.values_bytes = 0;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words.capacity() * 8
            + self.values.capacity() * std::mem::size_of::<Value>()
            + self.values_bytes
    }

    /// Room for so many more words.
    pub(crate) fn reserve(&mut self, words: usize) {
        self.words.reserve(words);
        // Links are 32 bits.
        assert!(self.words.len() + words < NO_LINK as usize, "an epoch has 2^32 words of versions");
    }

    /// The first word, and how many there are. Asking again leaves earlier pointers good.
    pub(crate) fn raw(&mut self) -> (*mut u64, usize) {
        (self.words.as_mut_ptr(), self.words.len())
    }

    /// What was written by pointer belongs to the log.
    ///
    /// # Safety
    /// So many words have been written, within the room that was reserved.
    pub(crate) unsafe fn set_len(&mut self, words: usize) {
        debug_assert!(words <= self.words.capacity());
        // SAFETY: as the caller says.
        unsafe { self.words.set_len(words) }
    }

    /// Appends the version that a slot is about to lose; gives its link.
    pub(crate) fn push(&mut self, slot: &[u64]) -> u32 {
        let at = self.words.len();
        self.words.extend_from_slice(slot);
        at as u32
    }

    /// Appends the values beside the version that was pushed last.
    pub(crate) fn push_values(&mut self, values: &[Value]) {
        self.values_bytes += values.iter().map(Value::heap_bytes).sum::<usize>();
        self.values.extend_from_slice(values);
    }

    pub(crate) fn entry(&self, at: u32, layout: &Layout) -> Entry<'_> {
        let stride = layout.slot_words();
        let words = &self.words[at as usize..][..stride];
        Entry {
            key: words[KEY_WORD],
            link: (words[LINK] >> 32) as u32,
            stamp: words[STAMP],
            body: &words[HEADER_WORDS..],
            values: &self.values[at as usize / stride * layout.values..][..layout.values],
        }
    }

    /// Whether the link of the slot with this first word leads to one of its versions. Of a stale
    /// link it may say so by chance.
    pub(crate) fn has(&self, link: u32, key: u64) -> bool {
        self.words.get(link as usize + KEY_WORD) == Some(&key)
    }

    /// Slots of a table whose keys are not words have moved: `moved[old] = new`.
    pub(crate) fn remap(&mut self, moved: &[u32], layout: &Layout) {
        for entry in self.words.chunks_exact_mut(layout.slot_words()) {
            entry[KEY_WORD] = u64::from(moved[entry[KEY_WORD] as usize]);
        }
    }
}

pub(crate) struct Entry<'a> {
    /// The slot's first word.
    pub(crate) key: u64,
    pub(crate) link: u32,
    pub(crate) stamp: u64,
    pub(crate) body: &'a [u64],
    pub(crate) values: &'a [Value],
}
