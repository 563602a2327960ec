use std::collections::BTreeMap;

use proptest::prelude::*;
use tidemill_core::{Column, DataType, Schema};

use super::*;
use crate::at::{Opened, RowAt};

/// The states of a row, each with its first transaction.
type Versions = Vec<(Seq, Option<Vec<Value>>)>;

pub(super) fn spec(key: &[usize], columns: Vec<Column>) -> Arc<TableSpec> {
    let schema = Arc::new(Schema::new(columns));
    let spec = TableSpec::new("t", key.to_vec(), schema);
    spec.check().unwrap();
    Arc::new(spec)
}

/// Returns one table of each shape: word key; text key; two key columns; nullable words; values
/// beside the slot.
pub(super) fn shapes() -> Vec<Arc<TableSpec>> {
    let int = || Column::new("i", DataType::Int);
    let text = || Column::new("s", DataType::Str);
    vec![
        spec(&[0], vec![int(), Column::new("v", DataType::Decimal(2))]),
        spec(&[1], vec![Column::new("v", DataType::Int).nullable(), text()]),
        spec(&[0, 1], vec![int(), text(), Column::new("v", DataType::Float).nullable()]),
        spec(&[0], vec![int(), text().nullable(), Column::new("b", DataType::Bool).nullable()]),
    ]
}

pub(super) fn row(spec: &TableSpec, key: i64, v: i64) -> Vec<Value> {
    let columns = spec.schema.columns.iter().enumerate();
    columns
        .map(|(i, c)| {
            let n = if spec.is_key(i) || matches!(&*c.name, "same" | "too") { key } else { v };
            match c.ty {
                _ if c.nullable && n % 3 == 0 => Value::Null,
                DataType::Int => Value::Int(n),
                DataType::Decimal(s) => Value::Decimal(n, s),
                DataType::Float => Value::Float(n as f64 / 2.0),
                DataType::Bool => Value::Bool(n % 2 == 0),
                _ => Value::str(&format!("{n}")),
            }
        })
        .collect()
}

pub(super) fn key_of(spec: &TableSpec, row: &[Value]) -> Vec<Value> {
    spec.key.iter().map(|c| row[*c].clone()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Put(i64, i64),
    Delete(i64),
    Commit,
    Seal,
    /// A release of the versions up to so many transactions ago.
    Release(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0i64..40, 0i64..100).prop_map(|(k, v)| Step::Put(k, v)),
        2 => (0i64..40).prop_map(Step::Delete),
        1 => Just(Step::Commit),
        1 => Just(Step::Seal),
        1 => (0u64..40).prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..200)
}

/// Creates a table of one of the shapes. After them is a table of which only a column is ever
/// written, and no row is deleted.
fn table_of(shape: usize, seed: u64) -> Table {
    match shapes().get(shape) {
        Some(spec) => Table::new(spec.clone(), seed),
        None => {
            let int = |name: &str| Column::new(name, DataType::Int);
            let spec = spec(&[0], vec![int("i"), int("v").nullable(), int("same"), int("too")]);
            Table::new(spec, seed).with_written_columns(&[1].into())
        }
    }
}

