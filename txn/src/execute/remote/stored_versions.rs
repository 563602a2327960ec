//! Versions of rows on several processes. They are rows of a second table, and each transaction
//! appends a version of every row that it writes. So a window over them is a range of rows like any
//! other.

use std::collections::BTreeMap;

use tidemill_core::{Column, DataType, Row, TableId, TableSpec, Value};

use super::{numbered, RemoteStore};
use crate::execute::window::{IsUnneeded, Version};
use crate::program::{Abort, Program, Take};

/// The table of versions of each table with a history. Its columns are the key, a number, a time,
/// and the row.
#[derive(Debug, Default)]
pub struct StoredVersions(BTreeMap<TableId, TableId>);

/// The number of a row that is not a version. Its time field holds how many versions there have
/// been.
const MARK: i64 = -1;
/// The most expired versions that one append removes.
const FORGET_MAX: usize = 4;
/// The number of versions in the first read.
const READ_FIRST: i64 = 16;

impl StoredVersions {
    /// Adds these tables to a program.
    pub fn add(program: &mut Program) -> StoredVersions {
        let mut kept = BTreeMap::new();
        for table in 0..program.tables.len() {
            let of = &program.tables[table];
            if of.history.is_none() {
                continue;
            }
            let key = of.key.iter().map(|column| of.schema.columns[*column].clone());
            let own = [Column::new("n", DataType::Int), Column::new("at", DataType::Timestamp)];
            let values = of.schema.columns.iter().cloned().map(Column::nullable);
            let schema = numbered(key.chain(own).chain(values));
            let keys = of.key.len();
            let name = format!("tidemill.versions.{}", of.name);
            let mut spec = TableSpec::new(&name, (0..=keys).collect(), schema.into());
            (spec.ordered, spec.partition_prefix) = (true, Some(keys));
            kept.insert(TableId(table as u16), TableId(program.tables.len() as u16));
            program.tables.push(spec);
        }
        program.forget();
        StoredVersions(kept)
    }

    /// Appends the version of a row that a transaction has written, if its table has a history.
    pub(super) fn append(
        &self,
        program: &Program,
        (table, key): (TableId, &[Value]),
        row: &[Value],
        time_us: i64,
        rows: &mut impl RemoteStore,
    ) -> Result<(), Abort> {
        let Some(&of) = self.0.get(&table) else { return Ok(()) };
        let history = program.tables[table.index()].history;
        let history = history.unwrap_or_default();
        let first = rows.leading(of, key, Take::First(2))?;
        let number = |row: &Row| match row[key.len()] {
            Value::Int(number) => number,
            _ => unreachable!("it is a number"),
        };
        let next = match first.first().map(|mark| (number(mark), &mark[key.len() + 1])) {
            Some((MARK, Value::Timestamp(next))) => *next,
            _ => 0,
        };
        let mut write = |number: i64, at: i64, row: Vec<Value>| {
            let own = [Value::Int(number), Value::Timestamp(at)];
            let head: Vec<Value> = key.iter().cloned().chain(own).collect();
            let row: Vec<Value> = head.iter().cloned().chain(row).collect();
            rows.write(of, &head[..=key.len()], Some(&row))
        };
        write(next, time_us, row.to_vec())?;
        write(MARK, next + 1, vec![Value::Null; row.len()])?;
        let is_kept = |number: i64, time: i64| {
            let by_count = |kept: u64| number.cast_unsigned() + kept > next.cast_unsigned();
            history.retained_from(time_us).is_some_and(|from| time >= from)
                || history.versions.is_some_and(by_count)
        };
        let Some(oldest) = first.get(1).map(number) else { return Ok(()) };
        for number in (oldest..next).take(FORGET_MAX) {
            let at: Vec<Value> = key.iter().cloned().chain([Value::Int(number)]).collect();
            let time = rows.row(of, &at)?.map(|row| row[at.len()].clone());
            match time {
                Some(Value::Timestamp(time)) if is_kept(number, time) => break,
                _ => rows.write(of, &at, None)?,
            }
        }
        Ok(())
    }

    /// Returns the retained versions of a row, oldest first, as far back as the caller needs them.
    /// `is_unneeded` gets a version's number, its time and the next version's number. It returns
    /// whether that version and all before it are unneeded. Reads go backwards from the newest
    /// version in growing pieces, so a short window over many versions reads few.
    ///
    /// # Errors
    /// If the rows are not available.
    pub(super) fn versions(
        &self,
        table: TableId,
        key: &[Value],
        is_unneeded: IsUnneeded<'_>,
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<Version>, Abort> {
        let Some(of) = self.0.get(&table) else { return Ok(Vec::new()) };
        let at = |number: i64| -> Vec<Value> {
            key.iter().cloned().chain([Value::Int(number)]).collect()
        };
        let version = |row: Row| match (&row[key.len()], &row[key.len() + 1]) {
            (Value::Int(number), Value::Timestamp(time)) => {
                (number.cast_unsigned(), *time, row[key.len() + 2..].into())
            }
            _ => unreachable!("a number and a time"),
        };
        let next = match rows.row(*of, &at(MARK))?.map(|mark| mark[key.len() + 1].clone()) {
            Some(Value::Timestamp(next)) => next,
            _ => return Ok(Vec::new()),
        };
        let (mut parts, mut to, mut many) = (Vec::new(), next, READ_FIRST);
        while to > 0 {
            let from = to.saturating_sub(many).max(0);
            let part = rows.range(*of, &at(from), &at(to), Take::ALL)?;
            let part: Vec<Version> = part.into_iter().map(version).collect();
            // A missing version means that all versions before it have been removed.
            let is_all = (part.len() as i64) < to - from;
            let is_enough = part
                .first()
                .is_none_or(|(number, time, _)| is_unneeded(*number, *time, next.cast_unsigned()));
            parts.push(part);
            if is_all || is_enough {
                break;
            }
            (to, many) = (from, many.saturating_mul(2));
        }
        Ok(parts.into_iter().rev().flatten().collect())
    }
}
