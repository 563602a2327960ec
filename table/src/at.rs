//! Rows where they lie, for executors that ask for their slots ahead of time and come back to them.
//!
//! What a transaction writes goes straight to the slot, after the version before has gone to the
//! log; should the transaction abort, that version comes back. So a row is neither copied nor
//! looked up again, and a transaction that names one row twice sees one row.

use std::marker::PhantomData;

use crate::cells::prefetch_address;
use crate::history::{RowHistory, Shape, Versions};
use crate::layout::HEADER_WORDS;
use crate::table::{hash, Table, KEY, LINK, SNAPPED, STAMP, TAKEN};
use crate::version::{stamp_word, Seq, LOG_AHEAD, NO_LINK};

/// A table opened for writing rows in place: no slot moves while it is open, and the log has room
/// for the versions that were agreed on. Everything a row's version needs is here, so that it costs
/// no look at the table itself. Dropping it closes it.
#[derive(Debug)]
pub struct Opened<'t> {
    slots: *mut u64,
    /// The log's first word, and how many it has.
    log: *mut u64,
    len: usize,
    stride: usize,
    shift: u32,
    mask: usize,
    seed: u64,
    /// How many more slots may be taken before they have to move.
    room: usize,
    /// Where rows stand that were not there when somebody asked for them.
    placed: Vec<*mut u64>,
    /// Whether a version is four words, and nothing is to be done but copying them.
    is_short: bool,
    /// Where versions that are kept go; null when none are.
    histories: *mut RowHistory,
    /// The time of the versions that are begun now.
    now_us: i64,
    /// By how many bytes versions that are kept have grown.
    grown: isize,
    table: *mut Table,
    lent: PhantomData<&'t mut Table>,
}

impl Table {
    /// Opens the table for rows in place, of which at most `versions` new versions are begun.
    ///
    /// # Panics
    /// When its keys are not words, or there are values beside its slots.
    pub fn open(&mut self, versions: usize) -> Opened<'_> {
        assert!(self.has_plain_rows(), "table {} has rows of words", self.spec().name);
        let (stride, mask, shift, seed) = self.slots_shape();
        self.log_mut().reserve(versions * stride);
        let (room, placed) = (self.room(), Vec::new());
        let table: *mut Table = self;
        // SAFETY: the table is borrowed by what is returned; all pointers are made from this one.
        let (slots, (log, len)) = unsafe { ((*table).slots_ptr(), (*table).log_mut().raw()) };
        let histories = self.histories_ptr();
        Opened {
            slots,
            log,
            len,
            stride,
            shift,
            mask,
            seed,
            room,
            placed,
            is_short: stride == 4 && histories.is_null(),
            histories,
            now_us: i64::MIN,
            grown: 0,
            table,
            lent: PhantomData,
        }
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.placed.sort_unstable();
        self.placed.dedup();
        // SAFETY: what was placed are slots, and whoever wrote to them is done.
        let is_there = |slot: &*mut u64| unsafe { *slot.add(STAMP) & 1 == 1 };
        self.placed.retain(is_there);
        // SAFETY: as above.
        let keys = self.placed.iter().map(|slot| unsafe { *slot.add(KEY) }).collect();
        // SAFETY: `len` words have been written, within the log's room; the table has been lent to
        // `self` alone.
        unsafe {
            (*self.table).log_mut().set_len(self.len);
            (*self.table).have_come(keys);
            (*self.table).histories_have_grown(self.grown);
        }
    }
}

