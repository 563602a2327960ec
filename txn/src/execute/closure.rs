//! The data that the closure of a native handler works on.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Batch, DataType, Schema, StreamId, TableId, Value};
use tidemill_table::{Layout, Place, RowAt, Seq, Versions, HEADER_WORDS, KEY_WORD};

use super::lane::{Copies, Lane};
use super::native::NativeCode;
use super::output::{Origin, OutputBuilder, WordRows};
use super::segment::{InOrder, Turns};
use super::window::Seen;
use crate::order::Ranked;
use crate::program::{Abort, Aggregate, Native, Program, RowRef, Window, WindowRead};

/// The treatment of a column that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Plain,
    /// The column is a float, which is stored with one NaN.
    Float,
    /// The column is part of the key, or does not exist. Setting it does nothing.
    Nothing,
    /// The handler was declared not to set the column.
    Refused,
    /// A plain column of a frame whose writes are noted one by one. `NotedFloat` and `NotedNothing`
    /// are the same for a float, and for no column.
    Noted,
    NotedFloat,
    NotedNothing,
}

/// The place of a column among a row's words.
#[derive(Clone, Copy, Debug)]
struct Position {
    word: u16,
    setting: Setting,
}

/// The place of a column that does not exist: the first word.
const NO_COLUMN: Position = Position { word: 0, setting: Setting::Nothing };

/// The places of the columns of a handler's rows among each row's words.
#[derive(Debug)]
pub(crate) struct Places {
    /// The places in the first rows and columns. A closure's numbers are known when it is compiled.
    /// So these need no check at all.
    near: [[Position; NEAR]; NEAR],
    /// All places, `width` for each row.
    all: Vec<Position>,
    rows: usize,
    width: usize,
    /// The table of each row.
    tables: Vec<TableId>,
}

const NEAR: usize = 8;

impl Places {
    /// Creates the places of rows in slots, or returns the reason why there are none.
    pub(crate) fn in_slots(
        program: &Program,
        layouts: &[Layout],
        native: &Native,
    ) -> Result<Places, String> {
        Places::of(program, native, |table, column| match layouts[table].places[column] {
            Place::Key => Ok(KEY_WORD),
            Place::Word { word, null_bit: None } => {
                Ok(HEADER_WORDS + layouts[table].null_words + word)
            }
            _ => Err("a column is not a plain word".into()),
        })
    }

    /// Creates the places of frames: slots whose columns are in the order of the schema. If
    /// `are_noted` is set, writes are noted.
    fn in_frames(program: &Program, native: &Native, are_noted: bool) -> Places {
        let found = Places::of(program, native, |_, column| Ok(HEADER_WORDS + column));
        let mut places = found.expect("every column has its place");
        if are_noted {
            let Places { near, all, .. } = &mut places;
            for position in near.iter_mut().flatten().chain(all.iter_mut()) {
                position.setting = match position.setting {
                    Setting::Plain => Setting::Noted,
                    Setting::Float => Setting::NotedFloat,
                    Setting::Nothing => Setting::NotedNothing,
                    other => other,
                };
            }
        }
        places
    }

    fn of(
        program: &Program,
        native: &Native,
        word: impl Fn(usize, usize) -> Result<usize, String>,
    ) -> Result<Places, String> {
        let spec = |row: usize| &program.tables[native.rows[row].table.index()];
        let rows = native.rows.len();
        let width = (0..rows).map(|row| spec(row).schema.len()).max().unwrap_or(0);
        let mut near = [[NO_COLUMN; NEAR]; NEAR];
        let mut all = vec![NO_COLUMN; rows * width];
        for row in 0..rows {
            let (table, spec) = (native.rows[row].table.index(), spec(row));
            for (column, definition) in spec.schema.columns.iter().enumerate() {
                let word = u16::try_from(word(table, column)?)
                    .map_err(|_| format!("table {} has too many columns", spec.name))?;
                let setting = match &definition.ty {
                    _ if spec.is_key(column) && native.writes(row) => Setting::Nothing,
                    _ if !native.may_set(row, column) => Setting::Refused,
                    DataType::Float => Setting::Float,
                    _ => Setting::Plain,
                };
                let position = Position { word, setting };
                all[row * width + column] = position;
                if row < NEAR && column < NEAR {
                    near[row][column] = position;
                }
            }
        }
        let tables = native.rows.iter().map(|row| row.table).collect();
        Ok(Places { near, all, rows, width, tables })
    }

