//! Rows where they lie, for executors that ask for their slots ahead of time and come back to them.
//!
//! What a transaction writes goes straight to the slot, after the version before has gone to the
//! log; should the transaction abort, that version comes back. So a row is neither copied nor
//! looked up again, and a transaction that names one row twice sees one row.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cells::{prefetch_address, prefetch_to_write};
use crate::history::{RowHistory, Shape, Versions};
use crate::layout::HEADER_WORDS;
use crate::table::{hash, Table, KEY, LINK, SNAPPED, STAMP, TAKEN};
use crate::taking::{self, Headers};
use crate::version::{stamp_word, PartAt, Seq, LOG_AHEAD};

/// A table opened for writing rows in place: no slot moves while it is open, and the log has room
/// for the versions that were agreed on. Everything a row's version needs is here, so that it costs
/// no look at the table itself. Dropping it closes it.
///
/// A table may be opened for several threads at once ([`Table::open_for`]). Each row is then used
/// by one of them at a time, and what one has done to it happens before another uses it; whose turn
/// it is, is for them to agree on. All that they see of each other's rows is a slot's header, which
/// is read and written as a whole word at a time.
#[derive(Debug)]
pub struct Opened<'t> {
    slots: *mut u64,
    /// Where the log's first word would be, were it one piece; and the place behind the last
    /// version.
    log: *mut u64,
    end: usize,
    /// The part of the log, and where it ended when it was opened.
    part: usize,
    begun: usize,
    stride: usize,
    /// So many words of a slot are a version in the log.
    logged: usize,
    /// The word of a slot up to which it is asked for; 0 where the cache line of its first word has all that matters.
    asked_to: usize,
    slot_of: SlotOf,
    shift: u32,
    mask: usize,
    seed: u64,
    placing: Arc<Mutex<Placing>>,
    /// Whether a version is four words in the log, and nothing is to be done but copying them.
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

/// Gives the number of a slot by how many words it is behind the first, without dividing: that is a
/// multiple of the stride, and multiplying by the inverse of an odd number, modulo 2^64, divides what
/// is a multiple of it.
#[derive(Clone, Copy, Debug)]
struct SlotOf {
    shift: u32,
    inverse: u64,
}

impl SlotOf {
    fn new(stride: usize) -> SlotOf {
        let shift = stride.trailing_zeros();
        let odd = (stride >> shift) as u64;
        // It is its own inverse in the lowest three bits, and each step doubles the bits that are right.
        let step =
            |inverse: u64| inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        SlotOf { shift, inverse: (0..5).fold(odd, |inverse, _| step(inverse)) }
    }

    #[inline(always)]
    fn at(self, words: usize) -> usize {
        ((words >> self.shift) as u64).wrapping_mul(self.inverse) as usize
    }
}

/// Words of a cache line.
const LINE: usize = 8;

/// Of wide rows so many words are asked for: whoever uses more waits for the rest.
const ASKED_MAX: usize = 2 * LINE;

/// See [`Opened`].
fn asked_to(slots: *const u64, stride: usize, logged: usize) -> usize {
    let are_aligned = (slots as usize).is_multiple_of(LINE * 8)
        && (LINE.is_multiple_of(stride) || (stride.is_multiple_of(LINE) && logged <= LINE));
    if are_aligned {
        0
    } else {
        logged.min(ASKED_MAX) - 1
    }
}

/// Rows that were not there when somebody asked for them.
#[derive(Debug)]
struct Placing {
    /// How many more slots may be taken before they have to move.
    room: usize,
    taken: usize,
    /// Where they stand.
    placed: Vec<*mut u64>,
}

// SAFETY: what the pointers lead to is lent to whoever holds this, and shared as its type says.
unsafe impl Send for Opened<'_> {}

// SAFETY: the pointers are only compared, until all threads are done with the table.
unsafe impl Send for Placing {}

