//! A table: slots, index and version log.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_core::{encode, Key, Row, TableSpec, Value};
use tidemill_place::{partition_in, Partition};

use crate::cells::{prefetch, Cells};
use crate::dirty::DirtyBlocks;
use crate::history::{Aggregates, RowHistory, Shape};
use crate::index::KeyIndex;
use crate::layout::{Layout, Place, HEADER_WORDS, KEY_WORD};
use crate::version::{stamp_word, Seq, VersionLog, NO_LINK};

/// The words of a slot: [`KEY`], [`STAMP`], [`LINK`], null bits, columns.
pub(crate) const KEY: usize = KEY_WORD;
/// The sequence number and presence of the newest version.
pub(crate) const STAMP: usize = 1;
/// The link word of a slot.
///
/// The high half is the link to the version before. Bit 0 says whether the slot is taken. Bit 1
/// says whether the last snapshot has the row as it is. A write of the row sets this word as a
/// whole, and so clears bit 1 at no cost.
pub(crate) const LINK: usize = 2;
pub(crate) const TAKEN: u64 = 1;
pub(crate) const SNAPPED: u64 = 2;

/// The share of taken slots above which the table grows.
///
/// A lower share costs memory, and at 100,000 keys the cache. A higher one costs probes that the
/// branch predictor misses. Dense keys collide hardly at all (see [`Table::hash`]). Keys without
/// any pattern take 1.6 to 3 probes.
const LOAD_MAX: (usize, usize) = (4, 5);

/// A table of rows in versions.
#[derive(Clone, Debug)]
pub struct Table {
    spec: Arc<TableSpec>,
    layout: Layout,
    /// The slots: `capacity` times `stride` words.
    slots: Cells,
    /// The number of words of a slot.
    stride: usize,
    /// The number of leading words of a slot that are logged for a version. All versions of a row
    /// share the others.
    logged: usize,
    /// The number of slots, a power of two.
    capacity: usize,
    /// The number of bits by which a hash is shifted, so that its high bits choose a slot.
    shift: u32,
    /// The number of times that slots have moved.
    moves: u64,
    /// The number of taken slots, for present and deleted rows.
    taken: usize,
    present: usize,
    /// The values beside each slot.
    values: Vec<Value>,
    values_bytes: usize,
    keys: Option<KeyIndex>,
    /// The column words of a missing row, if each column has a one-word default.
    missing: Option<Vec<u64>>,
    log: VersionLog,
    /// The logs of epochs that are not [released](Table::release).
    sealed: Sealed,
    /// Whether snapshots are taken. If so, slots of deleted rows stay until a snapshot has their
    /// deletion.
    tracked: bool,
    /// The blocks with taken slots that changed since the last snapshot and before the last commit.
    dirty: DirtyBlocks,
    /// The sequence number at or below which superseded versions have been dropped.
    floor: Seq,
    /// The versions of each slot's row, and their shape, in a table that retains any.
    histories: Vec<RowHistory>,
    shape: Option<Shape>,
    aging: Aging,
    /// The keys of the present rows, in an ordered table.
    order: Option<BTreeSet<Key>>,
    seed: u64,
}

/// A row that changed since the last commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The partition of the row.
    pub partition: Partition,
    /// The key of the row.
    pub key: Key,
    /// The row as it is now. `None` if it was deleted.
    pub row: Option<Row>,
}

impl Table {
    /// Creates an empty table.
    ///
    /// `seed` prevents an adversary from choosing keys that collide in one slot. It changes nothing
    /// that a program can see.
    pub fn new(spec: Arc<TableSpec>, seed: u64) -> Table {
        let layout = Layout::of(&spec);
        let keys = (!layout.word_key).then(|| KeyIndex::new(seed));
        let mut table = Table {
            stride: layout.slot_words(),
            logged: layout.slot_words(),
            shape: Shape::of(&spec, &layout),
            histories: Vec::new(),
            aging: Aging::default(),
            order: spec.ordered.then(BTreeSet::new),
            layout,
            slots: Cells::default(),
            capacity: 0,
            shift: 0,
            moves: 0,
            taken: 0,
            present: 0,
            values: Vec::new(),
            values_bytes: 0,
            keys,
            missing: missing(&spec),
            log: VersionLog::default(),
            sealed: Sealed::default(),
            tracked: false,
            dirty: DirtyBlocks::all(),
            floor: 0,
            seed: seed | 1,
            spec,
        };
        table.resize(16);
        table
    }

