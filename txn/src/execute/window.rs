//! Windows over the versions of a row, and what is made of them and of ranges of rows.

use std::ops::Range;

use tidemill_core::{encode, rules, DataType, History, Row, TableSpec, Value};
use tidemill_table::Versions;

use crate::program::{evaluate, Abort, Aggregate, Fold, Scope, VarId, Window};

/// The versions of a row as a transaction sees them: those of the table, and its own.
pub(super) struct Seen<'a> {
    pub(super) versions: Option<Versions<'a>>,
    /// The row as the transaction has written it.
    pub(super) own: Option<&'a [Value]>,
    /// The time of the transaction.
    pub(super) time_us: i64,
}

impl Seen<'_> {
    /// The number behind the table's newest version, which is that of the transaction's own.
    fn newest(&self) -> u64 {
        self.versions.map_or(0, |versions| versions.end())
    }

    fn first(&self) -> u64 {
        self.versions.map_or(0, |versions| versions.first())
    }

    fn end(&self) -> u64 {
        self.newest() + u64::from(self.own.is_some())
    }

    fn time_us(&self, number: u64) -> i64 {
        match self.versions {
            Some(versions) if number < versions.end() => versions.time_us(number),
            _ => self.time_us,
        }
    }

    /// The number of the first version that is not older than `time_us`.
    fn since(&self, time_us: i64) -> u64 {
        let since = self.versions.map_or(0, |versions| versions.since(time_us));
        since + u64::from(since == self.newest() && self.own.is_some() && self.time_us < time_us)
    }

    fn value(&self, number: u64, column: usize) -> Value {
        match (self.versions, self.own) {
            (Some(versions), _) if number < versions.end() => versions.value(number, column),
            (_, Some(own)) => own[column].clone(),
            (_, None) => Value::Null,
        }
    }

    fn row(&self, number: u64) -> Row {
        match (self.versions, self.own) {
            (Some(versions), _) if number < versions.end() => versions.row(number),
            (_, own) => own.unwrap_or_default().into(),
        }
    }

    /// The versions in a window.
    pub(super) fn window(&self, window: &Window, history: Option<History>) -> Range<u64> {
        let floor = |size_us: i64| {
            i128::from(self.time_us).div_euclid(i128::from(size_us)) * i128::from(size_us)
        };
        let end = self.end();
        let since = |time_us: i128| match i64::try_from(time_us) {
            Ok(time_us) => self.since(time_us),
            // Before all times.
            Err(_) => self.first(),
        };
        match *window {
            Window::Sliding { size_us } => {
                self.since(self.time_us.saturating_sub(size_us - 1))..end
            }
            Window::Tumbling { size_us } => since(floor(size_us))..end,
            Window::Hopping { size_us, slide_us } => {
                let behind = floor(slide_us);
                since(behind - i128::from(size_us))..since(behind)
            }
            Window::Session { gap_us } => {
                let from = history.and_then(|history| history.kept_from(self.time_us));
                let oldest = self.since(from.unwrap_or(self.time_us));
                let (mut first, mut last_us) = (end, self.time_us);
                while first > oldest {
                    let time_us = self.time_us(first - 1);
                    if last_us.abs_diff(time_us) > gap_us as u64 {
                        break;
                    }
                    (first, last_us) = (first - 1, time_us);
                }
                first..end
            }
            Window::Last { versions } => end.saturating_sub(versions).max(self.first())..end,
            Window::TumblingVersions { versions } => {
                let begun = end.saturating_sub(1) / versions * versions;
                begun.max(self.first())..end
            }
        }
    }

    /// What an aggregate makes of a column of these versions.
    pub(super) fn made_of(
        &self,
        numbers: Range<u64>,
        spec: &TableSpec,
        column: u16,
        aggregate: &Aggregate,
    ) -> Result<Value, Abort> {
        let column = usize::from(column);
        // A row that is being made may lack columns that may not be null in the end.
        let lacks = self.own.is_some_and(|own| own[column].is_null());
        let nullable = spec.schema.columns[column].nullable || lacks;
        let ty = &spec.schema.columns[column].ty;
        // The table's versions among them, and whether the transaction's own is the last.
        let held = numbers.start.min(self.newest())..numbers.end.min(self.newest());
        let own = (numbers.end > self.newest()).then_some(self.own).flatten();
        let count = numbers.end.saturating_sub(numbers.start);
        let quick = match aggregate {
            Aggregate::Count if !nullable => Some(Value::Int(count as i64)),
            Aggregate::First if count > 0 => Some(self.value(numbers.start, column)),
            Aggregate::Last if count > 0 => Some(self.value(numbers.end - 1, column)),
            Aggregate::Sum | Aggregate::Avg => {
                let held = self.versions.map_or(Some(0), |versions| versions.sum(column, held));
                let own = own.map_or(Some(0), |own| units(&own[column]));
                match held.zip(own).map(|(held, own)| held + own) {
                    Some(sum) if *aggregate == Aggregate::Sum && is_exact(ty) && !nullable => {
                        Some(rules::sum_of(sum, ty)?)
                    }
                    Some(sum) if count > 0 && is_exact(ty) && !nullable => {
                        Some(rules::mean_of(sum, count, ty))
                    }
                    _ => None,
                }
            }
            Aggregate::Min | Aggregate::Max if ty.is_word() && !nullable => {
                let largest = *aggregate == Aggregate::Max;
                let extreme = |versions: Versions<'_>| versions.extreme(column, held, largest);
                let held = self.versions.and_then(extreme).filter(|_| !spec.is_key(column));
                match (held, own) {
                    (held, None) => held,
                    (held, Some(own)) => {
                        let both = held.into_iter().chain([own[column].clone()]);
                        (!spec.is_key(column)).then(|| extreme_of(both, largest)).flatten()
                    }
                }
            }
            _ => None,
        };
        match quick {
            Some(value) => Ok(value),
            None => made_of(numbers.map(|number| self.row(number)), spec, column, aggregate),
        }
    }
}

