//! The program of a node that executes transactions over several owners by column.
//!
//! It has the handlers whose transactions can be executed so, and three handlers for each table
//! that they use. These make and take the rows that owners send each other:
//!
//! | handler | event | effect |
//! | --- | --- | --- |
//! | export | a key | emits all columns of the row, and whether it exists |
//! | install | such a row, which exists | writes the whole row |
//! | remove | such a row, which does not exist | removes the row |
//!
//! So rows are exported and installed in the places of transactions, by whichever executor runs
//! those. In tables of words that are never null, exporting and installing is compiled code.
//! Nobody outside sees this program. Its streams and handlers have their own numbers, and its
//! tables those of the whole program.

use std::sync::Arc;

use arrow_array::Array;
use tidemill_core::{
    Batch, Column, DataType, HandlerId, Result, Schema, StreamId, StreamSpec, StreamTime, TableId,
    Value,
};
use tidemill_table::Layout;

use crate::program::{
    reason_column, Block, Body, Declared, Expr, ExprId, Footprint, Handler, KeyColumns, Op, Origin,
    Program, RowId, RowRef, RowUse, Step, Stream, Takes, VarId,
};

/// The program.
pub struct ColumnProgram {
    program: Arc<Program>,
    handlers: Vec<Option<ColumnHandler>>,
    tables: Vec<Option<ColumnTable>>,
    /// The stream of the whole program that each stream of this one stands for, and whether it has
    /// aborted events. `None` for streams that only this program has.
    streams: Vec<Option<(StreamId, bool)>>,
}

/// A handler whose transactions are executed by column.
#[derive(Clone, Debug)]
pub struct ColumnHandler {
    /// The number of the handler.
    pub handler: u32,
    /// The stream of its events, and their columns.
    pub input: StreamId,
    /// The columns of its events.
    pub schema: Arc<Schema>,
    /// The rows that its transactions mention, in the order of the handler's rows.
    pub rows: Vec<ColumnRow>,
}

/// A row that transactions of a handler mention.
#[derive(Clone, Debug)]
pub struct ColumnRow {
    /// The table.
    pub table: TableId,
    /// Whether it may be written.
    pub writes: bool,
    /// The key.
    pub key: KeyColumns,
}

/// The handlers for rows of a table.
#[derive(Clone, Debug)]
pub struct ColumnTable {
    /// The handler that exports rows, and the stream of its events, which are keys.
    pub export: u32,
    /// The stream of keys.
    pub keys: StreamId,
    /// The columns of keys.
    pub keys_schema: Arc<Schema>,
    /// The handlers that install and remove rows.
    pub install: u32,
    /// The handler that removes rows.
    pub remove: u32,
    /// The stream of the rows that these two take.
    pub rows: StreamId,
    /// The columns of rows: those of the table, and whether the row exists.
    pub rows_schema: Arc<Schema>,
    /// The stream of the rows that the first handler exports. Its columns are the same.
    pub exported: StreamId,
    /// The key of such a row.
    pub key: KeyColumns,
    /// Whether the table's keys are words.
    pub has_word_keys: bool,
}

impl ColumnProgram {
    /// Whether a handler's transactions can be executed by column: they are declared, their rows
    /// follow from the event, and all that they do is in these rows and in output streams of words
    /// that are never null.
    pub fn takes(program: &Program, handler: usize) -> bool {
        let Some(of) = program.handlers.get(handler) else { return false };
        let (Body::Declared(_), Takes::Each, true) = (&of.body, of.takes, of.more.is_empty())
        else {
            return false;
        };
        let footprint = Footprint::of(program, handler);
        if !footprint.is_known() || !footprint.ranges.is_empty() {
            return false;
        }
        let is_plain = |table: TableId| {
            program.tables[table.index()].keeps.is_none() && program.hooks().is_plain(table)
        };
        let is_final = |stream: StreamId| program.handlers_on(stream).next().is_none();
        let is_short = |stream: &StreamId| {
            let columns = &program.streams[stream.index()].spec.schema.columns;
            columns.iter().all(|column| column.ty.is_word() && !column.nullable)
        };
        footprint.tables().all(is_plain)
            && !footprint.rows.iter().any(|row| row.access.reads_versions)
            && program
                .emits(handler)
                .iter()
                .all(|stream| is_final(*stream) && (*stream == of.aborted || is_short(stream)))
    }

