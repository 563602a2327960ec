//! Rows in place, for executors that prefetch their slots and return to them later.
//!
//! A transaction writes directly to the slot, after the version before has moved to the log. If the
//! transaction aborts, that version moves back. So a row is neither copied nor looked up again, and
//! a transaction that names one row twice sees one row.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cells::{prefetch_address, prefetch_to_write};
use crate::history::{RowHistory, Shape, Versions};
use crate::layout::HEADER_WORDS;
use crate::table::{hash, Table, KEY, LINK, SNAPPED, STAMP, TAKEN};
use crate::taking::{self, Headers};
use crate::version::{stamp_word, PartAt, Seq, LOG_AHEAD};

/// A table that is opened for writing rows in place. Dropping it closes the table.
///
/// While it is open, no slot moves, and the log has room for the agreed number of versions. It has
/// everything that a row's version needs, so that a write does not touch the table itself.
///
/// A table may be opened for several threads at once ([`Table::open_for`]). Only one of them uses a
/// row at a time, and its changes happen before another thread uses the row. The threads agree on
/// the turns among themselves. Of each other's rows they see only the header of a slot, which is
/// read and written one whole word at a time.
#[derive(Debug)]
pub struct Opened<'t> {
    slots: *mut u64,
    /// The address that the log's first word would have if the log were one piece, and the place
    /// after the last version.
    log: *mut u64,
    end: Cell<usize>,
    /// The part of the log, and its end when it was opened.
    part: usize,
    begun: usize,
    stride: usize,
    /// The number of words of a slot that are logged for a version.
    logged: usize,
    /// The word of a slot up to which it is prefetched. It is 0 if the cache line of the first word
    /// has all that matters.
    prefetch_to: usize,
    slot_of: SlotOf,
    shift: u32,
    mask: usize,
    seed: u64,
    placing: Arc<Mutex<Placing>>,
    /// Whether a version is four words in the log, and only has to be copied.
    is_short: bool,
    /// The histories of the slots, for retained versions. Null if the table retains none.
    histories: *mut RowHistory,
    /// The time of the versions that are begun now, in microseconds.
    now_us: Cell<i64>,
    /// The growth of the retained versions, in bytes.
    grown: Cell<isize>,
    table: *mut Table,
    lent: PhantomData<&'t mut Table>,
}

/// Converts the distance of a slot from the first, in words, to the number of the slot, without
/// dividing.
///
/// The distance is a multiple of the stride. Multiplying by the inverse of an odd number, modulo
/// 2^64, divides a multiple of that number.
#[derive(Clone, Copy, Debug)]
struct SlotOf {
    shift: u32,
    inverse: u64,
}

impl SlotOf {
    fn new(stride: usize) -> SlotOf {
        let shift = stride.trailing_zeros();
        let odd = (stride >> shift) as u64;
        // The number is its own inverse in the lowest three bits. Each step doubles the number of
        // right bits.
        let step =
            |inverse: u64| inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        SlotOf { shift, inverse: (0..5).fold(odd, |inverse, _| step(inverse)) }
    }

    #[inline(always)]
    fn at(self, words: usize) -> usize {
        ((words >> self.shift) as u64).wrapping_mul(self.inverse) as usize
    }
}

/// The number of words in a cache line.
const LINE: usize = 8;

/// The most words of a wide row that are prefetched. An executor that uses more waits for the rest.
const ASKED_MAX: usize = 2 * LINE;

/// Returns the field of the same name of [`Opened`].
fn prefetch_to(slots: *const u64, stride: usize, logged: usize) -> usize {
    let are_aligned = (slots as usize).is_multiple_of(LINE * 8)
        && (LINE.is_multiple_of(stride) || (stride.is_multiple_of(LINE) && logged <= LINE));
    if are_aligned {
        0
    } else {
        logged.min(ASKED_MAX) - 1
    }
}

/// The rows that did not exist when an executor looked for them.
#[derive(Debug)]
struct Placing {
    /// The number of slots that may still be taken before the slots have to move.
    room: usize,
    taken: usize,
    /// The slots of these rows.
    placed: Vec<*mut u64>,
}

