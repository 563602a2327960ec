//! The Rust builder of programs. It resolves names as they are given. [`Builder::finish`] reports a
//! wrong name and checks the whole program.

use std::sync::{Arc, OnceLock};

use tidemill_core::rules::{Binary, Unary};
use tidemill_core::{
    Column, DataType, EngineUse, Error, HandlerId, History, Late, Result, Schema, SourceId,
    SourceSpec, StreamId, StreamSpec, StreamTime, TableId, TableSpec, Value,
};

use super::check::reason_column;
use super::expr::{Block, Expr, ExprId};
use super::groups::GroupAggregate;
use super::handler::{
    Body, Declared, Handler, Input, Native, OnRows, Op, Opaque, RowId, RowRef, Step, Takes, VarId,
};
use super::hooks::{On, Trigger};
use super::owned::{Extent, OwnedWindow, WindowId};
use super::rounds::Nested;
use super::stream::{Batching, Origin, Stage, Stream, Timer};
use super::window::{Aggregate, Window, WindowRead};
use super::Program;
use crate::execute::NativeTx;

/// Builds a [`Program`].
///
/// ```
/// use tidemill_core::{Column, DataType, Value};
/// use tidemill_txn::program::Builder;
///
/// let mut b = Builder::new("ledger");
/// let money = DataType::Decimal(2);
/// let accounts = b.table("accounts", &["id"], vec![
///     Column::new("id", DataType::Int),
///     Column::new("balance", money.clone()).default(Value::Decimal(0, 2)),
/// ]);
/// let payments = b.stream("payments", vec![
///     Column::new("src", DataType::Int),
///     Column::new("dst", DataType::Int),
///     Column::new("amount", money),
/// ]);
/// let mut pay = b.handler("pay", payments);
/// let (src, dst, amount) = (pay.column("src"), pay.column("dst"), pay.column("amount"));
/// let (src, dst) = (pay.row(accounts, &[src]), pay.row(accounts, &[dst]));
/// let left = pay.read(src, "balance");
/// let enough = pay.ge(left, amount);
/// pay.require(enough, "insufficient funds");
/// let left = pay.sub(left, amount);
/// pay.set(src, "balance", left);
/// let there = pay.read(dst, "balance");
/// let there = pay.add(there, amount);
/// pay.set(dst, "balance", there);
/// pay.done();
/// let program = b.finish().unwrap();
/// assert_eq!(&*program.handlers[0].name, "pay");
/// ```
pub struct Builder {
    program: Program,
    first_error: Option<Error>,
}