    /// Limits the stored sums and extremes of versions to the wanted ones. By default all are
    /// stored, and each costs memory in every version.
    ///
    /// # Panics
    /// If the table has had rows.
    pub fn with_aggregates(mut self, wanted: &Aggregates) -> Table {
        assert_eq!(self.taken, 0, "versions have one shape");
        self.shape = self.shape.map(|shape| shape.only(wanted, &self.layout));
        self
    }

    /// Declares that only these columns of existing rows are ever written, and that no row is
    /// deleted.
    ///
    /// So versions are logged up to the last of these columns. A row of many columns is not copied
    /// as a whole if one changes.
    ///
    /// # Panics
    /// If the table has had rows.
    pub fn with_written_columns(mut self, columns: &BTreeSet<usize>) -> Table {
        assert_eq!(self.taken, 0, "versions have one shape");
        let behind = |column: &usize| match self.layout.places[*column] {
            Place::Key => 0,
            Place::Word { word, .. } => word + 1,
            Place::Value(_) => self.layout.words,
        };
        let words = columns.iter().map(behind).max().unwrap_or(0);
        self.logged = HEADER_WORDS + self.layout.null_words + words;
        self
    }

    /// Returns the number of words of a version in the log.
    pub fn logged_words(&self) -> usize {
        self.logged
    }

    /// Returns the table's declaration.
    pub fn spec(&self) -> &Arc<TableSpec> {
        &self.spec
    }

    /// Returns the layout of the rows.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.present
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// Returns the memory that the table holds, in bytes.
    pub fn bytes(&self) -> usize {
        self.slots.bytes()
            + self.values.capacity() * std::mem::size_of::<Value>()
            + self.values_bytes
            + self.keys.as_ref().map_or(0, KeyIndex::bytes)
            + self.log.bytes()
            + self.sealed.bytes()
            + self.dirty.bytes()
            + self.histories_bytes()
    }

    // ---- rows as values -------------------------------------------------------------------

    /// Returns the newest version of the row with this key (one value for each key column).
    pub fn get(&self, key: &[Value]) -> Option<Row> {
        self.slot_of(key).and_then(|slot| self.row(slot))
    }

    /// Writes a new version at `seq`: the whole row, or `None` for a deletion.
    ///
    /// The row's values fit their columns (see `rules::store`). A second write at one `seq`
    /// replaces the first.
    pub fn put(&mut self, key: &[Value], row: Option<&[Value]>, seq: Seq) {
        self.put_at(key, row, seq, i64::MIN);
    }

    /// Writes as [`Table::put`] does, for a transaction at `time_us`. The time is for the row's
    /// history.
    pub fn put_at(&mut self, key: &[Value], row: Option<&[Value]>, seq: Seq, time_us: i64) {
        if let Some(slot) = self.slot_for(key, row.is_some()) {
            self.put_in(slot, row, seq, time_us);
        }
    }

    /// Writes as [`Table::put`] does, to the row with this encoded key.
    pub fn put_by_key(&mut self, key: &Key, row: Option<&[Value]>, seq: Seq) {
        if let Some(slot) = self.slot_for_key(key, row.is_some()) {
            self.put_in(slot, row, seq, i64::MIN);
        }
    }

    fn put_in(&mut self, slot: u32, row: Option<&[Value]>, seq: Seq, time_us: i64) {
        let base = slot as usize * self.stride;
        if row.is_none() && self.slots.words()[base + STAMP] & 1 == 0 {
            return;
        }
        let was = self.unlogged(base);
        if self.begin_version(base, row.is_some(), seq) && self.order.is_some() {
            self.order_changes(self.key(slot), row.is_some());
        }
        if let Some(history) = self.histories.get_mut(slot as usize) {
            history.newest_us = time_us;
        }
        let words = &mut self.slots.words_mut()[base..][..self.stride];
        let values = slot as usize * self.layout.values;
        let Some(row) = row else {
            assert!(was.is_none(), "table {}: no handler deletes rows", self.spec.name);
            for value in &mut self.values[values..][..self.layout.values] {
                self.values_bytes -= value.heap_bytes();
                *value = Value::Null;
            }
            return;
        };
        let body = &mut words[HEADER_WORDS..];
        for (place, value) in self.layout.places.iter().zip(row) {
            match place {
                Place::Key => {}
                Place::Word { word, null_bit } => {
                    let bits = value.word();
                    if let Some(bit) = null_bit {
                        let (at, mask) = (bit / 64, 1u64 << (bit % 64));
                        body[at] = if bits.is_none() { body[at] | mask } else { body[at] & !mask };
                    }
                    body[self.layout.null_words + word] = bits.unwrap_or(0);
                }
                Place::Value(at) => {
                    let held = &mut self.values[values + at];
                    self.values_bytes = self.values_bytes + value.heap_bytes() - held.heap_bytes();
                    *held = value.clone();
                }
            }
        }
        self.keeps_unlogged(base, was);
    }

