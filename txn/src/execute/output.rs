//! The output events of an epoch, by stream and column, with the parts of their stamps.

mod placed;

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::builder::BooleanBuilder;
use arrow_array::{ArrayRef, Float64Array, Int64Array};
use tidemill_core::batch::{Batch, BatchBuilder};
use tidemill_core::{DataType, Schema, SourceId, Stamp, StreamId, Value};
use tidemill_table::prefetch_address;

use self::placed::Placing;
pub(crate) use self::placed::{Placed, Places};
use super::aborts::AbortRows;
use super::segment::Reason;
use crate::order::Epoch;
use crate::pool::Pool;
use crate::program::{firing, WindowId};

/// The parts of an output's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The low half is the index of the input event's transaction in the epoch's order. The high
    /// half is the index in [`Origins::derived`] of the derived event that triggered it, plus one.
    /// It is 0 for the input event.
    ///
    /// Halves are packed into words, because a value that is stored in parts and then loaded as one
    /// stalls the processor. That cost a fifth of the serial executor's time.
    cause: u64,
    /// The low half is the handler. The high half is the ordinal of the output.
    step: u64,
}

impl Origin {
    #[inline(always)]
    pub(crate) fn new(root: u32, cause: u32, handler: usize) -> Origin {
        Origin { cause: u64::from(root) | u64::from(cause) << 32, step: handler as u64 }
    }

    /// Returns the origin of this output of the same transaction.
    #[inline(always)]
    pub(crate) fn output(self, ordinal: u32) -> Origin {
        Origin { cause: self.cause, step: self.step & HALF | u64::from(ordinal) << 32 }
    }

    pub(crate) fn root(self) -> u32 {
        self.cause as u32
    }

    pub(crate) fn cause(self) -> u32 {
        (self.cause >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn handler(self) -> usize {
        (self.step & HALF) as usize
    }

    /// Returns the stamp of the event of the transaction.
    pub(crate) fn event(self, epoch: &Epoch, derived: &[DerivedEvent]) -> Stamp {
        match self.cause() {
            0 => epoch.stamp(epoch.order[self.root() as usize]),
            cause => match derived[cause as usize - 1] {
                DerivedEvent::Emitted(before) => {
                    before.event(epoch, derived).derived(before.handler() as u16, before.ordinal())
                }
                DerivedEvent::Fired(window, edge, _) => firing::stamp(window, edge),
            },
        }
    }

    fn ordinal(self) -> u32 {
        (self.step >> 32) as u32
    }
}

const HALF: u64 = u32::MAX as u64;

/// The origin of each output of a stream, in order.
#[derive(Clone, Debug)]
pub struct Origins {
    pub(crate) of: Vec<Origin>,
}

impl Origins {
    /// Returns the input event of the output at `index`. It is [`NOWHERE`] for a window that was
    /// ended by time.
    pub fn event(&self, index: usize, epoch: &Epoch) -> (SourceId, u64) {
        let ranked = epoch.order.get(self.of[index].root() as usize);
        ranked.map_or(NOWHERE, |ranked| epoch.event(*ranked))
    }

    /// Returns the place of each output: the index of its transaction in the epoch's order, and its
    /// number in the transaction. Only for outputs of transactions that take input events.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (usize, u32)> + '_ {
        self.of.iter().map(|origin| (origin.root() as usize, origin.ordinal()))
    }

    /// Returns the index in the epoch's order of the transaction of the output at `index`. For a window
    /// that was ended by time, it is that of the next transaction, or the number of transactions.
    pub(crate) fn root_or_next(&self, index: usize, derived: &[DerivedEvent]) -> usize {
        let origin = self.of[index];
        if origin.root() != NO_ROOT {
            return origin.root() as usize;
        }
        let mut cause = origin.cause();
        loop {
            match derived[cause as usize - 1] {
                DerivedEvent::Emitted(before) => cause = before.cause(),
                DerivedEvent::Fired(.., next) => return next as usize,
            }
        }
    }

    /// Returns the stamp of the output at `index`.
    pub fn stamp(&self, index: usize, epoch: &Epoch, derived: &[DerivedEvent]) -> Stamp {
        let origin = self.of[index];
        origin.event(epoch, derived).derived(origin.handler() as u16, origin.ordinal())
    }
}

/// The position of an event without a source.
pub const NOWHERE: (SourceId, u64) = (SourceId(u32::MAX), u64::MAX);

/// The transaction of an output that has no input event.
pub(crate) const NO_ROOT: u32 = u32::MAX;

/// The cause of transactions beside input events.
#[derive(Clone, Copy, Debug)]
#[allow(private_interfaces)] // Its content is private.
pub enum DerivedEvent {
    /// An event that a transaction emitted.
    Emitted(Origin),
    /// A window that ended at a time, before the transaction with this index in the epoch's order.
    Fired(WindowId, i64, u32),
}

/// The output events of one stream in one epoch.
#[derive(Clone, Debug)]
pub struct Output {
    /// The stream.
    pub stream: StreamId,
    /// The events, in stamp order.
    pub batch: Batch,
    /// The parts of their stamps.
    pub origins: Origins,
}

/// The distance from its end at which a column of outputs prefetches memory, in words.
const AHEAD: usize = 64;

/// A builder of the output events of one stream.
#[derive(Debug)]
pub(crate) struct OutputBuilder {
    stream: StreamId,
    schema: Arc<Schema>,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    /// Rows whose columns are all words that are never null.
    Words(SharedRows),
    /// The aborts of a handler.
    Aborts(Box<AbortRows>),
    /// Other rows. The builder is made for the first one, because most epochs have none.
    Any(Option<BatchBuilder>, Vec<Origin>),
}

/// Rows of words, by column. Appending one is on the path of every transaction: it costs one check,
/// and a store for each word.
#[derive(Debug)]
pub(crate) struct WordRows {
    len: usize,
    /// The expected number of rows.
    expected: usize,
    /// The number of rows that all vectors have room for.
    room: usize,
    /// The first items of the first columns, and of the origins.
    near: [*mut i64; NEAR],
    origin: *mut Origin,
    /// The columns. They are longer than their lengths say, until [`WordRows::settle`].
    columns: Vec<Vec<i64>>,
    origins: Vec<Origin>,
    /// Set while rows are written to [places](Places) of another builder. Then the pointers lead
    /// there, and there are `room` of them.
    placing: Option<Placing>,
}

/// Collected rows of words.
#[derive(Debug)]
pub(crate) struct RawRows {
    pub(crate) columns: Vec<Vec<i64>>,
    pub(crate) origins: Vec<Origin>,
}

const NEAR: usize = 8;

// SAFETY: the pointers lead to the items of its own vectors, which move with it.
unsafe impl Send for WordRows {}

/// Rows of words at an address of their own. Lanes append to them by pointer while their builder
/// counts them and notes aborts, so the builder, too, has no more than a pointer.
#[derive(Debug)]
struct SharedRows(NonNull<WordRows>);

impl SharedRows {
    fn new(rows: WordRows) -> SharedRows {
        SharedRows(NonNull::from(Box::leak(Box::new(rows))))
    }
}

// SAFETY: it owns the rows.
unsafe impl Send for SharedRows {}

impl Deref for SharedRows {
    type Target = WordRows;

