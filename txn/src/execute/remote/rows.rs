//! Declared transactions one at a time, on rows that other owners hold. Everything known about
//! their handler is prepared once.
//!
//! If all columns are words, the register machine's code runs on the columns of the rows as they
//! are. The general path decides all other cases.

use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tidemill_core::{DataType, Key, Row, StreamId, TableId, Value};
use tidemill_table::{Layout, Place, HEADER_WORDS};

use crate::execute::general::{Holder, Keys, Rows, Unsettled};
use crate::execute::serial::call;
use crate::execute::words::{self, Frame, Move, Stop, WordCode};
use crate::program::{
    evaluate, key_value, Abort, Answers, Body, ExprId, Footprint, Program, RowUse, When,
};

/// A row that a declared transaction mentions: its table, its key, and whether it may be written.
pub type Mentioned = (TableId, Key, bool);

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
        let Body::Declared(_) = &program.handlers[handler].body else { return None };
        let footprint = Footprint::of(program, handler);
        let is_known = footprint.is_known() && footprint.ranges.is_empty();
        let words = is_known.then(|| Words::of(program, handler))?;
        Some(RemoteRows { handler, rows: footprint.rows, words })
    }

    /// Returns the rows that the transaction of an event mentions, without duplicates. A row whose
    /// key can't be computed is left out; the transaction aborts where it uses that row.
    pub fn mentions(&self, program: &Program, event: &[Value]) -> Vec<Mentioned> {
        let mut found: Vec<Mentioned> = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let Some(key) = self.key_of(program, row, event) else { continue };
            let key = Key::of(&key);
            let is_it = |(table, known, _): &&mut Mentioned| (*table, known) == (row.table, &key);
            match found.iter_mut().find(is_it) {
                Some((.., writes)) => *writes |= row.access.writes,
                None => found.push((row.table, key, row.access.writes)),
            }
        }
        found
    }

    /// Returns the key of a row if it can be computed.
    fn key_of(
        &self,
        program: &Program,
        row: &RowUse,
        event: &[Value],
    ) -> Option<SmallVec<[Value; 2]>> {
        let Body::Declared(declared) = &program.handlers[self.handler].body else { return None };
        let spec = &program.tables[row.table.index()];
        // A key that can't be computed aborts the transaction later, with the reason.
        let value = |id: &ExprId| key_value(evaluate(&declared.exprs, *id, event).ok()?, spec).ok();
        row.key.iter().map(value).collect()
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
        // If two of them are one row, or there are none, the general path runs it.
        if let Some(words) = self.words.as_ref().filter(|_| keys.len() == self.rows.len()) {
            if let Some(came) = words.run(program, self, event, are) {
                return came;
            }
        }
        // Such a transaction uses neither time nor random numbers.
        let (answers, when) = (Answers::default(), When { now_us: 0, time_us: 0, chance: 0 });
        let moment = when.moment(self.handler, &answers);
        let given = Given { keys: keys.clone().collect(), are };
        let mut effects = call(program, &given, self.handler, event, &moment, &mut 0)?;
        let events = std::mem::take(&mut effects.emitted);
        let place = |table: TableId, key: &[Value]| {
            let key = Key::of(key);
            let place = keys.clone().position(|is| is == (table, &key));
            place.expect("it writes rows that it mentions") as u32
        };
        let written = effects.into_written();
        let written = written.map(|(table, key, row)| (place(table, &key), row.map(Arc::from)));
        let events = events.into_iter().map(|(stream, row)| (stream, row.into()));
        Ok((written.collect(), events.collect()))
    }

    /// Returns a missing row as the transaction sees it.
    fn missing(&self, program: &Program, event: &[Value], row: usize) -> Option<Arc<[Value]>> {
        let key = self.key_of(program, &self.rows[row], event)?;
        Some(program.tables[self.rows[row].table.index()].missing_row(&key).into())
    }
}

/// The rows that a transaction mentions, as they are. All others are missing.
struct Given<'k, 'r> {
    keys: SmallVec<[(TableId, &'k Key); 4]>,
    are: &'r [Option<Arc<[Value]>>],
}

impl Rows for Given<'_, '_> {
    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        let given = self.keys.iter().position(|is| *is == (table, key));
        Ok(given.and_then(|at| self.are[at].as_deref()).map(Row::from))
    }

    /// Nodes have versions as rows of other tables, which no such transaction reads.
    fn holder(&self, _: TableId, _: &Key, _: &[Value]) -> Result<Holder<'_>, Unsettled> {
        Ok(Holder::none())
    }

    fn keys<'a>(&'a self, _: TableId, _: &'a Key, _: &'a Key, _: bool) -> Keys<'a> {
        unreachable!("its rows follow from the event, so it reads no range")
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

    /// Runs the transaction, or returns `None` if the general path has to decide.
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
            let value = Value::of_word(&table.schema.columns[*column].ty, frame[*register]);
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
                Value::of_word(&column.ty, frame[usize::from(*register)])
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