proptest! {
    /// Compares a table with a model that retains every version of every row: newest rows, rows as
    /// of every retained transaction, changes, and the hash of a table with another history and
    /// seed.
    #[test]
    fn a_table_is_its_model(steps in steps(), shape in 0usize..5, seed: u64) {
        let mut table = table_of(shape, seed);
        let spec = table.spec().clone();
        let mut model: BTreeMap<i64, Versions> = BTreeMap::new();
        let (mut seq, mut floor, mut released) = (0, 0, 0);
        for step in steps {
            seq += 1;
            match step {
                Step::Put(k, v) => {
                    let row = row(&spec, k, v);
                    table.put(&key_of(&spec, &row), Some(&row), seq);
                    model.entry(k).or_default().push((seq, Some(row)));
                }
                Step::Delete(_) if shape == 4 => {}
                Step::Delete(k) => {
                    table.put(&key_of(&spec, &row(&spec, k, 0)), None, seq);
                    model.entry(k).or_default().push((seq, None));
                }
                Step::Commit => {
                    table.commit(seq);
                    floor = seq;
                }
                Step::Seal => table.seal(seq),
                Step::Release(back) => {
                    let at = seq.saturating_sub(back);
                    table.release(at);
                    released = released.max(at);
                }
            }
        }
        let (committed, floor) = (floor, floor.max(released));
        let as_of = |k: i64, at: Seq| {
            let versions = model.get(&k).map_or(&[][..], |v| &v[..]);
            versions.iter().rev().find(|(s, _)| *s <= at).and_then(|(_, r)| r.clone())
        };
        for k in 0..40 {
            let key = key_of(&spec, &row(&spec, k, 0));
            prop_assert_eq!(table.get(&key).map(|r| r.to_vec()), as_of(k, seq));
            for at in floor..=seq {
                let got = table.as_of(at).unwrap().get(&key);
                prop_assert_eq!(got.map(|r| r.to_vec()), as_of(k, at), "key {} as of {}", k, at);
            }
            if committed > 0 {
                prop_assert!(table.as_of(committed - 1).is_err());
            }
        }
        let mut past = table_of(shape, seed);
        for k in 0..40 {
            if let Some(row) = as_of(k, floor) {
                past.put(&key_of(&spec, &row), Some(&row), 1);
            }
        }
        prop_assert_eq!(table.as_of(floor).unwrap().rows(), past.rows());
        prop_assert_eq!(table.as_of(floor).unwrap().state_hash(), past.state_hash());
        for change in table.changes() {
            let row = change.row.map(|r| r.to_vec());
            if let Some(row) = row {
                prop_assert_eq!(Key::of(&key_of(&spec, &row)), change.key);
            }
        }
        // The same rows written once, in another order, into a table with another seed.
        let mut other = table_of(shape, !seed);
        for k in (0..40).rev() {
            if let Some(row) = as_of(k, seq) {
                other.put(&key_of(&spec, &row), Some(&row), 1);
            }
        }
        prop_assert_eq!(table.state_hash(), other.state_hash());
        let sum = |sum: u128, part: &u128| sum.wrapping_add(*part);
        prop_assert_eq!(table.partition_hashes().values().fold(0, sum), table.state_hash());
        let order = |c: &Change| (c.partition, c.key.clone());
        prop_assert!(table.changes().windows(2).all(|w| order(&w[0]) < order(&w[1])));
        prop_assert_eq!(table.rows(), other.rows());
        prop_assert_eq!(table.len(), other.len());
    }
}

#[test]
fn slots_of_words_keep_their_versions_while_the_table_grows() {
    let spec = shapes()[0].clone();
    let mut table = Table::new(spec, 7);
    for k in 0..1000u64 {
        let base = table.take(k, table.hash(k));
        table.write(base, k + 1)[0] = k * 10;
    }
    for k in 0..1000u64 {
        let base = table.find(k, table.hash(k)).unwrap();
        assert_eq!(table.body(base), &[k * 10]);
        table.write(base, 2000 + k)[0] += 1;
    }
    assert_eq!(table.superseded(), 2000);
    let row = |v: i64| vec![Value::Int(5), Value::Decimal(v, 2)];
    let at = |seq| table.as_of(seq).unwrap().get(&[Value::Int(5)]).map(|r| r.to_vec());
    assert_eq!(at(5), None);
    assert_eq!(at(6), Some(row(50)));
    assert_eq!(at(2004), Some(row(50)));
    assert_eq!(at(2005), Some(row(51)));
}

#[test]
fn keys_that_come_and_go_do_not_fill_the_table() {
    for spec in shapes() {
        let mut table = Table::new(spec.clone(), 1);
        for round in 0..2000i64 {
            let row = row(&spec, round, 1);
            let key = key_of(&spec, &row);
            table.put(&key, Some(&row), 2 * round as Seq + 1);
            table.put(&key, None, 2 * round as Seq + 2);
            table.commit(2 * round as Seq + 2);
        }
        assert!(table.is_empty());
        assert!(table.capacity <= 64, "{} slots", table.capacity);
    }
}

/// The table is final up to 0 from the start, and is still filled at 0.
#[test]
fn rows_that_come_and_go_before_the_first_commit() {
    for spec in shapes() {
        let mut table = Table::new(spec.clone(), 1);
        for k in 0..100 {
            let row = row(&spec, k, 1);
            table.put(&key_of(&spec, &row), Some(&row), 0);
            table.put(&key_of(&spec, &row), None, 0);
        }
        assert_eq!(table.changes().len(), 100);
        table.commit(0);
        assert!(table.changes().is_empty() && table.is_empty());
    }
}