    /// Returns the words of the row at `base` that are not logged, if the row exists and has such
    /// words.
    fn unlogged(&self, base: usize) -> Option<Vec<u64>> {
        let words = &self.slots.words()[base..][..self.stride];
        (self.logged < self.stride && words[STAMP] & 1 == 1).then(|| words[self.logged..].to_vec())
    }

    /// Checks that unlogged words have not changed. Otherwise older versions would change, too.
    fn keeps_unlogged(&self, base: usize, was: Option<Vec<u64>>) {
        let is = &self.slots.words()[base + self.logged..base + self.stride];
        let name = &self.spec.name;
        assert!(
            was.is_none_or(|was| was == *is),
            "table {name}: a column is written that no handler was declared to write"
        );
    }

    /// Begins a version of the row at `base`, which exists from now on or is deleted. Returns
    /// whether that has changed.
    fn begin_version(&mut self, base: usize, is_there: bool, seq: Seq) -> bool {
        self.supersede(base, seq);
        let words = &mut self.slots.words_mut()[base..][..self.stride];
        let was_there = words[STAMP] & 1 == 1;
        words[STAMP] = stamp_word(seq, is_there);
        self.present = self.present + usize::from(is_there) - usize::from(was_there);
        was_there != is_there
    }

    fn slot_of(&self, key: &[Value]) -> Option<u32> {
        match &self.keys {
            Some(index) => index.find(&Key::of(key)),
            None => {
                let word = key_word(&key[0])?;
                let base = self.find(word, self.hash(word))?;
                Some((base / self.stride) as u32)
            }
        }
    }

    /// Returns the slot of a key. If the key has none and `takes` is set, returns a new slot
    /// without a row.
    fn slot_for(&mut self, key: &[Value], takes: bool) -> Option<u32> {
        match &self.keys {
            Some(_) => self.slot_keyed(Cow::Owned(Key::of(key)), takes),
            None => {
                let word = key_word(&key[0]).expect("the caller has refused null keys");
                self.slot_of_word(word, takes)
            }
        }
    }

    /// Returns the slot of an encoded key, as [`Table::slot_for`] does.
    fn slot_for_key(&mut self, key: &Key, takes: bool) -> Option<u32> {
        if self.keys.is_some() {
            return self.slot_keyed(Cow::Borrowed(key), takes);
        }
        let ty = &self.spec.schema.columns[self.spec.key[0]].ty;
        let word = encode::decode_word(ty, &mut &key.0[..]).flatten().expect("a key of this table");
        self.slot_of_word(word, takes)
    }

    /// Does what [`Table::slot_for`] does, for a key that is not a word.
    fn slot_keyed(&mut self, key: Cow<'_, Key>, takes: bool) -> Option<u32> {
        let index = self.keys.as_ref().expect("the caller has checked the kind of keys");
        let hash = index.hash(&key);
        let found = index.find_hashed(&key, hash);
        found.or_else(|| takes.then(|| self.take_keyed(key.into_owned(), hash)))
    }

    /// Does what [`Table::slot_for`] does, for a word key.
    fn slot_of_word(&mut self, word: u64, takes: bool) -> Option<u32> {
        let hash = self.hash(word);
        let base = self.find(word, hash).or_else(|| takes.then(|| self.take(word, hash)))?;
        Some((base / self.stride) as u32)
    }