impl Table {
    /// Opens the table for rows in place, of which at most `versions` new versions are begun.
    ///
    /// # Panics
    /// When its keys are not words, or there are values beside its slots.
    pub fn open(&mut self, versions: usize) -> Opened<'_> {
        let words = self.plain_logged();
        let part = self.log_mut().reserve(versions * words);
        let mut opened = self.opened(vec![part]);
        opened.pop().expect("one part, one opening")
    }

    /// Opens the table for several threads: member `i` begins at most `versions[i]` new versions.
    ///
    /// # Panics
    /// As [`Table::open`].
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
        // SAFETY: the table is borrowed by what is returned; all pointers are made from this one.
        let slots = unsafe { (*table).slots_ptr() };
        let open = |part: PartAt| Opened {
            slots,
            log: part.origin,
            end: part.end,
            part: part.number,
            begun: part.end,
            stride,
            logged,
            asked_to: asked_to(slots, stride, logged),
            slot_of: SlotOf::new(stride),
            shift,
            mask,
            seed,
            placing: placing.clone(),
            is_short: logged == 4 && histories.is_null(),
            histories,
            now_us: i64::MIN,
            grown: 0,
            table,
            lent: PhantomData,
        };
        parts.into_iter().map(open).collect()
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // SAFETY: all words up to the end have been written, within the part's room. Openings of one
        // table borrow it together, so whoever drops them has all of them, and nobody uses the
        // table meanwhile.
        unsafe {
            (*self.table).log_mut().set_end(self.part, self.end);
            (*self.table).histories_have_grown(self.grown);
        }
        let Some(placing) = Arc::get_mut(&mut self.placing) else { return };
        let placing = placing.get_mut().unwrap_or_else(PoisonError::into_inner);
        placing.placed.sort_unstable();
        placing.placed.dedup();
        // SAFETY: what was placed are slots, and whoever wrote to them is done.
        let is_there = |slot: &*mut u64| unsafe { *slot.add(STAMP) & 1 == 1 };
        placing.placed.retain(is_there);
        // SAFETY: as above.
        let keys = placing.placed.iter().map(|slot| unsafe { *slot.add(KEY) }).collect();
        // SAFETY: as above.
        unsafe {
            (*self.table).have_taken(placing.taken);
            (*self.table).have_come(keys);
        }
    }
}

/// A word of a slot's header, of which others may look at it meanwhile.
#[inline(always)]
unsafe fn look(word: *const u64, order: Ordering) -> u64 {
    // SAFETY: the caller gives a word of a slot, which is aligned. Whoever writes it meanwhile does
    // so by `show`.
    unsafe { AtomicU64::from_ptr(word.cast_mut()).load(order) }
}

/// Writes a word of a slot's header that others may look at meanwhile.
#[inline(always)]
unsafe fn show(word: *mut u64, value: u64, order: Ordering) {
    // SAFETY: as of `look`; the slot is the caller's.
    unsafe { AtomicU64::from_ptr(word).store(value, order) }
}

