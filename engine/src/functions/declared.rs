//! Declared transactions as functions: those whose rows follow from what they read, and those that write rows
//! which have entries in indexes. Their owners can't be told beforehand.

use std::sync::Arc;

use tidemill_core::{TableId, Value};
use tidemill_function::{Activation, Call, Context, Step, Stop};
use tidemill_txn::program::Program;
use tidemill_txn::reference::{self, Looked};

/// One that runs: the transaction of a handler on an event.
pub(super) struct Declared {
    program: Arc<Program>,
    handler: usize,
    event: Arc<[Value]>,
}

impl Declared {
    pub(super) fn new(program: &Arc<Program>, handler: usize, call: &Call) -> Declared {
        Declared { program: program.clone(), handler, event: call.args.clone() }
    }
}

impl Activation for Declared {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let Declared { program, handler, event } = self;
        let mut fetch = |what: &Looked| {
            let rows = match what {
                Looked::Row(table, key) => context.get(*table, key)?.into_iter().collect(),
                Looked::Range(table, from, to) => {
                    let common = from.iter().zip(to).take_while(|(from, to)| from == to).count();
                    context.find(*table, &from[..common], u32::MAX)?
                }
            };
            Ok::<_, Stop>(rows.iter().map(|row| row.as_ref().into()).collect())
        };
        let (written, events) = reference::looking(program, *handler, event, &mut fetch)?;
        // In its order: what a unique index refuses depends on what was there just then.
        for (table, key, row) in written {
            match row {
                Some(row) if is_whole(program, table, &row) => context.put(table, &row)?,
                Some(row) => no_other(program, table, &row, context)?,
                None => context.delete(table, &key)?,
            }
        }
        for (stream, row) in events {
            context.emit(stream, &row)?;
        }
        Ok(Step::Done(Value::Null))
    }
}

/// Whether a row has all the values that it must have. One that comes to be column by column has them in the end.
fn is_whole(program: &Program, table: TableId, row: &[Value]) -> bool {
    let columns = &program.tables[table.index()].schema.columns;
    columns.iter().zip(row).all(|(column, value)| column.nullable || !value.is_null())
}

/// Refuses a row that has not all its values yet, where it could not come with those that it has.
fn no_other(
    program: &Program,
    table: TableId,
    row: &[Value],
    context: &mut dyn Context,
) -> Result<(), Stop> {
    for index in program.indexes(table).iter().filter(|index| index.is_unique()) {
        let Some(entry) = index.entry(program, row) else { continue };
        if context.get(index.table, index.key(&entry))?.is_some() {
            return Err(index.is_taken(program, &entry).into());
        }
    }
    Ok(())
}