// SAFETY: the pointed-to memory is lent to the holder of this value, and shared as the type says.
unsafe impl Send for Opened<'_> {}

// SAFETY: the pointers are only compared until all threads are done with the table.
unsafe impl Send for Placing {}

impl Table {
    /// Opens the table for rows in place, with room to begin `versions` new versions.
    ///
    /// # Panics
    /// If its keys are not words, or there are values beside its slots.
    pub fn open(&mut self, versions: usize) -> Opened<'_> {
        let words = self.plain_logged();
        let part = self.log_mut().reserve(versions * words);
        let mut opened = self.opened(vec![part]);
        opened.pop().expect("one part, one opening")
    }

    /// Opens the table for several threads: member `i` begins at most `versions[i]` new versions.
    ///
    /// # Panics
    /// In the same cases as [`Table::open`].
    pub fn open_for(&mut self, versions: &[usize]) -> Vec<Opened<'_>> {
        let logged = self.plain_logged();
        let words: Vec<usize> = versions.iter().map(|versions| versions * logged).collect();
        let parts = self.log_mut().reserve_parts(&words);
        self.opened(parts)
    }

    fn plain_logged(&self) -> usize {
        assert!(self.has_plain_rows(), "table {} has rows of words", self.spec().name);
        self.logged_words()
    }

    fn opened(&mut self, parts: Vec<PartAt>) -> Vec<Opened<'_>> {
        let ((stride, mask, shift, seed), logged) = (self.slots_shape(), self.logged_words());
        let placing = Placing { room: self.room(), taken: 0, placed: Vec::new() };
        let placing = Arc::new(Mutex::new(placing));
        let histories = self.histories_ptr();
        let table: *mut Table = self;
        // SAFETY: the result borrows the table, and all pointers are derived from this one.
        let slots = unsafe { (*table).slots_ptr() };
        let open = |part: PartAt| Opened {
            slots,
            log: part.origin,
            end: Cell::new(part.end),
            part: part.number,
            begun: part.end,
            stride,
            logged,
            prefetch_to: prefetch_to(slots, stride, logged),
            slot_of: SlotOf::new(stride),
            shift,
            mask,
            seed,
            placing: placing.clone(),
            is_short: logged == 4 && histories.is_null(),
            histories,
            now_us: Cell::new(i64::MIN),
            grown: Cell::new(0),
            table,
            lent: PhantomData,
        };
        parts.into_iter().map(open).collect()
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // SAFETY: all words up to the end have been written, within the part's room. The openings
        // of one table borrow it together, so their owner has all of them, and no thread uses the
        // table now.
        unsafe {
            (*self.table).log_mut().set_end(self.part, self.end.get());
            (*self.table).histories_have_grown(self.grown.get());
        }
        let Some(placing) = Arc::get_mut(&mut self.placing) else { return };
        let placing = placing.get_mut().unwrap_or_else(PoisonError::into_inner);
        placing.placed.sort_unstable();
        placing.placed.dedup();
        // SAFETY: the placed rows are slots, and their writers are done.
        let is_there = |slot: &*mut u64| unsafe { *slot.add(STAMP) & 1 == 1 };
        placing.placed.retain(is_there);
        // SAFETY: as above.
        let keys = placing.placed.iter().map(|slot| unsafe { *slot.add(KEY) }).collect();
        // SAFETY: as above.
        unsafe {
            (*self.table).slots_taken(placing.taken);
            (*self.table).rows_added(keys);
        }
    }
}

/// Reads a word of a slot's header that other threads may read meanwhile.
#[inline(always)]
unsafe fn look(word: *const u64, order: Ordering) -> u64 {
    // SAFETY: the caller gives a word of a slot, which is aligned. A thread that writes it
    // meanwhile uses `show`.
    unsafe { AtomicU64::from_ptr(word.cast_mut()).load(order) }
}