impl Headers for Opened<'_> {
    fn look(&self, slot: usize, word: usize, order: Ordering) -> u64 {
        // SAFETY: a slot has a header.
        unsafe { look(self.slot(slot).add(word), order) }
    }

    fn show(&self, slot: usize, word: usize, value: u64, order: Ordering) {
        // SAFETY: as above. It is free, and whoever takes slots holds the lock.
        unsafe { show(self.slot(slot).add(word), value, order) }
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

    /// Where the search for a key begins, and its hash.
    #[inline(always)]
    pub fn home_and_hash(&self, key: u64) -> (*mut u64, u64) {
        let hash = hash(key, self.seed);
        // SAFETY: as in `home`.
        (unsafe { self.slots.add((hash >> self.shift) as usize * self.stride) }, hash)
    }

    /// Asks for a slot to be brought into the cache, as far as versions of it reach.
    #[inline(always)]
    pub fn prefetch(&self, slot: *const u64) {
        self.each_line(slot, prefetch_address);
    }

    /// Asks for a slot to be brought into the cache of whoever is going to write it.
    #[inline(always)]
    pub fn prefetch_to_write(&self, slot: *const u64) {
        self.each_line(slot, prefetch_to_write);
    }

    #[inline(always)]
    fn each_line(&self, slot: *const u64, ask: impl Fn(*const u64)) {
        ask(slot);
        if self.asked_to > 0 {
            (LINE..self.asked_to).step_by(LINE).for_each(|word| ask(slot.wrapping_add(word)));
            ask(slot.wrapping_add(self.asked_to));
        }
    }

    /// Asks for where the versions of the row in a slot are.
    ///
    /// # Safety
    /// The slot is one of the table's, which keeps versions.
    #[inline(always)]
    pub unsafe fn prefetch_history(&self, slot: *const u64) {
        // SAFETY: as the caller says.
        prefetch_address(unsafe { self.history_of(slot) });
    }

    /// Asks for those versions of the row in a slot that are likely to be looked at, some time after
    /// [`Opened::prefetch_history`].
    ///
    /// # Safety
    /// As of [`Opened::prefetch_history`], and nobody writes a version of the row meanwhile.
    #[inline(always)]
    pub unsafe fn prefetch_versions(&self, slot: *const u64) {
        // SAFETY: as the caller says; the table is open, and its histories are there.
        unsafe {
            if let Some(shape) = (*self.table).shape() {
                (*self.history_of(slot)).prefetch(shape);
            }
        }
    }

    /// The history of the row in a slot.
    ///
    /// # Safety
    /// As of [`Opened::prefetch_history`].
    #[inline(always)]
    unsafe fn history_of(&self, slot: *const u64) -> *mut RowHistory {
        // SAFETY: as the caller says; there is a history for each slot.
        unsafe { self.histories.add(self.number(slot)) }
    }

    /// The row with this key, if it is there.
    pub fn find(&mut self, key: u64) -> Option<RowAt> {
        let slot = self.find_slot(key);
        // SAFETY: the slot is the table's.
        (!slot.is_null()).then(|| unsafe { RowAt::at(slot, self) })
    }

    /// The slot of a key, or the free one where the search for it ends.
    fn search(&self, key: u64) -> *mut u64 {
        let home = (hash(key, self.seed) >> self.shift) as usize;
        self.slot(taking::search(self, home, self.mask, key))
    }

    fn slot(&self, number: usize) -> *mut u64 {
        // SAFETY: `shift` and `mask` leave as many bits as the number of slots has.
        unsafe { self.slots.add(number * self.stride) }
    }

    /// The number of a slot.
    #[inline(always)]
    fn number(&self, slot: *const u64) -> usize {
        // SAFETY: the slot is one of the table's.
        self.slot_of.at(unsafe { slot.offset_from(self.slots) } as usize)
    }

    /// Where the slot of the row with this key begins; null when it is not there. For keys that are
    /// not at their [home](Opened::home).
    #[cold]
    #[inline(never)]
    pub fn find_slot(&self, key: u64) -> *mut u64 {
        let slot = self.search(key);
        // SAFETY: a slot has a header. A free one has no row.
        match unsafe { RowAt::frame(slot).is(key) } {
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
        // SAFETY: a slot has a header, and behind it as many words as a missing row has. A taken slot
        // of this key is the caller's row; one that is free is taken under the lock.
        unsafe {
            let mut slot = self.search(key);
            let is_mine = |slot: *mut u64| taking::is_of(self, self.number(slot), key);
            if is_mine(slot) && *slot.add(STAMP) & 1 == 1 {
                return (slot, true);
            }
            let Some(missing) = (*self.table).missing() else { return NONE };
            let mut placing = self.placing.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_mine(slot) {
                // Whoever places holds the lock, so this is where the key is or will be.
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
            // Others may read it meanwhile, who have found it as it is to be.
            let body = std::slice::from_raw_parts_mut(slot.add(HEADER_WORDS), missing.len());
            if body != missing {
                body.copy_from_slice(missing);
            }
            (slot, false)
        }
    }

    /// Takes back everything that has been written since the table was opened: every row becomes
    /// what it was, word for word. All openings are given at once.
    pub fn roll_back(mut openings: Vec<Opened<'_>>) {
        for opened in &mut openings {
            for at in (opened.begun..opened.end).step_by(opened.logged) {
                // SAFETY: these are the versions that were superseded meanwhile; each is what may have
                // been written of a slot, whose key has one still. The oldest of a row is what it was:
                // its number is the lowest. Of the row's history each has added one, if it was there.
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
        openings.iter_mut().for_each(|opened| opened.end = opened.begun);
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
    /// Where the address of the row's words is among its bytes, for machine code.
    pub const WORDS: usize = std::mem::offset_of!(RowAt, words);

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
        unsafe {
            let found = look(self.words.add(KEY), Ordering::Relaxed);
            let stamp = look(self.words.add(STAMP), Ordering::Relaxed);
            (found == key) & (stamp & 1 == 1)
        }
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
    /// As of [`RowAt::at`]; fewer versions have been begun than the opening was made for.
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
            let at = (*table).end;
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
            (*table).end = at + logged;
            show(self.words.add(LINK), (at as u64) << 32 | TAKEN, Ordering::Relaxed);
            show(self.words.add(STAMP), stamp_word(seq, true), Ordering::Relaxed);
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
            let shape = (*(*table).table).shape()?;
            Some(((*table).history_of(self.words), &*std::ptr::from_ref(shape)))
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
            (*table).end -= (*table).logged;
        }
    }
}

/// Copies a slot to the log, and to the row's history, when versions are kept.
///
/// # Safety
/// The slot is one of the open table's, and the entry has as many words as are logged of it.
#[inline(never)]
unsafe fn copy_slot(slot: *mut u64, entry: *mut u64, table: *mut Opened<'static>) {
    // SAFETY: as the caller says; the log, the slots and histories are different memory, and nobody
    // else uses the row.
    unsafe {
        let stride = (*table).stride;
        std::ptr::copy_nonoverlapping(slot, entry, (*table).logged);
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