impl Builder {
    /// Makes a builder of an empty program.
    pub fn new(name: &str) -> Builder {
        let program = Program {
            seed: 0,
            name: name.into(),
            tables: Vec::new(),
            streams: Vec::new(),
            sources: Vec::new(),
            handlers: Vec::new(),
            calls: Vec::new(),
            timers: Vec::new(),
            nested: Vec::new(),
            triggers: Vec::new(),
            windows: Vec::new(),
            hooks: OnceLock::new(),
            natives: Vec::new(),
            window_reads: Vec::new(),
            opaques: Vec::new(),
            event_limit: None,
        };
        Builder { program, first_error: None }
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|e| self.first_error.get_or_insert(e).clone()).ok()
    }

    /// Adds a table with this key.
    pub fn table(&mut self, name: &str, key: &[&str], columns: Vec<Column>) -> TableId {
        let schema = Schema::new(columns);
        let owner = format!("table {name}");
        let key =
            key.iter().filter_map(|k| self.note(schema.find(&owner, k))).collect::<Vec<usize>>();
        let spec = TableSpec::new(name, key, schema.into());
        self.program.tables.push(spec);
        TableId(self.program.tables.len() as u16 - 1)
    }

    /// Sets the seed of functions' random numbers, which also depend on the transactions' places in
    /// the one order. It is 0 by default.
    pub fn seed(&mut self, seed: u64) {
        self.program.seed = seed;
    }

    /// Retains versions of a table's rows, for windows.
    pub fn history(&mut self, table: TableId, history: History) {
        self.program.tables[table.index()].history = Some(history);
    }

    /// Makes a table ordered by key, for range reads.
    pub fn ordered(&mut self, table: TableId) {
        self.program.tables[table.index()].ordered = true;
    }

    /// Sets how many leading key columns decide a row's partition. Rows that share them live
    /// together.
    pub fn partition_prefix(&mut self, table: TableId, columns: usize) {
        self.program.tables[table.index()].partition_prefix = Some(columns);
    }

    /// Returns a window read that a closure can do on its rows of a table. The table's history must
    /// have been [declared](Builder::history).
    pub fn window_read(
        &mut self,
        table: TableId,
        column: &str,
        window: Window,
        aggregate: Aggregate,
    ) -> WindowRead {
        let spec = self.program.tables[table.index()].clone();
        let found = spec.schema.find(&format!("table {}", spec.name), column);
        let column = self.note(found).unwrap_or(0) as u16;
        let checked = window.check(&spec).and_then(|()| aggregate.result(&spec, column));
        let is_word = |ty: Option<DataType>| match ty {
            Some(ty) if ty.is_word() => Ok(()),
            _ => Err(Error::program("the result of a closure's window must be one word")),
        };
        self.note(checked.and_then(|result| is_word(result.ty)));
        let is_int = |c: &Column| c.ty == DataType::Int && !c.nullable;
        let is_of_ints = spec.schema.columns.get(usize::from(column)).is_some_and(is_int);
        let read = WindowRead { table, column, window, aggregate, is_of_ints };
        self.program.window_reads.push(read.clone());
        read
    }

    /// Makes procedures take the events of a stream in batches.
    pub fn batch(&mut self, stream: StreamId, batch: Batching) {
        self.program.streams[stream.index()].batch = Some(batch);
    }

    /// Adds a stream of timer events at the multiples of a period.
    pub fn timer(&mut self, name: &str, period_us: i64) -> StreamId {
        let stream = self.stream(name, vec![Column::new("at", DataType::Timestamp)]);
        self.program.timers.push(Timer { stream, period_us });
        stream
    }

    /// Adds an index of a table: a table, kept by the engine, that has the rows by some of their
    /// columns. Its columns are these and the rest of the key. With `is_unique`, no two rows may
    /// have the same values in them.
    pub fn index(&mut self, name: &str, of: TableId, by: &[&str], is_unique: bool) -> TableId {
        let other = self.program.tables[of.index()].clone();
        let find = |name: &&str| other.schema.find(&format!("table {}", other.name), name);
        let columns = by.iter().filter_map(|name| self.note(find(name))).collect::<Vec<usize>>();
        self.program.tables.push(index_spec(name, &other, of, columns, is_unique));
        TableId(self.program.tables.len() as u16 - 1)
    }

    /// Adds a window that belongs to a handler, with rows of these columns. A column, if named,
    /// groups the active rows. Each aggregate has a name, a kind and the column it is of, and is
    /// maintained for each group.
    pub fn window(
        &mut self,
        name: &str,
        owner: usize,
        extent: Extent,
        columns: Vec<Column>,
        group: Option<&str>,
        aggregates: &[(&str, Aggregate, &str)],
    ) -> WindowId {
        let (schema, owned) = (Schema::new(columns), format!("window {name}"));
        let group = group.and_then(|group| self.note(schema.find(&owned, group)));
        let made = aggregates.iter().filter_map(|(name, of, column)| {
            let column = self.note(schema.find(&owned, column))?;
            Some(GroupAggregate { name: (*name).into(), of: of.clone(), column: Some(column) })
        });
        let aggregates: Vec<GroupAggregate> = made.collect();
        let first = self.program.tables.len() as u16;
        self.program.tables.extend(OwnedWindow::tables(name, &schema, group, &aggregates));
        self.program.windows.push(OwnedWindow {
            name: name.into(),
            owner: HandlerId(owner as u16),
            schema: schema.into(),
            extent,
            group,
            aggregates,
            rows: TableId(first),
            state: TableId(first + 1),
            groups: TableId(first + 2),
            queues: TableId(first + 3),
            before: None,
            at: String::new(),
        });
        WindowId(self.program.windows.len() as u16 - 1)
    }

    /// Adds a trigger: a function that runs inside transactions, in reaction to what they do.
    pub fn trigger(&mut self, name: &str, on: On, emits: &[StreamId], function: Arc<dyn Opaque>) {
        self.program.opaques.push(function);
        self.program.triggers.push(Trigger {
            name: name.into(),
            on,
            function: self.program.opaques.len() - 1,
            emits: emits.to_vec(),
            at: String::new(),
        });
    }

    fn add_stream(&mut self, name: &str, columns: Vec<Column>, origin: Origin) -> StreamId {
        let spec = StreamSpec {
            name: name.into(),
            schema: Schema::new(columns).into(),
            time: StreamTime::Arrival,
            late: Late::Side,
            at: String::new(),
        };
        self.program.streams.push(Stream { spec, origin, batch: None });
        StreamId(self.program.streams.len() as u16 - 1)
    }

    /// Adds an input stream, in arrival time.
    pub fn stream(&mut self, name: &str, columns: Vec<Column>) -> StreamId {
        self.add_stream(name, columns, Origin::Input)
    }

    /// Adds a stream that handlers emit into by name.
    pub fn emitted(&mut self, name: &str, columns: Vec<Column>) -> StreamId {
        self.add_stream(name, columns, Origin::Emitted)
    }

    /// Gives an input stream event time from a column, with a policy for late events.
    pub fn event_time(&mut self, stream: StreamId, column: &str, late: Late) {
        let spec = &self.program.streams[stream.index()].spec;
        let found = spec.schema.find(&format!("stream {}", spec.name), column);
        if let Some(column) = self.note(found) {
            let spec = &mut self.program.streams[stream.index()].spec;
            spec.time = StreamTime::Event { column };
            spec.late = late;
        }
    }

    /// Adds a source partition of a stream. Its bound on out-of-orderness is in units of the time
    /// column.
    pub fn source(&mut self, name: &str, stream: StreamId, out_of_orderness_us: i64) -> SourceId {
        let spec = SourceSpec { name: name.into(), stream, out_of_orderness_us, idle_us: None };
        self.program.sources.push(spec);
        SourceId(self.program.sources.len() as u32 - 1)
    }

    /// Adds a stream of the events for which `keep` gives true.
    pub fn filter(
        &mut self,
        name: &str,
        from: StreamId,
        keep: impl FnOnce(&mut Block, &Schema) -> ExprId,
    ) -> StreamId {
        let source = self.program.streams[from.index()].spec.clone();
        let mut exprs = Block::default();
        let keep = keep(&mut exprs, &source.schema);
        let origin = Origin::Derived { from, stage: Stage::Filter { exprs, keep } };
        self.add_stream(name, source.schema.columns.clone(), origin)
    }

    /// Begins a declared handler on a stream; end it with [`HandlerBuilder::done`].
    pub fn handler(&mut self, name: &str, input: StreamId) -> HandlerBuilder<'_> {
        let body = Body::Declared(Declared::default());
        let index = self.add_handler(name, input, body, "built in Rust");
        HandlerBuilder { builder: self, index, declared: Declared::default(), vars: 0 }
    }

    /// Adds a stream whose events are calls of the one handler that takes it.
    pub fn calls(&mut self, name: &str, parameters: Vec<Column>) -> StreamId {
        let stream = self.stream(name, parameters);
        self.program.calls.push(stream);
        stream
    }

    /// Adds an opaque handler on a stream.
    pub fn opaque(&mut self, name: &str, input: StreamId, function: Arc<dyn Opaque>) -> usize {
        self.program.opaques.push(function);
        let body = Body::Opaque(self.program.opaques.len() - 1);
        self.add_handler(name, input, body, "a Rust function")
    }

    /// Adds a procedure: a function that takes all events of a round on these streams as one
    /// transaction, and emits into others.
    ///
    /// # Panics
    /// If `inputs` is empty.
    pub fn procedure(
        &mut self,
        name: &str,
        inputs: &[StreamId],
        emits: &[StreamId],
        function: Arc<dyn Opaque>,
    ) -> usize {
        let (first, more) = inputs.split_first().expect("a procedure takes a stream");
        let index = self.opaque(name, *first, function);
        let more = more.iter().enumerate().map(|(number, stream)| {
            let aborted = format!("{name}.aborted{}", number + 2);
            Input { stream: *stream, aborted: self.add_aborted(&aborted, *stream, index) }
        });
        let more = more.collect();
        let handler = &mut self.program.handlers[index];
        (handler.takes, handler.more, handler.emits) = (Takes::Batch, more, Some(emits.to_vec()));
        index
    }

    /// Makes procedures one transaction: all of them commit, or none. In each pair of `before`, the
    /// first runs before the second. Otherwise an emitter runs before the procedures that take its
    /// stream.
    pub fn nested(&mut self, name: &str, procedures: &[usize], before: &[(usize, usize)]) {
        let id = |handler: &usize| HandlerId(*handler as u16);
        self.program.nested.push(Nested {
            name: name.into(),
            procedures: procedures.iter().map(id).collect(),
            before: before.iter().map(|(a, b)| (id(a), id(b))).collect(),
            at: String::new(),
        });
    }

    /// Adds an opaque handler that returns events of these columns. It emits them into the stream
    /// that is given to `function`.
    pub fn returning(
        &mut self,
        name: &str,
        input: StreamId,
        columns: Vec<Column>,
        function: impl FnOnce(StreamId) -> Arc<dyn Opaque>,
    ) -> usize {
        let origin = Origin::Output(HandlerId(self.program.handlers.len() as u16));
        let output = self.add_stream(name, columns, origin);
        let handler = self.opaque(name, input, function(output));
        self.program.handlers[handler].output = Some(output);
        handler
    }

    /// Declares the streams that an opaque handler emits into.
    pub fn emits(&mut self, handler: usize, streams: &[StreamId]) {
        self.program.handlers[handler].emits = Some(streams.to_vec());
    }

    /// Adds a native handler: rows given by table and the event columns of their keys, the streams
    /// it emits into, and a closure over the rows' words. The number of rows is part of the type,
    /// so that the executor's loop is compiled for that number. A closure that panics aborts its
    /// transaction.
    pub fn native<const N: usize, F>(
        &mut self,
        name: &str,
        input: StreamId,
        rows: &[(TableId, &[&str]); N],
        emits: &[StreamId],
        body: F,
    ) -> usize
    where
        F: Fn(&mut NativeTx<'_>) -> Result<(), &'static str> + Send + Sync + 'static,
    {
        let spec = self.program.streams[input.index()].spec.clone();
        let owner = format!("stream {}", spec.name);
        let mut exprs = Block::default();
        let mut refs = Vec::new();
        for (table, key) in rows {
            let mut ids = Vec::new();
            for column in *key {
                if let Some(column) = self.note(spec.schema.find(&owner, column)) {
                    ids.push(exprs.push(Expr::Column(column as u16)));
                }
            }
            refs.push(RowRef { table: *table, key: ids, at: String::new() });
        }
        self.program.natives.push(Native {
            exprs,
            rows: refs,
            emits: emits.to_vec(),
            sets: None,
            body: Arc::new(OnRows::<F, N>(body)),
        });
        let body = Body::Native(self.program.natives.len() - 1);
        self.add_handler(name, input, body, "a Rust closure")
    }

    /// Declares the columns that a native handler sets, by row. It only reads rows that are not
    /// named. So others may read the same rows in parallel, and only the changed columns of a
    /// version are copied. A closure that sets another column panics, which aborts its transaction.
    pub fn sets(&mut self, handler: usize, columns: &[(usize, &[&str])]) {
        let Body::Native(native) = self.program.handlers[handler].body else {
            let what = format!("{} is not a closure", self.program.handlers[handler].name);
            self.note::<()>(Err(Error::program(what)));
            return;
        };
        let mut sets = vec![Vec::new(); self.program.natives[native].rows.len()];
        for (row, names) in columns {
            let Some(table) = self.program.natives[native].rows.get(*row).map(|row| row.table)
            else {
                let what = format!("{} has no row {row}", self.program.handlers[handler].name);
                self.note::<()>(Err(Error::program(what)));
                continue;
            };
            let spec = self.program.tables[table.index()].clone();
            let found = names.iter().map(|name| spec.schema.find(&spec.name, name));
            sets[*row] = found.filter_map(|column| self.note(column)).collect();
        }
        self.program.natives[native].sets = Some(sets);
    }

    fn add_handler(&mut self, name: &str, input: StreamId, body: Body, why: &str) -> usize {
        let index = self.program.handlers.len();
        let aborted = self.add_aborted(&format!("{name}.aborted"), input, index);
        self.program.handlers.push(Handler {
            name: name.into(),
            input,
            takes: Takes::Each,
            more: Vec::new(),
            emits: None,
            body,
            output: None,
            aborted,
            why: why.into(),
            at: String::new(),
        });
        index
    }

    fn add_aborted(&mut self, name: &str, input: StreamId, handler: usize) -> StreamId {
        let event = &self.program.streams[input.index()].spec.schema;
        let mut columns = event.columns.clone();
        columns.push(reason_column(event));
        self.add_stream(name, columns, Origin::Aborted(HandlerId(handler as u16)))
    }

    /// Returns the stream of a handler's aborted events.
    pub fn aborted(&self, handler: usize) -> StreamId {
        self.program.handlers[handler].aborted
    }

    /// Checks and returns the program.
    pub fn finish(self) -> Result<Program> {
        match self.first_error {
            Some(error) => Err(error),
            None => self.program.check().map(|()| self.program),
        }
    }
}

