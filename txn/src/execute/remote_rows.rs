//! Declared transactions one at a time, on rows that other owners hold. Everything known about
//! their handler is prepared once.
//!
//! If all columns are words, the register machine's code runs on the columns of the rows as they
//! are. The reference decides all other cases.

use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tidemill_core::{DataType, Key, Row, StreamId, TableId, Value};
use tidemill_table::{Layout, Place, HEADER_WORDS};

use super::words::{self, Frame, Move, Stop, WordCode};
use crate::program::{Abort, Program, RowUse};
use crate::reference::{self, word_value, Mentioned};

/// The outcome of such a transaction: its written rows, by their places among the rows that it
/// mentions, and its events.
pub type RemoteOutcome = (Vec<(u32, Option<Arc<[Value]>>)>, Vec<(StreamId, Row)>);

/// A declared handler whose transactions mention rows that depend on the event only.
#[derive(Debug)]
pub struct RemoteRows {
    handler: usize,
    rows: Vec<RowUse>,
    words: Option<Words>,
}

/// The code, and the columns of rows for its words of slots.
#[derive(Debug)]
struct Words {
    code: WordCode,
    loads: Vec<Column>,
    stores: Vec<Column>,
    /// The registers, with the constants in them. A transaction reads no other register before it
    /// has written it.
    frame: Mutex<Box<Frame>>,
}

/// A column of a row, and its register.
#[derive(Clone, Copy, Debug)]
struct Column {
    row: usize,
    register: usize,
    column: usize,
}

/// Rows as they are read, and as they become.
type Few = SmallVec<[Option<Arc<[Value]>>; 4]>;

impl RemoteRows {
    /// Creates the executor of a handler, if the event alone gives its rows.
    pub fn of(program: &Program, handler: usize) -> Option<RemoteRows> {
        let rows = reference::known(program, handler)?;
        Some(RemoteRows { handler, rows, words: Words::of(program, handler) })
    }

    /// Returns the rows that the transaction of an event mentions, as [`reference::mentions`] does.
    pub fn mentions(&self, program: &Program, event: &[Value]) -> Vec<Mentioned> {
        reference::mentioned(program, self.handler, &self.rows, event)
    }

    /// Runs the transaction of an event on the rows that it mentions, as they are.
    ///
    /// # Errors
    /// The reason of an abort.
    pub fn run<'k>(
        &self,
        program: &Program,
        event: &[Value],
        keys: impl ExactSizeIterator<Item = (TableId, &'k Key)> + Clone,
        are: &[Option<Arc<[Value]>>],
    ) -> Result<RemoteOutcome, Abort> {
        // If two of them are one row, or there are none, the reference runs it.
        if let Some(words) = self.words.as_ref().filter(|_| keys.len() == self.rows.len()) {
            if let Some(came) = words.run(program, self, event, are) {
                return came;
            }
        }
        let given = keys.clone().zip(are);
        let given = given.map(|((table, key), row)| (table, key.clone(), row.as_deref()));
        let (written, events) = reference::run_single(program, self.handler, event, given)?;
        let place = |table: TableId, key: &Key| {
            let place = keys.clone().position(|is| is == (table, key));
            place.expect("it writes rows that it mentions") as u32
        };
        let written =
            written.into_iter().map(|(table, key, row)| (place(table, &key), row.map(Arc::from)));
        Ok((written.collect(), events))
    }

    /// Returns a missing row as the transaction sees it.
    fn missing(&self, program: &Program, event: &[Value], row: usize) -> Option<Arc<[Value]>> {
        let key = reference::key_of(program, self.handler, &self.rows[row], event)?;
        Some(program.tables[self.rows[row].table.index()].missing_row(&key).into())
    }
}

impl Words {
    /// Compiles a handler, if that is possible.
    fn of(program: &Program, handler: usize) -> Option<Words> {
        let layouts: Vec<Layout> = program.tables.iter().map(Layout::of).collect();
        let code = words::compile(program, &layouts, handler).ok()?;
        let column = |of: &Move| {
            let row = usize::from(of.row);
            let layout = &layouts[code.rows[row].table];
            let is_it = |place: &Place| match place {
                Place::Word { word, .. } => {
                    HEADER_WORDS + layout.null_words + word == usize::from(of.word)
                }
                _ => false,
            };
            let column = layout.places.iter().position(is_it).expect("words of slots are columns'");
            Column { row, register: usize::from(of.register), column }
        };
        let (loads, stores) =
            (code.loads.iter().map(column).collect(), code.stores.iter().map(column).collect());
        let mut frame: Box<Frame> = Box::new([0; 256]);
        code.prepare(&mut frame);
        Some(Words { code, loads, stores, frame: Mutex::new(frame) })
    }

    /// Runs the transaction, or returns `None` if the reference has to decide.
    fn run(
        &self,
        program: &Program,
        of: &RemoteRows,
        event: &[Value],
        are: &[Option<Arc<[Value]>>],
    ) -> Option<Result<RemoteOutcome, Abort>> {
        let code = &self.code;
        let mut frame = self.frame.lock().unwrap_or_else(PoisonError::into_inner);
        let columns =
            &program.streams[program.handlers[of.handler].input.index()].spec.schema.columns;
        for (column, register) in &code.columns {
            let column = usize::from(*column);
            // The event may be of any origin.
            let value = event.get(column).filter(|value| is_of(value, &columns[column].ty))?;
            frame[usize::from(*register)] = value.word()?;
        }
        let mut rows = Few::new();
        for (row, is) in are.iter().enumerate() {
            rows.push(match is {
                Some(is) => Some(is.clone()),
                None if code.asks => return None,
                None => {
                    let row = of.missing(program, event, row)?;
                    // The caller checks whether the row may stay as it is.
                    Some(row).filter(|row| row.iter().all(|value| !value.is_null()))
                }
            });
        }
        for Column { row, register, column } in &self.loads {
            frame[*register] = rows[*row].as_ref()?[*column].word()?;
        }
        match code.run(&mut frame) {
            Ok(()) => {}
            Err(Stop::Trap) => return None,
            Err(Stop::Abort(reason)) => {
                return Some(Err(Abort::refused(&*code.reasons[usize::from(reason)])))
            }
        }
        for Column { row, register, column } in &self.stores {
            let table = &program.tables[of.rows[*row].table.index()];
            let value = word_value(&table.schema.columns[*column].ty, frame[*register]);
            // Most rows are shared with their holder.
            Arc::make_mut(rows[*row].as_mut()?)[*column] = value;
        }
        let mut written = Vec::with_capacity(code.written.count_ones() as usize);
        for row in code.written_rows().map(usize::from) {
            written.push((row as u32, Some(rows[row].take()?)));
        }
        let event = |emit: &words::WordEmit| {
            let columns = &program.streams[emit.stream.index()].spec.schema.columns;
            let values = emit.registers.iter().zip(columns);
            let value = |(register, column): (&u8, &tidemill_core::Column)| {
                word_value(&column.ty, frame[usize::from(*register)])
            };
            (emit.stream, values.map(value).collect())
        };
        Some(Ok((written, code.emits.iter().map(event).collect())))
    }
}

/// Whether a value fits a column of this type, which has words.
fn is_of(value: &Value, ty: &DataType) -> bool {
    match (value, ty) {
        (Value::Bool(_), DataType::Bool)
        | (Value::Int(_), DataType::Int)
        | (Value::Timestamp(_), DataType::Timestamp)
        | (Value::Float(_), DataType::Float) => true,
        (Value::Decimal(_, scale), DataType::Decimal(of)) => scale == of,
        _ => false,
    }
}