/// Writes a word of a slot's header that other threads may read meanwhile.
#[inline(always)]
unsafe fn show(word: *mut u64, value: u64, order: Ordering) {
    // SAFETY: as in `look`; the slot is the caller's.
    unsafe { AtomicU64::from_ptr(word).store(value, order) }
}

impl Headers for Opened<'_> {
    fn look(&self, slot: usize, word: usize, order: Ordering) -> u64 {
        // SAFETY: a slot has a header.
        unsafe { look(self.slot(slot).add(word), order) }
    }

    fn show(&self, slot: usize, word: usize, value: u64, order: Ordering) {
        // SAFETY: as above. The slot is free, and only the holder of the lock takes slots.
        unsafe { show(self.slot(slot).add(word), value, order) }
    }
}

impl Opened<'_> {
    /// Whether versions of its rows are retained. If so, [`Opened::at_time`] has to set the time.
    pub fn retains_versions(&self) -> bool {
        !self.histories.is_null()
    }

    /// Sets the time of the versions that are begun from now on, in microseconds.
    #[inline(always)]
    pub fn at_time(&self, time_us: i64) {
        self.now_us.set(time_us);
    }

    /// Returns the slot where the search for a key begins.
    #[inline(always)]
    pub fn home(&self, key: u64) -> *mut u64 {
        let slot = (hash(key, self.seed) >> self.shift) as usize;
        // SAFETY: `shift` leaves as many bits as the number of slots has.
        unsafe { self.slots.add(slot * self.stride) }
    }

    /// Returns the slot where the search for a key begins, and the key's hash.
    #[inline(always)]
    pub fn home_and_hash(&self, key: u64) -> (*mut u64, u64) {
        let hash = hash(key, self.seed);
        // SAFETY: as in `home`.
        (unsafe { self.slots.add((hash >> self.shift) as usize * self.stride) }, hash)
    }

    /// Prefetches a slot into the cache, as far as its versions reach.
    #[inline(always)]
    pub fn prefetch(&self, slot: *const u64) {
        self.each_line(slot, prefetch_address);
    }

    /// Prefetches a slot into the cache of the thread that is going to write it.
    #[inline(always)]
    pub fn prefetch_to_write(&self, slot: *const u64) {
        self.each_line(slot, prefetch_to_write);
    }

    #[inline(always)]
    fn each_line(&self, slot: *const u64, ask: impl Fn(*const u64)) {
        ask(slot);
        if self.prefetch_to > 0 {
            (LINE..self.prefetch_to).step_by(LINE).for_each(|word| ask(slot.wrapping_add(word)));
            ask(slot.wrapping_add(self.prefetch_to));
        }
    }

    /// Prefetches the history of the row in a slot.
    ///
    /// # Safety
    /// The slot belongs to this table, which retains versions.
    #[inline(always)]
    pub unsafe fn prefetch_history(&self, slot: *const u64) {
        // SAFETY: as the caller guarantees.
        prefetch_address(unsafe { self.history_of(slot) });
    }

    /// Prefetches the versions of the row in a slot that are likely to be read. Call it some time
    /// after [`Opened::prefetch_history`].
    ///
    /// # Safety
    /// As for [`Opened::prefetch_history`]. Also, no thread writes a version of the row meanwhile.
    #[inline(always)]
    pub unsafe fn prefetch_versions(&self, slot: *const u64) {
        // SAFETY: as the caller guarantees; the table is open and has histories.
        unsafe {
            if let Some(shape) = (*self.table).shape() {
                (*self.history_of(slot)).prefetch(shape);
            }
        }
    }

    /// Returns the history of the row in a slot.
    ///
    /// # Safety
    /// As for [`Opened::prefetch_history`].
    #[inline(always)]
    unsafe fn history_of(&self, slot: *const u64) -> *mut RowHistory {
        // SAFETY: as the caller guarantees; there is a history for each slot.
        unsafe { self.histories.add(self.number(slot)) }
    }

    /// Returns the row with this key, if it exists.
    pub fn find(&self, key: u64) -> Option<RowAt> {
        let slot = self.find_slot(key);
        // SAFETY: the slot is the table's.
        (!slot.is_null()).then(|| unsafe { RowAt::at(slot, self) })
    }

    /// Returns the slot of a key, or the free one where the search for it ends.
    fn search(&self, key: u64) -> *mut u64 {
        let home = (hash(key, self.seed) >> self.shift) as usize;
        self.slot(taking::search(self, home, self.mask, key))
    }

    fn slot(&self, number: usize) -> *mut u64 {
        // SAFETY: `shift` and `mask` leave as many bits as the number of slots has.
        unsafe { self.slots.add(number * self.stride) }
    }

    /// Returns the number of a slot.
    #[inline(always)]
    fn number(&self, slot: *const u64) -> usize {
        // SAFETY: the slot is one of the table's.
        self.slot_of.at(unsafe { slot.offset_from(self.slots) } as usize)
    }

    /// Returns the slot of the row with this key, or null if there is none. Use it for keys that
    /// are not at their [home](Opened::home).
    #[cold]
    #[inline(never)]
    pub fn find_slot(&self, key: u64) -> *mut u64 {
        let slot = self.search(key);
        // SAFETY: a slot has a header. A free slot has no row.
        match unsafe { RowAt::frame(slot).is(key) } {
            true => slot,
            false => std::ptr::null_mut(),
        }
    }

    /// Finds a slot as [`Opened::find_slot`] does, and returns also whether the row exists.
    ///
    /// A missing row gets a slot with the defaults of its columns. It can be read and written as if
    /// it existed. Returns null if a column has no default, or if slots would have to move.
    #[cold]
    #[inline(never)]
    pub fn find_or_place(&self, key: u64) -> (*mut u64, bool) {
        const NONE: (*mut u64, bool) = (std::ptr::null_mut(), false);
        // SAFETY: a slot has a header, followed by as many words as a missing row has. A taken slot
        // of this key is the caller's row. A free slot is taken under the lock.
        unsafe {
            let mut slot = self.search(key);
            let is_mine = |slot: *mut u64| taking::is_of(self, self.number(slot), key);
            if is_mine(slot) && *slot.add(STAMP) & 1 == 1 {
                return (slot, true);
            }
            let Some(missing) = (*self.table).missing() else { return NONE };
            let mut placing = self.placing.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_mine(slot) {
                // Only the holder of the lock places rows. So this slot has the key now, or will
                // have it.
                slot = self.search(key);
            }
            if !is_mine(slot) {
                if placing.room == 0 {
                    return NONE;
                }
                placing.room -= 1;
                placing.taken += 1;
                taking::take(self, self.number(slot), key);
            }
            placing.placed.push(slot);
            // Other threads may read the slot meanwhile. They find it with the final words.
            let body = std::slice::from_raw_parts_mut(slot.add(HEADER_WORDS), missing.len());
            if body != missing {
                body.copy_from_slice(missing);
            }
            (slot, false)
        }
    }

    /// Undoes everything that was written since the table was opened. Every row gets back its old
    /// words. The caller gives all openings at once.
    pub fn roll_back(openings: Vec<Opened<'_>>) {
        for opened in &openings {
            for at in (opened.begun..opened.end.get()).step_by(opened.logged) {
                // SAFETY: these are the versions that were superseded meanwhile. Each has the words
                // of a slot that may have changed, and its key still has a slot. The oldest version
                // of a row has the lowest number and is the original. Each version added one to the
                // row's history, if the row existed.
                unsafe {
                    let entry = opened.log.wrapping_add(at);
                    let slot = opened.search(*entry.add(KEY));
                    if *entry.add(STAMP) >> 1 < *slot.add(STAMP) >> 1 {
                        std::ptr::copy_nonoverlapping(entry, slot, opened.logged);
                    }
                    if let (Some((history, shape)), true) =
                        (RowAt::at(slot, opened).history(), *entry.add(STAMP) & 1 == 1)
                    {
                        (*history).pop(shape);
                    }
                }
            }
        }
        openings.iter().for_each(|opened| opened.end.set(opened.begun));
    }
}

