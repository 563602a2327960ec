//! The versions of a row, compared with a list of them.

use std::sync::Arc;

use proptest::prelude::*;
use tidemill_core::{Column, DataType, History, Row, TableSpec, Value};

use super::Aggregates;
use crate::{Opened, Table, HEADER_WORDS};

fn spec(history: History) -> Arc<TableSpec> {
    let columns = vec![
        Column::new("id", DataType::Int),
        Column::new("n", DataType::Int),
        Column::new("f", DataType::Float),
        Column::new("s", DataType::Str),
    ];
    let mut spec = TableSpec::new("t", vec![0], Arc::new(tidemill_core::Schema::new(columns)));
    spec.history = Some(history);
    Arc::new(spec)
}

fn row(n: i64, f: f64) -> Vec<Value> {
    vec![Value::Int(7), Value::Int(n), Value::Float(f), Value::str(&n.to_string())]
}

/// The next action on the row.
#[derive(Clone, Debug)]
enum Step {
    Put(i64, f64),
    Delete,
    /// A cut, after so much time.
    Cut(i64),
    /// A burst of writes of the row, with their number.
    Burst(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let float = prop_oneof![Just(f64::NAN), Just(-0.0), Just(0.0), any::<i8>().prop_map(f64::from)];
    let step = prop_oneof![
        6 => (prop_oneof![any::<i64>(), -9..9i64], float).prop_map(|(n, f)| Step::Put(n, f)),
        1 => Just(Step::Delete),
        2 => (0..50i64).prop_map(Step::Cut),
        2 => any::<u8>().prop_map(Step::Burst),
    ];
    proptest::collection::vec(step, 1..60)
}

/// The number, time and row of each version.
type Listed = Vec<(u64, i64, Row)>;

fn check(table: &Table, all: &Listed, from: u64) {
    let versions = table.versions(&[Value::Int(7)]).expect("the row has been there");
    let end = versions.end();
    assert_eq!(end, all.len() as u64, "versions are numbered");
    assert!(versions.first() <= from, "{from} is retained");
    let kept = &all[from as usize..];
    for (number, time_us, row) in kept {
        assert_eq!((versions.time_us(*number), &versions.row(*number)), (*time_us, row));
    }
    let middle = from + (end - from) / 3;
    for numbers in [from..end, middle..end, from..middle, middle..(middle + end) / 2, end..end] {
        let of = &all[numbers.start as usize..numbers.end as usize];
        let ints = of.iter().map(|(_, _, row)| match row[1] {
            Value::Int(n) => n,
            _ => unreachable!(),
        });
        let sum = ints.clone().map(i128::from).sum::<i128>();
        assert_eq!(versions.sum(1, numbers.clone()), Some(sum), "{numbers:?}");
        let largest = ints.clone().max().map(Value::Int);
        assert_eq!(versions.extreme(1, numbers.clone(), true), largest, "{numbers:?}");
        let smallest = ints.min().map(Value::Int);
        assert_eq!(versions.extreme(1, numbers.clone(), false), smallest, "{numbers:?}");
        let order = |value: &&Value| {
            let mut bytes = Vec::new();
            tidemill_core::encode::value(value, &mut bytes);
            bytes
        };
        let floats = of.iter().map(|(_, _, row)| &row[2]);
        let wanted = floats.clone().max_by_key(order).cloned();
        assert_eq!(versions.extreme(2, numbers.clone(), true), wanted, "{numbers:?}");
        let wanted = floats.min_by_key(order).cloned();
        assert_eq!(versions.extreme(2, numbers.clone(), false), wanted, "{numbers:?}");
    }
    for time_us in kept.iter().flat_map(|(_, t, _)| [*t - 1, *t, *t + 1]).chain([i64::MAX]) {
        let wanted = kept.iter().position(|(_, t, _)| *t >= time_us);
        let wanted = from + wanted.unwrap_or(kept.len()) as u64;
        assert_eq!(versions.since(time_us).max(from), wanted, "since {time_us}");
        let there = all[versions.first() as usize..].iter().filter(|(_, t, _)| *t >= time_us);
        let sum = there.map(|(_, _, row)| i128::from(row[1].word().unwrap() as i64)).sum();
        assert_eq!(versions.sum_since(1, time_us), Some(sum), "since {time_us}");
    }
}

#[test]
fn only_what_is_wanted_is_kept_beside_versions() {
    let history = History { time_us: Some(1000), versions: None };
    let key = [Value::Int(7)];
    for (sums, extremes) in [(&[][..], &[][..]), (&[1], &[]), (&[], &[1, 2]), (&[1], &[2])] {
        let of = |columns: &[usize]| columns.iter().copied().collect();
        let wanted = Aggregates { sums: of(sums), extremes: of(extremes) };
        let mut table = Table::new(spec(history), 1).with_aggregates(&wanted);
        for n in 1..=40 {
            table.put_at(&key, Some(&row(n, -n as f64)), n as u64, n);
        }
        let versions = table.versions(&key).unwrap();
        for n in 0..40 {
            assert_eq!(versions.row(n), row(n as i64 + 1, -(n as f64) - 1.0).into());
        }
        let summed = |from: i128| sums.contains(&1).then(|| (from..=40).sum::<i128>());
        assert_eq!(versions.sum(1, 10..40), summed(11));
        assert_eq!(versions.sum_since(1, 31), summed(31));
        let largest = extremes.contains(&1).then_some(Value::Int(40));
        assert_eq!(versions.extreme(1, 10..40, true), largest);
        let smallest = extremes.contains(&2).then_some(Value::Float(-40.0));
        assert_eq!(versions.extreme(2, 10..40, false), smallest);
    }
}

/// Creates a table with one row, written at time 1, that retains versions for `time_us`.
fn one_row(time_us: i64) -> Table {
    let columns = vec![Column::new("id", DataType::Int), Column::new("n", DataType::Int)];
    let mut spec = TableSpec::new("t", vec![0], Arc::new(tidemill_core::Schema::new(columns)));
    spec.history = Some(History { time_us: Some(time_us), versions: None });
    let mut table = Table::new(spec.into(), 1);
    table.put_at(&[Value::Int(7)], Some(&[Value::Int(7), Value::Int(5)]), 1, 1);
    table
}

/// Writes the row 98 times.
fn write(opened: &mut Opened<'_>, sign: i64) {
    for seq in 2..100 {
        opened.at_time(seq as i64);
        let row = opened.find(7).expect("the row is there");
        // SAFETY: the table is open with room for as many versions, and this is the row's only
        // column.
        unsafe {
            row.begin(seq);
            row.set(HEADER_WORDS, (sign * seq as i64) as u64);
        }
    }
}

/// It writes as many versions as fill blocks with stored extremes.
#[test]
fn versions_that_are_taken_back_leave_nothing() {
    let mut table = one_row(1000);
    table.commit(1);
    let mut opened = table.open(100);
    write(&mut opened, -1);
    Opened::roll_back(vec![opened]);
    let mut opened = table.open(100);
    write(&mut opened, 1);
    drop(opened);
    let versions = table.versions(&[Value::Int(7)]).unwrap();
    assert_eq!(versions.end(), 99);
    assert_eq!(versions.extreme(1, 0..99, false), Some(Value::Int(2)));
    assert_eq!(versions.extreme(1, 0..99, true), Some(Value::Int(99)));
    assert_eq!(versions.sum_since(1, 2), Some((2..100).sum()));
}

/// It also covers the case that the original version is no longer retained.
#[test]
fn a_row_becomes_what_it_was_when_all_is_taken_back() {
    let mut table = one_row(10);
    table.frontier(5_000);
    table.commit(1);
    let mut opened = table.open(100);
    write(&mut opened, 1);
    Opened::roll_back(vec![opened]);
    let versions = table.versions(&[Value::Int(7)]).unwrap();
    assert_eq!(versions.end(), 1);
    assert_eq!((versions.time_us(0), versions.sum(1, 0..1)), (1, Some(5)));
}

proptest! {
    #[test]
    fn versions_are_what_was_written(
        steps in steps(),
        time_us in proptest::option::of(1..200i64),
        count in 1..80u64,
        seed: u64,
    ) {
        let versions = (time_us.is_none() || count % 2 == 0).then_some(count);
        let history = History { time_us, versions };
        let mut table = Table::new(spec(history), seed);
        let key = [Value::Int(7)];
        let (mut seq, mut now, mut all, mut frontier) = (0, 0, Listed::new(), i64::MIN);
        let put = |table: &mut Table, all: &mut Listed, seq: u64, now: i64, n: i64, f: f64| {
            table.put_at(&key, Some(&row(n, f)), seq, now);
            all.push((all.len() as u64, now, row(n, f).into()));
        };
        for step in steps {
            seq += 1;
            match step {
                Step::Put(n, f) => put(&mut table, &mut all, seq, now, n, f),
                Step::Burst(many) => {
                    for n in 0..i64::from(many) {
                        now += n % 3 / 2;
                        let n = (n * 37) % 101 - 50;
                        seq += 1;
                        put(&mut table, &mut all, seq, now, n, n as f64 / 4.0);
                    }
                }
                Step::Delete => table.put_at(&key, None, seq, now),
                Step::Cut(us) => {
                    now += us;
                    frontier = now;
                    table.frontier(frontier);
                    table.commit(seq);
                }
            }
            if all.is_empty() || table.get(&key).is_none() {
                continue;
            }
            let by_count = versions.map_or(all.len() as u64, |n| (all.len() as u64).saturating_sub(n));
            let by_time = history.retained_from(frontier).map_or(all.len() as u64, |from| {
                all.iter().position(|(_, t, _)| *t >= from).unwrap_or(all.len()) as u64
            });
            check(&table, &all, by_count.min(by_time));
        }
    }
}

/// The retained versions do not depend on when versions were dropped. One table learns of
/// each cut, and the other of the last one only.
#[test]
fn forgetting_step_by_step_is_forgetting_at_once() {
    let history = History { time_us: Some(40), versions: Some(3) };
    let (mut often, mut once) = (Table::new(spec(history), 1), Table::new(spec(history), 2));
    for seq in 1..=500u64 {
        let now = seq as i64;
        for table in [&mut often, &mut once] {
            let key = seq as i64 * seq as i64 % 11;
            let mut row = row(now, 0.0);
            row[0] = Value::Int(key);
            table.put_at(&[Value::Int(key)], Some(&row), seq, now);
        }
        if seq % 7 == 0 {
            often.frontier(now);
            often.commit(seq);
        }
    }
    assert_ne!(often.state_hash(), once.state_hash(), "they are at different cuts");
    for table in [&mut often, &mut once] {
        table.frontier(500);
        table.commit(500);
    }
    assert_eq!(often.state_hash(), once.state_hash());
    let kept: usize = often.newest().histories().map(|(_, versions)| versions.len()).sum();
    assert!((40..90).contains(&kept), "{kept} versions are retained");
}