/// Returns the table that the engine keeps for an index.
fn index_spec(
    name: &str,
    other: &TableSpec,
    of: TableId,
    columns: Vec<usize>,
    is_unique: bool,
) -> TableSpec {
    let rest = other.key.iter().filter(|column| !columns.contains(column));
    let all = columns.iter().chain(rest).filter_map(|column| other.schema.columns.get(*column));
    let all: Vec<Column> = all.map(|column| Column::new(&column.name, column.ty.clone())).collect();
    let key = if is_unique { columns.len() } else { all.len() };
    let mut spec = TableSpec::new(name, (0..key).collect(), Schema::new(all).into());
    spec.ordered = true;
    // Entries live with their rows if both have the same leading columns. Otherwise entries with
    // equal values live together.
    let with_rows = other.partition_prefix.filter(|n| columns.get(..*n) == other.key.get(..*n));
    spec.partition_prefix = Some(with_rows.unwrap_or(columns.len()).max(1));
    spec.keeps = Some(EngineUse::Index { of, columns });
    spec
}

/// A row that a handler mentions.
#[derive(Clone, Copy, Debug)]
pub struct RowHandle {
    row: RowId,
    table: TableId,
}

/// Builds a declared handler from expressions and steps, in program order.
pub struct HandlerBuilder<'a> {
    builder: &'a mut Builder,
    index: usize,
    declared: Declared,
    vars: u16,
}

