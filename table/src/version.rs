//! The version log: superseded versions, in stamp order by thread.

use tidemill_core::Value;

use crate::layout::{HEADER_WORDS, KEY_WORD};
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
/// in `values`. A link is the place of an entry's first word.
///
/// With its key, although that is known from elsewhere: a slot of four words is copied in two
/// instructions, and leaving words out would take more. Words at a slot's end that no write changes are
/// left out ([`Table::writing`](crate::Table::writing)): all entries of a table have as many words.
///
/// The log is in parts, one for each thread that writes versions at a time; those of a part are in
/// stamp order. A part begins at a place where none before it can reach.
///
/// The link of a version that was committed before the log was last cleared is stale. Nobody
/// follows it: whoever reads the past stops at such a version at the latest.
#[derive(Clone, Debug)]
pub(crate) struct VersionLog {
    /// At least one; in order of their bases.
    parts: Vec<Part>,
    /// Emptied parts.
    spare: Vec<Part>,
    values_bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct Part {
    /// The place of its first word.
    base: usize,
    words: Vec<u64>,
    /// Beside each entry.
    values: Vec<Value>,
}

impl Part {
    /// Room for so many words, and a little more, in a part that is empty: the next epoch is seldom just as long,
    /// and memory that grows is copied, whatever was in it.
    fn make_room(&mut self, words: usize) {
        if self.words.capacity() < words {
            self.words = Vec::new();
            self.words.reserve_exact(words + words / 8);
        }
    }
}

/// How far ahead of its end the log asks for memory, in words. It is read and written so seldom
/// that each epoch finds it gone from the caches.
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

    /// Number of entries, of `stride` words each.
    pub(crate) fn len(&self, stride: usize) -> usize {
        self.words() / stride
    }

    /// Their links.
    pub(crate) fn links(&self, stride: usize) -> impl Iterator<Item = u32> + '_ {
        let of = move |part: &Part| (part.base..part.base + part.words.len()).step_by(stride);
        self.parts.iter().flat_map(of).map(|at| at as u32)
    }

    /// The first word of each entry's slot.
    pub(crate) fn keys(&self, stride: usize) -> impl Iterator<Item = u64> + '_ {
        let entries = self.parts.iter().flat_map(move |part| part.words.chunks_exact(stride));
        entries.map(|words| words[KEY_WORD])
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

    /// The last part, with room for so many more words.
    pub(crate) fn reserve(&mut self, words: usize) -> PartAt {
        let number = self.parts.len() - 1;
        let part = self.last();
        part.words.reserve(words);
        // Links are 32 bits.
        assert!(
            part.base + part.words.len() + words < NO_LINK as usize,
            "an epoch has 2^32 words of versions"
        );
        PartAt::of(number, part)
    }

    /// Parts with room for so many words each: the last ones, if they have it, because an epoch may be executed
    /// in pieces; else parts behind the last one. A last one that is empty is the first of them: its memory has
    /// been used.
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
            end <= part.words.capacity() && part.base + end < NO_LINK as usize
        })
    }

    /// Appends parts with room for so many words each; gives the number of the first.
    fn add_parts(&mut self, words: &[usize]) -> usize {
        let unused = self.parts.pop_if(|part| part.words.is_empty() && !words.is_empty());
        self.spare.extend(unused);
        let first = self.parts.len();
        for words in words {
            let base = self.parts.last().map_or(0, |last| last.base + last.words.capacity());
            assert!(base + words < NO_LINK as usize, "an epoch has 2^32 words of versions");
            let mut part = self.largest_spare();
            part.base = base;
            part.make_room(*words);
            self.parts.push(part);
        }
        first
    }

    /// Memory that was used is better than memory that is new, which is dear.
    fn largest_spare(&mut self) -> Part {
        let parts = self.spare.iter().enumerate();
        let largest = parts.max_by_key(|(_, part)| part.words.capacity());
        largest.map(|(at, _)| at).map_or_else(Part::default, |at| self.spare.swap_remove(at))
    }

    /// What was written by pointer belongs to a part: it ends at this place.
    ///
    /// # Safety
    /// All words up to there have been written, within the room that was reserved.
    pub(crate) unsafe fn set_end(&mut self, part: usize, end: usize) {
        let part = &mut self.parts[part];
        debug_assert!(end - part.base <= part.words.capacity());
        // SAFETY: as the caller says.
        unsafe { part.words.set_len(end - part.base) }
    }

    /// Appends the version that a slot is about to lose: its words as far as they are logged; gives its link.
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

    /// The entry at a link, of `stride` words and with so many values beside it.
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

    /// Whether the link of the slot with this first word leads to one of its versions. Of a stale
    /// link it may say so by chance.
    pub(crate) fn has(&self, link: u32, key: u64) -> bool {
        let part = self.part(link as usize);
        part.words.get(link as usize - part.base + KEY_WORD) == Some(&key)
    }

    /// Slots of a table whose keys are not words have moved: `moved[old] = new`.
    pub(crate) fn remap(&mut self, moved: &[u32], stride: usize) {
        for entry in self.parts.iter_mut().flat_map(|p| p.words.chunks_exact_mut(stride)) {
            entry[KEY_WORD] = u64::from(moved[entry[KEY_WORD] as usize]);
        }
    }
}

/// A part of the log, to be written by pointer. Reserving again leaves the pointers of other parts
/// good.
#[derive(Debug)]
pub(crate) struct PartAt {
    pub(crate) number: usize,
    /// Where place 0 of the log would be if the part began there.
    pub(crate) origin: *mut u64,
    /// The place behind the last word.
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

    /// An epoch that is executed in pieces has one part for each thread, as long as they have room; then others behind
    /// them; and the next one begins with the largest.
    #[test]
    fn pieces_of_an_epoch_go_on_in_the_parts_that_there_are() {
        let mut log = VersionLog::default();
        let write = |log: &mut VersionLog, words: usize| -> Vec<usize> {
            let parts = log.reserve_parts(&[words, words]);
            for PartAt { number, origin, end } in &parts {
                for at in *end..end + words {
                    // SAFETY: the part has room for so many words more.
                    unsafe { *origin.wrapping_add(at) = at as u64 }
                }
                // SAFETY: they have been written.
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
