//! Lanes: the events of one run for one handler, walked from front to back. Ahead of the walk keys
//! are hashed and their slots asked for, by the block.

use tidemill_core::Batch;
use tidemill_table::{Opened, RowAt};

use super::closure::{Columns, Outs, RowBits};
use super::output::OutputBuilder;
use super::words::KeyFrom;

/// Events of a lane that are staged together.
const BLOCK: usize = 16;
/// How many rows ahead of a block's first one events are asked for. The processor sees by itself
/// that columns are read in order, but too late when there are a dozen of them.
const EVENTS_AHEAD: usize = 12 * BLOCK;
/// Transactions with more rows than this are *wide*: their events are staged one by one. A block of
/// them would have thousands of rows, which drive each other out of the caches before they are used.
pub(super) const NARROW: usize = 32;

/// Events that are staged together when each has so many rows.
#[inline(always)]
const fn block(rows: usize) -> usize {
    if rows <= NARROW {
        BLOCK
    } else {
        1
    }
}

/// How many events ahead of a block's first one slots are asked for.
#[inline(always)]
const fn ahead(rows: usize) -> usize {
    2 * block(rows)
}

/// Staged events that a lane keeps: at least the block being executed and those ahead.
#[inline(always)]
const fn ring(rows: usize) -> usize {
    4 * block(rows)
}

/// The columns of a batch as words; booleans are unpacked.
#[derive(Debug)]
pub(crate) struct WordColumns<'a> {
    batch: &'a Batch,
    unpacked: Vec<(usize, Vec<u64>)>,
}

