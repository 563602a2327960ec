//! Versions of rows in snapshots of earlier versions of Tidemill. There they were rows of a second
//! table, whose columns were the key, a number, a time and the row.

use std::sync::Arc;

use tidemill_core::{encode, Result, TableId, Value};
use tidemill_durable::Store;
use tidemill_place::partition_of_bytes;
use tidemill_snapshot::{DataObject, Loader, Part, SHARDS};
use tidemill_table::StoredVersion;
use tidemill_txn::Program;

use super::Converted;
use crate::compare::{damaged, decode};
use crate::renames::Renames;

/// The prefix of the names of these tables.
const VERSIONS: &str = "tidemill.versions.";

/// The tables of versions of a program: their numbers, and those of the tables of the rows.
fn tables(program: &Program) -> Vec<(usize, usize)> {
    let of = |(number, table): (usize, &tidemill_core::TableSpec)| {
        let name = table.name.strip_prefix(VERSIONS)?;
        let rows = program.tables.iter().position(|rows| *rows.name == *name)?;
        Some((number, rows))
    };
    program.tables.iter().enumerate().filter_map(of).collect()
}

/// Returns the program without these tables. Tables have the histories that they have in the next
/// version of the program. Returns `None` if there are no such tables.
pub(super) fn without(was: &Program, next: &Program, renames: &Renames) -> Option<Program> {
    let tables = tables(was);
    if tables.is_empty() {
        return None;
    }
    let mut program = was.clone();
    for (_, rows) in &tables {
        let name = renames.table(&was.tables[*rows].name);
        let now = next.tables.iter().find(|table| *table.name == *name);
        program.tables[*rows].history = now.and_then(|table| table.history);
    }
    let mut number = 0..;
    program.tables.retain(|_| {
        let number = number.next();
        tables.iter().all(|(versions, _)| Some(*versions) != number)
    });
    Some(program)
}

/// Stores a snapshot of the program with these tables as one of the program [`without`] them.
///
/// # Errors
/// If the store fails, or an object is missing or damaged.
pub(super) fn convert(
    store: &Arc<dyn Store>,
    (program, objects): (u128, &[DataObject]),
    (was, is): (&Program, &Program),
    converted: &mut Converted,
) -> Result<()> {
    let versions = tables(was);
    let count = is.tables.len();
    let number = |table: usize| {
        let before = versions.iter().filter(|(versions, _)| *versions < table).count();
        TableId((table - before) as u16)
    };
    let (mut key, mut bytes) = (Vec::new(), Vec::new());
    Loader::of(store, program, objects)?.changes(0..SHARDS, |change| {
        let (table, Some(row)) = (change.table.index(), change.row) else { return Ok(()) };
        let Some((_, rows)) = versions.iter().find(|(versions, _)| *versions == table) else {
            converted.push(number(table), change.partition, change.key, row);
            return Ok(());
        };
        let (of, spec) = (&was.tables[*rows], &was.tables[table]);
        let values = decode(spec, row)?;
        let keys = of.key.len();
        let (Value::Int(n), Value::Timestamp(at)) = (&values[keys], &values[keys + 1]) else {
            return Err(damaged(spec));
        };
        // A row with a negative number only counts the others.
        let Ok(n) = u64::try_from(*n) else { return Ok(()) };
        if is.tables[number(*rows).index()].history.is_none() {
            return Ok(());
        }
        key.clear();
        values[..keys].iter().for_each(|value| encode::key(value, &mut key));
        let partition = partition_of_bytes(of, &key);
        StoredVersion::put_number(n, &mut key);
        bytes.clear();
        StoredVersion::put_time(*at, &mut bytes);
        values[keys + 2..].iter().for_each(|value| encode::value(value, &mut bytes));
        let table = Part::Version(number(*rows).index()).number(count);
        converted.push(table, partition, &key, &bytes);
        Ok(())
    })
}
