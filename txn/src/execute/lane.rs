//! Lanes: the events of one run for one handler, walked from front to back. Ahead of the walk, keys
//! are hashed and their slots prefetched, in blocks.

use tidemill_core::Batch;
use tidemill_table::{Opened, RowAt};

use super::closure::{Columns, Outs, RowBits};
use super::output::OutputBuilder;
use super::words::KeyFrom;

/// The number of events of a lane that are staged together.
const BLOCK: usize = 16;
/// The distance from a block's first row at which events are prefetched, in rows.
///
/// The processor itself notices that columns are read in order, but too late if there are a dozen
/// of them.
const EVENTS_AHEAD: usize = 12 * BLOCK;
/// The number of rows above which a transaction is *wide*, and its events are staged one by one. A
/// block of them would have thousands of rows, which would evict each other from the caches before
/// they are used.
pub(super) const NARROW: usize = 32;

/// Returns how many events are staged together, if each has `rows` rows.
#[inline(always)]
const fn block(rows: usize) -> usize {
    if rows <= NARROW {
        BLOCK
    } else {
        1
    }
}

/// Returns how many events ahead of a block's first one slots are prefetched.
#[inline(always)]
const fn ahead(rows: usize) -> usize {
    2 * block(rows)
}

/// Returns how many staged events a lane retains: at least the block being executed and those
/// ahead.
#[inline(always)]
const fn ring(rows: usize) -> usize {
    4 * block(rows)
}

/// The columns of a batch as words. Booleans are unpacked.
#[derive(Debug)]
pub(crate) struct WordColumns<'a> {
    batch: &'a Batch,
    unpacked: Vec<(usize, Vec<u64>)>,
}

impl<'a> WordColumns<'a> {
    /// Creates the columns of a batch, if its handler uses words at all.
    pub(crate) fn new(batch: &'a Batch, wanted: bool) -> WordColumns<'a> {
        let bools = (0..batch.columns().len()).filter_map(|c| Some((c, batch.bools(c)?)));
        let unpack = |(column, bools): (usize, &arrow_array::BooleanArray)| {
            (column, (0..batch.len()).map(|row| u64::from(bools.value(row))).collect())
        };
        let unpacked = if wanted { bools.map(unpack).collect() } else { Vec::new() };
        WordColumns { batch, unpacked }
    }

    /// Returns a column, if it is one of words that are never null.
    pub(crate) fn get(&self, column: usize) -> Option<&[u64]> {
        if let Some(ints) = self.batch.ints(column) {
            // SAFETY: both are 64-bit integers, and every bit pattern is a value of either.
            return Some(unsafe { std::slice::from_raw_parts(ints.as_ptr().cast(), ints.len()) });
        }
        if let Some(floats) = self.batch.floats(column) {
            // SAFETY: as above, with the bits of 64-bit floats.
            let words = unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) };
            return Some(words);
        }
        self.unpacked.iter().find(|(c, _)| *c == column).map(|(_, words)| &words[..])
    }
}

/// The input that a handler's code uses.
#[derive(Debug)]
pub(crate) struct Wants {
    /// The event columns.
    pub(crate) columns: Vec<usize>,
    /// The table and the source of the key of each row.
    pub(crate) keys: Vec<(usize, KeyFrom)>,
    /// A bit for each row that may be written.
    pub(crate) written: RowBits,
    /// Whether the code may work on missing rows.
    pub(crate) places: bool,
}

/// A row of each transaction of a lane: the source of its keys, and its table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSource {
    /// The keys, one for each event.
    keys: *const u64,
    /// The open table, since the last [`Lane::attach`].
    table: *const Opened<'static>,
    number: usize,
    is_written: bool,
}

impl RowSource {
    /// A row that is in no table.
    const NONE: RowSource = RowSource {
        keys: std::ptr::null(),
        table: std::ptr::null(),
        number: usize::MAX,
        is_written: true,
    };
}

/// The input and the result of one transaction on copies of rows.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The frames of the rows, whose stamps are 0. Rows with equal keys have one frame.
    pub(crate) rows: Vec<RowAt>,
    /// A bit for each row that exists.
    pub(crate) present: RowBits,
    /// Set when the transaction has run: a bit for each written row, or the reason of the abort.
    pub(crate) done: Option<Result<RowBits, &'static str>>,
}