/// A row in its slot, or words that stand for one. It borrows nothing: its user makes sure that the
/// words still exist.
#[derive(Clone, Copy, Debug)]
pub struct RowAt {
    /// The slot's first word.
    words: *mut u64,
    /// The opening. Other rows and lanes share it, so the fields that change are cells.
    table: *const Opened<'static>,
}

impl RowAt {
    /// The offset of the address of the row's words among its bytes, for machine code.
    pub const WORDS: usize = std::mem::offset_of!(RowAt, words);

    /// Returns the row whose slot begins at `slot`.
    ///
    /// # Safety
    /// The slot belongs to the table, from [`Opened::home`] or [`Opened::find`] since the table was
    /// opened. The table stays open, and no other thread uses the row, as long as it is used.
    #[inline(always)]
    pub unsafe fn at(slot: *mut u64, table: *const Opened<'_>) -> RowAt {
        RowAt { words: slot, table: table.cast() }
    }

    /// Whether this is the slot of the key, and its row exists.
    ///
    /// # Safety
    /// As for [`RowAt::at`].
    #[inline(always)]
    pub unsafe fn is(self, key: u64) -> bool {
        // A free slot has no row, so it needs no check of its own. SAFETY: the slot has a header.
        unsafe {
            let found = look(self.words.add(KEY), Ordering::Relaxed);
            let stamp = look(self.words.add(STAMP), Ordering::Relaxed);
            (found == key) & (stamp & 1 == 1)
        }
    }