/// Whether sums of a type are exact.
fn is_exact(ty: &DataType) -> bool {
    matches!(ty, DataType::Int | DataType::Decimal(_))
}

fn units(value: &Value) -> Option<i128> {
    match value {
        Value::Int(units) | Value::Decimal(units, _) => Some(i128::from(*units)),
        _ => None,
    }
}

/// The smallest or largest in the order of encodings.
fn extreme_of(values: impl Iterator<Item = Value>, largest: bool) -> Option<Value> {
    let ranked = values.map(|value| {
        let mut bytes = Vec::new();
        encode::value(&value, &mut bytes);
        (bytes, value)
    });
    let compare = |a: &(Vec<u8>, Value), b: &(Vec<u8>, Value)| a.0.cmp(&b.0);
    let found = if largest { ranked.max_by(compare) } else { ranked.min_by(compare) };
    found.map(|(_, value)| value)
}

struct Version<'a> {
    row: &'a [Value],
    state: &'a Value,
}

impl Scope for Version<'_> {
    fn column(&self, column: u16) -> Value {
        self.row[usize::from(column)].clone()
    }

    fn var(&self, _: VarId) -> Value {
        self.state.clone()
    }
}

fn fold(fold: &Fold, rows: impl Iterator<Item = Row>) -> Result<Value, Abort> {
    let mut state = fold.start();
    for row in rows {
        let version = Version { row: &row, state: &state };
        state = evaluate(&fold.exprs, fold.step, &version)?;
    }
    Ok(state)
}

/// What an aggregate makes of a column of rows, one after another.
pub(super) fn made_of(
    rows: impl Iterator<Item = Row>,
    spec: &TableSpec,
    column: usize,
    aggregate: &Aggregate,
) -> Result<Value, Abort> {
    if let Aggregate::Fold(user) = aggregate {
        return fold(user, rows);
    }
    let ty = &spec.schema.columns[column].ty;
    let mut all = rows.map(|row| row[column].clone());
    Ok(match aggregate {
        Aggregate::First => all.next().unwrap_or(Value::Null),
        Aggregate::Last => all.last().unwrap_or(Value::Null),
        Aggregate::Min | Aggregate::Max => {
            let largest = *aggregate == Aggregate::Max;
            extreme_of(all.filter(|value| !value.is_null()), largest).unwrap_or(Value::Null)
        }
        _ => {
            let (mut count, mut exact, mut floats) = (0u64, 0i128, 0f64);
            for value in all.filter(|value| !value.is_null()) {
                count += 1;
                match value {
                    Value::Float(float) => floats += float,
                    value => exact += units(&value).unwrap_or(0),
                }
            }
            match (aggregate, ty) {
                (Aggregate::Count, _) => Value::Int(count as i64),
                (Aggregate::Sum, DataType::Float) => Value::Float(floats),
                (Aggregate::Sum, ty) => rules::sum_of(exact, ty)?,
                _ if count == 0 => Value::Null,
                (_, DataType::Float) => Value::Float(floats / count as f64),
                (_, ty) => rules::mean_of(exact, count, ty),
            }
        }
    })
}
