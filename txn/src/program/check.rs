//! Checks of a program before anything runs. Errors carry the user's line.

use std::collections::HashSet;

use tidemill_core::{
    Column, DataType, EngineUse, Error, Result, Schema, StreamId, StreamTime, TableId,
};

use super::expr::{Block, Expr, ExprId, Type};
use super::handler::{Body, Declared, Handler, Native, Op, RowRef, VarId};
use super::rounds::{Nested, Turns};
use super::stream::{Origin, Stage, Stream, Timer, PERIOD_US_MIN};
use super::{reasons, Program};
use crate::execute::NATIVE_ROWS_MAX;

impl Program {
    /// Reads a program from the tracer's JSON and checks it.
    pub fn from_json(json: &str) -> Result<Program> {
        let program: Program = serde_json::from_str(json)
            .map_err(|e| Error::internal(format!("the program's JSON: {e}")))?;
        Ok(program)
    }

    /// Refuses wrong names, types, keys and cycles. All later code may rely on these checks.
    pub fn check(&self) -> Result<()> {
        unique("table", self.tables.iter().map(|t| (&*t.name, &*t.at)))?;
        unique("stream", self.streams.iter().map(|s| (&*s.spec.name, &*s.spec.at)))?;
        unique("handler", self.handlers.iter().map(|h| (&*h.name, &*h.at)))?;
        unique("source", self.sources.iter().map(|s| (&*s.name, "")))?;
        self.tables.iter().try_for_each(|table| table.check())?;
        for (index, stream) in self.streams.iter().enumerate() {
            if matches!(stream.origin, Origin::Derived { from, .. } if from.index() >= index) {
                return Err(Error::internal("a derived stream is declared before its origin"));
            }
            self.check_stream(stream).map_err(|e| e.at(stream.spec.at.clone()))?;
        }
        for source in &self.sources {
            let stream = self.stream(source.stream)?;
            if stream.origin != Origin::Input {
                return Err(Error::program(format!(
                    "source {} feeds stream {}, which is not an input",
                    source.name, stream.spec.name
                )));
            }
            let wrong = match source.idle_us {
                _ if source.out_of_orderness_us < 0 => Some("out_of_orderness is negative"),
                Some(us) if us <= 0 => Some("idle is not positive"),
                _ => None,
            };
            if let Some(wrong) = wrong {
                return Err(Error::program(format!("source {}: {wrong}", source.name))
                    .help("give a time span, such as \"5s\""));
            }
        }
        for (index, handler) in self.handlers.iter().enumerate() {
            self.check_handler(index, handler).map_err(|e| e.at(handler.at.clone()))?;
        }
        self.calls.iter().try_for_each(|stream| self.check_calls(*stream))?;
        self.timers.iter().try_for_each(|timer| self.check_timer(timer))?;
        self.nested
            .iter()
            .try_for_each(|n| self.check_nested(n).map_err(|e| e.at(n.at.clone())))?;
        for window in &self.windows {
            window.check(self).map_err(|e| e.at(window.at.clone()))?;
        }
        unique("window", self.windows.iter().map(|w| (&*w.name, &*w.at)))?;
        self.check_hooks()?;
        self.check_emits()?;
        self.check_cycles()?;
        Turns::of(self).map(|_| ())
    }

    /// Refuses calls that are not in arrival time, or that have not exactly one handler.
    fn check_calls(&self, id: StreamId) -> Result<()> {
        let stream = self.stream(id)?;
        let wrong = |what: &str| {
            let what = format!("calls {}: {what}", stream.spec.name);
            Err(Error::program(what).at(stream.spec.at.clone()))
        };
        if stream.origin != Origin::Input || stream.spec.time != StreamTime::Arrival {
            return wrong("the stream is not an input in arrival time");
        }
        match self.handlers_on(id).count() {
            1 => Ok(()),
            _ => wrong("exactly one handler must take the stream"),
        }
    }

