//! Windows over the versions of a row, and aggregates of windows and of ranges of rows.

use std::cell::Cell;
use std::ops::Range;

use tidemill_core::{encode, rules, DataType, History, Row, TableSpec, Value};
use tidemill_table::Versions;

use crate::program::{evaluate, Abort, Aggregate, Fold, Scope, VarId, Window};

/// The versions of a row as a transaction sees them, in order: those of the table, those of a graph
/// after these, and its own.
pub(super) struct Seen<'a> {
    pub(super) versions: Option<Versions<'a>>,
    /// The versions of a graph, and how many of them count.
    pub(super) graph: Option<(Versions<'a>, u64)>,
    /// The row as earlier transactions of the same unit have written it.
    pub(super) before: &'a [&'a [Value]],
    /// The row as the transaction has written it.
    pub(super) own: Option<&'a [Value]>,
    /// The time of the transaction, in microseconds.
    pub(super) time_us: i64,
}

/// The place of a version.
enum Place<'a> {
    /// A version of the table or the graph, by its number there.
    Held(Versions<'a>, u64),
    /// A row that is not written yet.
    Own(&'a [Value]),
}

impl<'a> Seen<'a> {
    /// Returns the numbers after the table's newest version, and after the graph's.
    fn ends(&self) -> (u64, u64) {
        let held = self.versions.map_or(0, |versions| versions.end());
        (held, held + self.graph.map_or(0, |(_, count)| count))
    }

    fn first(&self) -> u64 {
        self.versions.map_or(0, |versions| versions.first())
    }

    /// Returns the rows that are not written yet.
    fn own(&self) -> impl ExactSizeIterator<Item = &'a [Value]> + '_ {
        let len = self.before.len() + usize::from(self.own.is_some());
        (0..len).map(|nth| self.nth_own(nth).expect("it is one of them"))
    }

    fn nth_own(&self, nth: usize) -> Option<&'a [Value]> {
        self.before.get(nth).copied().or(self.own.filter(|_| nth == self.before.len()))
    }

    fn end(&self) -> u64 {
        self.ends().1 + self.own().len() as u64
    }

    fn place(&self, number: u64) -> Option<Place<'a>> {
        let (held, graph) = self.ends();
        match (self.versions, self.graph) {
            (Some(versions), _) if number < held => Some(Place::Held(versions, number)),
            (_, Some((versions, _))) if number < graph => {
                Some(Place::Held(versions, number - held))
            }
            _ => self.nth_own((number - graph) as usize).map(Place::Own),
        }
    }

    fn time_us(&self, number: u64) -> i64 {
        match self.place(number) {
            Some(Place::Held(versions, number)) => versions.time_us(number),
            _ => self.time_us,
        }
    }

    /// Returns the number of the first version that is not older than `time_us`.
    fn since(&self, time_us: i64) -> u64 {
        let (held, graph) = self.ends();
        let mut since = self.versions.map_or(0, |versions| versions.since(time_us));
        if let (true, Some((versions, count))) = (since == held, self.graph) {
            since += versions.since(time_us).min(count);
        }
        let is_own = since == graph && self.time_us < time_us;
        if is_own {
            self.end()
        } else {
            since
        }
    }

    fn value(&self, number: u64, column: usize) -> Value {
        match self.place(number) {
            Some(Place::Held(versions, number)) => versions.value(number, column),
            Some(Place::Own(own)) => own[column].clone(),
            None => Value::Null,
        }
    }

    fn row(&self, number: u64) -> Row {
        match self.place(number) {
            Some(Place::Held(versions, number)) => versions.row(number),
            Some(Place::Own(own)) => own.into(),
            None => Row::default(),
        }
    }

    /// Returns the stored versions among these, with their numbers there.
    fn held(&self, numbers: &Range<u64>) -> impl Iterator<Item = (Versions<'a>, Range<u64>)> {
        let (held, graph) = self.ends();
        let part = |from: u64, to: u64| {
            numbers.start.clamp(from, to) - from..numbers.end.clamp(from, to) - from
        };
        let of_table = self.versions.map(|versions| (versions, part(0, held)));
        let of_graph = self.graph.map(|(versions, _)| (versions, part(held, graph)));
        of_table.into_iter().chain(of_graph)
    }

    /// Returns the versions in a window.
    pub(super) fn window(&self, window: &Window, history: Option<History>) -> Range<u64> {
        let floor = |size_us: i64| {
            i128::from(self.time_us).div_euclid(i128::from(size_us)) * i128::from(size_us)
        };
        let end = self.end();
        let since = |time_us: i128| match i64::try_from(time_us) {
            Ok(time_us) => self.since(time_us),
            // The time is before all times.
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
                let from = history.and_then(|history| history.retained_from(self.time_us));
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

    /// Aggregates a column of these versions. `looked` counts those that are read one by one.
    pub(super) fn made_of(
        &self,
        numbers: Range<u64>,
        spec: &TableSpec,
        column: u16,
        aggregate: &Aggregate,
        looked: &Cell<u64>,
    ) -> Result<Value, Abort> {
        let column = usize::from(column);
        match self.at_once(&numbers, spec, column, aggregate)? {
            Some(value) => Ok(value),
            None => {
                looked.set(looked.get() + numbers.end.saturating_sub(numbers.start));
                made_of(numbers.map(|number| self.row(number)), spec, column, aggregate)
            }
        }
    }

    /// Aggregates without reading each version, if that is possible.
    fn at_once(
        &self,
        numbers: &Range<u64>,
        spec: &TableSpec,
        column: usize,
        aggregate: &Aggregate,
    ) -> Result<Option<Value>, Abort> {
        // A row under construction may lack columns that can't be null in the end.
        let lacks = self.own().any(|own| own[column].is_null());
        let nullable = spec.schema.columns[column].nullable || lacks;
        let ty = &spec.schema.columns[column].ty;
        // The transaction's own versions among them.
        let (_, graph) = self.ends();
        let own_from = numbers.start.max(graph) - graph;
        let own_to = numbers.end.max(graph) - graph;
        let own = || self.own().take(own_to as usize).skip(own_from as usize);
        let count = numbers.end.saturating_sub(numbers.start);
        Ok(match aggregate {
            Aggregate::Count if !nullable => Some(Value::Int(count as i64)),
            Aggregate::First if count > 0 => Some(self.value(numbers.start, column)),
            Aggregate::Last if count > 0 => Some(self.value(numbers.end - 1, column)),
            Aggregate::Sum | Aggregate::Avg if is_exact(ty) && !nullable => {
                let held = self.held(numbers).map(|(versions, held)| versions.sum(column, held));
                let own = own().map(|own| units(&own[column]));
                match held.chain(own).sum::<Option<i128>>() {
                    Some(sum) if *aggregate == Aggregate::Sum => Some(rules::sum_of(sum, ty)?),
                    Some(sum) if count > 0 => Some(rules::mean_of(sum, count, ty)),
                    _ => None,
                }
            }
            Aggregate::Min | Aggregate::Max
                if ty.is_word() && !nullable && !spec.is_key(column) =>
            {
                let largest = *aggregate == Aggregate::Max;
                let mut all: Vec<Value> = own().map(|own| own[column].clone()).collect();
                for (versions, held) in self.held(numbers).filter(|(_, held)| !held.is_empty()) {
                    let Some(value) = versions.extreme(column, held, largest) else {
                        return Ok(None);
                    };
                    all.push(value);
                }
                match all.len() {
                    0 | 1 => all.pop(),
                    _ => extreme_of(all.into_iter(), largest),
                }
            }
            _ => None,
        })
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

/// Returns the smallest or largest value in the order of encodings.
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

struct Folded<'a> {
    row: &'a [Value],
    state: &'a Value,
}

impl Scope for Folded<'_> {
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
        let folded = Folded { row: &row, state: &state };
        state = evaluate(&fold.exprs, fold.step, &folded)?;
    }
    Ok(state)
}

/// Aggregates a column of rows, in their order.
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
