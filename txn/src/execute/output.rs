//! Output events of an epoch, by stream and column, with what their stamps are made of.

use std::sync::Arc;

use arrow_array::builder::BooleanBuilder;
use arrow_array::{ArrayRef, Float64Array, Int64Array};
use tidemill_core::batch::{Batch, BatchBuilder};
use tidemill_core::{DataType, Schema, Stamp, StreamId, Value};

use crate::order::Epoch;

/// What an output's stamp is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Index of the input event's transaction in the epoch's order.
    pub(crate) root: u32,
    /// One more than the index of the derived event that set it off, in [`Origins::derived`]; 0
    /// when that is the input event.
    pub(crate) cause: u32,
    /// The handler.
    pub(crate) handler: u32,
    /// Ordinal of the output.
    pub(crate) output: u32,
}

/// Per output of a stream, in order: where it came from.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    pub(crate) of: Vec<Origin>,
}

impl Origins {
    /// The stamp of the output at `index`.
    pub fn stamp(&self, index: usize, epoch: &Epoch, derived: &[DerivedEvent]) -> Stamp {
        let origin = self.of[index];
        let mut steps = vec![(origin.handler as u16, origin.output)];
        let mut cause = origin.cause;
        while cause != 0 {
            let event = derived[cause as usize - 1].0;
            steps.push((event.handler as u16, event.output));
            cause = event.cause;
        }
        let root = epoch.stamp(epoch.order[origin.root as usize]);
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

/// Collects the output events of one stream.
#[derive(Debug)]
pub(crate) struct OutputBuilder {
    stream: StreamId,
    schema: Arc<Schema>,
    rows: Rows,
    origins: Vec<Origin>,
}

#[derive(Debug)]
enum Rows {
    /// All columns are words that are never null: pushed to plain vectors.
    Words(Vec<Vec<i64>>),
    Any(BatchBuilder),
}

impl OutputBuilder {
    pub(crate) fn new(stream: StreamId, schema: Arc<Schema>) -> OutputBuilder {
        let words = schema.columns.iter().all(|c| c.ty.is_word() && !c.nullable);
        let rows = if words {
            Rows::Words(vec![Vec::new(); schema.len()])
        } else {
            Rows::Any(BatchBuilder::new(schema.clone()))
        };
        OutputBuilder { stream, schema, rows, origins: Vec::new() }
    }

    pub(crate) fn push(&mut self, row: &[Value], origin: Origin) {
        self.origins.push(origin);
        match &mut self.rows {
            Rows::Words(columns) => {
                for (column, value) in columns.iter_mut().zip(row) {
                    column.push(value.word().expect("a value that was stored") as i64);
                }
            }
            Rows::Any(builder) => builder.push(row),
        }
    }

    /// Appends a row of words; only for streams whose columns are all words (see
    /// [`OutputBuilder::takes_words`]).
    #[inline(always)]
    pub(crate) fn push_words(&mut self, words: impl Iterator<Item = u64>, origin: Origin) {
        self.origins.push(origin);
        if let Rows::Words(columns) = &mut self.rows {
            for (column, word) in columns.iter_mut().zip(words) {
                column.push(word as i64);
            }
        }
    }

    pub(crate) fn finish(&mut self) -> Option<Output> {
        if self.origins.is_empty() {
            return None;
        }
        let len = self.origins.len();
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

fn word_array(ty: &DataType, words: Vec<i64>) -> ArrayRef {
    match ty {
        DataType::Float => {
            let floats = words.into_iter().map(|w| f64::from_bits(w as u64));
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
