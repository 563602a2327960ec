//! The version log: superseded versions, in stamp order by thread.

use tidemill_core::Value;

use crate::layout::{HEADER_WORDS, KEY_WORD};
use crate::table::{LINK, STAMP};

/// The dense rank of a transaction in the one order, from 1. 0 is the initial state.
pub type Seq = u64;

/// The link of a version without an older one.
pub(crate) const NO_LINK: u32 = u32::MAX;

/// The link of the first version of a [guest](crate::Table::admit). No log has a place as high.
pub(crate) const GUEST: u32 = NO_LINK - 1;

/// Returns a version's stamp word: the sequence number, and whether the row exists.
#[inline(always)]
pub(crate) fn stamp_word(seq: Seq, present: bool) -> u64 {
    seq << 1 | u64::from(present)
}

/// The superseded versions of a table.
///
/// Each entry is the slot as it was, word for word: its key, stamp, link and columns. In a table
/// whose keys are not words, the slot's number stands for the key. The values beside the slot are
/// in `values`. A link is the place of an entry's first word.
///
/// An entry has its key, although it is known from elsewhere: a slot of four words is copied in two
/// instructions, and leaving words out would take more. Words at a slot's end that no write changes
/// are left out ([`Table::with_written_columns`](crate::Table::writing)). All entries of a table have the same
/// number of words.
///
/// The log is in parts, one for each thread that writes versions at a time. The entries of a part
/// are in stamp order. A part begins at a place that no part before it can reach.
///
/// The link of a version that was committed before the log was last cleared is stale. No reader
/// follows it, because a reader of the past stops at such a version at the latest.
#[derive(Clone, Debug)]
pub(crate) struct VersionLog {
    /// The parts in order of their bases, at least one.
    parts: Vec<Part>,
    /// Emptied parts.
    spare: Vec<Part>,
    values_bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct Part {
    /// The place of the first word.
    base: usize,
    words: Vec<u64>,
    /// The values beside each entry.
    values: Vec<Value>,
}

impl Part {
    /// Makes room for `words` words and a little more, in an empty part.
    ///
    /// The next epoch seldom has the same length, and growing memory is copied, whatever was in it.
    fn make_room(&mut self, words: usize) {
        if self.words.capacity() < words {
            self.words = Vec::new();
            self.words.reserve_exact(words + words / 8);
        }
    }
}

/// The distance from its end at which the log prefetches memory, in words. The log is used so
/// seldom that each epoch finds it evicted from the caches.
pub(crate) const LOG_AHEAD: usize = 64;

impl Default for VersionLog {
    fn default() -> VersionLog {
        VersionLog { parts: vec![Part::default()], spare: Vec::new(), values_bytes: 0 }
    }
}

impl VersionLog {
    fn words(&self) -> usize {
        self.parts.iter().map(|part| part.words.len()).sum()
    }

    /// Returns the number of entries, of `stride` words each.
    pub(crate) fn len(&self, stride: usize) -> usize {
        self.words() / stride
    }

    /// Returns the links of the entries.
    pub(crate) fn links(&self, stride: usize) -> impl Iterator<Item = u32> + '_ {
        let of = move |part: &Part| (part.base..part.base + part.words.len()).step_by(stride);
        self.parts.iter().flat_map(of).map(|at| at as u32)
    }