    #[inline(always)]
    fn at(&self, row: usize, column: usize) -> Position {
        if row < NEAR && column < NEAR {
            return self.near[row][column];
        }
        assert!(row < self.rows && column < self.width, "no such column");
        self.all[row * self.width + column]
    }
}

/// A function that computes a window over the versions of a row. Its arguments are the row's
/// number, and the row's columns as the closure has written them, if it has.
pub type Windows<'w> = dyn Fn(usize, Option<Vec<Value>>, &WindowRead) -> Result<Value, Abort> + 'w;

impl std::fmt::Debug for Columns<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Columns").field("all", &self.all).finish_non_exhaustive()
    }
}

/// The columns of a batch of events. The first ones are pointers, null where there is no column.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    near: [Pointer<u64>; NEAR],
    all: Vec<&'a [u64]>,
    /// All columns as pointers, for machine code.
    pointers: Vec<Pointer<u64>>,
    /// The time of each event's stamp. Empty for copies.
    pub(crate) times: &'a [i64],
    /// The reader of windows for copies of rows.
    pub(crate) windows: Option<&'a Windows<'a>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(all: Vec<&'a [u64]>) -> Columns<'a> {
        let mut near = [Pointer::default(); NEAR];
        let pointers: Vec<_> = all.iter().map(|w| Pointer(w.as_ptr().cast_mut())).collect();
        for (near, pointer) in near.iter_mut().zip(&pointers) {
            *near = *pointer;
        }
        Columns { near, all, pointers, times: &[], windows: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns a pointer to the first word of each column.
    #[allow(dead_code)] // A build without machine code does not call it.
    #[inline(always)]
    pub(crate) fn pointers(&self) -> *const *const u64 {
        self.pointers.as_ptr().cast()
    }

    /// # Safety
    /// Every column has the event.
    #[inline(always)]
    pub(crate) unsafe fn word(&self, column: usize, event: usize) -> u64 {
        if column < NEAR {
            let words = self.near[column].0;
            assert!(!words.is_null(), "no such event column");
            // SAFETY: as the caller guarantees.
            return unsafe { *words.add(event) };
        }
        self.all[column][event]
    }
}

/// A pointer that is null by default.
#[derive(Debug)]
#[repr(transparent)]
struct Pointer<T>(*mut T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Pointer<T> {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

impl<T> Default for Pointer<T> {
    fn default() -> Pointer<T> {
        Pointer(std::ptr::null_mut())
    }
}

/// The most streams that a handler on the fast path may emit to.
pub(crate) const STREAMS_MAX: usize = 8;

/// The destinations of emitted events, by the handler's number of the stream. They are the outputs,
/// or a vector in which they wait for the commit if other handlers take them.
#[derive(Debug, Default)]
pub(crate) struct Outs {
    rows: [Pointer<WordRows>; STREAMS_MAX],
    /// The events that wait. Each is the stream's number, followed by its words.
    pub(crate) retained: Vec<u64>,
    are_retained: bool,
    /// The changes of frames in order, if they are noted.
    noted: Option<Vec<Noted>>,
    /// The offset from the number of an event in its lane to the place of its outputs, if these
    /// have places.
    pub(crate) places_from: usize,
}

impl Outs {
    /// Creates destinations that retain events for the caller.
    pub(crate) fn retaining() -> Outs {
        Outs { are_retained: true, ..Outs::default() }
    }

    /// Sends events to the builders of these streams, at most [`STREAMS_MAX`], whose columns are
    /// all words. Without streams, events are retained.
    pub(crate) fn attach(&mut self, builders: &[OutputBuilder], streams: Option<&[usize]>) {
        self.are_retained = streams.is_none();
        for (rows, stream) in self.rows.iter_mut().zip(streams.unwrap_or_default()) {
            *rows = Pointer(builders[*stream].word_rows());
        }
    }

    #[inline(always)]
    pub(crate) fn are_retained(&self) -> bool {
        self.are_retained
    }

    /// Appends an output of this event of the lane.
    ///
    /// # Safety
    /// The attached builders exist, and no other code uses them.
    #[inline(always)]
    pub(crate) unsafe fn push(
        &self,
        stream: usize,
        origin: Origin,
        event: usize,
        width: usize,
        word: impl Fn(usize) -> u64,
    ) {
        let rows = self.rows[stream].0;
        assert!(!rows.is_null(), "no such stream");
        // SAFETY: as the caller guarantees.
        unsafe { (*rows).push(origin, event.wrapping_add(self.places_from), width, word) };
    }

    /// Removes the events that a transaction emitted.
    ///
    /// # Safety
    /// As for [`Outs::push`].
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn take_back(&mut self, origin: Origin) {
        self.retained.clear();
        for rows in self.rows.iter().filter(|rows| !rows.0.is_null()) {
            // SAFETY: as the caller guarantees.
            unsafe { (*rows.0).take_back(origin) };
        }
    }
}

/// A bit for each row of a closure.
pub type RowBits = u128;

/// The transaction that a native closure works on: the event's words and its rows' words.
#[derive(Debug)]
pub struct NativeTx<'a> {
    columns: &'a Columns<'a>,
    /// The event's row in the columns.
    event: usize,
    /// The rows. Those with equal keys are at one place.
    rows: &'a [RowAt],
    places: &'a Places,
    /// The number of the version that setting a column begins. It is 0 if the rows are frames,
    /// whose versions have all begun with a stamp of 0.
    seq: Seq,
    /// Whether a column was set, by row.
    dirty: RowBits,
    /// Whether the row existed, by row.
    present: RowBits,
    outs: &'a mut Outs,
    origin: Origin,
    emitted: u32,
}

impl<'a> NativeTx<'a> {
    /// Creates a transaction at `seq` on rows in their slots, or on frames, where `seq` is 0.
    ///
    /// # Safety
    /// The rows may be used (see [`RowAt::at`]) as long as the transaction. They belong to the
    /// tables of `places`, in its order, with room for a version of each. Every column has the
    /// event. The stamps of frames are 0. The builders attached to `outs` exist.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // All arguments stay in registers.
    pub(crate) unsafe fn new(
        columns: &'a Columns<'a>,
        event: usize,
        rows: &'a [RowAt],
        places: &'a Places,
        seq: Seq,
        present: RowBits,
        outs: &'a mut Outs,
        origin: Origin,
    ) -> NativeTx<'a> {
        let (dirty, emitted) = (0, 0);
        NativeTx { columns, event, rows, places, seq, dirty, present, outs, origin, emitted }
    }

    /// Returns a bit for each row of which a column was set.
    #[inline(always)]
    pub(crate) fn dirty(&self) -> RowBits {
        self.dirty
    }
}

/// Undoes the writes of a transaction at `seq`, for each row whose bit is set.
///
/// It takes parts instead of the transaction itself. A borrowed transaction has to be in memory,
/// which would slow down all others.
///
/// # Safety
/// As for [`NativeTx::new`], which was given these rows and that number.
#[cold]
#[inline(never)]
pub(crate) unsafe fn undo<const N: usize>(rows: [RowAt; N], dirty: RowBits, seq: Seq) {
    let set = |row: &usize| dirty >> row & 1 == 1;
    // SAFETY: the rows may be used, and they have the last versions.
    let undone: Vec<usize> =
        (0..N).filter(set).filter(|row| unsafe { rows[*row].undo(seq) }).collect();
    // SAFETY: as above; all of the transaction's versions have been undone.
    undone.iter().for_each(|row| unsafe { rows[*row].forget() });
}

impl NativeTx<'_> {
    /// Returns a column of the event: an int, timestamp, decimal's units, bool or a float's bits.
    #[inline(always)]
    pub fn event(&self, column: usize) -> i64 {
        // SAFETY: `new` requires that every column has the event.
        unsafe { self.columns.word(column, self.event) as i64 }
    }

    /// Returns a column of a row.
    #[inline(always)]
    pub fn get(&self, row: usize, column: usize) -> i64 {
        let (at, place) = (self.rows[row], self.places.at(row, column));
        // SAFETY: the row is as `new` requires, and the place is one of its words.
        unsafe { at.word(usize::from(place.word)) as i64 }
    }

    /// Sets a column of a row. A missing row is created with its defaults. Columns of the key do
    /// not change.
    ///
    /// # Panics
    /// If the handler was [declared](crate::program::Builder::sets) not to set it.
    #[inline(always)]
    pub fn set(&mut self, row: usize, column: usize, value: i64) {
        let (at, place) = (self.rows[row], self.places.at(row, column));
        if place.setting == Setting::Refused {
            refuse(row, column);
        }
        if self.dirty >> row & 1 == 0 {
            self.begin(row, at);
        }
        let word = match place.setting {
            Setting::Plain => value as u64,
            Setting::Float => canonical(value as u64),
            Setting::Nothing | Setting::Refused => return,
            setting => match note(self.outs, setting, row, column, value) {
                Some(word) => word,
                None => return,
            },
        };
        // SAFETY: as in `get`; the version has begun.
        unsafe { at.set(usize::from(place.word), word) };
    }

    #[inline(always)]
    fn begin(&mut self, row: usize, at: RowAt) {
        self.dirty |= 1 << row;
        // SAFETY: as `new` requires.
        unsafe { at.begin(self.seq) };
    }

    /// Whether the row existed when the transaction began.
    #[inline(always)]
    pub fn exists(&self, row: usize) -> bool {
        self.present >> row & 1 == 1
    }

    /// Computes a window over the versions of a row, with the columns that were set so far.
    ///
    /// The result is an int, a timestamp, a decimal's units, a bool or a float's bits. It is `None`
    /// for null.
    ///
    /// # Errors
    /// If the result is out of range, or the window is over another table. The closure has to
    /// return this error.
    #[inline]
    pub fn window(&self, row: usize, read: &WindowRead) -> Result<Option<i64>, &'static str> {
        if self.places.tables.get(row) != Some(&read.table) {
            return Err("a window read of another table");
        }
        let found = match self.columns.windows {
            Some(windows) => windows(row, self.own_frame(row), read),
            None => {
                // SAFETY: the row is as `new` requires, and nothing is written before this returns.
                let versions = unsafe { self.rows[row].versions() };
                let Some(versions) = versions else { return Ok(None) };
                let time_us = self.columns.times[self.event];
                if let Some(sum) = sum_of_ints(versions, read, time_us) {
                    return Ok(Some(sum));
                }
                window_in_slot(versions, read, time_us)
            }
        };
        // A window is checked when it is declared, so only this can fail.
        found.map(|value| value.word().map(|word| word as i64)).map_err(|_| "overflow")
    }

    /// Returns the columns of a frame, if the closure has set any.
    #[cold]
    fn own_frame(&self, row: usize) -> Option<Vec<Value>> {
        let is_set = |other: &usize| {
            self.dirty >> other & 1 == 1 && self.rows[*other].is_same(self.rows[row])
        };
        (0..self.rows.len()).find(is_set)?;
        let width = self.places.width;
        // SAFETY: the row is a frame with these columns.
        let word = |column: usize| unsafe {
            self.rows[row].word(usize::from(self.places.at(row, column).word))
        };
        Some((0..width).map(|column| Value::Int(word(column) as i64)).collect())
    }

    /// Emits an event to the stream that the handler numbers `stream`.
    #[inline(always)]
    pub fn emit(&mut self, stream: usize, words: &[i64]) {
        if self.outs.are_retained {
            self.outs.retained.push(stream as u64);
            self.outs.retained.extend(words.iter().map(|w| *w as u64));
            if let Some(noted) = &mut self.outs.noted {
                noted.push(Noted::Emitted);
            }
            return;
        }
        let origin = self.origin.output(self.emitted);
        // SAFETY: as `new` requires.
        unsafe { self.outs.push(stream, origin, self.event, words.len(), |c| words[c] as u64) };
        self.emitted += 1;
    }
}

