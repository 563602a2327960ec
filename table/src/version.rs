//! The version log: superseded versions in stamp order.

use tidemill_core::Value;

use crate::cells::prefetch_address;
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

/// Superseded versions. Each entry is two words (where its slot begins and the link to the next
/// older version, 32 bits each; stamp) and the version's body; the values beside it stand in
/// `values`. A link is the index of an entry's first word.
///
/// The link of a version that was committed before the log was last cleared is stale. Nobody
/// follows it: whoever reads the past stops at such a version at the latest.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionLog {
    words: Vec<u64>,
    values: Vec<Value>,
    values_bytes: usize,
}

pub(crate) const ENTRY_HEADER: usize = 2;

/// How far ahead of its end the log asks for memory, in words. It is read and written so seldom
/// that each epoch finds it gone from the caches.
const LOG_AHEAD: usize = 64;

impl VersionLog {
    /// Number of entries.
    pub(crate) fn len(&self, layout: &Layout) -> usize {
        self.words.len() / (ENTRY_HEADER + layout.body_words())
    }

    /// Their links.
    pub(crate) fn links(&self, layout: &Layout) -> impl Iterator<Item = u32> {
        (0..self.words.len() as u32).step_by(ENTRY_HEADER + layout.body_words())
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

    /// Whether there is room for one more version of one column.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.words.capacity() - self.words.len() > ENTRY_HEADER
    }

    /// As [`VersionLog::push`], of a version of one column.
    ///
    /// # Safety
    /// There is room for it (see [`VersionLog::has_room`]).
    #[inline(always)]
    pub(crate) unsafe fn push_one(&mut self, base: usize, link: u32, stamp: u64, word: u64) -> u32 {
        let at = self.words.len();
        // SAFETY: there is room behind the vector's first `at` words, its length, says the caller,
        // and the entry is written before the vector becomes that much longer.
        unsafe {
            let end = self.words.as_mut_ptr().add(at);
            prefetch_address(end.wrapping_add(LOG_AHEAD));
            end.write((base as u64) << 32 | u64::from(link));
            end.add(1).write(stamp);
            end.add(ENTRY_HEADER).write(word);
            self.words.set_len(at + ENTRY_HEADER + 1);
        }
        at as u32
    }

    /// Appends the version that the slot at `base` is about to lose; gives its link.
    pub(crate) fn push(&mut self, base: usize, link: u32, stamp: u64, body: &[u64]) -> u32 {
        let at = self.words.len();
        self.words.reserve(ENTRY_HEADER + body.len());
        self.words.extend_from_slice(&[(base as u64) << 32 | u64::from(link), stamp]);
        self.words.extend_from_slice(body);
        at as u32
    }

    /// Copies the body of a version of a table without values beside its slots; gives its link and
    /// stamp.
    pub(crate) fn copy_back(&self, at: u32, body: &mut [u64]) -> (u32, u64) {
        let stride = ENTRY_HEADER + body.len();
        let entry = &self.words[at as usize..][..stride];
        body.copy_from_slice(&entry[ENTRY_HEADER..]);
        (entry[0] as u32, entry[1])
    }

    /// Takes away the version that was pushed last, of a table without values beside its slots.
    pub(crate) fn pop(&mut self, body_words: usize) {
        self.words.truncate(self.words.len() - body_words - ENTRY_HEADER);
    }

    /// Appends the values beside the version that was pushed last.
    pub(crate) fn push_values(&mut self, values: &[Value]) {
        self.values_bytes += values.iter().map(Value::heap_bytes).sum::<usize>();
        self.values.extend_from_slice(values);
    }

    pub(crate) fn entry(&self, at: u32, layout: &Layout) -> Entry<'_> {
        let stride = ENTRY_HEADER + layout.body_words();
        let words = &self.words[at as usize..][..stride];
        Entry {
            slot: ((words[0] >> 32) as usize / layout.slot_words()) as u32,
            link: words[0] as u32,
            stamp: words[1],
            body: &words[ENTRY_HEADER..],
            values: &self.values[at as usize / stride * layout.values..][..layout.values],
        }
    }

    /// Slots have moved: `moved[old] = new`.
    pub(crate) fn remap(&mut self, moved: &[u32], layout: &Layout) {
        let (stride, slot_words) = (ENTRY_HEADER + layout.body_words(), layout.slot_words());
        for entry in self.words.chunks_exact_mut(stride) {
            let slot = moved[(entry[0] >> 32) as usize / slot_words] as usize;
            entry[0] = ((slot * slot_words) as u64) << 32 | (entry[0] & u64::from(u32::MAX));
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