    /// Whether both are the same row.
    #[inline(always)]
    pub fn is_same(self, other: RowAt) -> bool {
        self.words == other.words
    }

    /// Creates a row from words that stand for one. Only [`RowAt::word`] and [`RowAt::set`] may be
    /// used on it.
    #[inline(always)]
    pub fn frame(words: *mut u64) -> RowAt {
        RowAt { words, table: std::ptr::null() }
    }

    /// Returns a word of the slot.
    ///
    /// # Safety
    /// As for [`RowAt::at`]; `at` is less than the number of words of a slot, or of the frame.
    #[inline(always)]
    pub unsafe fn word(self, at: usize) -> u64 {
        // SAFETY: as the caller guarantees.
        unsafe { *self.words.add(at) }
    }

    /// Sets a word of the slot's columns, in a version that has begun.
    ///
    /// # Safety
    /// As for [`RowAt::word`].
    #[inline(always)]
    pub unsafe fn set(self, at: usize, word: u64) {
        // SAFETY: as the caller guarantees.
        unsafe { *self.words.add(at) = word }
    }

    /// Begins a new version at `seq`, which is more than 0. Does nothing if one has begun at `seq`
    /// already.
    ///
    /// # Safety
    /// As for [`RowAt::at`]; fewer versions have been begun than the opening has room for.
    #[inline(always)]
    pub unsafe fn begin(self, seq: Seq) {
        // SAFETY: the caller guarantees that the table is open, and a slot of `stride` words begins
        // at `words`. The log, which is other memory, has room for the version.
        unsafe {
            let stamp = *self.words.add(STAMP);
            debug_assert!(stamp >> 1 <= seq, "versions are written in stamp order");
            if stamp >> 1 == seq {
                debug_assert!(
                    seq == 0 || *self.words.add(LINK) & SNAPPED == 0,
                    "a number is not used again after a snapshot"
                );
                return;
            }
            let table = self.table;
            let at = (*table).end.get();
            let entry = (*table).log.wrapping_add(at);
            prefetch_address(entry.wrapping_add(LOG_AHEAD));
            // Most rows have one column beside the key: two halves of 16 bytes.
            let (from, to) = (self.words.cast::<[u64; 2]>(), entry.cast::<[u64; 2]>());
            let logged = (*table).logged;
            if (*table).is_short {
                *to = *from;
                *to.add(1) = *from.add(1);
            } else {
                copy_slot(self.words, entry, table);
            }
            (*table).end.set(at + logged);
            show(self.words.add(LINK), (at as u64) << 32 | TAKEN, Ordering::Relaxed);
            show(self.words.add(STAMP), stamp_word(seq, true), Ordering::Relaxed);
        }
    }