/// Notes that a column of a frame is set, and returns its new word. (It takes parts of the
/// transaction, as [`undo`](NativeTx::undo) does.)
#[cold]
#[inline(never)]
fn note(outs: &mut Outs, how: Setting, row: usize, column: usize, value: i64) -> Option<u64> {
    let word = match how {
        Setting::Noted => Some(value as u64),
        Setting::NotedFloat => Some(canonical(value as u64)),
        _ => None,
    };
    let set = Noted::Set { row, set: word.map(|word| (column, word)) };
    outs.noted.get_or_insert_default().push(set);
    word
}

/// Returns the sum of a sliding window over integers, the most common window. It equals
/// [`window_in_slot`] unless it is out of range.
#[inline(always)]
fn sum_of_ints(versions: Versions<'_>, read: &WindowRead, time_us: i64) -> Option<i64> {
    let (Window::Sliding { size_us }, Aggregate::Sum, true) =
        (read.window, &read.aggregate, read.is_of_ints)
    else {
        return None;
    };
    let sum = versions.sum_since(read.column.into(), time_us.saturating_sub(size_us - 1))?;
    i64::try_from(sum).ok()
}

/// Computes a window over the versions of a row in its slot.
#[inline(never)]
fn window_in_slot(versions: Versions<'_>, read: &WindowRead, time_us: i64) -> Result<Value, Abort> {
    let spec = versions.spec();
    let versions = Some(versions);
    let seen = Seen { versions, graph: None, before: &[], own: None, time_us };
    let numbers = seen.window(&read.window, spec.history);
    seen.made_of(numbers, spec, read.column, &read.aggregate, &Cell::new(0))
}