    /// Takes a new slot without a row, for a key that is not a word.
    fn take_keyed(&mut self, key: Key, hash: u64) -> u32 {
        if self.taken == self.capacity {
            self.grow();
        }
        self.taken += 1;
        let slot = self.keys.as_mut().expect("not a word key").insert_hashed(key, hash);
        let base = slot as usize * self.stride;
        let words = self.slots.words_mut();
        words[base + KEY] = u64::from(slot);
        words[base + LINK] = u64::from(NO_LINK) << 32 | TAKEN;
        slot
    }

    /// Returns the row in a slot, if it exists.
    fn row<R: FromIterator<Value>>(&self, slot: u32) -> Option<R> {
        let stride = self.stride;
        let words = &self.slots.words()[slot as usize * stride..][..stride];
        let values = &self.values[slot as usize * self.layout.values..][..self.layout.values];
        (words[STAMP] & 1 == 1).then(|| self.make_row(words[KEY], &words[HEADER_WORDS..], values))
    }

    pub(crate) fn make_row<R: FromIterator<Value>>(
        &self,
        key: u64,
        body: &[u64],
        values: &[Value],
    ) -> R {
        (0..self.layout.places.len()).map(|c| self.make_value(c, key, body, values)).collect()
    }

    #[inline]
    pub(crate) fn make_value(
        &self,
        column: usize,
        key: u64,
        body: &[u64],
        values: &[Value],
    ) -> Value {
        let ty = &self.spec.schema.columns[column].ty;
        match &self.layout.places[column] {
            Place::Key => Value::of_word(ty, key),
            Place::Word { null_bit: Some(bit), .. } if body[bit / 64] >> (bit % 64) & 1 == 1 => {
                Value::Null
            }
            Place::Word { word, .. } => Value::of_word(ty, body[self.layout.null_words + word]),
            Place::Value(at) => values[*at].clone(),
        }
    }

    /// Returns the row whose slot has this key and these column words, in a table of plain rows.
    pub fn row_of(&self, key: u64, body: &[u64]) -> Row {
        self.make_row(key, body, &[])
    }

    /// Appends the encoding of the row whose slot has this key and these column words, in a table
    /// of plain rows.
    pub fn encode_row(&self, key: u64, body: &[u64], out: &mut Vec<u8>) {
        for (place, column) in self.layout.places.iter().zip(&self.spec.schema.columns) {
            match place {
                Place::Key => encode::word(&column.ty, key, out),
                Place::Word { null_bit: Some(bit), .. }
                    if body[bit / 64] >> (bit % 64) & 1 == 1 =>
                {
                    encode::value(&Value::Null, out);
                }
                Place::Word { word, .. } => {
                    encode::word(&column.ty, body[self.layout.null_words + word], out);
                }
                Place::Value(_) => unreachable!("the rows are plain"),
            }
        }
    }

    /// Returns the column words of a row, null bits first, in a table of plain rows.
    pub fn words_of(&self, row: &[Value]) -> Vec<u64> {
        let mut body = vec![0; self.layout.body_words()];
        self.write_words(row, &mut body);
        body
    }

    /// Writes the column words of a row over words that are all 0.
    pub fn write_words(&self, row: &[Value], body: &mut [u64]) {
        for (place, value) in self.layout.places.iter().zip(row) {
            if let Place::Word { word, null_bit } = place {
                let bits = value.word();
                if let (Some(bit), None) = (null_bit, bits) {
                    body[bit / 64] |= 1 << (bit % 64);
                }
                body[self.layout.null_words + word] = bits.unwrap_or(0);
            }
        }
    }

    /// Whether rows are `columns` integers, never null, with one of them as the key.
    #[inline]
    pub fn has_int_rows(&self, columns: usize) -> bool {
        self.layout.ints && self.layout.places.len() == columns
    }

    /// Reads the columns of a row with this key and these column words, in a table of integers.
    pub fn read_ints(&self, key: i64, body: &[u64], row: &mut [i64]) {
        for (place, int) in self.layout.places.iter().zip(row) {
            *int = match place {
                Place::Word { word, .. } => body[*word] as i64,
                _ => key,
            };
        }
    }

    /// Writes the column words of a row of integers.
    pub fn write_ints(&self, row: &[i64], body: &mut [u64]) {
        for (place, int) in self.layout.places.iter().zip(row) {
            if let Place::Word { word, .. } = place {
                body[*word] = *int as u64;
            }
        }
    }

    // ---- rows as words --------------------------------------------------------------------

