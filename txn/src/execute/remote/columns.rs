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
    TableSpec, Value,
};
use tidemill_table::Layout;

use crate::program::{
    reason_column, Block, Body, Declared, Expr, ExprId, Footprint, Handler, KeyColumns, Op, Origin,
    Program, RowId, RowRef, RowUse, Step, Stream, Takes, VarId,
};

/// Outputs of an epoch on a stream.
#[derive(Clone, Debug)]
pub struct ColumnOutput {
    /// The stream.
    pub stream: StreamId,
    /// The place of each event's transaction, or of the event that caused it, ascending.
    pub tids: Vec<u64>,
    /// The place of each event among the outputs there, ascending. It is [`ABORTED`] for the event of
    /// an aborted transaction.
    pub ordinals: Vec<u32>,
    /// The events.
    pub batch: Batch,
}

/// The ordinal of the event of an aborted transaction.
pub const ABORTED: u32 = u32::MAX;

/// The program.
pub struct ColumnProgram {
    program: Arc<Program>,
    handlers: Vec<Option<ColumnHandler>>,
    tables: Vec<Option<ColumnTable>>,
    streams: Vec<ColumnStream>,
}

/// The meaning of a stream of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnStream {
    /// A stream of the whole program, and whether it has aborted events.
    Whole(StreamId, bool),
    /// The exported rows of a table.
    Exported(TableId),
    /// Another stream that only this program has. Nothing is emitted to it.
    Own,
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
    /// The columns of these rows, which are those of the table.
    pub rows_schema: Arc<Schema>,
    /// The columns of exported rows: those of the table, and whether the row exists.
    pub exported_schema: Arc<Schema>,
    /// The key of such a row.
    pub key: KeyColumns,
    /// Whether the table's keys are words.
    pub has_word_keys: bool,
}

impl ColumnProgram {
    /// The most rows that a transaction mentions.
    pub const ROWS_MAX: usize = 64;

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
            let spec = &program.tables[table.index()];
            spec.keeps.is_none() && spec.history.is_none() && program.hooks().is_plain(table)
        };
        let is_final = |stream: StreamId| program.handlers_on(stream).next().is_none();
        let is_short = |stream: &StreamId| {
            let columns = &program.streams[stream.index()].spec.schema.columns;
            columns.iter().all(|column| column.ty.is_word() && !column.nullable)
        };
        footprint.rows.len() <= ColumnProgram::ROWS_MAX
            && footprint.tables().all(is_plain)
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

    /// Returns the meaning of a stream.
    pub fn stream(&self, stream: StreamId) -> ColumnStream {
        self.streams[stream.index()]
    }
}

/// The program while it is made.
struct Making {
    program: Program,
    streams: Vec<ColumnStream>,
}

impl Making {
    /// Adds a stream.
    fn stream(
        &mut self,
        name: &str,
        schema: Arc<Schema>,
        origin: Origin,
        of: ColumnStream,
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
                let of = ColumnStream::Whole(id, is_aborted);
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
        let aborted = self.stream(&format!("{name} aborted"), schema, origin, ColumnStream::Own);
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
        let mut beside = (0..columns.len()).filter(|column| !spec.is_key(*column));
        // Words that are never null need no null for a missing row.
        let is_plain =
            layout.word_key && layout.values == 0 && beside.all(|column| !columns[column].nullable);
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
        let row_columns: Vec<Column> = row_columns.collect();
        let exists = Column::new("\u{1}exists", DataType::Bool);
        let exported_columns = row_columns.iter().cloned().chain([exists]).collect();
        let rows_schema = Arc::new(Schema::new(row_columns));
        let exported_schema = Arc::new(Schema::new(exported_columns));
        let mut own = |what: &str, schema: &Arc<Schema>, origin: Origin, of: ColumnStream| {
            self.stream(&format!("{name} {what}"), schema.clone(), origin, of)
        };
        let keys = own("keys", &keys_schema, Origin::Input, ColumnStream::Own);
        let rows = own("rows", &rows_schema, Origin::Input, ColumnStream::Own);
        let of = ColumnStream::Exported(id);
        let exported = own("exported", &exported_schema, Origin::Emitted, of);

        let export = export(&spec, id, exported, is_plain);
        let export = self.own(&format!("export {name}"), keys, export);
        let install = install(&spec, id, is_plain);
        let install = self.own(&format!("install {name}"), rows, install);
        let (exprs, row) = row_of(id, &spec.key);
        let remove =
            Declared { exprs, rows: vec![row], steps: vec![step(Op::Delete { row: ROW })] };
        let remove = self.own(&format!("remove {name}"), rows, remove);
        let has_word_keys = layout.word_key;
        let (exprs, row) = row_of(id, &spec.key);
        let key = KeyColumns::new(&spec, &exprs, &row.key, &rows_schema)?;
        Ok(ColumnTable {
            export,
            keys,
            keys_schema,
            install,
            remove,
            rows,
            rows_schema,
            exported_schema,
            key,
            has_word_keys,
        })
    }
}

/// The one row of a handler that exports, installs or removes a row.
const ROW: RowId = RowId(0);

fn step(op: Op) -> Step {
    Step { op, when: None, at: String::new() }
}

/// Returns the row whose key is in these columns of an event, and the expressions of the key.
fn row_of(table: TableId, columns: &[usize]) -> (Block, RowRef) {
    let mut exprs = Block::default();
    let key = columns.iter().map(|column| exprs.push(Expr::Column(*column as u16))).collect();
    (exprs, RowRef { table, key, at: String::new() })
}

/// Makes the steps that export a row. In a table of words that are never null, the columns of a
/// missing row are zero unless they have defaults.
fn export(spec: &TableSpec, id: TableId, to: StreamId, is_plain: bool) -> Declared {
    let (mut exprs, row) = row_of(id, &(0..spec.key.len()).collect::<Vec<_>>());
    let (mut steps, mut values) = (Vec::new(), Vec::new());
    for (number, column) in spec.schema.columns.iter().enumerate() {
        if let Some(at) = spec.key.iter().position(|of| *of == number) {
            values.push(row.key[at]);
            continue;
        }
        let var = VarId(steps.len() as u16);
        steps.push(step(Op::Read { row: ROW, column: number as u16, var }));
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
    steps.push(step(Op::Exists { row: ROW, var }));
    values.push(exprs.push(Expr::Var(var)));
    steps.push(step(Op::Emit { stream: to, values }));
    Declared { exprs, rows: vec![row], steps }
}

/// Makes the steps that write a whole row.
fn install(spec: &TableSpec, id: TableId, is_plain: bool) -> Declared {
    let (mut exprs, row) = row_of(id, &spec.key);
    let beside = (0..spec.schema.len()).filter(|column| !spec.is_key(*column));
    let value = |column: usize| (column as u16, exprs.push(Expr::Column(column as u16)));
    let values: Vec<(u16, ExprId)> = beside.map(value).collect();
    let steps = match is_plain && !values.is_empty() {
        // Together these set the whole row, as compiled code can.
        true => {
            let set = |(column, value)| step(Op::Set { row: ROW, column, value });
            values.into_iter().map(set).collect()
        }
        false => vec![step(Op::Upsert { row: ROW, values })],
    };
    Declared { exprs, rows: vec![row], steps }
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