    /// Returns the first word of each entry's slot.
    pub(crate) fn keys(&self, stride: usize) -> impl Iterator<Item = u64> + '_ {
        let entries = self.parts.iter().flat_map(move |part| part.words.chunks_exact(stride));
        entries.map(|words| words[KEY_WORD])
    }

    /// Returns the words of each entry, and the values beside it.
    pub(crate) fn entries(
        &self,
        stride: usize,
        values: usize,
    ) -> impl Iterator<Item = (&[u64], &[Value])> + '_ {
        self.parts.iter().flat_map(move |part| {
            let words = part.words.chunks_exact(stride).enumerate();
            words.map(move |(nth, words)| (words, &part.values[nth * values..][..values]))
        })
    }

    pub(crate) fn clear(&mut self) {
        while self.parts.len() > 1 {
            self.spare.extend(self.parts.pop());
        }
        for part in self.parts.iter_mut().chain(&mut self.spare) {
            part.words.clear();
            part.values.clear();
        }
        self.values_bytes = 0;
    }

    pub(crate) fn bytes(&self) -> usize {
        let of = |part: &Part| {
            part.words.capacity() * 8 + part.values.capacity() * std::mem::size_of::<Value>()
        };
        self.parts.iter().chain(&self.spare).map(of).sum::<usize>() + self.values_bytes
    }

    fn last(&mut self) -> &mut Part {
        self.parts.last_mut().expect("a log has a part")
    }

    /// Returns the last part, with room for `words` more words.
    pub(crate) fn reserve(&mut self, words: usize) -> PartAt {
        let number = self.parts.len() - 1;
        let part = self.last();
        part.words.reserve(words);
        // Links have 32 bits.
        assert!(
            part.base + part.words.len() + words < GUEST as usize,
            "an epoch has 2^32 words of versions"
        );
        PartAt::of(number, part)
    }

    /// Returns parts with room for so many words each.
    ///
    /// They are the last parts, if these have the room, because an epoch may be executed in pieces.
    /// Otherwise new parts are appended. An empty last part is reused first, because its memory has
    /// been used before.
    pub(crate) fn reserve_parts(&mut self, words: &[usize]) -> Vec<PartAt> {
        let first = match self.have_room(words) {
            true => self.parts.len() - words.len(),
            false => self.add_parts(words),
        };
        let parts = self.parts[first..].iter_mut().enumerate();
        parts.map(|(number, part)| PartAt::of(first + number, part)).collect()
    }

    /// Whether the last parts have room for so many words each.
    fn have_room(&self, words: &[usize]) -> bool {
        let Some(first) = self.parts.len().checked_sub(words.len()) else { return false };
        self.parts[first..].iter().zip(words).all(|(part, words)| {
            let end = part.words.len() + words;
            end <= part.words.capacity() && part.base + end < GUEST as usize
        })
    }

    /// Appends parts with room for so many words each. Returns the number of the first.
    fn add_parts(&mut self, words: &[usize]) -> usize {
        let unused = self.parts.pop_if(|part| part.words.is_empty() && !words.is_empty());
        self.spare.extend(unused);
        let first = self.parts.len();
        for words in words {
            let base = self.parts.last().map_or(0, |last| last.base + last.words.capacity());
            assert!(base + words < GUEST as usize, "an epoch has 2^32 words of versions");
            let mut part = self.largest_spare();
            part.base = base;
            part.make_room(*words);
            self.parts.push(part);
        }
        first
    }

    /// Takes the largest spare part. Memory that was used before is better than new memory, which
    /// is expensive.
    fn largest_spare(&mut self) -> Part {
        let parts = self.spare.iter().enumerate();
        let largest = parts.max_by_key(|(_, part)| part.words.capacity());
        largest.map(|(at, _)| at).map_or_else(Part::default, |at| self.spare.swap_remove(at))
    }

    /// Ends a part at this place, after words were written by pointer.
    ///
    /// # Safety
    /// All words up to this place have been written, within the room that was reserved.
    pub(crate) unsafe fn set_end(&mut self, part: usize, end: usize) {
        let part = &mut self.parts[part];
        debug_assert!(end - part.base <= part.words.capacity());
        // SAFETY: as the caller guarantees.
        unsafe { part.words.set_len(end - part.base) }
    }

    /// Appends the version that a slot is about to lose: its words, as far as they are logged.
    /// Returns its link.
    pub(crate) fn push(&mut self, slot: &[u64]) -> u32 {
        let part = self.last();
        let at = part.base + part.words.len();
        part.words.extend_from_slice(slot);
        at as u32
    }

    /// Appends the values beside the version that was pushed last.
    pub(crate) fn push_values(&mut self, values: &[Value]) {
        self.values_bytes += values.iter().map(Value::heap_bytes).sum::<usize>();
        self.last().values.extend_from_slice(values);
    }

    fn part(&self, at: usize) -> &Part {
        let after = self.parts.iter().rposition(|part| part.base <= at);
        &self.parts[after.unwrap_or(0)]
    }

    /// Returns the entry at a link. It has `stride` words, and `values` values beside it.
    pub(crate) fn entry(&self, at: u32, stride: usize, values: usize) -> Entry<'_> {
        let part = self.part(at as usize);
        let at = at as usize - part.base;
        let words = &part.words[at..][..stride];
        Entry {
            key: words[KEY_WORD],
            link: (words[LINK] >> 32) as u32,
            stamp: words[STAMP],
            body: &words[HEADER_WORDS..],
            values: &part.values[at / stride * values..][..values],
        }
    }

    /// Whether the link of the slot with this first word points to one of its versions. For a stale
    /// link, the answer may be true by chance.
    pub(crate) fn has(&self, link: u32, key: u64) -> bool {
        let part = self.part(link as usize);
        part.words.get(link as usize - part.base + KEY_WORD) == Some(&key)
    }

    /// Renumbers the slots of a table whose keys are not words, after they moved:
    /// `moved[old] = new`.
    pub(crate) fn remap(&mut self, moved: &[u32], stride: usize) {
        for entry in self.parts.iter_mut().flat_map(|p| p.words.chunks_exact_mut(stride)) {
            entry[KEY_WORD] = u64::from(moved[entry[KEY_WORD] as usize]);
        }
    }
}