/// A lane that is being walked.
///
/// Everything that a transaction needs of it is there by pointer. So a loop over transactions has
/// nothing to prepare. That matters, because the loop is left and entered again after every third
/// transaction.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) handler: usize,
    /// Whether the fast path can take its events.
    pub(crate) fast: bool,
    /// The lane's index in the epoch.
    pub(crate) index: u32,
    /// The event columns that the code uses, in its order.
    pub(crate) columns: Columns<'a>,
    /// The destinations of its transactions' events.
    pub(crate) outs: Outs,
    /// Whether its code may work on missing rows.
    pub(crate) places: bool,
    /// Whether a table of its rows retains versions, and needs their time.
    pub(crate) ages: bool,
    /// The copies, if its one transaction works on copies of rows.
    pub(crate) copies: Option<Copies>,
    /// The event from which staging must continue.
    pub(crate) stage_at: usize,
    sources: Vec<RowSource>,
    /// The slot where the search for each row begins, for the staged events: a ring for each row of
    /// the transaction.
    homes: Vec<*mut u64>,
    /// Keys that are constants, as columns.
    constants: Vec<Vec<u64>>,
    /// The event columns to be prefetched.
    ahead: Vec<&'a [u64]>,
    /// The event before which all are staged.
    staged_to: usize,
    /// The event from which none is staged.
    stage_end: usize,
    /// Whether other threads write to the tables, too.
    shared: bool,
    /// The number of times that slots of any table had moved when the lane was attached.
    moves: u64,
}