    /// Creates the program from a whole one.
    ///
    /// # Errors
    /// If an expression of a key has no type.
    pub fn new(whole: &Program) -> Result<ColumnProgram> {
        let mut program = whole.clone();
        for table in &mut program.tables {
            // Versions that outlive an epoch are rows of other tables, on nodes.
            (table.history, table.keeps) = (None, None);
        }
        program.streams.clear();
        program.handlers.clear();
        program.sources.clear();
        program.calls.clear();
        program.timers.clear();
        program.nested.clear();
        program.triggers.clear();
        program.windows.clear();
        program.natives.clear();
        program.window_reads.clear();
        program.opaques.clear();
        program.forget();
        let mut making = Making { program, streams: Vec::new() };
        let mut known: Vec<Option<StreamId>> = vec![None; whole.streams.len()];
        let mut handlers = Vec::with_capacity(whole.handlers.len());
        let mut used = vec![false; whole.tables.len()];
        for number in 0..whole.handlers.len() {
            if !ColumnProgram::takes(whole, number) {
                handlers.push(None);
                continue;
            }
            let handler = making.handler(whole, number, &mut known)?;
            handler.rows.iter().for_each(|row| used[row.table.index()] = true);
            handlers.push(Some(handler));
        }
        let mut tables = Vec::with_capacity(used.len());
        for (table, used) in used.into_iter().enumerate() {
            tables.push(used.then(|| making.table(TableId(table as u16))).transpose()?);
        }
        let Making { program, streams } = making;
        Ok(ColumnProgram { program: Arc::new(program), handlers, tables, streams })
    }

    /// Returns the program, for an executor.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns how a handler of the whole program is executed, if it is executed by column.
    pub fn handler(&self, handler: usize) -> Option<&ColumnHandler> {
        self.handlers.get(handler)?.as_ref()
    }

    /// Returns the handlers for rows of a table, if a handler uses its rows.
    pub fn table(&self, table: TableId) -> Option<&ColumnTable> {
        self.tables.get(table.index())?.as_ref()
    }

    /// Returns the stream of the whole program for a stream of this one, and whether it has aborted
    /// events.
    pub fn stream(&self, stream: StreamId) -> Option<(StreamId, bool)> {
        self.streams[stream.index()]
    }
}

/// The program while it is made.
struct Making {
    program: Program,
    streams: Vec<Option<(StreamId, bool)>>,
}

impl Making {
    /// Adds a stream.
    fn stream(
        &mut self,
        name: &str,
        schema: Arc<Schema>,
        origin: Origin,
        of: Option<(StreamId, bool)>,
    ) -> StreamId {
        let spec = StreamSpec {
            name: name.into(),
            schema,
            // All events have their place already.
            time: StreamTime::Arrival,
            late: tidemill_core::Late::Side,
            at: String::new(),
        };
        self.program.streams.push(Stream { spec, origin, batch: None });
        self.streams.push(of);
        StreamId(self.streams.len() as u16 - 1)
    }

    /// Adds a handler of the whole program, with its streams.
    fn handler(
        &mut self,
        whole: &Program,
        number: usize,
        known: &mut [Option<StreamId>],
    ) -> Result<ColumnHandler> {
        let of = &whole.handlers[number];
        let Body::Declared(declared) = &of.body else { unreachable!("it is declared") };
        let mut stream = |making: &mut Making, id: StreamId, origin: Origin| {
            let found = known[id.index()];
            found.unwrap_or_else(|| {
                let spec = &whole.streams[id.index()].spec;
                let is_aborted = matches!(origin, Origin::Aborted(_));
                let of = Some((id, is_aborted));
                let made = making.stream(&spec.name, spec.schema.clone(), origin, of);
                known[id.index()] = Some(made);
                made
            })
        };
        let id = HandlerId(self.program.handlers.len() as u16);
        let input = stream(self, of.input, Origin::Input);
        let aborted = stream(self, of.aborted, Origin::Aborted(id));
        let mut declared = declared.clone();
        for step in &mut declared.steps {
            if let Op::Emit { stream: to, .. } = &mut step.op {
                *to = stream(self, *to, Origin::Emitted);
            }
        }
        let schema = whole.streams[of.input.index()].spec.schema.clone();
        let footprint = Footprint::of(whole, number);
        let row = |row: &RowUse| {
            let table = &whole.tables[row.table.index()];
            let key = KeyColumns::new(table, &declared.exprs, &row.key, &schema)?;
            Ok(ColumnRow { table: row.table, writes: row.access.writes, key })
        };
        let rows = footprint.rows.iter().map(row).collect::<Result<Vec<ColumnRow>>>()?;
        let (body, output) = (Body::Declared(declared), None);
        self.program.handlers.push(Handler { input, aborted, body, output, ..of.clone() });
        Ok(ColumnHandler { handler: u32::from(id.0), input, schema, rows })
    }

    /// Adds a handler of this program only.
    fn own(&mut self, name: &str, input: StreamId, declared: Declared) -> u32 {
        let id = HandlerId(self.program.handlers.len() as u16);
        let event = &self.program.streams[input.index()].spec.schema;
        let columns = event.columns.iter().cloned();
        let columns = columns.chain([reason_column(event)]).collect();
        let (schema, origin) = (Arc::new(Schema::new(columns)), Origin::Aborted(id));
        let aborted = self.stream(&format!("{name} aborted"), schema, origin, None);
        self.program.handlers.push(Handler {
            name: name.into(),
            input,
            takes: Takes::Each,
            more: Vec::new(),
            emits: None,
            body: Body::Declared(declared),
            output: None,
            aborted,
            why: String::new(),
            at: String::new(),
        });
        u32::from(id.0)
    }

