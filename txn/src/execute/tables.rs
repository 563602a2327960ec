//! The tables of a program, which keep of the versions of rows what its windows ask for.

use std::sync::Arc;

use tidemill_table::{Table, Wanted};

use crate::program::{Aggregate, Body, Op, Program};

/// Empty tables. `seed` changes nothing that a program can see.
pub fn tables(program: &Program, seed: u64) -> Vec<Table> {
    // Nobody knows what an opaque function asks for.
    let is_opaque = program.handlers.iter().any(|h| matches!(h.body, Body::Opaque(_)));
    let made = program.tables.iter().enumerate().map(|(number, spec)| {
        let table = Table::new(Arc::new(spec.clone()), seed);
        match is_opaque {
            true => table,
            false => table.wanting(&wanted(program, number)),
        }
    });
    made.collect()
}

/// What the windows of handlers that are no opaque functions ask of a table.
fn wanted(program: &Program, table: usize) -> Wanted {
    let mut wanted = Wanted::default();
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
