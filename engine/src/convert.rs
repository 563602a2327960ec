//! Conversion of rows from one schema to another, by the rules of `docs/reference/values.md`. A
//! value becomes what storing it in its new column results in.

use std::sync::Arc;

use tidemill_core::{rules, Column, Schema, Value};

use crate::changes::{counted, Change, Found};

/// The source of a column's values.
#[derive(Clone, Debug)]
enum Origin {
    /// A column, unchanged.
    Same(usize),
    /// A column with another type, or one that could be null.
    Stored(usize),
    /// The same value for every row.
    Fill(Value),
    /// Nothing, for this reason, with a remedy.
    Nowhere(String, &'static str),
}

/// The counts of a column's conversion.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// The rows whose value has changed.
    rounded: u64,
    /// The rows whose value can't be stored, and the reason of the first.
    refused: u64,
    fault: String,
}

/// The conversion from the columns of one schema to those of another.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    from: Arc<Schema>,
    to: Arc<Schema>,
    origins: Vec<Origin>,
    tallies: Vec<Tally>,
}

/// The owner of the columns, in words.
pub(crate) struct Owner<'a> {
    /// `table` or `stream`.
    pub(crate) what: &'static str,
    pub(crate) name: &'a str,
    /// Its former name.
    pub(crate) old: &'a str,
    /// The word for a row.
    pub(crate) row: &'a str,
    /// The number of rows that are converted, and of those that hold removed columns.
    pub(crate) rows: u64,
    pub(crate) held: u64,
}

impl Columns {
    /// Creates a conversion. `names` are the new names of the old columns.
    pub(crate) fn of(from: &Arc<Schema>, to: &Arc<Schema>, names: &[String]) -> Columns {
        let origins = to.columns.iter().map(|column| {
            let index = names.iter().position(|name| **name == *column.name);
            match index {
                Some(index) => conversion(index, &from.columns[index], column),
                None => filling(column),
            }
        });
        let origins: Vec<Origin> = origins.collect();
        let tallies = vec![Tally::default(); origins.len()];
        Columns { from: from.clone(), to: to.clone(), origins, tallies }
    }

    /// Creates a conversion of columns that have kept their names.
    pub(crate) fn by_name(from: &Arc<Schema>, to: &Arc<Schema>) -> Columns {
        Columns::of(from, to, &names_of(from))
    }

    /// The new columns.
    pub(crate) fn to(&self) -> &Arc<Schema> {
        &self.to
    }

    /// Whether rows stay as they are.
    pub(crate) fn is_same(&self) -> bool {
        let same = |(index, origin): (usize, &Origin)| matches!(origin, Origin::Same(from) if *from == index);
        self.from.len() == self.to.len() && self.origins.iter().enumerate().all(same)
    }

    /// Whether the conversion of a row depends on its values.
    pub(crate) fn depends_on_values(&self) -> bool {
        self.origins.iter().any(|origin| matches!(origin, Origin::Stored(_)))
    }

    /// Whether the conversion has changed values of a column.
    pub(crate) fn rounds(&self, column: usize) -> bool {
        self.tallies[column].rounded > 0
    }

    /// Converts a row; `None` when that is not possible, which is counted.
    pub(crate) fn row(&mut self, row: &[Value]) -> Option<Vec<Value>> {
        let mut converted = Vec::with_capacity(self.origins.len());
        for (index, origin) in self.origins.iter().enumerate() {
            let tally = &mut self.tallies[index];
            let value = match origin {
                Origin::Same(from) => Some(row[*from].clone()),
                Origin::Stored(from) => match rules::store(&row[*from], &self.to.columns[index]) {
                    Ok(value) => {
                        // NaN equals nothing, but it stays the same.
                        let is_other = self.from.columns[*from].ty != self.to.columns[index].ty
                            && !rules::equal(&row[*from], &value);
                        tally.rounded += u64::from(is_other);
                        Some(value)
                    }
                    Err(fault) => {
                        if tally.refused == 0 {
                            tally.fault = fault.to_string();
                        }
                        tally.refused += 1;
                        None
                    }
                },
                Origin::Fill(value) => Some(value.clone()),
                Origin::Nowhere(..) => None,
            };
            converted.extend(value);
        }
        (converted.len() == self.origins.len()).then_some(converted)
    }