    #[inline(always)]
    fn deref(&self) -> &WordRows {
        // SAFETY: the rows exist, and no lane runs while their builder is used.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for SharedRows {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut WordRows {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for SharedRows {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from a box, and lanes do not use it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl WordRows {
    pub(super) fn new(columns: usize, expected: usize) -> WordRows {
        WordRows {
            len: 0,
            expected,
            room: 0,
            near: [std::ptr::null_mut(); NEAR],
            origin: std::ptr::null_mut(),
            columns: vec![Vec::new(); columns],
            origins: Vec::new(),
            placing: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sets the expected number of rows.
    pub(super) fn expect(&mut self, rows: usize) {
        self.expected = more(rows);
    }

    /// Reuses the memory of rows that were collected before and are not needed any more.
    pub(super) fn reuse(&mut self, raw: RawRows) {
        debug_assert!(self.len == 0 && self.room == 0, "it is empty and has no room yet");
        (self.columns, self.origins) = (raw.columns, raw.origins);
        self.columns.iter_mut().for_each(Vec::clear);
        self.origins.clear();
        self.look();
    }

    /// Returns the collected rows, and leaves none.
    pub(super) fn take(&mut self) -> RawRows {
        self.settle();
        let empty = WordRows::new(self.columns.len(), 0);
        let WordRows { columns, origins, .. } = std::mem::replace(self, empty);
        RawRows { columns, origins }
    }

    /// Sets the lengths of the vectors.
    fn settle(&mut self) {
        assert!(self.placing.is_none(), "placed rows belong to another builder");
        // SAFETY: the first `len` items of each have been written, and `len` is at most `room`.
        unsafe {
            self.columns.iter_mut().for_each(|column| column.set_len(self.len));
            self.origins.set_len(self.len);
        }
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self, rows: usize) {
        let more = self.expected.max(self.len).max(rows);
        self.settle();
        self.origins.reserve(more);
        self.columns.iter_mut().for_each(|column| column.reserve(more));
        self.look();
    }

    /// Updates the pointers to the vectors, and the room.
    fn look(&mut self) {
        let rooms = self.columns.iter().map(Vec::capacity);
        self.room = rooms.chain([self.origins.capacity()]).min().unwrap_or(0);
        self.origin = self.origins.as_mut_ptr();
        for (near, column) in self.near.iter_mut().zip(&mut self.columns) {
            *near = column.as_mut_ptr();
        }
    }

    /// Appends `rows` rows: `fill` extends the columns and the origins by them.
    pub(super) fn append(
        &mut self,
        rows: usize,
        fill: impl FnOnce(&mut [Vec<i64>], &mut Vec<Origin>),
    ) {
        match self.room - self.len < rows {
            true => self.make_room(rows),
            false => self.settle(),
        }
        fill(&mut self.columns, &mut self.origins);
        let len = self.len + rows;
        let mut lens = self.columns.iter().map(Vec::len).chain([self.origins.len()]);
        assert!(lens.all(|of| of == len), "as many rows were appended to each column");
        self.len = len;
        self.look();
    }

    /// Removes the last events, those of one transaction.
    pub(crate) fn take_back(&mut self, of: Origin) {
        if self.placing.is_some() {
            return self.take_back_placed(of);
        }
        self.settle();
        while self.origins.last().is_some_and(|last| last.cause == of.cause) {
            self.origins.pop();
        }
        self.len = self.origins.len();
    }

    /// Appends an output, or writes it to its place, if there are [places](Places).
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        origin: Origin,
        place: usize,
        width: usize,
        word: impl Fn(usize) -> u64,
    ) {
        assert!(self.columns.len() == width, "an event has a word for every column");
        let at = match &mut self.placing {
            Some(placing) => match placing.goes_to(place, self.room) {
                true => place,
                false => return,
            },
            None => {
                if self.len == self.room {
                    self.make_room(16);
                }
                self.len
            }
        };
        // SAFETY: either every vector has room for one more, and `near` and `origin` are their
        // first items since the last `make_room`. Or these are places of another builder, with no
        // more columns, and this is one of them.
        unsafe {
            // The memory of each epoch's outputs is in no cache.
            prefetch_address(self.origin.wrapping_add(at + AHEAD / 2));
            self.origin.add(at).write(origin);
            for column in 0..width {
                let first = match column < NEAR {
                    true => self.near[column],
                    false => self.columns[column].as_mut_ptr(),
                };
                prefetch_address(first.wrapping_add(at + AHEAD));
                first.add(at).write(word(column) as i64);
            }
        }
        self.len += 1;
    }
}

impl OutputBuilder {
    /// Creates a builder for about `room` events.
    pub(crate) fn new(stream: StreamId, schema: Arc<Schema>, room: usize) -> OutputBuilder {
        let words = schema.columns.iter().all(|c| c.ty.is_word() && !c.nullable);
        let rows = match words {
            true => Rows::Words(SharedRows::new(WordRows::new(schema.len(), more(room)))),
            false => Rows::Any(None, Vec::new()),
        };
        OutputBuilder { stream, schema, rows }
    }

    /// Creates a builder for a stream of input events, to which nothing is emitted.
    pub(crate) fn of_inputs(stream: StreamId, schema: Arc<Schema>) -> OutputBuilder {
        OutputBuilder { stream, schema, rows: Rows::Any(None, Vec::new()) }
    }

    /// Creates a builder for about `room` aborts of a handler.
    pub(crate) fn of_aborts(stream: StreamId, schema: Arc<Schema>, room: usize) -> OutputBuilder {
        let rows = Rows::Aborts(Box::new(AbortRows::new(schema.clone(), more(room))));
        OutputBuilder { stream, schema, rows }
    }

    pub(crate) fn push(&mut self, row: &[Value], origin: Origin) {
        match &mut self.rows {
            Rows::Words(_) => {
                let word = |column: usize| row[column].word().expect("a value that was stored");
                self.push_words(origin, row.len(), word);
            }
            Rows::Aborts(aborts) => aborts.push(row, origin),
            Rows::Any(rows, origins) => {
                let schema = &self.schema;
                rows.get_or_insert_with(|| BatchBuilder::new(schema.clone())).push(row);
                origins.push(origin);
            }
        }
    }

    /// Appends a row of `width` words, by column. Only for streams whose columns are all words.
    #[inline(always)]
    pub(crate) fn push_words(&mut self, origin: Origin, width: usize, word: impl Fn(usize) -> u64) {
        match &mut self.rows {
            Rows::Words(rows) => rows.push(origin, 0, width, word),
            _ => only_words(),
        }
    }

    /// Notes that the transaction of an input event aborts. Only for a stream of aborts.
    pub(crate) fn note_abort(&mut self, origin: Origin, reason: Reason) {
        match &mut self.rows {
            Rows::Aborts(aborts) => aborts.note(origin, reason),
            _ => panic!("a handler's aborts go to their own stream"),
        }
    }

    /// Returns its rows of words, if all its columns are words.
    pub(crate) fn words(&mut self) -> Option<&mut WordRows> {
        match &mut self.rows {
            Rows::Words(rows) => Some(rows),
            _ => None,
        }
    }

    /// Returns the destination of rows of words. Only for streams whose columns are all words.
    #[inline(always)]
    pub(crate) fn word_rows(&self) -> *mut WordRows {
        match &self.rows {
            Rows::Words(rows) => rows.0.as_ptr(),
            _ => only_words(),
        }
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        match &self.rows {
            Rows::Words(rows) => rows.len(),
            Rows::Aborts(aborts) => aborts.len(),
            Rows::Any(_, origins) => origins.len(),
        }
    }

    /// Takes a member's rows of the stream, in the words that this builder collects.
    ///
    /// Only for a stream that is collected in words. All streams are that members have sent
    /// something to.
    pub(crate) fn take_from(&mut self, part: &mut OutputBuilder) -> RawRows {
        match (&mut self.rows, &mut part.rows) {
            (Rows::Words(_), Rows::Words(rows)) => rows.take(),
            (Rows::Aborts(own), Rows::Aborts(aborts)) => own.take_from(aborts),
            _ => only_words(),
        }
    }

    /// Reuses the memory of rows that were [taken](OutputBuilder::take_from) from it and are not
    /// needed any more.
    pub(crate) fn reuse(&mut self, raw: RawRows) {
        match &mut self.rows {
            Rows::Words(words) => words.reuse(raw),
            Rows::Aborts(aborts) => aborts.noted().reuse(raw),
            Rows::Any(..) => only_words(),
        }
    }

    /// Sets the expected number of events.
    pub(crate) fn expect(&mut self, room: usize) {
        match &mut self.rows {
            Rows::Words(words) => words.expect(room),
            Rows::Aborts(aborts) => aborts.noted().expect(room),
            Rows::Any(..) => {}
        }
    }

    /// Appends `rows` rows of words: `fill` extends the columns and the origins by them.
    pub(crate) fn append_words(
        &mut self,
        rows: usize,
        fill: impl FnOnce(&mut [Vec<i64>], &mut Vec<Origin>),
    ) {
        match &mut self.rows {
            Rows::Words(words) => words.append(rows, fill),
            Rows::Aborts(aborts) => aborts.noted().append(rows, fill),
            Rows::Any(..) => only_words(),
        }
    }

    /// Returns the outputs of the epoch. `numbered` are the reasons of a handler's compiled code,
    /// if these are its aborts.
    pub(crate) fn finish(
        mut self,
        pool: &dyn Pool,
        epoch: &Epoch,
        numbered: &[String],
    ) -> Option<Output> {
        if self.is_empty() {
            return None;
        }
        let (batch, of) = match &mut self.rows {
            Rows::Words(rows) => {
                let RawRows { columns, origins } = rows.take();
                let arrays = columns.into_iter().zip(&self.schema.columns);
                let arrays = arrays.map(|(words, c)| word_array(&c.ty, words));
                (Batch::new(self.schema.clone(), arrays.collect(), origins.len()), origins)
            }
            Rows::Aborts(aborts) => aborts.finish(pool, epoch, numbered),
            Rows::Any(rows, origins) => (rows.as_mut()?.finish(), std::mem::take(origins)),
        };
        Some(Output { stream: self.stream, batch, origins: Origins { of } })
    }
}

/// Returns a little more than the last number, which would be too small every second time.
fn more(room: usize) -> usize {
    room + room / 8
}

#[cold]
fn only_words() -> ! {
    panic!("events can't be emitted as words to a stream with other columns")
}

fn word_array(ty: &DataType, words: Vec<i64>) -> ArrayRef {
    match ty {
        DataType::Float => {
            let float = |w| tidemill_core::value::canonical_f64(f64::from_bits(w as u64));
            let floats = words.into_iter().map(float);
            Arc::new(Float64Array::from_iter_values(floats))
        }
        DataType::Bool => {
            let mut bools = BooleanBuilder::with_capacity(words.len());
            words.iter().for_each(|w| bools.append_value(*w != 0));
            Arc::new(bools.finish())
        }
        _ => Arc::new(Int64Array::from(words)),
    }
}