#[test]
fn floats_as_keys_have_one_zero_and_one_nan() {
    let spec = spec(&[0], vec![Column::new("f", DataType::Float), Column::new("v", DataType::Int)]);
    let mut table = Table::new(spec, 1);
    for (seq, f) in [0.0, -0.0, f64::NAN, -f64::NAN].into_iter().enumerate() {
        let row = [Value::Float(f), Value::Int(seq as i64)];
        table.put(&row[..1], Some(&row), seq as Seq + 1);
    }
    assert_eq!(table.len(), 2);
    assert_eq!(table.get(&[Value::Float(0.0)]).unwrap()[1], Value::Int(1));
}

#[test]
fn memory_is_counted() {
    let spec = shapes()[1].clone();
    let mut table = Table::new(spec, 1);
    let before = table.bytes();
    let row = [Value::Int(1), Value::Str("x".repeat(1 << 20).into())];
    table.put(&row[1..], Some(&row), 1);
    assert!(table.bytes() > before + (1 << 20));
}

/// One transaction writes two rows against their order, one of them twice. Then both are
/// undone.
#[test]
fn rows_in_place_are_taken_back() {
    for (columns, logged) in [(1, 1), (2, 2), (3, 1), (3, 2)] {
        let mut schema = vec![Column::new("k", DataType::Int)];
        schema.extend((0..columns).map(|c| Column::new(&format!("v{c}"), DataType::Int)));
        let spec = TableSpec::new("t", vec![0], Schema::new(schema).into());
        let mut table = Table::new(spec.into(), 7).with_written_columns(&(1..=logged).collect());
        let row = |k: i64, v: i64| -> Vec<Value> {
            std::iter::once(k).chain((0..columns).map(|c| v + c)).map(Value::Int).collect()
        };
        for k in 0..3 {
            let row = row(k, 10 * k);
            table.put(&row[..1], Some(&row), 0);
        }
        table.commit(0);
        let (before, log) = (table.state_hash(), table.bytes());
        let open = table.open(2);
        assert!(open.find(77).is_none());
        let rows = [0, 2, 0].map(|key| open.find(key).unwrap());
        assert!(rows[0].is_same(rows[2]) && !rows[0].is_same(rows[1]));
        // SAFETY: the table is open until the rows are done with; two versions are begun.
        unsafe {
            rows[1].begin(5);
            rows[1].set(HEADER_WORDS, 77);
            rows[0].begin(5);
            rows[0].set(HEADER_WORDS, 88);
            rows[2].begin(5);
            assert_eq!(rows[2].word(HEADER_WORDS), 88, "equal keys are one row");
            assert_eq!(rows.map(|row| row.undo(5)), [true, true, false]);
            rows[..2].iter().for_each(|row| row.forget());
        }
        drop(open);
        assert_eq!((table.state_hash(), table.superseded()), (before, 0));
        let open = table.open(2);
        let rows = [0, 2].map(|key| open.find(key).unwrap());
        // SAFETY: as above.
        unsafe {
            for (seq, row) in (5..).zip(rows) {
                row.begin(seq);
                (0..logged).for_each(|word| row.set(HEADER_WORDS + word, 66));
            }
        }
        Opened::roll_back(vec![open]);
        assert_eq!((table.state_hash(), table.superseded()), (before, 0));
        assert!(table.bytes() >= log);

        // Then they are written for good. The past is still there.
        let open = table.open(1);
        let row_2 = open.find(2).unwrap();
        // SAFETY: as above.
        unsafe {
            row_2.begin(6);
            row_2.set(HEADER_WORDS, 99);
        }
        drop(open);
        assert_eq!(table.get(&[Value::Int(2)]).unwrap()[1], Value::Int(99));
        assert_eq!(table.as_of(5).unwrap().get(&[Value::Int(2)]).unwrap().to_vec(), row(2, 20));
        assert_eq!(table.superseded(), 1);
    }
}

