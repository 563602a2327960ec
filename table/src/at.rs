//! A row where it lies, for executors that have found its slot before and come back to it.
//!
//! What a transaction writes goes straight to the slot, after the version before has gone to the
//! log; should the transaction abort, that version comes back. So a row is neither copied nor
//! looked up again, and a transaction that names one row twice sees one row.

use crate::layout::HEADER_WORDS;
use crate::table::{Table, LINK, STAMP, TAKEN};
use crate::version::{stamp_word, Seq};

/// A row in its slot, or words that stand for one. It borrows nothing: whoever uses it sees to it
/// that what it points at is still there.
#[derive(Clone, Copy, Debug)]
pub struct RowAt {
    /// The slot's first word.
    words: *mut u64,
    table: *mut Table,
    base: usize,
}

impl RowAt {
    /// The row in the slot at `base` of a table, when it is there.
    ///
    /// # Safety
    /// `table` may be read and written as by a `&mut Table` until the row is no longer used, and
    /// nobody else does so meanwhile. [`Table::find`] of that table gave `base`, and slots have not
    /// moved since (see [`Table::moves`]), nor do they while the row is used.
    #[inline(always)]
    pub unsafe fn find(table: *mut Table, base: usize) -> Option<RowAt> {
        // SAFETY: the caller lends the table; a slot begins at `base`, and `STAMP` is in it.
        let (words, stamp) = unsafe {
            let words = (*table).slots_ptr().add(base);
            (words, *words.add(STAMP))
        };
        (stamp & 1 == 1).then_some(RowAt { words, table, base })
    }

    /// Words that stand for a row. Only [`RowAt::word`] and [`RowAt::set`] may be used on it.
    pub fn frame(words: *mut u64) -> RowAt {
        RowAt { words, table: std::ptr::null_mut(), base: 0 }
    }

    /// A word of the slot.
    ///
    /// # Safety
    /// As of [`RowAt::find`]; `at` is less than the words of a slot, or of the frame.
    #[inline(always)]
    pub unsafe fn word(self, at: usize) -> u64 {
        // SAFETY: as the caller says.
        unsafe { *self.words.add(at) }
    }

    /// Sets a word of the slot's columns, of a version that has begun.
    ///
    /// # Safety
    /// As of [`RowAt::word`].
    #[inline(always)]
    pub unsafe fn set(self, at: usize, word: u64) {
        // SAFETY: as the caller says.
        unsafe { *self.words.add(at) = word }
    }

    /// Begins a new version at `seq`, more than 0; nothing happens when one has begun already.
    ///
    /// # Safety
    /// As of [`RowAt::find`]; the table has no values beside its slots.
    #[inline(always)]
    pub unsafe fn begin(self, seq: Seq) {
        // SAFETY: as the caller says.
        unsafe { begin(self.words, self.table, self.base, seq) }
    }

    /// Puts the version before back in its place, if one has begun at `seq`; `true` when so. Once
    /// that is done for all rows of a transaction, each that gave `true` is to be followed by a
    /// [`RowAt::forget`].
    ///
    /// # Safety
    /// As of [`RowAt::begin`].
    pub unsafe fn undo(self, seq: Seq) -> bool {
        // SAFETY: as in `begin`.
        unsafe {
            if *self.words.add(STAMP) >> 1 != seq {
                return false;
            }
            let at = (*self.words.add(LINK) >> 32) as u32;
            let columns = (*self.table).stride() - HEADER_WORDS;
            let body = std::slice::from_raw_parts_mut(self.words.add(HEADER_WORDS), columns);
            let (link, stamp) = (*self.table).log_mut().copy_back(at, body);
            *self.words.add(LINK) = u64::from(link) << 32 | TAKEN;
            *self.words.add(STAMP) = stamp;
            true
        }
    }

    /// Takes the last version from the log of the row's table.
    ///
    /// # Safety
    /// As of [`RowAt::begin`]; the version's row was undone.
    pub unsafe fn forget(self) {
        // SAFETY: the caller lends the table.
        unsafe {
            let columns = (*self.table).stride() - HEADER_WORDS;
            (*self.table).log_mut().pop(columns);
        }
    }
}

/// [`RowAt::begin`], by its parts. The usual case, a row of one column and room in the log, stands
/// alone and needs few registers; everything else is one call.
///
/// # Safety
/// As of [`RowAt::begin`].
#[inline(always)]
unsafe fn begin(words: *mut u64, table: *mut Table, base: usize, seq: Seq) {
    // SAFETY: the caller lends the table, and a slot of `stride` words begins at `words`. The log
    // is not the memory of the slots.
    unsafe {
        let stamp = *words.add(STAMP);
        debug_assert!(stamp >> 1 <= seq, "versions are written in stamp order");
        if stamp >> 1 == seq {
            return;
        }
        let link = (*words.add(LINK) >> 32) as u32;
        let is_short = (*table).stride() == HEADER_WORDS + 1;
        let at = match is_short.then_some((*table).log_mut()) {
            Some(log) if log.has_room() => {
                log.push_one(base, link, stamp, *words.add(HEADER_WORDS))
            }
            _ => push_slowly(words, table, base),
        };
        *words.add(LINK) = u64::from(at) << 32 | TAKEN;
        *words.add(STAMP) = stamp_word(seq, true);
    }
}

/// Moves a version to the log, however long it is and wherever the log has room.
///
/// # Safety
/// As of [`RowAt::begin`].
#[inline(never)]
unsafe fn push_slowly(words: *mut u64, table: *mut Table, base: usize) -> u32 {
    // SAFETY: as in `begin`.
    unsafe {
        let (stamp, link) = (*words.add(STAMP), (*words.add(LINK) >> 32) as u32);
        let columns = (*table).stride() - HEADER_WORDS;
        let body = std::slice::from_raw_parts(words.add(HEADER_WORDS), columns);
        (*table).log_mut().push(base, link, stamp, body)
    }
}