/// A part of the log that is written by pointer. Reserving again leaves the pointers of other parts
/// valid.
#[derive(Debug)]
pub(crate) struct PartAt {
    pub(crate) number: usize,
    /// The address that place 0 of the log would have if all of the log were in this part.
    pub(crate) origin: *mut u64,
    /// The place after the last word.
    pub(crate) end: usize,
}

impl PartAt {
    fn of(number: usize, part: &mut Part) -> PartAt {
        let origin = part.words.as_mut_ptr().wrapping_sub(part.base);
        PartAt { number, origin, end: part.base + part.words.len() }
    }
}

pub(crate) struct Entry<'a> {
    /// The slot's first word.
    pub(crate) key: u64,
    pub(crate) link: u32,
    pub(crate) stamp: u64,
    /// The column words that are logged.
    pub(crate) body: &'a [u64],
    pub(crate) values: &'a [Value],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An epoch that is executed in pieces has one part for each thread, as long as they
    /// have room. Then it has others after them. The next epoch begins with the largest.
    #[test]
    fn pieces_of_an_epoch_go_on_in_the_parts_that_there_are() {
        let mut log = VersionLog::default();
        let write = |log: &mut VersionLog, words: usize| -> Vec<usize> {
            let parts = log.reserve_parts(&[words, words]);
            for PartAt { number, origin, end } in &parts {
                for at in *end..end + words {
                    // SAFETY: the part has room for so many more words.
                    unsafe { *origin.wrapping_add(at) = at as u64 }
                }
                // SAFETY: the words have been written.
                unsafe { log.set_end(*number, end + words) }
            }
            parts.iter().map(|part| part.number).collect()
        };
        assert_eq!(write(&mut log, 80), [0, 1]);
        assert_eq!(write(&mut log, 8), [0, 1], "an eighth is to spare");
        assert_eq!(write(&mut log, 800), [2, 3]);
        for part in &log.parts {
            let places = part.base as u64..(part.base + part.words.len()) as u64;
            assert!(places.eq(part.words.iter().copied()), "no two are in one place");
        }
        log.clear();
        let room = |log: &VersionLog| log.parts.iter().map(|p| p.words.capacity()).min();
        assert_eq!(write(&mut log, 8), [0, 1]);
        assert_eq!(room(&log), Some(900));
    }
}
