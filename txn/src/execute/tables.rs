//! The tables of a program. They store the aggregates of versions that its windows use, and log the
//! columns that its handlers write.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidemill_table::{Aggregates, Table};

use crate::program::{Aggregate, Body, Op, Program};

/// Creates empty tables. `seed` changes nothing that a program can see.
pub fn tables(program: &Program, seed: u64) -> Vec<Table> {
    // The windows of an opaque function are unknown.
    let is_opaque = program.handlers.iter().any(|h| matches!(h.body, Body::Opaque(_)));
    let made = program.tables.iter().enumerate().map(|(number, spec)| {
        let table = Table::new(Arc::new(spec.clone()), seed);
        let table = match written(program, number) {
            Some(columns) => table.with_written_columns(&columns),
            None => table,
        };
        match is_opaque {
            true => table,
            false => table.with_aggregates(&wanted(program, number)),
        }
    });
    made.collect()
}

/// Returns the columns that handlers write in existing rows of a table. Returns `None` if they may
/// be any, or if rows may be deleted.
fn written(program: &Program, table: usize) -> Option<BTreeSet<usize>> {
    // The writes of functions are unknown. (A program that was read from storage has neither
    // functions nor closures.)
    let has_functions = !program.opaques.is_empty() || !program.triggers.is_empty();
    if has_functions || program.tables[table].keeps.is_some() {
        return None;
    }
    let mut columns = BTreeSet::new();
    for handler in &program.handlers {
        match &handler.body {
            Body::Declared(declared) => {
                let is_of = |row: usize| declared.rows[row].table.index() == table;
                for op in declared.steps.iter().map(|step| &step.op) {
                    if !op.writes() || !op.row().is_some_and(|row| is_of(row.index())) {
                        continue;
                    }
                    match op {
                        Op::Set { column, .. } => drop(columns.insert(usize::from(*column))),
                        Op::Update { values, .. } => {
                            columns.extend(values.iter().map(|(column, _)| usize::from(*column)));
                        }
                        // The row did not exist.
                        Op::Insert { .. } => {}
                        _ => return None,
                    }
                }
            }
            Body::Native(native) => {
                let native = program.natives.get(*native)?;
                for (number, row) in native.rows.iter().enumerate() {
                    if row.table.index() == table {
                        columns.extend(native.sets.as_ref()?[number].iter().copied());
                    }
                }
            }
            Body::Opaque(_) => return None,
        }
    }
    Some(columns)
}

/// Returns the aggregates of a table that windows of handlers use. Opaque functions are left out.
fn wanted(program: &Program, table: usize) -> Aggregates {
    let mut wanted = Aggregates::default();
    let mut want = |column: u16, aggregate: &Aggregate| {
        let column = usize::from(column);
        match aggregate {
            Aggregate::Sum | Aggregate::Avg => drop(wanted.sums.insert(column)),
            Aggregate::Min | Aggregate::Max => drop(wanted.extremes.insert(column)),
            Aggregate::Count | Aggregate::First | Aggregate::Last | Aggregate::Fold(_) => {}
        }
    };
    for read in program.window_reads.iter().filter(|read| read.table.index() == table) {
        want(read.column, &read.aggregate);
    }
    for handler in &program.handlers {
        let Body::Declared(declared) = &handler.body else { continue };
        for step in &declared.steps {
            let Op::Window { row, column, aggregate, .. } = &step.op else { continue };
            if declared.rows[usize::from(row.0)].table.index() == table {
                want(*column, aggregate);
            }
        }
    }
    wanted
}
