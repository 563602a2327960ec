//! Output events of an epoch, by stream and column, with what their stamps are made of.

use std::sync::Arc;

use arrow_array::builder::BooleanBuilder;
use arrow_array::{ArrayRef, Float64Array, Int64Array};
use tidemill_core::batch::{Batch, BatchBuilder};
use tidemill_core::{DataType, Schema, Stamp, StreamId, Value};
use tidemill_table::prefetch_address;

use crate::order::Epoch;

/// What an output's stamp is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Low half: index of the input event's transaction in the epoch's order. High half: one more
    /// than the index of the derived event that set it off, in [`Origins::derived`]; 0 when that
    /// is the input event.
    ///
    /// Halves of words, because a value stored in parts and then loaded in one makes the processor
    /// wait; that cost a fifth of the serial executor's time.
    cause: u64,
    /// Low half: the handler. High half: ordinal of the output.
    step: u64,
}

impl Origin {
    #[inline(always)]
    pub(crate) fn new(root: u32, cause: u32, handler: usize) -> Origin {
        Origin { cause: u64::from(root) | u64::from(cause) << 32, step: handler as u64 }
    }

    /// What an output of an input event's transaction comes from, in one word (see `cause`).
    #[inline(always)]
    pub(crate) fn pack(root: u32, handler: usize) -> u64 {
        u64::from(root) | (handler as u64) << 32
    }

    /// The origin of this output of a transaction, from [`Origin::pack`].
    #[inline(always)]
    pub(crate) fn unpack(packed: u64, ordinal: u32) -> Origin {
        Origin { cause: packed & HALF, step: packed >> 32 | u64::from(ordinal) << 32 }
    }

    /// The origin of this output of the same transaction.
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

    fn ordinal(self) -> u32 {
        (self.step >> 32) as u32
    }
}

const HALF: u64 = u32::MAX as u64;

/// Per output of a stream, in order: where it came from.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    pub(crate) of: Vec<Origin>,
}

impl Origins {
    /// The stamp of the output at `index`.
    pub fn stamp(&self, index: usize, epoch: &Epoch, derived: &[DerivedEvent]) -> Stamp {
        let origin = self.of[index];
        let mut steps = vec![(origin.handler() as u16, origin.ordinal())];
        let mut cause = origin.cause();
        while cause != 0 {
            let event = derived[cause as usize - 1].0;
            steps.push((event.handler() as u16, event.ordinal()));
            cause = event.cause();
        }
        let root = epoch.stamp(epoch.order[origin.root() as usize]);
        steps.into_iter().rev().fold(root, |s, (handler, output)| s.derived(handler, output))
    }
}

/// A derived event that set off transactions.
#[derive(Clone, Copy, Debug)]
pub struct DerivedEvent(pub(crate) Origin);

/// The output events of one stream in one epoch.
#[derive(Clone, Debug)]
pub struct Output {
    /// The stream.
    pub stream: StreamId,
    /// The events, in stamp order.
    pub batch: Batch,
    /// Their stamps' makings.
    pub origins: Origins,
}

/// How far ahead of its end a column of outputs asks for memory, in words.
const AHEAD: usize = 64;

/// Collects the output events of one stream.
#[derive(Debug)]
pub(crate) struct OutputBuilder {
    stream: StreamId,
    schema: Arc<Schema>,
    rows: Rows,
    origins: Vec<Origin>,
    /// How many events there will be, as far as one can tell.
    room: usize,
}

#[derive(Debug)]
enum Rows {
    /// All columns are words that are never null: pushed to plain vectors.
    Words(Vec<Vec<i64>>),
    Any(BatchBuilder),
}

impl OutputBuilder {
    /// For about `room` events.
    pub(crate) fn new(stream: StreamId, schema: Arc<Schema>, room: usize) -> OutputBuilder {
        let words = schema.columns.iter().all(|c| c.ty.is_word() && !c.nullable);
        let rows = if words {
            Rows::Words(vec![Vec::new(); schema.len()])
        } else {
            Rows::Any(BatchBuilder::new(schema.clone()))
        };
        // A little more than the last time, which would not have been enough every second time.
        let room = room + room / 8;
        OutputBuilder { stream, schema, rows, origins: Vec::new(), room }
    }

    /// Room for as many events as there will be, as far as one can tell.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        let room = self.room.max(16);
        self.origins.reserve(room);
        if let Rows::Words(columns) = &mut self.rows {
            columns.iter_mut().for_each(|column| column.reserve(room));
        }
    }

    pub(crate) fn push(&mut self, row: &[Value], origin: Origin) {
        match &mut self.rows {
            Rows::Words(_) => {
                let word = |column: usize| row[column].word().expect("a value that was stored");
                return self.push_words(origin, row.len(), word);
            }
            Rows::Any(builder) => builder.push(row),
        }
        self.origins.push(origin);
    }

    /// Appends a row of `width` words, by column; only for streams whose columns are all words.
    #[inline(always)]
    pub(crate) fn push_words(&mut self, origin: Origin, width: usize, word: impl Fn(usize) -> u64) {
        if self.origins.capacity() == 0 {
            self.make_room();
        }
        // Each epoch's outputs are memory that no cache knows.
        prefetch_address(self.origins.as_ptr().wrapping_add(self.origins.len() + AHEAD / 2));
        self.origins.push(origin);
        match &mut self.rows {
            Rows::Words(columns) if columns.len() == width => {
                for (index, column) in columns.iter_mut().enumerate() {
                    prefetch_address(column.as_ptr().wrapping_add(column.len() + AHEAD));
                    column.push(word(index) as i64);
                }
            }
            _ => wrong_width(),
        }
    }

    /// Takes back the last events, those of one transaction.
    pub(crate) fn take_back(&mut self, of: Origin) {
        while self.origins.last().is_some_and(|last| last.cause == of.cause) {
            self.origins.pop();
        }
        if let Rows::Words(columns) = &mut self.rows {
            columns.iter_mut().for_each(|column| column.truncate(self.origins.len()));
        }
    }

    pub(crate) fn finish(&mut self) -> Option<Output> {
        let len = self.origins.len();
        if len == 0 {
            return None;
        }
        let batch = match &mut self.rows {
            Rows::Any(builder) => builder.finish(),
            Rows::Words(columns) => {
                let arrays = columns.iter_mut().zip(&self.schema.columns);
                let arrays = arrays.map(|(words, c)| word_array(&c.ty, std::mem::take(words)));
                Batch::new(self.schema.clone(), arrays.collect(), len)
            }
        };
        let origins = Origins { of: std::mem::take(&mut self.origins) };
        Some(Output { stream: self.stream, batch, origins })
    }
}

#[cold]
fn wrong_width() -> ! {
    panic!("an event has a word for every column, and only words")
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