impl<'a> WordColumns<'a> {
    /// The columns of a batch, as far as its handler wants words at all.
    pub(crate) fn new(batch: &'a Batch, wanted: bool) -> WordColumns<'a> {
        let bools = (0..batch.columns().len()).filter_map(|c| Some((c, batch.bools(c)?)));
        let unpack = |(column, bools): (usize, &arrow_array::BooleanArray)| {
            (column, (0..batch.len()).map(|row| u64::from(bools.value(row))).collect())
        };
        let unpacked = if wanted { bools.map(unpack).collect() } else { Vec::new() };
        WordColumns { batch, unpacked }
    }

    /// A column, when it is one of words that are never null.
    pub(crate) fn get(&self, column: usize) -> Option<&[u64]> {
        if let Some(ints) = self.batch.ints(column) {
            // SAFETY: both are 64-bit integers; every bit pattern is a value of either.
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

/// What a handler's code wants of its events.
#[derive(Debug)]
pub(crate) struct Wants {
    /// Event columns.
    pub(crate) columns: Vec<usize>,
    /// Per row: its table and where its key comes from.
    pub(crate) keys: Vec<(usize, KeyFrom)>,
    /// A bit for each row that may be written.
    pub(crate) written: RowBits,
    /// Whether it may work on rows that are not there.
    pub(crate) places: bool,
}

/// A row of each transaction of a lane: where its keys are and whose they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSource {
    /// A key for each event.
    keys: *const u64,
    /// The open table, as of the last [`Lane::attach`].
    table: *mut Opened<'static>,
    number: usize,
    is_written: bool,
}

impl RowSource {
    /// Of rows that are in no table.
    const NONE: RowSource = RowSource {
        keys: std::ptr::null(),
        table: std::ptr::null_mut(),
        number: usize::MAX,
        is_written: true,
    };
}

/// What one transaction on copies of rows works on, and what it came to.
#[derive(Debug)]
pub(crate) struct Copies {
    /// Frames of the rows, whose stamps are 0; those with equal keys are one.
    pub(crate) rows: Vec<RowAt>,
    /// A bit for each row that is there.
    pub(crate) present: RowBits,
    /// Set when it has run: a bit for each row that was written, or why it aborts.
    pub(crate) done: Option<Result<RowBits, &'static str>>,
}

/// A lane being walked.
///
/// Everything that a transaction needs of it stands in it by pointer, so that a loop over
/// transactions has nothing to prepare: it is left and entered again after every third one.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) handler: usize,
    /// Whether the fast path can take its events.
    pub(crate) fast: bool,
    /// The lane's index in the epoch.
    pub(crate) index: u32,
    /// The event columns that the code wants, in its order.
    pub(crate) columns: Columns<'a>,
    /// Where its transactions emit to.
    pub(crate) outs: Outs,
    /// Whether its code may work on rows that are not there.
    pub(crate) places: bool,
    /// Whether a table of its rows keeps versions, and wants to know their time.
    pub(crate) ages: bool,
    /// Set when its one transaction works on copies of rows.
    pub(crate) copies: Option<Copies>,
    /// From this event on staging must go on.
    pub(crate) stage_at: usize,
    sources: Vec<RowSource>,
    /// For the staged events in a ring, row of the transaction by row: where the search for its
    /// slot begins.
    homes: Vec<*mut u64>,
    /// Keys that are constants, as columns.
    constants: Vec<Vec<u64>>,
    /// Event columns to be asked for ahead of time.
    ahead: Vec<&'a [u64]>,
    /// Events before this one are staged.
    staged_to: usize,
    /// No event from this one on is staged.
    stage_end: usize,
    /// Other threads write to the tables, too.
    shared: bool,
    /// How often slots of any table had moved when the lane was attached.
    moves: u64,
}

impl<'a> Lane<'a> {
    /// A lane; without wants, one that the general path takes.
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
                (std::ptr::null_mut(), *number, wants.written >> of & 1 == 1);
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

    /// A lane of one event, given by column, whose transaction works on frames.
    pub(crate) fn copies(batch: &'a Batch, event: &'a [u64], copies: Copies) -> Lane<'a> {
        let mut lane = Lane::new(batch, 0, 0, None);
        lane.sources = vec![RowSource::NONE; copies.rows.len()];
        lane.columns = Columns::of(event.iter().map(std::slice::from_ref).collect());
        lane.outs = Outs::kept();
        (lane.copies, lane.stage_at) = (Some(copies), usize::MAX);
        lane
    }

    /// A lane whose transactions work on frames of so many rows, one at a time: who runs one puts
    /// its [copies](Lane::copies) in first.
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

    /// The tables that its rows are of have been opened, and its events go to `builders`. `moves`
    /// is how often slots of any table have moved.
    pub(crate) fn attach(
        &mut self,
        tables: &mut [Option<Opened<'_>>],
        builders: &mut [OutputBuilder],
        streams: Option<&[usize]>,
        moves: u64,
    ) {
        for source in &mut self.sources {
            let table = tables[source.number].as_mut().expect("the tables of fast rows are open");
            source.table = (&raw mut *table).cast();
            self.ages |= table.keeps_versions();
        }
        self.outs.attach(builders, streams);
        if self.moves != moves {
            self.moves = moves;
            (self.staged_to, self.stage_at) = (0, 0);
        }
    }

    /// Tells its tables the time of an event.
    ///
    /// # Safety
    /// The lane is [attached](Lane::attach) to tables that are still open.
    #[inline(never)]
    pub(crate) unsafe fn tell_time(&self, event: usize) {
        let time_us = self.columns.times[event];
        // SAFETY: as the caller says.
        self.sources.iter().for_each(|source| unsafe { (*source.table).at_time(time_us) });
    }

    /// How many rows each of its transactions has.
    pub(crate) fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Row number `of` of the transaction on an event, and whether it is there: one that is not has
    /// the defaults of its columns, if all have one and there is room for it, and the lane
    /// [places](Lane::places) rows. `N` is the number of rows, or one that is as [narrow](NARROW).
    ///
    /// # Safety
    /// The lane has so many rows and is [attached](Lane::attach) to tables that are still open;
    /// the event is one of its batch and has been [staged](Lane::stage); nobody else uses the
    /// tables while the row is used.
    #[inline(always)]
    pub(crate) unsafe fn row<const N: usize>(
        &self,
        of: usize,
        event: usize,
    ) -> Option<(RowAt, bool)> {
        debug_assert_eq!(ring(N), ring(self.rows()));
        // SAFETY: there are so many rows, and `ring` homes for each. The home is a slot of the table,
        // because slots have not moved since it was staged.
        unsafe {
            let home = *self.homes.get_unchecked(of * ring(N) + event % ring(N));
            self.row_from(of, event, home)
        }
    }

    /// As [`Lane::row`], where it is known at which slot the search for it begins.
    ///
    /// # Safety
    /// As of [`Lane::row`], without being staged; the slot is one of the row's table.
    #[inline(always)]
    pub(crate) unsafe fn row_from(
        &self,
        of: usize,
        event: usize,
        home: *mut u64,
    ) -> Option<(RowAt, bool)> {
        // SAFETY: there are so many rows, and as many keys as events.
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

    /// For row number `of` of the transactions on these events: where the search for it begins, and a
    /// hash of table and key.
    #[inline(always)]
    pub(crate) fn homes_of(
        &self,
        of: usize,
        events: std::ops::Range<usize>,
        mut each: impl FnMut(*mut u64, u64),
    ) {
        let source = &self.sources[of];
        assert!(events.end <= self.batch.len() && !source.table.is_null(), "an attached lane's");
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

    /// Asks for the rows of these events, those that are written to be written.
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

    /// Asks for what is kept of the versions of the rows of the events that come next. Where it is has
    /// been asked for when they were staged.
    #[inline(never)]
    fn stage_versions(&self, row: usize) {
        let (end, rows) = (self.staged_to, self.rows());
        let (block, ring) = (block(rows), ring(rows));
        for (of, source) in self.sources.iter().enumerate() {
            // SAFETY: the lane is attached to open tables.
            let table = unsafe { &*source.table };
            if !table.keeps_versions() {
                continue;
            }
            let home = |event: usize| self.homes[of * ring + event % ring];
            let near = self.stage_at..(self.stage_at + block).min(end);
            debug_assert!(row < self.stage_at);
            // SAFETY: these are events that are staged, whose homes are slots of the table.
            near.for_each(|event| unsafe { table.prefetch_versions(home(event)) });
        }
    }

    /// Stages these events, as far as they come soon, and no others: they are somebody else's.
    pub(crate) fn stage_only(&mut self, events: std::ops::Range<usize>) {
        self.staged_to = events.start;
        self.stage_end = events.end;
        self.shared = true;
        self.stage(events.start, true);
    }

    /// Asks for the slots of the events ahead of `row`, and for the events ahead of those.
    #[inline(never)]
    pub(crate) fn stage(&mut self, row: usize, prefetch: bool) {
        let (end, rows) = (self.stage_end, self.rows());
        let (block, ring) = (block(rows), ring(rows));
        // What is behind is not staged again.
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
                        // What is only read stays in all caches.
                        match self.shared && source.is_written {
                            true => table.prefetch_to_write(*home),
                            false => table.prefetch(*home),
                        }
                    }
                }
                if prefetch && table.keeps_versions() {
                    // SAFETY: these are slots of the table.
                    homes
                        .iter()
                        .take(keys.len())
                        .for_each(|h| unsafe { table.prefetch_history(*h) });
                }
            }
        }
        // Other threads may be writing versions of these rows.
        if prefetch && self.ages && !self.shared {
            self.stage_versions(row);
        }
        if prefetch && (block == BLOCK || row.is_multiple_of(BLOCK / 2)) {
            self.ask_ahead(row);
        }
    }

    /// Asks for what is to be known of these events, as far as there are so many.
    pub(crate) fn ask_for(&self, events: std::ops::Range<usize>) {
        // Eight words are a cache line.
        for words in &self.ahead {
            events.clone().step_by(8).for_each(|event| tidemill_table::prefetch(words, event));
        }
    }

    /// Asks for the events ahead of `row`. Once every half a [`BLOCK`] is enough.
    #[inline(always)]
    pub(crate) fn ask_ahead(&self, row: usize) {
        // A block of a column is two cache lines.
        for words in &self.ahead {
            tidemill_table::prefetch(words, row + EVENTS_AHEAD);
            tidemill_table::prefetch(words, row + EVENTS_AHEAD + BLOCK / 2);
        }
    }
}
