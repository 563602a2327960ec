//! Renamed tables and columns in another version of a program.

use std::collections::BTreeMap;

use tidemill_core::error::nearest;
use tidemill_core::{Error, Result, TableSpec};
use tidemill_txn::program::Program;

/// Old names of tables and columns with their new ones. All other names are unchanged.
#[derive(Debug, Default)]
pub(crate) struct Renames {
    tables: BTreeMap<String, String>,
    /// The new names of columns, by old table and old name.
    columns: BTreeMap<(String, String), String>,
}

impl Renames {
    /// Checks and returns the setting `renames`.
    ///
    /// # Errors
    /// When it has a name that does not exist, or gives one name to two.
    pub(crate) fn of(
        given: &BTreeMap<String, String>,
        from: &Program,
        to: &Program,
    ) -> Result<Renames> {
        let mut renames = Renames::default();
        let columns = |name: &str| name.contains('.');
        for (old, new) in given.iter().filter(|(old, new)| !columns(old) && !columns(new)) {
            find_table(from, THERE, old)
                .map_err(|error| done_before(error, find_table(from, THERE, new).is_ok()))?;
            find_table(to, APP, new)?;
            renames.tables.insert(old.clone(), new.clone());
        }
        once("tables", from.tables.iter().map(|t| (&*t.name, renames.table(&t.name))))?;
        for (old, new) in given.iter().filter(|(old, new)| columns(old) || columns(new)) {
            let (Some((old_table, old)), Some((new_table, new))) =
                (old.split_once('.'), new.split_once('.'))
            else {
                return Err(Error::setting(format!(
                    "renames: one of '{old}' and '{new}' is a table, and the other is a column"
                ))
                .help("write columns as table.column, on both sides"));
            };
            let from_table = find_table(from, THERE, old_table)?;
            let to_table = find_table(to, APP, new_table)?;
            if renames.table(old_table) != new_table {
                return Err(Error::setting(format!(
                    "renames: column {old_table}.{old} can't move to table {new_table}"
                ))
                .help(format!(
                    "table {old_table} is {} in the app; put the renamed table into renames, too",
                    renames.table(old_table)
                )));
            }
            find_column(from_table, THERE, old)
                .map_err(|error| done_before(error, find_column(from_table, THERE, new).is_ok()))?;
            find_column(to_table, APP, new)?;
            renames.columns.insert((old_table.to_owned(), old.to_owned()), new.to_owned());
        }
        for table in &from.tables {
            let names = table.schema.columns.iter();
            let names = names.map(|c| (&*c.name, renames.column(&table.name, &c.name)));
            once(&format!("columns of table {}", table.name), names)?;
        }
        Ok(renames)
    }

    /// The new name of a table.
    pub(crate) fn table<'a>(&'a self, old: &'a str) -> &'a str {
        self.tables.get(old).map_or(old, String::as_str)
    }

    /// The new name of a column, by the old name of its table.
    pub(crate) fn column<'a>(&'a self, table: &str, old: &'a str) -> &'a str {
        let key = (table.to_owned(), old.to_owned());
        self.columns.get(&key).map_or(old, String::as_str)
    }
}

/// The place where names are looked up, in words.
const THERE: &str = "the data directory";
const APP: &str = "the app";

/// Refuses two old names with one new one.
fn once<'a>(what: &str, names: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for (old, new) in names {
        if let Some(other) = taken.insert(new, old) {
            return Err(Error::setting(format!(
                "renames: both {other} and {old} of the {what} would become {new}"
            ))
            .help("rename or remove one of them first"));
        }
    }
    Ok(())
}

fn find_table<'a>(program: &'a Program, owner: &str, name: &str) -> Result<&'a TableSpec> {
    let found = program.tables.iter().find(|table| &*table.name == name);
    found.ok_or_else(|| {
        missing(&format!("{owner} has no table '{name}'"), name, || {
            program.tables.iter().map(|table| &*table.name).collect()
        })
    })
}

fn find_column(table: &TableSpec, owner: &str, name: &str) -> Result<()> {
    table.schema.index_of(name).map(drop).ok_or_else(|| {
        missing(&format!("table {} of {owner} has no column '{name}'", table.name), name, || {
            table.schema.columns.iter().map(|column| &*column.name).collect()
        })
    })
}

/// Adds help if the new name exists already, so that the renaming was done before.
fn done_before(error: Error, is_done: bool) -> Error {
    match is_done {
        true => error.help("the new name exists already: remove it from renames"),
        false => error,
    }
}

fn missing<'a>(what: &str, name: &str, names: impl Fn() -> Vec<&'a str>) -> Error {
    let error = Error::setting(format!("renames: {what}"));
    match nearest(name, names()) {
        Some(near) => error.help(format!("did you mean '{near}'?")),
        None => error.help(format!(
            "renames maps old names to new ones, and those that are done must be removed; the \
             present names are {}",
            names().join(", ")
        )),
    }
}