impl HandlerBuilder<'_> {
    fn expr(&mut self, expr: Expr) -> ExprId {
        self.declared.exprs.push(expr)
    }

    fn step(&mut self, op: Op) {
        self.declared.steps.push(Step { op, when: None, at: String::new() });
    }

    /// Makes the last step conditional: it happens only if `cond` is true.
    pub fn when(&mut self, cond: ExprId) {
        if let Some(step) = self.declared.steps.last_mut() {
            step.when = Some(cond);
        }
    }

    /// Returns a column of the event.
    pub fn column(&mut self, name: &str) -> ExprId {
        let input = self.builder.program.handlers[self.index].input;
        let spec = &self.builder.program.streams[input.index()].spec;
        let found = spec.schema.find(&format!("stream {}", spec.name), name);
        let column = self.builder.note(found).unwrap_or(0);
        self.expr(Expr::Column(column as u16))
    }

    /// Returns a constant.
    pub fn value(&mut self, value: Value) -> ExprId {
        self.expr(Expr::Const(value))
    }

    /// Returns an integer constant.
    pub fn int(&mut self, i: i64) -> ExprId {
        self.value(Value::Int(i))
    }

    /// Applies an operator with one operand.
    pub fn unary(&mut self, op: Unary, x: ExprId) -> ExprId {
        self.expr(Expr::Unary(op, x))
    }

    /// Applies an operator with two operands.
    pub fn binary(&mut self, op: Binary, l: ExprId, r: ExprId) -> ExprId {
        self.expr(Expr::Binary(op, l, r))
    }

    /// Returns `l + r`.
    pub fn add(&mut self, l: ExprId, r: ExprId) -> ExprId {
        self.binary(Binary::Add, l, r)
    }

    /// Returns `l - r`.
    pub fn sub(&mut self, l: ExprId, r: ExprId) -> ExprId {
        self.binary(Binary::Sub, l, r)
    }

    /// Returns `l >= r`.
    pub fn ge(&mut self, l: ExprId, r: ExprId) -> ExprId {
        self.binary(Binary::Ge, l, r)
    }

    /// Returns `a` where `cond` is true, else `b`.
    pub fn choose(&mut self, cond: ExprId, a: ExprId, b: ExprId) -> ExprId {
        self.expr(Expr::Where(cond, a, b))
    }

    /// Returns a row by table and key.
    pub fn row(&mut self, table: TableId, key: &[ExprId]) -> RowHandle {
        self.declared.rows.push(RowRef { table, key: key.to_vec(), at: String::new() });
        RowHandle { row: RowId(self.declared.rows.len() as u16 - 1), table }
    }

    fn table_column(&mut self, table: TableId, name: &str) -> u16 {
        let table = &self.builder.program.tables[table.index()];
        let found = table.schema.find(&format!("table {}", table.name), name);
        self.builder.note(found).unwrap_or(0) as u16
    }

    fn new_var(&mut self) -> VarId {
        self.vars += 1;
        VarId(self.vars - 1)
    }

    /// Reads a column now; sees the transaction's own writes so far.
    pub fn read(&mut self, row: RowHandle, column: &str) -> ExprId {
        let (column, var) = (self.table_column(row.table, column), self.new_var());
        self.step(Op::Read { row: row.row, column, var });
        self.expr(Expr::Var(var))
    }

    /// Returns whether the row exists now.
    pub fn exists(&mut self, row: RowHandle) -> ExprId {
        let var = self.new_var();
        self.step(Op::Exists { row: row.row, var });
        self.expr(Expr::Var(var))
    }

    /// Returns the aggregate of a window over the row's versions now.
    pub fn window(
        &mut self,
        row: RowHandle,
        column: &str,
        window: Window,
        aggregate: Aggregate,
    ) -> ExprId {
        let (column, var) = (self.table_column(row.table, column), self.new_var());
        self.step(Op::Window { row: row.row, window, column, aggregate, var });
        self.expr(Expr::Var(var))
    }

    /// Returns the aggregate of the rows in a range of keys now, from `from` (inclusive) to `to`
    /// (exclusive). Each bound gives leading key columns; an empty one is no bound.
    pub fn range(
        &mut self,
        table: TableId,
        (from, to): (&[ExprId], &[ExprId]),
        column: &str,
        aggregate: Aggregate,
    ) -> ExprId {
        let (column, var) = (self.table_column(table, column), self.new_var());
        let (from, to) = (from.to_vec(), to.to_vec());
        self.step(Op::Range { table, from, to, column, aggregate, var });
        self.expr(Expr::Var(var))
    }

    /// Aborts with `reason` unless `cond` is true.
    pub fn require(&mut self, cond: ExprId, reason: &str) {
        let reason = self.value(Value::str(reason));
        self.step(Op::Require { cond, reason });
    }

    /// Sets a column.
    pub fn set(&mut self, row: RowHandle, column: &str, value: ExprId) {
        let column = self.table_column(row.table, column);
        self.step(Op::Set { row: row.row, column, value });
    }

    fn columns(&mut self, row: RowHandle, values: &[(&str, ExprId)]) -> Vec<(u16, ExprId)> {
        values.iter().map(|(name, value)| (self.table_column(row.table, name), *value)).collect()
    }

    /// Creates a row; aborts if it exists.
    pub fn insert(&mut self, row: RowHandle, values: &[(&str, ExprId)]) {
        let values = self.columns(row, values);
        self.step(Op::Insert { row: row.row, values });
    }

    /// Sets columns of a row; aborts if it is missing.
    pub fn update(&mut self, row: RowHandle, values: &[(&str, ExprId)]) {
        let values = self.columns(row, values);
        self.step(Op::Update { row: row.row, values });
    }

    /// Creates or replaces a row.
    pub fn upsert(&mut self, row: RowHandle, values: &[(&str, ExprId)]) {
        let values = self.columns(row, values);
        self.step(Op::Upsert { row: row.row, values });
    }

    /// Removes a row.
    pub fn delete(&mut self, row: RowHandle) {
        self.step(Op::Delete { row: row.row });
    }

    /// Emits an event.
    pub fn emit(&mut self, stream: StreamId, values: &[ExprId]) {
        self.step(Op::Emit { stream, values: values.to_vec() });
    }

    /// Emits an event into the handler's own output stream, whose columns take the types of the
    /// values. Returns the stream.
    pub fn output(&mut self, values: &[(&str, ExprId)]) -> StreamId {
        let program = &self.builder.program;
        let handler = &program.handlers[self.index];
        let event = &program.streams[handler.input.index()].spec.schema;
        let types = program.declared_types(&self.declared, event);
        let name = handler.name.to_string();
        let types = self.builder.note(types).unwrap_or_default();
        let columns = values.iter().map(|(name, id)| {
            let ty = types.get(id.index()).cloned();
            Column {
                name: (*name).into(),
                nullable: ty.as_ref().is_none_or(|t| t.nullable),
                ty: ty.and_then(|t| t.ty).unwrap_or(DataType::Int),
                default: None,
            }
        });
        let columns = columns.collect();
        let origin = Origin::Output(HandlerId(self.index as u16));
        let stream = self.builder.add_stream(&name, columns, origin);
        self.builder.program.handlers[self.index].output = Some(stream);
        let values: Vec<ExprId> = values.iter().map(|(_, id)| *id).collect();
        self.emit(stream, &values);
        stream
    }

    /// Ends the handler and returns its index.
    pub fn done(self) -> usize {
        self.builder.program.handlers[self.index].body = Body::Declared(self.declared);
        self.index
    }
}