    /// Adds the handlers for rows of a table.
    fn table(&mut self, id: TableId) -> Result<ColumnTable> {
        let spec = self.program.tables[id.index()].clone();
        let layout = Layout::of(&spec);
        let columns = &spec.schema.columns;
        let is_beside = |column: &usize| !spec.is_key(*column);
        let beside: Vec<usize> = (0..columns.len()).filter(is_beside).collect();
        // Words that are never null need no null for a missing row.
        let is_plain = layout.word_key
            && layout.values == 0
            && beside.iter().all(|column| !columns[*column].nullable);
        let name = &spec.name;
        let key_columns = spec.key.iter().map(|column| {
            let Column { name, ty, .. } = &columns[*column];
            Column::new(name, ty.clone())
        });
        let keys_schema = Arc::new(Schema::new(key_columns.collect()));
        let row_columns = columns.iter().enumerate().map(|(number, column)| Column {
            nullable: !spec.is_key(number) && !is_plain,
            default: None,
            ..column.clone()
        });
        let mut row_columns: Vec<Column> = row_columns.collect();
        row_columns.push(Column::new("\u{1}exists", DataType::Bool));
        let rows_schema = Arc::new(Schema::new(row_columns));
        let keys = self.stream(&format!("{name} keys"), keys_schema.clone(), Origin::Input, None);
        let rows = self.stream(&format!("{name} rows"), rows_schema.clone(), Origin::Input, None);
        let exported = format!("{name} exported");
        let exported = self.stream(&exported, rows_schema.clone(), Origin::Emitted, None);

        let row_of = |exprs: &mut Block, key: &[usize]| {
            let key = key.iter().map(|column| exprs.push(Expr::Column(*column as u16))).collect();
            RowRef { table: id, key, at: String::new() }
        };
        let step = |op: Op| Step { op, when: None, at: String::new() };

        let (mut exprs, mut steps) = (Block::default(), Vec::new());
        let row = row_of(&mut exprs, &(0..spec.key.len()).collect::<Vec<_>>());
        let mut values = Vec::with_capacity(columns.len() + 1);
        for (number, column) in columns.iter().enumerate() {
            if let Some(at) = spec.key.iter().position(|of| *of == number) {
                values.push(row.key[at]);
                continue;
            }
            let var = VarId(steps.len() as u16);
            steps.push(step(Op::Read { row: RowId(0), column: number as u16, var }));
            let read = exprs.push(Expr::Var(var));
            values.push(match is_plain {
                true => {
                    let zero = exprs.push(Expr::Const(Value::of_word(&column.ty, 0)));
                    exprs.push(Expr::Coalesce(read, zero))
                }
                false => read,
            });
        }
        let var = VarId(steps.len() as u16);
        steps.push(step(Op::Exists { row: RowId(0), var }));
        values.push(exprs.push(Expr::Var(var)));
        steps.push(step(Op::Emit { stream: exported, values }));
        let export = Declared { exprs, rows: vec![row], steps };
        let export = self.own(&format!("export {name}"), keys, export);

        let mut exprs = Block::default();
        let row = row_of(&mut exprs, &spec.key);
        let value = |column: &usize| (*column as u16, exprs.push(Expr::Column(*column as u16)));
        let values: Vec<(u16, ExprId)> = beside.iter().map(value).collect();
        let steps = match is_plain && !values.is_empty() {
            // Together these set the whole row, as compiled code can.
            true => {
                let set = |(column, value)| step(Op::Set { row: RowId(0), column, value });
                values.into_iter().map(set).collect()
            }
            false => vec![step(Op::Upsert { row: RowId(0), values })],
        };
        let install = Declared { exprs, rows: vec![row], steps };
        let install = self.own(&format!("install {name}"), rows, install);

        let mut exprs = Block::default();
        let row = row_of(&mut exprs, &spec.key);
        let steps = vec![step(Op::Delete { row: RowId(0) })];
        let remove =
            self.own(&format!("remove {name}"), rows, Declared { exprs, rows: vec![row], steps });
        let has_word_keys = layout.word_key;
        let mut exprs = Block::default();
        let RowRef { key, .. } = row_of(&mut exprs, &spec.key);
        let key = KeyColumns::new(&spec, &exprs, &key, &rows_schema)?;
        Ok(ColumnTable {
            export,
            keys,
            keys_schema,
            install,
            remove,
            rows,
            rows_schema,
            exported,
            key,
            has_word_keys,
        })
    }
}

impl ColumnTable {
    /// Checks that rows from another owner can be installed: a row that exists has a value in each
    /// column of the table that needs one.
    ///
    /// # Errors
    /// The reason why they can't.
    pub fn check(&self, program: &Program, table: TableId, rows: &Batch) -> Result<(), String> {
        let columns = &program.tables[table.index()].schema.columns;
        let exists = rows.bools(columns.len()).ok_or("a row does not say whether it exists")?;
        for (number, column) in columns.iter().enumerate().filter(|(_, column)| !column.nullable) {
            let Some(nulls) = rows.columns()[number].nulls().filter(|n| n.null_count() > 0) else {
                continue;
            };
            if (0..rows.len()).any(|row| exists.value(row) && nulls.is_null(row)) {
                return Err(format!("column '{}' of a row is null", column.name));
            }
        }
        Ok(())
    }
}