    /// Puts the version before back in its place, if one has begun at `seq`. Returns whether it
    /// did.
    ///
    /// After this is done for all rows of a transaction, call [`RowAt::forget`] once for each that
    /// returned `true`. The words return as they were. So a row that did not need to be in the next
    /// snapshot does not need to be there again.
    ///
    /// # Safety
    /// As for [`RowAt::at`].
    pub unsafe fn undo(self, seq: Seq) -> bool {
        // SAFETY: the table is open. The link of a version that was begun meanwhile points into the
        // log.
        unsafe {
            if *self.words.add(STAMP) >> 1 != seq {
                return false;
            }
            let at = (*self.words.add(LINK) >> 32) as usize;
            let table = self.table;
            let (entry, logged) = ((*table).log.wrapping_add(at), (*table).logged);
            show(self.words.add(LINK), *entry.add(LINK), Ordering::Relaxed);
            show(self.words.add(STAMP), *entry.add(STAMP), Ordering::Relaxed);
            let (from, to) = (entry.add(HEADER_WORDS), self.words.add(HEADER_WORDS));
            std::ptr::copy_nonoverlapping(from, to, logged - HEADER_WORDS);
            if let (Some((history, shape)), true) = (self.history(), self.is_there()) {
                (*history).pop(shape);
            }
            true
        }
    }

    /// Whether the row exists.
    ///
    /// # Safety
    /// As for [`RowAt::at`].
    unsafe fn is_there(self) -> bool {
        // SAFETY: a slot has a header.
        unsafe { *self.words.add(STAMP) & 1 == 1 }
    }

    /// Returns the row's history and its shape, if versions are retained.
    ///
    /// # Safety
    /// As for [`RowAt::at`], and the shape is not used longer than the row.
    #[inline(always)]
    unsafe fn history<'t>(self) -> Option<(*mut RowHistory, &'t Shape)> {
        // SAFETY: the table is open, and there is a history for each of its slots. The table's
        // shape does not change.
        unsafe {
            let table = self.table;
            if (*table).histories.is_null() {
                return None;
            }
            let shape = (*(*table).table).shape()?;
            Some(((*table).history_of(self.words), &*std::ptr::from_ref(shape)))
        }
    }

    /// Returns the row's versions, including the one that has begun, or `None` if the table retains
    /// none.
    ///
    /// # Safety
    /// As for [`RowAt::at`], as long as the versions are used. The row is not written meanwhile.
    #[inline(always)]
    pub unsafe fn versions<'t>(self) -> Option<Versions<'t>> {
        // SAFETY: as the caller guarantees; a slot has `stride` words.
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

    /// Removes the last version from the log of the row's table.
    ///
    /// # Safety
    /// As for [`RowAt::at`]; the version's row was undone.
    pub unsafe fn forget(self) {
        // SAFETY: the table is open, and its log has that version at its end.
        unsafe {
            let table = self.table;
            (*table).end.set((*table).end.get() - (*table).logged);
        }
    }
}

/// Copies a slot to the log, and to the row's history if versions are retained.
///
/// # Safety
/// The slot belongs to the open table, and the entry has as many words as are logged of a slot.
#[inline(never)]
unsafe fn copy_slot(slot: *mut u64, entry: *mut u64, table: *const Opened<'static>) {
    // SAFETY: as the caller guarantees; the log, the slots and the histories are different memory,
    // and no other thread uses the row.
    unsafe {
        let stride = (*table).stride;
        std::ptr::copy_nonoverlapping(slot, entry, (*table).logged);
        let row = RowAt { words: slot, table };
        let Some((history, shape)) = row.history() else { return };
        if row.is_there() {
            let floor = (*(*table).table).floor();
            let body = std::slice::from_raw_parts(slot.add(HEADER_WORDS), stride - HEADER_WORDS);
            let grown = (*history).push(shape, floor, (*slot.add(STAMP), body), &[]);
            (*table).grown.set((*table).grown.get() + grown);
        }
        (*history).newest_us = (*table).now_us.get();
    }
}