    /// Returns the hash of a word key.
    #[inline(always)]
    pub fn hash(&self, key: u64) -> u64 {
        hash(key, self.seed)
    }

    /// Prefetches the slot of a key with this hash into the cache.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.slots.words(), self.home(hash) * self.stride);
    }

    /// Prefetches the slot that begins at `base` into the cache.
    #[inline(always)]
    pub fn prefetch_at(&self, base: usize) {
        prefetch(self.slots.words(), base);
    }

    /// Returns the slot where the search for a key with this hash begins. It is less than
    /// `capacity`.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    /// Returns the place of a word key's slot, if it has one. Its row may be deleted. The place is
    /// valid until slots move (see [`Table::moves`]).
    #[inline(always)]
    pub fn find(&self, key: u64, hash: u64) -> Option<usize> {
        let (words, mask) = (self.slots.words().as_ptr(), self.capacity - 1);
        let mut slot = self.home(hash);
        loop {
            let base = slot * self.stride;
            // SAFETY: `slot` is less than `capacity`: `home` gives as many bits as `capacity` has,
            // and later values are masked. There are `capacity` slots of `stride` words (see
            // `resize`), and a slot has at least its header's words.
            let (found, link) = unsafe { (*words.add(base + KEY), *words.add(base + LINK)) };
            if (found == key) & (link & TAKEN != 0) {
                return Some(base);
            }
            if link & TAKEN == 0 {
                return None;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Returns how often slots have moved. A place found before the last move is invalid.
    #[inline(always)]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Takes a slot for a word key that has none, and returns its place. Slots may move, so every
    /// place found before is invalid.
    pub fn take(&mut self, key: u64, hash: u64) -> usize {
        if (self.taken + 1) * LOAD_MAX.1 > self.capacity * LOAD_MAX.0 {
            self.grow();
        }
        self.taken += 1;
        let (mask, stride) = (self.capacity - 1, self.stride);
        let mut slot = self.home(hash);
        let words = self.slots.words_mut();
        while words[slot * stride + LINK] & TAKEN != 0 {
            slot = (slot + 1) & mask;
        }
        let base = slot * stride;
        words[base + KEY] = key;
        words[base + LINK] = u64::from(NO_LINK) << 32 | TAKEN;
        base
    }

    /// Whether the row in the slot at `base` exists.
    #[inline(always)]
    pub fn is_present(&self, base: usize) -> bool {
        self.slots.words()[base + STAMP] & 1 == 1
    }

    /// Returns the column words of the slot at `base` (null bits first).
    #[inline(always)]
    pub fn body(&self, base: usize) -> &[u64] {
        &self.slots.words()[base + HEADER_WORDS..base + self.stride]
    }

    /// Begins a new version at `seq` of the row at `base`, which exists from now on. The old
    /// version moves to the log.
    ///
    /// Returns the column words, still those of the old version, to be changed.
    #[inline(always)]
    pub fn write(&mut self, base: usize, seq: Seq) -> &mut [u64] {
        debug_assert_eq!(self.layout.values, 0, "values beside the slot go through `put`");
        self.supersede(base, seq);
        let stride = self.stride;
        let slot = &mut self.slots.words_mut()[base..base + stride];
        let (header, body) = slot.split_at_mut(HEADER_WORDS);
        self.present += usize::from(header[STAMP] & 1 == 0);
        header[STAMP] = stamp_word(seq, true);
        body
    }

    /// Writes a new version at `seq` of the row with this key: its column words, or `None` for a
    /// deletion.
    ///
    /// The table has plain rows and no history. The rules of [`Table::put`] hold.
    pub fn put_words(&mut self, key: u64, body: Option<&[u64]>, seq: Seq) {
        debug_assert!(self.has_plain_rows() && self.shape.is_none());
        let hash = self.hash(key);
        let base = match (self.find(key, hash), body) {
            (Some(base), None) if !self.is_present(base) => return,
            (Some(base), _) => base,
            (None, None) => return,
            (None, Some(_)) => self.take(key, hash),
        };
        let was = self.unlogged(base);
        if self.begin_version(base, body.is_some(), seq) && self.order.is_some() {
            self.order_changes(self.key_of(key), body.is_some());
        }
        match body {
            Some(body) => {
                let words = &mut self.slots.words_mut()[base..][..self.stride];
                words[HEADER_WORDS..].copy_from_slice(body);
                self.keeps_unlogged(base, was);
            }
            None => assert!(was.is_none(), "table {}: no handler deletes rows", self.spec.name),
        }
    }

    /// Moves the newest version to the log, unless it has this very `seq`.
    #[inline(always)]
    fn supersede(&mut self, base: usize, seq: Seq) {
        let stride = self.stride;
        let slot = &mut self.slots.words_mut()[base..base + stride];
        let stamp = slot[STAMP];
        debug_assert!(stamp >> 1 <= seq, "versions are written in stamp order");
        if stamp >> 1 == seq && seq != 0 {
            // The number may be that of the last commit, and a snapshot may have been taken since.
            slot[LINK] &= !SNAPPED;
            self.dirty.mark(base);
            return;
        }
        if self.shape.is_some() && stamp & 1 == 1 {
            self.append_version(base);
        }
        let slot = &mut self.slots.words_mut()[base..base + stride];
        let at = self.log.push(&slot[..self.logged]);
        slot[LINK] = u64::from(at) << 32 | TAKEN;
        if self.layout.values > 0 {
            let index = base / stride;
            let values = index * self.layout.values;
            self.log.push_values(&self.values[values..][..self.layout.values]);
        }
    }

    // ---- for rows in place (see `RowAt`) --------------------------------------------------

    #[inline(always)]
    pub(crate) fn slots_ptr(&mut self) -> *mut u64 {
        self.slots.as_mut_ptr()
    }

    /// Returns the words of a slot, the number of slots minus one, the shift of hashes, and their
    /// seed.
    pub(crate) fn slots_shape(&self) -> (usize, usize, u32, u64) {
        (self.stride, self.capacity - 1, self.shift, self.seed)
    }

    /// Whether rows are nothing but words in slots, found by a word.
    pub fn has_plain_rows(&self) -> bool {
        self.layout.word_key && self.layout.values == 0
    }

    /// Returns how many slots may be taken before the slots have to move.
    pub(crate) fn room(&self) -> usize {
        (self.capacity * LOAD_MAX.0 / LOAD_MAX.1).saturating_sub(self.taken)
    }

    /// Records that slots have been taken.
    pub(crate) fn slots_taken(&mut self, slots: usize) {
        self.taken += slots;
    }

    /// Records that rows with these keys exist from now on.
    pub(crate) fn rows_added(&mut self, keys: Vec<u64>) {
        self.present += keys.len();
        if self.order.is_some() {
            keys.iter().for_each(|key| self.order_changes(self.key_of(*key), true));
        }
    }

    /// Returns the column words of a missing row, or `None` if a column has no one-word default.
    pub fn missing(&self) -> Option<&[u64]> {
        self.missing.as_deref()
    }

    #[inline(always)]
    pub(crate) fn log_mut(&mut self) -> &mut VersionLog {
        &mut self.log
    }

    // ---- commit, changes, hashes ----------------------------------------------------------

    /// Returns the rows written since the last commit, by partition and key.
    pub fn changes(&self) -> Vec<Change> {
        let slot = |at: u32| {
            let key = self.log.entry(at, self.logged, self.layout.values).key;
            match &self.keys {
                Some(_) => key as u32,
                None => {
                    let base = self.find(key, self.hash(key)).expect("slots keep their keys");
                    (base / self.stride) as u32
                }
            }
        };
        let mut slots: Vec<u32> = self.log.links(self.logged).map(slot).collect();
        slots.sort_unstable();
        slots.dedup();
        let change = |&slot: &u32| {
            let key = self.key(slot);
            Change { partition: partition_in(&self.spec, &key), key, row: self.row(slot) }
        };
        let mut changes: Vec<Change> = slots.iter().map(change).collect();
        changes.sort_by(|a, b| (a.partition, &a.key).cmp(&(b.partition, &b.key)));
        changes
    }

    /// Returns the number of versions superseded since the last commit.
    pub fn superseded(&self) -> usize {
        self.log.len(self.logged)
    }

    /// Makes everything up to `seq` final: no reader needs older versions.
    ///
    /// After a recovery, call it with the number of the recovered state, from which the numbers
    /// continue.
    pub fn commit(&mut self, seq: Seq) {
        self.mark_written();
        self.floor = seq;
        self.log.clear();
        self.sealed = Sealed::default();
        self.aging.commit(seq);
        self.sweep();
    }

    fn key(&self, slot: u32) -> Key {
        match &self.keys {
            Some(index) => index.key(slot).clone(),
            None => self.key_of(self.slots.words()[slot as usize * self.stride + KEY]),
        }
    }

    /// Returns the key of a word.
    fn key_of(&self, word: u64) -> Key {
        Key::of([&Value::of_word(&self.spec.schema.columns[self.spec.key[0]].ty, word)])
    }

    /// Returns all rows, by key.
    pub fn rows(&self) -> Vec<Row> {
        self.newest().rows()
    }

    /// Returns all rows with their keys, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (Key, Row)> + '_ {
        self.newest().unordered().map(|(slot, row)| (self.key(slot), row))
    }

    /// Selects rows as [`AsOf::select`] does.
    pub fn select(&self, limit: usize, keep: impl FnMut(&[Value]) -> bool) -> (Vec<Row>, bool) {
        self.newest().select(limit, keep)
    }

    /// Returns the hash of each partition that has rows. Their sum is [`Table::state_hash`].
    pub fn partition_hashes(&self) -> BTreeMap<Partition, u128> {
        let (mut hashes, mut bytes) = (BTreeMap::new(), Vec::new());
        for (slot, row) in self.newest().unordered() {
            let partition = partition_in(&self.spec, &self.key(slot));
            let sum: &mut u128 = hashes.entry(partition).or_default();
            *sum = sum.wrapping_add(row_hash(&self.spec.name, &row, &mut bytes));
        }
        hashes
    }

    /// Returns the hash of the newest state: see [`AsOf::state_hash`].
    pub fn state_hash(&self) -> u128 {
        self.newest().state_hash()
    }
}

/// Returns the hash of a word key: one folded multiplication.
///
/// Its high bits choose the slot. For keys close to each other, they are those of a multiplication
/// by the golden ratio, so the slots are far apart and evenly spread.
#[inline(always)]
pub(crate) fn hash(key: u64, seed: u64) -> u64 {
    let wide = u128::from(key ^ seed) * 0x9E37_79B9_7F4A_7C15u128;
    (wide as u64) ^ (wide >> 64) as u64
}

/// Returns the hash of one row of a table. [`Table::state_hash`] is the sum over its rows.
/// `scratch` is overwritten.
pub fn row_hash(table: &str, row: &[Value], scratch: &mut Vec<u8>) -> u128 {
    scratch.clear();
    encode::value(&Value::str(table), scratch);
    row.iter().for_each(|value| encode::value(value, scratch));
    encode::hash128(scratch)
}

/// Returns the hash of the retained versions of one row: of the key, and of each version's number,
/// time and columns.
fn history_hash(
    table: &str,
    key: &Key,
    versions: &[(u64, i64, Row)],
    scratch: &mut Vec<u8>,
) -> u128 {
    scratch.clear();
    encode::value(&Value::str(table), scratch);
    encode::value(&Value::Bytes((*key.0).into()), scratch);
    for (number, time_us, row) in versions {
        encode::value(&Value::Int(*number as i64), scratch);
        encode::value(&Value::Int(*time_us), scratch);
        row.iter().for_each(|value| encode::value(value, scratch));
    }
    encode::hash128(scratch)
}

/// Returns the column words of a missing row, if each column has a one-word default.
fn missing(spec: &TableSpec) -> Option<Vec<u64>> {
    let layout = Layout::of(spec);
    let none = vec![Value::Null; spec.key.len()];
    let mut words = vec![0; layout.body_words()];
    for (place, value) in layout.places.iter().zip(spec.missing_row(&none)) {
        match place {
            Place::Key => {}
            Place::Word { word, .. } => words[layout.null_words + word] = value.word()?,
            Place::Value(_) => return None,
        }
    }
    Some(words)
}

/// Returns the word of a key value. -0.0 becomes 0.0.
fn key_word(value: &Value) -> Option<u64> {
    match value {
        Value::Float(f) if *f == 0.0 => Some(0),
        value => value.word(),
    }
}

mod aging;
mod changed;
mod growth;
mod guests;
mod load;
mod past;
mod rewind;
#[cfg(test)]
mod tests;

use aging::Aging;
pub use changed::Changed;
pub use load::Loading;
pub use past::AsOf;
use past::Sealed;
pub use rewind::Before;