/// Panics. Other threads may read the row at this moment, and no version of it would have the
/// column.
#[cold]
#[inline(never)]
fn refuse(row: usize, column: usize) -> ! {
    panic!("a closure sets column {column} of its row {row}, which it was not declared to set")
}

/// Returns a float's bits, with one NaN.
#[cold]
fn canonical(word: u64) -> u64 {
    tidemill_core::value::canonical_f64(f64::from_bits(word)).to_bits()
}

/// A noted action of a closure on frames.
#[derive(Clone, Copy, Debug)]
enum Noted {
    /// It set a column to this word, or a column that can't be set.
    Set { row: usize, set: Option<(usize, u64)> },
    /// It emitted the next event.
    Emitted,
}

/// An action of a closure on copies of its rows, in order.
#[derive(Debug)]
pub enum Did {
    /// It gave a row, by its number, these words.
    Wrote {
        /// The row's place among the closure's rows.
        row: usize,
        /// The words of its columns.
        words: Vec<u64>,
    },
    /// It emitted an event to the stream with this number.
    Emitted {
        /// The stream's place among those of the closure.
        stream: usize,
        /// The words of its columns.
        words: Vec<u64>,
    },
}

/// Whether the order of a closure's actions is visible: rows have entries in unique indexes, or
/// triggers see them.
fn shows_order(program: &Program, native: &Native) -> bool {
    let watched = |stream: &StreamId| !program.hooks().emitted[stream.index()].is_empty();
    native.rows.iter().any(|row| !program.hooks().is_plain(row.table))
        || native.emits.iter().any(watched)
}