impl Opened<'_> {
    /// Whether versions of its rows are kept. If so, it wants to be [told](Opened::at_time) the time.
    pub fn keeps_versions(&self) -> bool {
        !self.histories.is_null()
    }

    /// The time of the versions that are begun from now on.
    #[inline(always)]
    pub fn at_time(&mut self, time_us: i64) {
        self.now_us = time_us;
    }

    /// Where the search for a key begins.
    #[inline(always)]
    pub fn home(&self, key: u64) -> *mut u64 {
        let slot = (hash(key, self.seed) >> self.shift) as usize;
        // SAFETY: `shift` leaves as many bits as the number of slots has.
        unsafe { self.slots.add(slot * self.stride) }
    }

    /// Asks for a slot to be brought into the cache.
    #[inline(always)]
    pub fn prefetch(slot: *const u64) {
        prefetch_address(slot);
    }

    /// Asks for what is kept of the versions of the row in a slot: first for where they are, and
    /// some time later, when that `is_known`, for the last of them.
    ///
    /// # Safety
    /// The slot is one of the table's, which keeps versions.
    #[inline(always)]
    pub unsafe fn prefetch_versions(&self, slot: *const u64, is_known: bool) {
        // SAFETY: there is a history for each slot.
        unsafe {
            let at = slot.offset_from(self.slots) as usize / self.stride;
            let history = self.histories.add(at);
            match is_known {
                true => (*history).prefetch(),
                false => {
                    prefetch_address(history);
                    prefetch_address(history.cast::<u8>().add(size_of::<RowHistory>() - 1));
                }
            }
        }
    }

    /// The row with this key, if it is there.
    pub fn find(&mut self, key: u64) -> Option<RowAt> {
        let slot = self.find_slot(key);
        // SAFETY: the slot is the table's.
        (!slot.is_null()).then(|| unsafe { RowAt::at(slot, self) })
    }

    /// The slot of a key, or the free one where the search for it ends.
    fn search(&self, key: u64) -> *mut u64 {
        let mut at = (hash(key, self.seed) >> self.shift) as usize;
        loop {
            // SAFETY: `shift` and `mask` leave as many bits as the number of slots has, and some
            // slots are always free.
            unsafe {
                let slot = self.slots.add(at * self.stride);
                if *slot.add(LINK) & TAKEN == 0 || *slot.add(KEY) == key {
                    return slot;
                }
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Where the slot of the row with this key begins; null when it is not there. For keys that are
    /// not at their [home](Opened::home).
    #[cold]
    #[inline(never)]
    pub fn find_slot(&self, key: u64) -> *mut u64 {
        let slot = self.search(key);
        // SAFETY: a slot has a header. A free one has no row.
        match unsafe { *slot.add(KEY) == key && *slot.add(STAMP) & 1 == 1 } {
            true => slot,
            false => std::ptr::null_mut(),
        }
    }

    /// As [`Opened::find_slot`], and whether the row is there. One that is not stands in its slot
    /// with the defaults of its columns, to be read, and written as if it were there. Null when a
    /// column has no default, or when slots would have to move.
    #[cold]
    #[inline(never)]
    pub fn find_or_place(&mut self, key: u64) -> (*mut u64, bool) {
        const NONE: (*mut u64, bool) = (std::ptr::null_mut(), false);
        let slot = self.search(key);
        // SAFETY: a slot has a header, and behind it as many words as a missing row has; nobody else
        // uses the table, says who has opened it.
        unsafe {
            let is_taken = *slot.add(LINK) & TAKEN != 0;
            if is_taken && *slot.add(STAMP) & 1 == 1 {
                return (slot, true);
            }
            let Some(missing) = (*self.table).missing() else { return NONE };
            if !is_taken {
                if self.room == 0 {
                    return NONE;
                }
                self.room -= 1;
                (*self.table).has_taken();
                *slot.add(KEY) = key;
                *slot.add(STAMP) = stamp_word(0, false);
                // No snapshot has to be told of a row that never was.
                *slot.add(LINK) = u64::from(NO_LINK) << 32 | TAKEN | SNAPPED;
            }
            let body = slot.add(HEADER_WORDS);
            std::ptr::copy_nonoverlapping(missing.as_ptr(), body, missing.len());
            self.placed.push(slot);
            (slot, false)
        }
    }
}

/// A row in its slot, or words that stand for one. It borrows nothing: whoever uses it sees to it
/// that what it points at is still there.
#[derive(Clone, Copy, Debug)]
pub struct RowAt {
    /// The slot's first word.
    words: *mut u64,
    table: *mut Opened<'static>,
}

impl RowAt {
    /// The row whose slot begins at `slot`.
    ///
    /// # Safety
    /// The slot is one of the table's, from [`Opened::home`] or [`Opened::find`] since the table
    /// was opened. The table stays open, and nobody else uses it, as long as the row is used.
    #[inline(always)]
    pub unsafe fn at(slot: *mut u64, table: *mut Opened<'_>) -> RowAt {
        RowAt { words: slot, table: table.cast() }
    }

    /// Whether this is the slot of the key, and its row is there.
    ///
    /// # Safety
    /// As of [`RowAt::at`].
    #[inline(always)]
    pub unsafe fn is(self, key: u64) -> bool {
        // A free slot has no row, so it needs no look of its own.
        // SAFETY: the slot has a header.
        unsafe { (*self.words.add(KEY) == key) & (*self.words.add(STAMP) & 1 == 1) }
    }

    /// Whether both are one row.
    #[inline(always)]
    pub fn is_same(self, other: RowAt) -> bool {
        self.words == other.words
    }

    /// Words that stand for a row. Only [`RowAt::word`] and [`RowAt::set`] may be used on it.
    #[inline(always)]
    pub fn frame(words: *mut u64) -> RowAt {
        RowAt { words, table: std::ptr::null_mut() }
    }

    /// A word of the slot.
    ///
    /// # Safety
    /// As of [`RowAt::at`]; `at` is less than the words of a slot, or of the frame.
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
    /// As of [`RowAt::at`]; fewer versions have been begun than the table was opened for.
    #[inline(always)]
    pub unsafe fn begin(self, seq: Seq) {
        // SAFETY: the table is open, says the caller, and a slot of `stride` words
        // begins at `words`. The log, which is other memory, has room for the version.
        unsafe {
            let stamp = *self.words.add(STAMP);
            debug_assert!(stamp >> 1 <= seq, "versions are written in stamp order");
            if stamp >> 1 == seq {
                debug_assert!(
                    seq == 0 || *self.words.add(LINK) & SNAPPED == 0,
                    "a number is not used again behind a snapshot"
                );
                return;
            }
            let table = self.table;
            let at = (*table).len;
            let entry = (*table).log.add(at);
            prefetch_address(entry.wrapping_add(LOG_AHEAD));
            // Most rows have one column beside the key: two halves of 16 bytes.
            let (from, to) = (self.words.cast::<[u64; 2]>(), entry.cast::<[u64; 2]>());
            let stride = (*table).stride;
            if (*table).is_short {
                *to = *from;
                *to.add(1) = *from.add(1);
            } else {
                copy_slot(self.words, entry, table);
            }
            (*table).len = at + stride;
            *self.words.add(LINK) = (at as u64) << 32 | TAKEN;
            *self.words.add(STAMP) = stamp_word(seq, true);
        }
    }

    /// Puts the version before back in its place, if one has begun at `seq`; `true` when so. Once
    /// that is done for all rows of a transaction, each that gave `true` is to be followed by a
    /// [`RowAt::forget`]. It comes back word for word: a row that no snapshot has to take is one
    /// again.
    ///
    /// # Safety
    /// As of [`RowAt::at`].
    pub unsafe fn undo(self, seq: Seq) -> bool {
        // SAFETY: the table is open; the link of a version begun while it is leads into the log.
        unsafe {
            if *self.words.add(STAMP) >> 1 != seq {
                return false;
            }
            let at = (*self.words.add(LINK) >> 32) as usize;
            let table = self.table;
            std::ptr::copy_nonoverlapping((*table).log.add(at), self.words, (*table).stride);
            if let (Some((history, shape)), true) = (self.history(), self.is_there()) {
                (*history).pop(shape);
            }
            true
        }
    }

    /// Whether the row is there.
    ///
    /// # Safety
    /// As of [`RowAt::at`].
    unsafe fn is_there(self) -> bool {
        // SAFETY: a slot has a header.
        unsafe { *self.words.add(STAMP) & 1 == 1 }
    }

    /// Where the row's versions are, and their shape, if any are kept.
    ///
    /// # Safety
    /// As of [`RowAt::at`], and the shape is not used beyond that.
    #[inline(always)]
    unsafe fn history<'t>(self) -> Option<(*mut RowHistory, &'t Shape)> {
        // SAFETY: the table is open, and there is a history for each of its slots. The table's
        // shape does not change.
        unsafe {
            let table = self.table;
            if (*table).histories.is_null() {
                return None;
            }
            let slot = self.words.offset_from((*table).slots) as usize / (*table).stride;
            let shape = (*(*table).table).shape()?;
            Some(((*table).histories.add(slot), &*std::ptr::from_ref(shape)))
        }
    }

    /// The row's versions, that which has begun included; none when the table keeps none.
    ///
    /// # Safety
    /// As of [`RowAt::at`], as long as the versions are used; the row is not written meanwhile.
    #[inline(always)]
    pub unsafe fn versions<'t>(self) -> Option<Versions<'t>> {
        // SAFETY: as the caller says; a slot has `stride` words.
        unsafe {
            let (history, shape) = self.history()?;
            let (body, table) = (self.words.add(HEADER_WORDS), self.table);
            let body = std::slice::from_raw_parts(body, (*table).stride - HEADER_WORDS);
            Some(Versions {
                table: &*(*table).table,
                shape,
                history: &*history,
                key: *self.words.add(KEY),
                newest: self.is_there().then_some((body, &[])),
            })
        }
    }

    /// Takes the last version from the log of the row's table.
    ///
    /// # Safety
    /// As of [`RowAt::at`]; the version's row was undone.
    pub unsafe fn forget(self) {
        // SAFETY: the table is open, and its log has that version at its end.
        unsafe {
            let table = self.table;
            (*table).len -= (*table).stride;
        }
    }
}

/// Copies a slot to the log, and to the row's history, when versions are kept.
///
/// # Safety
/// The slot is one of the open table's, and the entry has as many words.
#[inline(never)]
unsafe fn copy_slot(slot: *mut u64, entry: *mut u64, table: *mut Opened<'static>) {
    // SAFETY: as the caller says; the log, the slots and histories are different memory, and nobody
    // else uses the row.
    unsafe {
        let stride = (*table).stride;
        std::ptr::copy_nonoverlapping(slot, entry, stride);
        let row = RowAt { words: slot, table };
        let Some((history, shape)) = row.history() else { return };
        if row.is_there() {
            let floor = (*(*table).table).floor();
            let body = std::slice::from_raw_parts(slot.add(HEADER_WORDS), stride - HEADER_WORDS);
            (*table).grown += (*history).push(shape, floor, (*slot.add(STAMP), body), &[]);
        }
        (*history).newest_us = (*table).now_us;
    }
}