    /// Refuses timers whose stream is not one of due times, or whose period is too short.
    fn check_timer(&self, timer: &Timer) -> Result<()> {
        let stream = self.stream(timer.stream)?;
        let columns = &stream.spec.schema.columns;
        let is_due = columns.len() == 1 && columns[0].ty == DataType::Timestamp;
        let what = match timer.period_us {
            _ if !is_due || stream.origin != Origin::Input => {
                "it is not an input with one timestamp column".into()
            }
            _ if stream.spec.time != StreamTime::Arrival => "it is not in arrival time".into(),
            us if us < PERIOD_US_MIN => {
                format!("a period of {us} microseconds is under a millisecond")
            }
            _ => return Ok(()),
        };
        let error = Error::program(format!("timer {}: {what}", stream.spec.name));
        Err(error.at(stream.spec.at.clone()))
    }

    /// Refuses nested transactions that are not of procedures, or that share one.
    fn check_nested(&self, nested: &Nested) -> Result<()> {
        let owner = format!("nested transaction {}", nested.name);
        let wrong = |what: String| Err(Error::program(format!("{owner}: {what}")));
        if nested.procedures.len() < 2 {
            return wrong("it has fewer than two procedures".into());
        }
        let all = self.nested.iter().flat_map(|nested| &nested.procedures);
        for id in &nested.procedures {
            let Some(handler) = self.handlers.get(id.index()) else {
                return wrong(format!("there is no handler {}", id.0));
            };
            if !handler.is_procedure() {
                return wrong(format!("{} takes each event by itself", handler.name));
            }
            if all.clone().filter(|other| *other == id).count() > 1 {
                return wrong(format!("{} is nested twice", handler.name));
            }
        }
        for (a, b) in &nested.before {
            if a == b || ![a, b].iter().all(|id| nested.procedures.contains(id)) {
                return wrong("its order names procedures that are not in it".into());
            }
        }
        Ok(())
    }

    /// Procedures run after everything that feeds them. So if a program has any, all functions must
    /// declare the streams they emit into.
    fn check_emits(&self) -> Result<()> {
        let silent = |h: &&Handler| matches!(h.body, Body::Opaque(_)) && h.emits.is_none();
        let has_procedures = self.handlers.iter().any(Handler::is_procedure);
        match self.handlers.iter().find(silent).filter(|_| has_procedures) {
            None => Ok(()),
            Some(handler) => Err(Error::program(format!(
                "handler {} does not say which streams it emits into, and an app with procedures needs this",
                handler.name
            ))
            .help("declare emits=[...], an empty list if it emits nothing")
            .at(handler.at.clone())),
        }
    }

    pub(super) fn stream(&self, id: StreamId) -> Result<&Stream> {
        self.streams
            .get(id.index())
            .ok_or_else(|| Error::program(format!("there is no stream {}", id.0)))
    }

    fn check_stream(&self, stream: &Stream) -> Result<()> {
        let owner = format!("stream {}", stream.spec.name);
        // A called stream may have no parameters.
        let is_called = || {
            let mut called = self.calls.iter().map(|id| self.stream(*id));
            called.any(|called| called.is_ok_and(|called| called.spec.name == stream.spec.name))
        };
        if !stream.spec.schema.is_empty() || !is_called() {
            stream.spec.schema.check(&owner)?;
        }
        if let StreamTime::Event { column } = stream.spec.time {
            let Some(column) = stream.spec.schema.columns.get(column) else {
                return Err(Error::program(format!("{owner}: its time column is missing")));
            };
            if !matches!(column.ty, DataType::Timestamp | DataType::Int) || column.nullable {
                return Err(Error::program(format!(
                    "{owner}: the time column '{}' must be a timestamp or an int that is never \
                     null, not {}{}",
                    column.name,
                    if column.nullable { "nullable " } else { "" },
                    column.ty
                )));
            }
        }
        self.check_batch(stream, &owner)?;
        let Origin::Derived { from, stage } = &stream.origin else { return Ok(()) };
        let source = self.stream(*from)?;
        if source.is_output() {
            return Err(Error::program(format!(
                "{owner} is derived from {}, which is an output: map and filter come before \
                 transactions",
                source.spec.name
            )));
        }
        match stage {
            Stage::Filter { exprs, keep } => {
                let types = exprs.types(&source.spec.schema, &[])?;
                expect(&types, *keep, &Column::new("condition", DataType::Bool), &owner)?;
                if stream.spec.schema != source.spec.schema {
                    return Err(Error::program(format!("{owner}: a filter must keep all columns")));
                }
            }
            Stage::Map { exprs, columns } => {
                let types = exprs.types(&source.spec.schema, &[])?;
                values_fit(&types, columns, &stream.spec.schema, &owner)?;
            }
        }
        Ok(())
    }