    /// Returns the differences, after the conversion of all rows that matter.
    pub(crate) fn found(&self, names: &[String], owner: &Owner<'_>) -> Found {
        let mut found = Found::default();
        let Owner { what, name, old, row, rows, held } = *owner;
        for (index, column) in self.to.columns.iter().enumerate() {
            let (origin, tally) = (&self.origins[index], &self.tallies[index]);
            let full = format!("{name}.{}", column.name);
            // The earlier version can still execute waiting events.
            let or_wait = match what {
                "stream" => ", or run the earlier version until none of its events wait",
                _ => "",
            };
            let refused = match origin {
                Origin::Nowhere(why, mend) if rows > 0 => Some(format!("{why}: {mend}{or_wait}")),
                _ if tally.refused > 0 => Some(format!(
                    "has {} that can't be converted ({}): leave its type as it is, or correct them \
                     with the version that wrote them{or_wait}",
                    counted(tally.refused, "value"),
                    tally.fault
                )),
                _ => None,
            };
            if let Some(why) = &refused {
                found.why.push(format!("column {full} {why}"));
            }
            let become_of = |otherwise: String| match &refused {
                Some(_) => "it prevents an upgrade".to_owned(),
                None => otherwise,
            };
            let before = names.iter().position(|before| **before == *column.name);
            let Some(before) = before.map(|index| &self.from.columns[index]) else {
                let upgrade = match origin {
                    Origin::Fill(value) => become_of(format!("{value} in every {row}")),
                    _ => become_of(format!("there is no {row}")),
                };
                found.push(Change::new("column", "added", full, upgrade));
                continue;
            };
            if before.name != column.name {
                let change = Change::new("column", "renamed", full.clone(), "kept");
                found.push(change.from(format!("{old}.{}", before.name)));
            }
            if shown(before) != shown(column) {
                let is_wider = widens(before, column) && tally.rounded == 0;
                let kind = if is_wider { "widened" } else { "changed" };
                let upgrade = match (origin, tally.rounded) {
                    (Origin::Same(_), _) => "kept".to_owned(),
                    (_, 0) => "converted".to_owned(),
                    (_, rounded) => format!("converted; {} rounded", counted(rounded, "value")),
                };
                let change = Change::new("column", kind, full, become_of(upgrade));
                let change = change.from(shown(before)).to(shown(column));
                found.push(change.loses(tally.rounded > 0 || refused.is_some()));
            } else if before.default != column.default {
                let default = |column: &Column| match &column.default {
                    Some(value) => format!("default {value}"),
                    None => "no default".to_owned(),
                };
                let upgrade = format!("every {row} stays as it is");
                let change = Change::new("column", "changed", full, upgrade);
                found.push(change.from(default(before)).to(default(column)));
            }
        }
        for (before, now) in self.from.columns.iter().zip(names) {
            if self.to.index_of(now).is_none() {
                let upgrade = match held {
                    0 => format!("there is no {row}"),
                    _ => format!("its values in {} are dropped", counted(held, row)),
                };
                let full = format!("{old}.{}", before.name);
                found.push(Change::new("column", "removed", full, upgrade).loses(held > 0));
            }
        }
        let order = names.iter().filter_map(|name| self.to.index_of(name));
        if !order.is_sorted() {
            let upgrade = format!("every {row} is rewritten");
            let change = Change::new(what, "changed", name, upgrade);
            found.push(change.from("columns in another order"));
        }
        found
    }
}

/// The names of columns.
pub(crate) fn names_of(schema: &Schema) -> Vec<String> {
    schema.columns.iter().map(|column| column.name.to_string()).collect()
}

fn conversion(index: usize, from: &Column, to: &Column) -> Origin {
    if from.ty == to.ty && (to.nullable || !from.nullable) {
        Origin::Same(index)
    } else if from.ty.stores_in(&to.ty) {
        Origin::Stored(index)
    } else {
        let why = format!("was {} and can't be converted to {}", shown(from), shown(to));
        Origin::Nowhere(why, "keep the type, or give the new column another name")
    }
}

fn filling(column: &Column) -> Origin {
    match &column.default {
        // The value is as its column stores it: an int may stand for a decimal.
        Some(default) => match rules::store(default, column) {
            Ok(value) => Origin::Fill(value),
            Err(fault) => Origin::Nowhere(format!("has a wrong default ({fault})"), "correct it"),
        },
        None if column.nullable => Origin::Fill(Value::Null),
        None => Origin::Nowhere(
            "is new, has no default and may not be null".to_owned(),
            "give it a default, or make it optional",
        ),
    }
}

/// Whether every value has an equal one in the wider column, by its type. An int in a float column
/// has one where it is small enough.
fn widens(from: &Column, to: &Column) -> bool {
    use tidemill_core::DataType::Decimal;
    let fits = match (&from.ty, &to.ty) {
        (Decimal(from), Decimal(to)) => from <= to,
        (from, to) => from.stores_in(to),
    };
    fits && (to.nullable || !from.nullable)
}

fn shown(column: &Column) -> String {
    match column.nullable {
        true => format!("optional({})", column.ty),
        false => column.ty.to_string(),
    }
}