/// Missing rows are read with their defaults. From then on those exist that were written and not
/// undone, and no others.
#[test]
fn rows_that_are_not_there_are_placed() {
    let columns = vec![
        Column::new("k", DataType::Int),
        Column::new("v", DataType::Int).default(Value::Int(7)),
    ];
    let mut table = Table::new(spec(&[0], columns), 3);
    table.track();
    let gone = [Value::Int(3), Value::Int(30)];
    table.put(&gone[..1], Some(&gone), 1);
    table.put(&gone[..1], None, 2);
    table.commit(2);
    let mut open = table.open(8);
    let placed = |open: &mut Opened<'_>, key| {
        let (slot, is_there) = open.find_or_place(key);
        // SAFETY: the slot is the table's, which is open until the row is done with.
        let row = unsafe { RowAt::at(slot, &raw mut *open) };
        // SAFETY: as above.
        assert_eq!(unsafe { row.word(HEADER_WORDS) }, if is_there { 99 } else { 7 });
        (row, is_there)
    };
    for (key, seq, aborts) in
        [(1, 3, false), (2, 4, true), (2, 5, false), (3, 6, true), (4, 7, true)]
    {
        let (row, is_there) = placed(&mut open, key);
        assert!(!is_there && open.find_slot(key).is_null());
        // SAFETY: as above; as many versions are begun as the table was opened for.
        unsafe {
            row.begin(seq);
            row.set(HEADER_WORDS, 99);
            if aborts {
                assert!(row.undo(seq));
                row.forget();
            }
        }
        assert_eq!(placed(&mut open, key).1, !aborts);
    }
    placed(&mut open, 5);
    drop(open);
    let two = [1, 2].map(|k| [Value::Int(k), Value::Int(99)].into());
    assert_eq!((table.rows(), table.len()), (two.to_vec(), 2));
    assert_eq!(table.as_of(2).unwrap().get(&[Value::Int(1)]), None);
    // As many as there is room for without moving slots.
    let open = table.open(0);
    let found = (10..100).take_while(|key| !open.find_or_place(*key).0.is_null()).count();
    assert!((1..16).contains(&found), "{found}");
    drop(open);
    assert_eq!(table.len(), 2);
    assert!(
        table.removed() >= found,
        "rows that were not written are dropped when the table grows"
    );
}

#[test]
fn the_first_rows_that_are_wanted() {
    for spec in shapes() {
        let mut table = Table::new(spec.clone(), 3);
        for (seq, k) in [5, 3, 9, 1, 7, 2, 8].into_iter().enumerate() {
            let row = row(&spec, k, k);
            table.put(&key_of(&spec, &row), Some(&row), 1 + seq as Seq);
        }
        let gone = key_of(&spec, &row(&spec, 3, 3));
        table.put(&gone, None, 20);
        let all = table.rows();
        assert_eq!(all.len(), 6);
        for limit in 0..8 {
            for skip in [false, true] {
                let keep = |row: &[Value]| !skip || row != &*all[1];
                let wanted: Vec<_> = all.iter().filter(|row| keep(row)).cloned().collect();
                let (rows, more) = table.select(limit, keep);
                assert_eq!(rows, wanted[..limit.min(wanted.len())]);
                assert_eq!(more, limit < wanted.len(), "limit {limit} of {}", wanted.len());
            }
        }
    }
}

/// Otherwise older versions would change, too.
#[test]
fn what_is_not_logged_can_not_be_written() {
    let row = |k: i64, v: i64, same: i64| [k, v, same, 0].map(Value::Int);
    let written = |change: &dyn Fn(&mut Table)| {
        let mut table = table_of(4, 3);
        table.put(&[Value::Int(1)], Some(&row(1, 2, 3)), 1);
        let changing = std::panic::AssertUnwindSafe(|| change(&mut table));
        std::panic::catch_unwind(changing).is_ok()
    };
    let key = [Value::Int(1)];
    assert!(written(&|table| table.put(&key, Some(&row(1, 7, 3)), 2)));
    assert!(!written(&|table| table.put(&key, Some(&row(1, 2, 4)), 2)));
    assert!(!written(&|table| table.put(&key, None, 2)));
    assert!(!written(&|table| table.put_words(1, Some(&[0, 2, 4, 0]), 2)));
    assert!(!written(&|table| table.put_words(1, None, 2)));
    assert!(written(&|table| table.put(&[Value::Int(5)], Some(&row(5, 2, 4)), 2)));
}