    /// Refuses batches of streams that transactions emit into or that handlers take by single
    /// events.
    fn check_batch(&self, stream: &Stream, owner: &str) -> Result<()> {
        let Some(batch) = &stream.batch else { return Ok(()) };
        let wrong = |what: &str| Err(Error::program(format!("{owner}: {what}")));
        batch.check().or_else(|what| wrong(&what))?;
        if stream.is_output() {
            return wrong(
                "transactions emit into it, but only streams from outside come in batches",
            );
        }
        let id = StreamId(self.streams.iter().position(|s| s == stream).unwrap_or(0) as u16);
        if let Some(handler) = self.handlers_on(id).find(|h| !self.handlers[*h].is_procedure()) {
            let what = format!(
                "it comes in batches, and {} takes each event by itself",
                self.handlers[handler].name
            );
            return wrong(&what)
                .map_err(|e| e.help("make it a procedure, or derive a stream for it"));
        }
        let root = self.root_stream(id);
        let sources = self.sources.iter().filter(|source| source.stream == root).count();
        match self.streams[root.index()].spec.time {
            StreamTime::Arrival if sources > 1 => {
                wrong("in arrival time, a stream in batches has one source")
            }
            _ => Ok(()),
        }
    }

    fn check_handler(&self, index: usize, handler: &Handler) -> Result<()> {
        let owner = format!("handler {}", handler.name);
        let mut taken = HashSet::new();
        for taking in handler.inputs() {
            let (input, aborted) = (self.stream(taking.stream)?, self.stream(taking.aborted)?);
            let mut columns = input.spec.schema.columns.clone();
            if self.calls.contains(&taking.stream) {
                // Aborted events leave out a call's columns beside its parameters.
                columns.truncate(aborted.spec.schema.len().saturating_sub(1));
            }
            let event = Schema::new(columns);
            let mut columns = event.columns.clone();
            columns.push(reason_column(&event));
            if aborted.origin != Origin::Aborted(tidemill_core::HandlerId(index as u16))
                || aborted.spec.schema.columns != columns
            {
                return Err(Error::internal(format!("{owner}: its aborted stream does not fit")));
            }
            if !taken.insert(taking.stream) {
                let stream = &input.spec.name;
                return Err(Error::program(format!("{owner} takes stream {stream} twice")));
            }
        }
        for stream in handler.emits.iter().flatten() {
            self.emittable(self.stream(*stream)?)?;
        }
        if handler.is_procedure() && !matches!(handler.body, Body::Opaque(_)) {
            return Err(Error::internal(format!("{owner}: only functions take batches")));
        }
        if !handler.is_procedure() && !handler.more.is_empty() {
            return Err(Error::internal(format!("{owner} takes several streams, but no batches")));
        }
        let input = self.stream(handler.input)?;
        match &handler.body {
            Body::Declared(declared) => {
                self.check_declared(declared, &input.spec.schema, &owner)?;
            }
            Body::Native(native) => match self.natives.get(*native) {
                Some(native) => self.check_native(native, &input.spec.schema, &owner)?,
                None => return Err(Error::internal(format!("{owner}: its closure is missing"))),
            },
            Body::Opaque(opaque) if *opaque >= self.opaques.len() => {
                return Err(Error::internal(format!("{owner}: its function is missing")));
            }
            Body::Opaque(_) => {}
        }
        Ok(())
    }

    /// Returns the types of a declared transaction's nodes.
    pub(crate) fn declared_types(&self, declared: &Declared, event: &Schema) -> Result<Vec<Type>> {
        declared.exprs.types(event, &self.var_types(declared)?)
    }