impl<'a> Lane<'a> {
    /// Creates a lane. Without `wants`, the general path takes it.
    pub(crate) fn new(
        batch: &'a Batch,
        index: usize,
        handler: usize,
        wants: Option<(&Wants, &'a WordColumns<'a>)>,
    ) -> Lane<'a> {
        let mut lane = Lane {
            batch,
            handler,
            fast: false,
            index: index as u32,
            columns: Columns::default(),
            outs: Outs::default(),
            places: false,
            ages: false,
            copies: None,
            stage_at: 0,
            sources: Vec::new(),
            homes: Vec::new(),
            constants: Vec::new(),
            ahead: Vec::new(),
            staged_to: 0,
            stage_end: batch.len(),
            shared: false,
            moves: u64::MAX,
        };
        let Some((wants, columns)) = wants else { return lane };
        let mut found = Vec::new();
        for column in &wants.columns {
            let Some(words) = columns.get(*column) else { return lane };
            assert_eq!(words.len(), batch.len(), "a column has a word for each event");
            found.push(words);
        }
        for (of, (number, key)) in wants.keys.iter().enumerate() {
            let keys = match key {
                KeyFrom::Const(word) => {
                    lane.constants.push(vec![*word; batch.len()]);
                    lane.constants[lane.constants.len() - 1].as_ptr()
                }
                KeyFrom::Column(column) => match columns.get(usize::from(*column)) {
                    Some(words) => {
                        assert_eq!(words.len(), batch.len(), "a column has a word for each event");
                        lane.ahead.push(words);
                        words.as_ptr()
                    }
                    None => return lane,
                },
            };
            let (table, number, is_written) =
                (std::ptr::null(), *number, wants.written >> of & 1 == 1);
            lane.sources.push(RowSource { keys, table, number, is_written });
        }
        lane.ahead.extend(&found);
        lane.ahead.sort_unstable_by_key(|words| words.as_ptr());
        lane.ahead.dedup_by_key(|words| words.as_ptr());
        lane.homes = vec![std::ptr::null_mut(); ring(lane.sources.len()) * lane.sources.len()];
        lane.columns = Columns::of(found);
        (lane.fast, lane.places) = (true, wants.places);
        lane
    }

    /// Creates a lane of one event, given by column, whose transaction works on frames.
    pub(crate) fn copies(batch: &'a Batch, event: &'a [u64], copies: Copies) -> Lane<'a> {
        let mut lane = Lane::new(batch, 0, 0, None);
        lane.sources = vec![RowSource::NONE; copies.rows.len()];
        lane.columns = Columns::of(event.iter().map(std::slice::from_ref).collect());
        lane.outs = Outs::retaining();
        (lane.copies, lane.stage_at) = (Some(copies), usize::MAX);
        lane
    }

    /// Creates a lane whose transactions work on frames of `rows` rows, one at a time. The caller
    /// sets the [copies](Lane::copies) before it runs one.
    pub(crate) fn on_frames(
        batch: &'a Batch,
        index: u32,
        columns: &[&'a [u64]],
        rows: usize,
    ) -> Lane<'a> {
        let mut lane =
            Lane::copies(batch, &[], Copies { rows: Vec::new(), present: 0, done: None });
        lane.sources.resize(rows, RowSource::NONE);
        lane.columns = Columns::of(columns.to_vec());
        lane.index = index;
        lane
    }

    /// Attaches the lane to the open tables of its rows, and to the builders of its events. `moves`
    /// is how often slots of any table have moved.
    pub(crate) fn attach(
        &mut self,
        tables: &[Option<Opened<'_>>],
        builders: &[OutputBuilder],
        streams: Option<&[usize]>,
        moves: u64,
    ) {
        for source in &mut self.sources {
            let table = tables[source.number].as_ref().expect("the tables of fast rows are open");
            source.table = std::ptr::from_ref(table).cast();
            self.ages |= table.retains_versions();
        }
        self.outs.attach(builders, streams);
        if self.moves != moves {
            self.moves = moves;
            (self.staged_to, self.stage_at) = (0, 0);
        }
    }

    /// Sets the time of an event in the lane's tables.
    ///
    /// # Safety
    /// The lane is [attached](Lane::attach) to tables that are still open.
    #[inline(never)]
    pub(crate) unsafe fn set_time(&self, event: usize) {
        let time_us = self.columns.times[event];
        // SAFETY: as the caller guarantees.
        self.sources.iter().for_each(|source| unsafe { (*source.table).at_time(time_us) });
    }

    /// Returns how many rows each of its transactions has.
    pub(crate) fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Returns row number `of` of the transaction on an event, and whether it exists.
    ///
    /// A missing row has the defaults of its columns, if all have one, there is room for it, and
    /// the lane [places](Lane::places) rows. `N` is the number of rows, or one that is as
    /// [narrow](NARROW).
    ///
    /// # Safety
    /// The lane has as many rows and is [attached](Lane::attach) to tables that are still open. The
    /// event belongs to its batch and has been [staged](Lane::stage). No other thread uses the
    /// tables while the row is used.
    #[inline(always)]
    pub(crate) unsafe fn row<const N: usize>(
        &self,
        of: usize,
        event: usize,
    ) -> Option<(RowAt, bool)> {
        debug_assert_eq!(ring(N), ring(self.rows()));
        // SAFETY: there are as many rows, and `ring` homes for each. The home is a slot of the
        // table, because slots have not moved since it was staged.
        unsafe {
            let home = *self.homes.get_unchecked(of * ring(N) + event % ring(N));
            self.row_from(of, event, home)
        }
    }

    /// Returns a row as [`Lane::row`] does, if the slot where its search begins is known.
    ///
    /// # Safety
    /// As for [`Lane::row`], but the event need not be staged. The slot belongs to the row's table.
    #[inline(always)]
    pub(crate) unsafe fn row_from(
        &self,
        of: usize,
        event: usize,
        home: *mut u64,
    ) -> Option<(RowAt, bool)> {
        // SAFETY: there are as many rows, and as many keys as events.
        unsafe {
            let source = self.sources.get_unchecked(of);
            let key = *source.keys.add(event);
            let row = RowAt::at(home, source.table);
            if row.is(key) {
                return Some((row, true));
            }
            let (slot, is_there) = match self.places {
                true => (*source.table).find_or_place(key),
                false => ((*source.table).find_slot(key), true),
            };
            (!slot.is_null()).then(|| (RowAt::at(slot, source.table), is_there))
        }
    }

    /// Calls `each` for row number `of` of the transactions on these events, with the slot where
    /// its search begins and a hash of table and key.
    #[inline(always)]
    pub(crate) fn homes_of(
        &self,
        of: usize,
        events: std::ops::Range<usize>,
        mut each: impl FnMut(*mut u64, u64),
    ) {
        let source = &self.sources[of];
        assert!(events.end <= self.batch.len() && !source.table.is_null(), "lane is attached");
        let salt = (source.number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // SAFETY: there is a key for each event, and the table is open.
        let (keys, table) = unsafe {
            let keys = source.keys.add(events.start);
            (std::slice::from_raw_parts(keys, events.len()), &*source.table)
        };
        for key in keys {
            let (home, hash) = table.home_and_hash(*key);
            each(home, hash.wrapping_add(salt));
        }
    }

    /// Prefetches the rows of these events. Rows that are written are prefetched for writing.
    pub(crate) fn ask_for_rows(&self, events: std::ops::Range<usize>) {
        for (of, source) in self.sources.iter().enumerate() {
            // SAFETY: the lane is attached to open tables.
            let table = unsafe { &*source.table };
            self.homes_of(of, events.clone(), |home, _| match source.is_written {
                true => table.prefetch_to_write(home),
                false => table.prefetch(home),
            });
        }
    }

    /// Prefetches the retained versions of the rows of the next events. Their histories were
    /// prefetched when the events were staged.
    #[inline(never)]
    fn stage_versions(&self, row: usize) {
        let (end, rows) = (self.staged_to, self.rows());
        let (block, ring) = (block(rows), ring(rows));
        for (of, source) in self.sources.iter().enumerate() {
            // SAFETY: the lane is attached to open tables.
            let table = unsafe { &*source.table };
            if !table.retains_versions() {
                continue;
            }
            let home = |event: usize| self.homes[of * ring + event % ring];
            let near = self.stage_at..(self.stage_at + block).min(end);
            debug_assert!(row < self.stage_at);
            // SAFETY: these are staged events, whose homes are slots of the table.
            near.for_each(|event| unsafe { table.prefetch_versions(home(event)) });
        }
    }

    /// Stages these events, as far as they are near, and no others, because those belong to other
    /// threads.
    pub(crate) fn stage_only(&mut self, events: std::ops::Range<usize>) {
        self.staged_to = events.start;
        self.stage_end = events.end;
        self.shared = true;
        self.stage(events.start, true);
    }

    /// Prefetches the slots of the events ahead of `row`, and the events ahead of those.
    #[inline(never)]
    pub(crate) fn stage(&mut self, row: usize, prefetch: bool) {
        let (end, rows) = (self.stage_end, self.rows());
        let (block, ring) = (block(rows), ring(rows));
        // Earlier events are not staged again.
        self.staged_to = self.staged_to.max(row);
        self.stage_at = (row / block + 1) * block;
        while self.staged_to < (self.stage_at + ahead(rows)).min(end) {
            let from = self.staged_to;
            self.staged_to = ((from / block + 1) * block).min(end);
            for (of, source) in self.sources.iter().enumerate() {
                // SAFETY: there is a key for each event, and the lane is attached to open tables.
                let (keys, table) = unsafe {
                    let (keys, events) = (source.keys.add(from), self.staged_to - from);
                    (std::slice::from_raw_parts(keys, events), &*source.table)
                };
                let homes = &mut self.homes[of * ring + from % ring..];
                for (home, key) in homes.iter_mut().zip(keys) {
                    *home = table.home(*key);
                    if prefetch {
                        // Rows that are only read stay in all caches.
                        match self.shared && source.is_written {
                            true => table.prefetch_to_write(*home),
                            false => table.prefetch(*home),
                        }
                    }
                }
                if prefetch && table.retains_versions() {
                    // SAFETY: these are slots of the table.
                    homes
                        .iter()
                        .take(keys.len())
                        .for_each(|h| unsafe { table.prefetch_history(*h) });
                }
            }
        }
        // Otherwise other threads may be writing versions of these rows.
        if prefetch && self.ages && !self.shared {
            self.stage_versions(row);
        }
        if prefetch && (block == BLOCK || row.is_multiple_of(BLOCK / 2)) {
            self.ask_ahead(row);
        }
    }

    /// Prefetches these events, as far as they exist.
    pub(crate) fn ask_for(&self, events: std::ops::Range<usize>) {
        // Eight words are a cache line.
        for words in &self.ahead {
            events.clone().step_by(8).for_each(|event| tidemill_table::prefetch(words, event));
        }
    }

    /// Prefetches the events ahead of `row`. Once every half a [`BLOCK`] is enough.
    #[inline(always)]
    pub(crate) fn ask_ahead(&self, row: usize) {
        // A block of a column is two cache lines.
        for words in &self.ahead {
            tidemill_table::prefetch(words, row + EVENTS_AHEAD);
            tidemill_table::prefetch(words, row + EVENTS_AHEAD + BLOCK / 2);
        }
    }
}