/// Calls a closure on copies of its rows. Returns its actions, or the abort's reason.
///
/// `words` has the columns of one row after another, and `bases` the place where each row begins.
/// Rows with equal keys have one place. `present` has a bit for each row that exists. The actions
/// are in the order of the program if that is visible. Otherwise they are each row that it has set,
/// once, and then its events.
pub fn on_frames(
    program: &Program,
    native: &Native,
    event: &[u64],
    words: &mut [u64],
    bases: &[u32],
    present: RowBits,
    windows: &Windows<'_>,
) -> Result<Vec<Did>, &'static str> {
    let are_noted = shows_order(program, native);
    // A frame for each place where a row begins, as a slot with a stamp of 0.
    let mut frames: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let row = |(row, base): (&RowRef, &u32)| {
        let len = program.tables[row.table.index()].schema.len();
        let frame = frames.entry(*base).or_insert_with(|| {
            let header = [0; HEADER_WORDS].into_iter();
            header.chain(words[*base as usize..][..len].iter().copied()).collect()
        });
        RowAt::frame(frame.as_mut_ptr())
    };
    let rows: Vec<RowAt> = native.rows.iter().zip(bases).map(row).collect();
    let code = NativeCode {
        rows: Vec::new(),
        places: Places::in_frames(program, native, are_noted),
        streams: Vec::new(),
        consumed: true,
        written: RowBits::MAX,
    };
    let none = Batch::new(Arc::new(Schema::new(Vec::new())), Vec::new(), 1);
    // Rows of words are returned as typed values.
    let values = |row: usize, own: Option<Vec<Value>>, read: &WindowRead| {
        let columns = &program.tables[native.rows[row].table.index()].schema.columns;
        let typed = own.map(|own| {
            let word = |value: &Value| value.word().unwrap_or_default();
            columns.iter().zip(&own).map(|(c, value)| Value::of_word(&c.ty, word(value))).collect()
        });
        windows(row, typed, read)
    };
    let mut lane = Lane::copies(&none, event, Copies { rows, present, done: None });
    lane.columns.windows = Some(&values);
    lane.outs.noted = are_noted.then(Vec::new);
    let order = [Ranked { lane: 0, row: 0 }];
    let mut turns = Turns::InOrder(InOrder { order: &order, at: 0, seq: 0, prefetch: false });
    // SAFETY: the frames have a stamp of 0 and the columns that `places` says. They stay where they
    // are until they are read below.
    unsafe { native.body.run(&mut turns, &mut lane, &code) };
    let done = lane.copies.and_then(|copies| copies.done);
    let (dirty, emitted) = (done.expect("the closure has run")?, lane.outs.retained);
    let width = |row: usize| program.tables[native.rows[row].table.index()].schema.len();
    let mut events = &emitted[..];
    let mut event = || {
        let (stream, rest) = events.split_first()?;
        let stream = *stream as usize;
        let of = native.emits[stream];
        let (words, rest) = rest.split_at(program.streams[of.index()].spec.schema.len());
        events = rest;
        Some(Did::Emitted { stream, words: words.to_vec() })
    };
    let wrote = |row: usize, words: &[u64]| Did::Wrote {
        row,
        words: words[bases[row] as usize..][..width(row)].to_vec(),
    };
    if let Some(noted) = lane.outs.noted {
        let done = noted.into_iter().filter_map(|noted| match noted {
            Noted::Set { row, set } => {
                if let Some((column, word)) = set {
                    words[bases[row] as usize + column] = word;
                }
                Some(wrote(row, words))
            }
            Noted::Emitted => event(),
        });
        return Ok(done.collect());
    }
    for (base, frame) in frames {
        let columns = &frame[HEADER_WORDS..];
        words[base as usize..][..columns.len()].copy_from_slice(columns);
    }
    let rows = (0..native.rows.len()).filter(|row| dirty >> row & 1 == 1);
    let mut did: Vec<Did> = rows.map(|row| wrote(row, words)).collect();
    did.extend(std::iter::from_fn(event));
    Ok(did)
}