    fn var_types(&self, declared: &Declared) -> Result<Vec<Type>> {
        let mut vars: Vec<Option<Type>> = Vec::new();
        for step in &declared.steps {
            let Some(var) = step.op.var() else { continue };
            let ty = self.var_type(declared, &step.op).map_err(|e| e.at(step.at.clone()))?;
            if vars.len() <= var.index() {
                vars.resize(var.index() + 1, None);
            }
            if vars[var.index()].replace(ty).is_some() {
                return Err(Error::internal(format!("variable {} is set twice", var.0)));
            }
        }
        vars.into_iter()
            .map(|v| v.ok_or_else(|| Error::internal("a variable is never set")))
            .collect()
    }

    /// Returns the type of the variable that an operation sets.
    fn var_type(&self, declared: &Declared, op: &Op) -> Result<Type> {
        match op {
            Op::Read { row, column, .. } => {
                let table = self.row_table(declared, row.index())?;
                let column = (table.schema.columns.get(usize::from(*column)))
                    .ok_or_else(|| Error::program(format!("no column {column}")))?;
                // A missing row has its defaults. Without a default, the column reads as null.
                Ok(Type { ty: Some(column.ty.clone()), nullable: column.default.is_none() })
            }
            Op::Window { row, column, aggregate, .. } => {
                aggregate.result(self.row_table(declared, row.index())?, *column)
            }
            Op::Range { table, column, aggregate, .. } => {
                aggregate.result(self.table(*table)?, *column)
            }
            _ => Ok(Type { ty: Some(DataType::Bool), nullable: false }),
        }
    }

    fn row_table(&self, declared: &Declared, row: usize) -> Result<&tidemill_core::TableSpec> {
        let row = declared.rows.get(row).ok_or_else(|| Error::internal("no such row"))?;
        self.table(row.table)
    }

    pub(super) fn table(&self, id: TableId) -> Result<&tidemill_core::TableSpec> {
        self.tables
            .get(id.index())
            .ok_or_else(|| Error::program(format!("there is no table {}", id.0)))
    }

