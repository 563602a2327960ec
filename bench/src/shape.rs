//! The parts of a program that its workload refers to, whatever the program's origin.

use std::sync::Arc;

use tidemill_core::{Column, Error, HandlerId, Result, SourceSpec, StreamId, TableId};
use tidemill_txn::program::{Body, Origin};
use tidemill_txn::Program;

use crate::events::Input;

/// A program, with the places of its parts.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) program: Arc<Program>,
    /// The workload's tables.
    pub(crate) tables: Vec<TableId>,
    /// Its input streams.
    pub(crate) inputs: Vec<Input>,
}

/// Finds the [`parts`] of a program that has only handlers on its input streams.
pub(crate) fn find_only(title: &str, program: Program, frame: &Program) -> Result<Parts> {
    let parts = parts(title, program, frame)?;
    if parts.program.handlers.len() != parts.inputs.len() {
        return wrong(title, "its handlers must be those on its input streams, and no others");
    }
    Ok(parts)
}

fn wrong<T>(title: &str, what: impl std::fmt::Display) -> Result<T> {
    Err(Error::program(format!("this is not {title}: {what}")))
}

/// Finds the tables and input streams of `frame` in a program, and adds a source for each stream.
/// The program must have one handler on each of these streams. `frame` has no other parts.
pub(crate) fn parts(title: &str, mut program: Program, frame: &Program) -> Result<Parts> {
    let wrong = |what: String| wrong(title, what);
    let mut tables = Vec::new();
    for want in &frame.tables {
        let name = &want.name;
        let Some(index) = program.tables.iter().position(|t| t.name == *name) else {
            return wrong(format!("it has no table {name}"));
        };
        let spec = &program.tables[index];
        if spec.schema.columns != want.schema.columns || spec.key != want.key {
            let key = &want.schema.columns[want.key[0]].name;
            let columns = listed(&want.schema.columns);
            return wrong(format!("table {name} must have the key '{key}' and be {columns}"));
        }
        if spec.ordered != want.ordered {
            return wrong(format!("table {name} must be ordered where ranges of it are read"));
        }
        if spec.history != want.history {
            return wrong(format!("table {name} must have the history that its windows need"));
        }
        tables.push(TableId(index as u16));
    }
    let mut inputs = Vec::new();
    for want in frame.streams.iter().filter(|s| s.origin == Origin::Input) {
        let name = &want.spec.name;
        let Some(index) = program.streams.iter().position(|s| s.spec.name == *name) else {
            return wrong(format!("it has no stream {name}"));
        };
        let (spec, id) = (&program.streams[index].spec, StreamId(index as u16));
        if spec.schema.columns != want.spec.schema.columns {
            let columns = listed(&want.spec.schema.columns);
            return wrong(format!("the columns of stream {name} must be {columns}"));
        }
        if spec.time != want.spec.time {
            return wrong(format!("the time of stream {name} must be its first column"));
        }
        if program.handlers_on(id).count() != 1 {
            return wrong(format!("one handler must take the stream {name}"));
        }
        inputs.push((id, spec.schema.clone()));
    }
    let source = |(id, _): &Input| SourceSpec {
        name: format!("generated {}", program.streams[id.index()].spec.name).into(),
        stream: *id,
        out_of_orderness_us: 0,
        idle_us: None,
    };
    program.sources = inputs.iter().map(source).collect();
    program.check()?;
    Ok(Parts { program: program.into(), tables, inputs })
}

/// Adds the stream and the handler of `opening` to the program; returns the program and the stream.
/// The handler fills the workload's tables before the first event. The program has no sources.
pub(crate) fn with_opening(parts: &Parts, opening: Program) -> Result<(Program, StreamId)> {
    // New parts are placed after the existing ones.
    let mut program = (*parts.program).clone();
    program.sources.clear();
    let (stream, handler) = (program.streams.len() as u16, program.handlers.len() as u16);
    for mut added in opening.streams {
        if let Origin::Aborted(of) = &mut added.origin {
            *of = HandlerId(handler);
        }
        program.streams.push(added);
    }
    for mut added in opening.handlers {
        added.input = StreamId(stream);
        added.aborted = StreamId(stream + 1);
        if let Body::Declared(declared) = &mut added.body {
            for row in &mut declared.rows {
                row.table = parts.tables[row.table.index()];
            }
        }
        program.handlers.push(added);
    }
    program.check()?;
    Ok((program, StreamId(stream)))
}

fn listed(columns: &[Column]) -> String {
    let one = |c: &Column| match &c.default {
        Some(default) => format!("{} {} = {default}", c.name, c.ty),
        None => format!("{} {}", c.name, c.ty),
    };
    columns.iter().map(one).collect::<Vec<_>>().join(", ")
}