    fn check_declared(&self, declared: &Declared, event: &Schema, owner: &str) -> Result<()> {
        let types = self.declared_types(declared, event)?;
        let mut set: HashSet<VarId> = HashSet::new();
        let known = |set: &HashSet<VarId>, id: ExprId| -> Result<()> {
            match first_unset(&declared.exprs, id, set) {
                None => Ok(()),
                Some(var) => Err(Error::internal(format!(
                    "{owner}: variable {} is used before its read",
                    var.0
                ))),
            }
        };
        for row in &declared.rows {
            self.check_row(row, &types, owner).map_err(|e| e.at(row.at.clone()))?;
        }
        for step in &declared.steps {
            let check = |set: &mut HashSet<VarId>| -> Result<()> {
                if let Some(when) = step.when {
                    expect(&types, when, &Column::new("when", DataType::Bool), owner)?;
                    known(set, when)?;
                }
                if let Some(row) = step.op.row() {
                    let row = declared
                        .rows
                        .get(row.index())
                        .ok_or_else(|| Error::internal("no such row"))?;
                    row.key.iter().try_for_each(|key| known(set, *key))?;
                }
                let table = step.op.row().map(|row| declared.rows[row.index()].table);
                if let Some(table) = table.or(step.op.range()) {
                    self.check_engine_table(table, step.op.writes())?;
                }
                if let Some(var) = step.op.var() {
                    if step.when.is_some() {
                        return Err(Error::internal("a read can't depend on a condition"));
                    }
                    set.insert(var);
                }
                match &step.op {
                    Op::Read { .. } | Op::Exists { .. } => {}
                    Op::Window { row, window, .. } => {
                        window.check(self.row_table(declared, row.index())?)?;
                    }
                    Op::Range { table, from, to, .. } => {
                        let table = self.table(*table)?;
                        if !table.ordered {
                            return Err(Error::program(format!(
                                "table {} can't be read by ranges: its keys are in no order",
                                table.name
                            ))
                            .help("declare it with ordered=True"));
                        }
                        for bound in [from, to] {
                            check_key(table, bound, &types, owner, true)?;
                            bound.iter().try_for_each(|key| known(set, *key))?;
                        }
                    }
                    Op::Require { cond, reason } => {
                        expect(&types, *cond, &Column::new("condition", DataType::Bool), owner)?;
                        expect(&types, *reason, &Column::new("reason", DataType::Str), owner)?;
                        known(set, *cond)?;
                        known(set, *reason)?;
                    }
                    Op::Set { row, column, value } => {
                        let table = self.row_table(declared, row.index())?;
                        settable(table, *column, &types, *value)?;
                        known(set, *value)?;
                    }
                    Op::Insert { row, values }
                    | Op::Update { row, values }
                    | Op::Upsert { row, values } => {
                        let table = self.row_table(declared, row.index())?;
                        for (i, (column, value)) in values.iter().enumerate() {
                            settable(table, *column, &types, *value)?;
                            known(set, *value)?;
                            if values[..i].iter().any(|(c, _)| c == column) {
                                let name = &table.schema.columns[usize::from(*column)].name;
                                return Err(Error::program(format!(
                                    "column '{name}' of table {} is set twice",
                                    table.name
                                )));
                            }
                        }
                        let whole = !matches!(step.op, Op::Update { .. });
                        let given = |c: usize| values.iter().any(|(v, _)| usize::from(*v) == c);
                        if let (true, Some(missing)) = (
                            whole,
                            (0..table.schema.len()).find(|c| needs_value(table, *c) && !given(*c)),
                        ) {
                            return Err(Error::program(format!(
                                "a new row of table {} needs a value for column '{}'",
                                table.name, table.schema.columns[missing].name
                            ))
                            .help(
                                "give one, or give the column a default, or make it tm.optional",
                            ));
                        }
                    }
                    Op::Delete { .. } => {}
                    Op::Emit { stream, values } => {
                        let stream = self.stream(*stream)?;
                        let owner = format!("stream {}", stream.spec.name);
                        self.emittable(stream)?;
                        values_fit(&types, values, &stream.spec.schema, &owner)?;
                        values.iter().try_for_each(|v| known(set, *v))?;
                    }
                }
                Ok(())
            };
            check(&mut set).map_err(|e| e.at(step.at.clone()))?;
        }
        Ok(())
    }

    pub(super) fn emittable(&self, stream: &Stream) -> Result<()> {
        match stream.origin {
            Origin::Output(_) | Origin::Emitted => Ok(()),
            _ => Err(Error::program(format!(
                "stream {} has sources of its own or is derived; a handler can't emit into it",
                stream.spec.name
            ))
            .help("declare another stream and emit into that")),
        }
    }

    fn check_row(&self, row: &RowRef, types: &[Type], owner: &str) -> Result<()> {
        check_key(self.table(row.table)?, &row.key, types, owner, false)
    }

    /// Refuses access to tables that the engine keeps: writes to all of them, and reads of a
    /// window's.
    fn check_engine_table(&self, table: TableId, writes: bool) -> Result<()> {
        let table = self.table(table)?;
        match table.keeps {
            Some(EngineUse::Window) => Err(reasons::is_hidden(table).reason),
            Some(EngineUse::Index { .. }) if writes => Err(reasons::is_of_engine(table).reason),
            _ => Ok(()),
        }
        .map_err(Error::program)
    }

    fn check_native(&self, native: &Native, event: &Schema, owner: &str) -> Result<()> {
        let types = native.exprs.types(event, &[])?;
        if native.rows.len() > NATIVE_ROWS_MAX {
            let what = format!("{owner} has {} rows", native.rows.len());
            return Err(Error::program(what).help(format!(
                "a native closure has at most {NATIVE_ROWS_MAX}; an opaque function has no bound"
            )));
        }
        let words = |schema: &Schema, of: &str| -> Result<()> {
            match schema.columns.iter().find(|c| !c.ty.is_word() || c.nullable) {
                None => Ok(()),
                Some(c) => Err(Error::program(format!(
                    "{owner}: a native closure works on words, but column '{}' of {of} is {}{}",
                    c.name,
                    if c.nullable { "nullable " } else { "" },
                    c.ty
                ))),
            }
        };
        words(event, "the event")?;
        for (number, row) in native.rows.iter().enumerate() {
            self.check_row(row, &types, owner)?;
            self.check_engine_table(row.table, native.writes(number))?;
            let table = self.table(row.table)?;
            words(&table.schema, &format!("table {}", table.name))?;
        }
        for stream in &native.emits {
            let stream = self.stream(*stream)?;
            self.emittable(stream)?;
            words(&stream.spec.schema, &format!("stream {}", stream.spec.name))?;
        }
        Ok(())
    }

    /// Returns the streams that a handler may add events to, through triggers too.
    pub fn emits(&self, handler: usize) -> Vec<StreamId> {
        let mut streams = self.emits_itself(handler);
        let set_off = self.triggers_of(handler);
        streams.extend(set_off.iter().flat_map(|trigger| &self.triggers[*trigger].emits));
        streams.sort();
        streams.dedup();
        streams
    }

    /// Returns the streams that a handler's own function or steps may emit into.
    pub(super) fn emits_itself(&self, handler: usize) -> Vec<StreamId> {
        let handler = &self.handlers[handler];
        let mut streams: Vec<StreamId> = match &handler.body {
            Body::Declared(declared) => declared
                .steps
                .iter()
                .filter_map(|s| match &s.op {
                    Op::Emit { stream, .. } => Some(*stream),
                    _ => None,
                })
                .collect(),
            Body::Native(native) => self.natives[*native].emits.clone(),
            // An opaque function without a declaration may emit into every stream that handlers
            // emit into.
            Body::Opaque(_) if handler.emits.is_some() => handler.emits.clone().unwrap_or_default(),
            Body::Opaque(_) => (0..self.streams.len() as u16)
                .map(StreamId)
                .filter(|s| self.streams[s.index()].origin == Origin::Emitted)
                .collect(),
        };
        streams.extend(handler.output);
        streams.extend(handler.inputs().map(|input| input.aborted));
        streams.sort();
        streams.dedup();
        streams
    }

    /// Refuses handlers that feed themselves through outputs: a cascade must end.
    fn check_cycles(&self) -> Result<()> {
        // Depth first over handlers. `path` is the chain that leads here.
        fn visit(
            program: &Program,
            at: usize,
            path: &mut Vec<usize>,
            done: &mut [bool],
        ) -> Result<()> {
            if let Some(start) = path.iter().position(|&h| h == at) {
                let names: Vec<&str> = path[start..]
                    .iter()
                    .chain([&at])
                    .map(|&h| &*program.handlers[h].name)
                    .collect();
                return Err(Error::program(format!(
                    "the outputs of these handlers feed each other without end: {}",
                    names.join(" -> ")
                ))
                .help("emit into a stream that none of them reads")
                .at(program.handlers[at].at.clone()));
            }
            if done[at] {
                return Ok(());
            }
            path.push(at);
            for stream in program.emits(at) {
                // An opaque function without a declaration is trusted not to emit into a stream
                // that it reads. Its events are checked when it runs.
                let opaque = matches!(program.handlers[at].body, Body::Opaque(_));
                let silent = opaque && program.handlers[at].emits.is_none();
                if silent && program.streams[stream.index()].origin == Origin::Emitted {
                    continue;
                }
                for next in program.handlers_on(stream).collect::<Vec<_>>() {
                    visit(program, next, path, done)?;
                }
            }
            path.pop();
            done[at] = true;
            Ok(())
        }
        let mut done = vec![false; self.handlers.len()];
        (0..self.handlers.len()).try_for_each(|h| visit(self, h, &mut Vec::new(), &mut done))
    }
}

/// Refuses an invalid key of a table or, for the `bound` of a range, an invalid beginning of a key.
fn check_key(
    table: &tidemill_core::TableSpec,
    key: &[ExprId],
    types: &[Type],
    owner: &str,
    bound: bool,
) -> Result<()> {
    if if bound { key.len() > table.key.len() } else { key.len() != table.key.len() } {
        let names: Vec<&str> = table.key.iter().map(|c| &*table.schema.columns[*c].name).collect();
        return Err(Error::program(format!(
            "{owner}: table {} has the key ({}), but {} values were given",
            table.name,
            names.join(", "),
            key.len()
        )));
    }
    for (&expr, &column) in key.iter().zip(&table.key) {
        let column = &table.schema.columns[column];
        let given = types.get(expr.index()).and_then(|t| t.ty.as_ref());
        if given != Some(&column.ty) {
            let given = given.map_or("null".to_string(), ToString::to_string);
            return Err(Error::program(format!(
                "key column '{}' of table {} is {}, but the key given is {given}",
                column.name, table.name, column.ty
            )));
        }
    }
    Ok(())
}

/// Returns the last column of an aborted stream. It is `reason`, or `abort_reason` (and so on) if
/// the events have a column of that name, like those of another aborted stream.
pub(crate) fn reason_column(event: &Schema) -> Column {
    let mut name = "reason".to_string();
    while event.index_of(&name).is_some() {
        name.insert_str(0, "abort_");
    }
    Column::new(&name, DataType::Str)
}

fn unique<'a>(what: &str, names: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
    let mut seen = HashSet::new();
    for (name, at) in names {
        if name.is_empty() {
            return Err(Error::program(format!("a {what} has an empty name")).at(at));
        }
        if !seen.insert(name) {
            return Err(Error::program(format!("there are two {what}s named '{name}'")).at(at));
        }
    }
    Ok(())
}

/// Whether a new row must be given a value for this column.
fn needs_value(table: &tidemill_core::TableSpec, column: usize) -> bool {
    let spec = &table.schema.columns[column];
    !table.is_key(column) && !spec.nullable && spec.default.is_none()
}

fn expect(types: &[Type], id: ExprId, column: &Column, owner: &str) -> Result<()> {
    let Some(given) = types.get(id.index()) else {
        return Err(Error::internal(format!("{owner}: there is no expression {}", id.0)));
    };
    match &given.ty {
        Some(ty) if ty.stores_in(&column.ty) => Ok(()),
        None if column.nullable => Ok(()),
        None => Err(Error::program(format!("{owner}: '{}' may not be null", column.name))),
        Some(ty) => Err(Error::program(format!(
            "{owner}: '{}' is {}, but the value given is {ty}",
            column.name, column.ty
        ))
        .help(format!("convert it with tm.cast(x, {})", column.ty))),
    }
}

fn values_fit(types: &[Type], values: &[ExprId], schema: &Schema, owner: &str) -> Result<()> {
    if values.len() != schema.len() {
        return Err(Error::program(format!(
            "{owner} has {} columns, but {} values were given",
            schema.len(),
            values.len()
        )));
    }
    values.iter().zip(&schema.columns).try_for_each(|(v, c)| expect(types, *v, c, owner))
}

fn settable(
    table: &tidemill_core::TableSpec,
    column: u16,
    types: &[Type],
    value: ExprId,
) -> Result<()> {
    let owner = format!("table {}", table.name);
    let Some(spec) = table.schema.columns.get(usize::from(column)) else {
        return Err(Error::program(format!("{owner} has no column {column}")));
    };
    if table.is_key(usize::from(column)) {
        return Err(Error::program(format!(
            "{owner}: '{}' is part of the key and can't be set",
            spec.name
        ))
        .help("delete the row and insert another"));
    }
    expect(types, value, spec, &owner)
}

/// Returns the first variable in an expression that is not among `set`.
fn first_unset(exprs: &Block, id: ExprId, set: &HashSet<VarId>) -> Option<VarId> {
    match exprs.expr(id) {
        Expr::Var(var) => (!set.contains(var)).then_some(*var),
        Expr::Const(_) | Expr::FloatBits(_) | Expr::Column(_) => None,
        Expr::Unary(_, x) => first_unset(exprs, *x, set),
        Expr::Binary(_, a, b) | Expr::Coalesce(a, b) => {
            first_unset(exprs, *a, set).or_else(|| first_unset(exprs, *b, set))
        }
        Expr::Where(a, b, c) => first_unset(exprs, *a, set)
            .or_else(|| first_unset(exprs, *b, set))
            .or_else(|| first_unset(exprs, *c, set)),
    }
}
