use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidemill_core::{Column, DataType, Error, Key, Kind, Row, Schema};
use tidemill_place::partition_in;

use super::*;
use crate::at::RowAt;
use crate::table::tests::{key_of, shapes, spec};
use crate::Seq;

/// Returns the shapes of all tests of tables, and these:
/// - rows in place with nulls, in slots that straddle lines
/// - a key of two words of which one chooses the partition
/// - a float as key
/// - a bool as key, with values of all kinds beside
/// - more null bits than a word has
fn specs() -> Vec<Arc<TableSpec>> {
    let column = Column::new;
    let mut prefix = TableSpec::clone(&spec(
        &[2, 0],
        vec![column("a", DataType::Int), column("v", DataType::Int), column("b", DataType::Float)],
    ));
    prefix.partition_prefix = Some(1);
    let list = DataType::List(Box::new(DataType::Int));
    let many = (0..70).map(|c| Column::new(&format!("v{c}"), DataType::Bool).nullable());
    let mut specs = shapes();
    specs.extend([
        spec(
            &[1],
            vec![
                column("v", DataType::Int).nullable(),
                column("k", DataType::Timestamp),
                column("w", DataType::Float).nullable(),
            ],
        ),
        prefix.into(),
        spec(&[0], vec![column("k", DataType::Float), column("v", DataType::Int)]),
        spec(
            &[0],
            vec![column("k", DataType::Int), column("v", DataType::Int).default(Value::Int(9))],
        ),
        spec(
            &[0],
            vec![
                column("k", DataType::Bool),
                column("s", DataType::Str),
                column("b", DataType::Bytes),
                column("l", list).nullable(),
                column("a", DataType::Any),
            ],
        ),
        spec(&[0], std::iter::once(column("k", DataType::Int)).chain(many).collect()),
    ]);
    specs
}

fn row(spec: &TableSpec, key: i64, v: i64) -> Vec<Value> {
    let value = |(index, c): (usize, &Column)| {
        let n = if spec.is_key(index) { key } else { v + index as i64 };
        match &c.ty {
            _ if c.nullable && n % 3 == 0 => Value::Null,
            DataType::Bool => Value::Bool(n % 2 == 0),
            DataType::Int => Value::Int(n - 20),
            DataType::Timestamp => Value::Timestamp(n << 40),
            DataType::Decimal(scale) => Value::Decimal(-n, *scale),
            DataType::Float => Value::Float([-0.0, 0.0, f64::NAN, n as f64 - 7.5][n as usize % 4]),
            DataType::Str => Value::str(&format!("long\0begun {n}")[n as usize % 3 * 5..]),
            DataType::Bytes => Value::Bytes(vec![0; n as usize % 3].into()),
            DataType::Any => Value::Any(vec![0xc0].into()),
            DataType::List(_) => Value::List(vec![Value::Int(n), Value::Null].into()),
        }
    };
    spec.schema.columns.iter().enumerate().map(value).collect()
}

/// Encodes a row.
fn encoded(row: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    row.iter().for_each(|value| encode::value(value, &mut bytes));
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    /// A transaction on values.
    Put(Vec<(i64, Option<i64>)>),
    /// A transaction on rows in place, which sets them to other words and may abort.
    InPlace(Vec<i64>, bool),
    Commit,
    Seal,
    Release,
    Take,
    Reserve(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0i64..60;
    let write = (key(), prop::option::weighted(0.7, 0i64..100));
    let step = prop_oneof![
        8 => prop::collection::vec(write, 1..6).prop_map(Step::Put),
        4 => (prop::collection::vec(key(), 1..6), any::<bool>())
            .prop_map(|(keys, aborts)| Step::InPlace(keys, aborts)),
        3 => Just(Step::Commit),
        2 => Just(Step::Seal),
        2 => Just(Step::Release),
        2 => Just(Step::Take),
        1 => (0usize..80).prop_map(Step::Reserve),
    ];
    prop::collection::vec(step, 1..120)
}

/// The rows by key. A deleted row is `None`.
type Model = BTreeMap<Key, Option<Vec<Value>>>;

/// A table beside a model of it.
struct Run {
    table: Table,
    rows: BTreeMap<Key, Vec<Value>>,
    /// The keys of rows written since the last snapshot.
    written: BTreeSet<Key>,
    /// The taken changes, each with the expected rows.
    taken: Vec<(Changed, Model)>,
    seq: Seq,
}

impl Run {
    fn put(&mut self, key: i64, v: Option<i64>) {
        let spec = self.table.spec().clone();
        let row = row(&spec, key, v.unwrap_or(0));
        let values = key_of(&spec, &row);
        let key = Key::of(&values);
        self.table.put(&values, v.map(|_| &row[..]), self.seq);
        match v {
            Some(_) => {
                // A float in a word key is 0.0 or the one NaN.
                let row = self.table.get(&values).unwrap();
                self.rows.insert(key.clone(), row.into());
                self.written.insert(key);
            }
            None => {
                if self.rows.remove(&key).is_some() {
                    self.written.insert(key);
                }
            }
        }
    }

    fn in_place(&mut self, keys: &[i64], aborts: bool) {
        let spec = self.table.spec().clone();
        if !self.table.has_plain_rows() {
            return;
        }
        // All shapes with rows in place have another column. Not every column can hold any word.
        let column = (0..spec.schema.len()).rfind(|c| !spec.is_key(*c)).unwrap();
        let Place::Word { word, .. } = self.table.layout().places[column] else { unreachable!() };
        if spec.schema.columns[column].ty == DataType::Bool {
            return;
        }
        let (at, seq) = (HEADER_WORDS + self.table.layout().null_words + word, self.seq);
        let mut open = self.table.open(keys.len());
        let mut rows = Vec::new();
        for key in keys {
            let values = key_of(&spec, &row(&spec, *key, 0));
            let key = Key::of(&values);
            let word = super::super::key_word(&values[0]).unwrap();
            let (slot, _) = open.find_or_place(word);
            if slot.is_null() {
                continue;
            }
            // SAFETY: the slot is the table's, which is open until the row is done with.
            let found = unsafe { RowAt::at(slot, &raw mut open) };
            // SAFETY: the table is open until the rows are done with. It was opened for as many
            // versions as are begun, and the column is a word of the slot.
            unsafe {
                found.begin(seq);
                found.set(at, seq + 1000);
            }
            rows.push((key, values, found));
        }
        if aborts {
            // SAFETY: as above.
            let undone = rows.iter().filter(|(.., row)| unsafe { row.undo(seq) });
            // SAFETY: as above.
            undone.collect::<Vec<_>>().iter().for_each(|(.., row)| unsafe { row.forget() });
            return;
        }
        drop(open);
        for (key, values, _) in rows {
            self.rows.insert(key.clone(), self.table.get(&values).unwrap().into());
            self.written.insert(key);
        }
    }

    fn take(&mut self) {
        let changed = self.table.take_changes();
        let row = |key: &Key| (key.clone(), self.rows.get(key).cloned());
        let expected = self.written.iter().map(row).collect();
        self.taken.push((changed, expected));
        self.written.clear();
    }
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(256), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// Each snapshot has exactly the rows that were written since the one before, as they
    /// were when it was taken. All of them together give the table, even in another table with
    /// another seed.
    #[test]
    fn snapshots_add_up_to_the_table(
        steps in steps(),
        shape in 0..specs().len(),
        seed: u64,
        expected in 0usize..100,
    ) {
        let spec = specs()[shape].clone();
        let mut run = Run {
            table: Table::new(spec.clone(), seed),
            rows: BTreeMap::new(),
            written: BTreeSet::new(),
            taken: Vec::new(),
            seq: 0,
        };
        run.table.track();
        for step in steps {
            // The initial rows are written at 0.
            match step {
                Step::Put(writes) => writes.iter().for_each(|(key, v)| run.put(*key, *v)),
                Step::InPlace(keys, aborts) if run.seq > 0 => run.in_place(&keys, aborts),
                Step::InPlace(..) => {}
                Step::Commit => run.table.commit(run.seq),
                Step::Seal => run.table.seal(run.seq),
                Step::Release => run.table.release(run.seq),
                Step::Take => run.take(),
                Step::Reserve(rows) => run.table.reserve(rows),
            }
            run.seq += 1;
        }
        run.take();
        run.take();
        prop_assert!(run.taken.last().unwrap().0.is_empty(), "nothing was written in between");

        // Checked only now, so that memory shared with the table would show.
        let mut all = BTreeMap::new();
        for (changed, expected) in run.taken {
            let mut found = Vec::new();
            changed.for_each(|partition, key, row| {
                found.push((partition, Key(key.into()), row.map(<[u8]>::to_vec)));
            });
            prop_assert!(found.windows(2).all(|w| (w[0].0, &w[0].1) < (w[1].0, &w[1].1)));
            prop_assert!(found.iter().all(|(p, key, _)| *p == partition_in(&spec, key)));
            prop_assert_eq!(found.len(), changed.len());
            let deleted = found.iter().filter(|(_, _, row)| row.is_none()).count();
            prop_assert_eq!(deleted, changed.deleted());
            let found: BTreeMap<_, _> =
                found.into_iter().map(|(_, key, row)| (key, row)).collect();
            let expected: BTreeMap<_, _> =
                expected.into_iter().map(|(key, row)| (key, row.map(|r| encoded(&r)))).collect();
            prop_assert_eq!(&found, &expected);
            all.extend(found);
        }

        let mut loaded = Table::new(spec.clone(), !seed);
        let mut loading = loaded.loading(expected);
        for (key, row) in &all {
            if let Some(row) = row {
                loading.row(&key.0, row).unwrap();
            }
        }
        loading.finish().unwrap();
        loaded.commit(run.seq);
        prop_assert_eq!(loaded.state_hash(), run.table.state_hash());
        prop_assert_eq!(loaded.rows(), run.table.rows());
        prop_assert_eq!(loaded.len(), run.table.len());
        prop_assert_eq!(loaded.values_bytes, run.table.values_bytes);
        prop_assert!(loaded.as_of(run.seq - 1).is_err());

        // The first snapshot after loading has nothing to take, and from there on all that is
        // written.
        loaded.track();
        prop_assert!(loaded.take_changes().is_empty());
        let row = row(&spec, 3, 5);
        loaded.put(&key_of(&spec, &row), Some(&row), run.seq + 1);
        prop_assert_eq!(loaded.take_changes().len(), 1);
    }

    /// Damaged bytes are refused, or they are another row.
    #[test]
    fn damage_is_refused_without_a_panic(
        shape in 0..specs().len(),
        (key, v) in (0i64..60, 0i64..100),
        at in any::<prop::sample::Index>(),
        byte: u8,
        cut in any::<prop::sample::Index>(),
    ) {
        let spec = specs()[shape].clone();
        let row = row(&spec, key, v);
        let key = Key::of(&key_of(&spec, &row)).0.to_vec();
        let mut table = Table::new(spec.clone(), 1);
        table.put(&key_of(&spec, &row), Some(&row), 1);
        let row = encoded(&table.rows()[0]);
        let load = |key: &[u8], row: &[u8]| -> Result<u128, Error> {
            let mut table = Table::new(spec.clone(), 1);
            let mut loading = table.loading(1);
            loading.row(key, row)?;
            loading.finish()?;
            Ok(table.state_hash())
        };
        prop_assert_eq!(load(&key, &row), Ok(table.state_hash()));
        let damaged = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        };
        // With another key or another row, the state differs in any case.
        let other_key = damaged(&key);
        prop_assert!(other_key == key || load(&other_key, &row).is_err());
        let other_row = damaged(&row);
        let same = load(&key, &other_row) == load(&key, &row);
        prop_assert!(other_row == row || !same, "{:?} is not {:?}", other_row, row);
        prop_assert!(load(&key[..cut.index(key.len())], &row).is_err());
        prop_assert!(load(&key, &row[..cut.index(row.len())]).is_err());
        prop_assert!(load(&[&key[..], &[byte]].concat(), &row).is_err());
        prop_assert!(load(&key, &[&row[..], &[byte]].concat()).is_err());
    }
}

/// Keys of one partition whose first bytes, up to the length that is compared first, are equal.
#[test]
fn keys_that_are_alike_are_sorted() {
    let columns = ["a", "b"].map(|name| Column::new(name, DataType::Str));
    let mut spec = TableSpec::clone(&spec(&[0, 1], columns.to_vec()));
    spec.partition_prefix = Some(1);
    let mut table = Table::new(spec.into(), 1);
    table.track();
    let texts =
        ["", "a", "b", "\0", "a\0", "longer than eight", "longer than eight bytes", "longer"];
    let mut keys = Vec::new();
    for (first, second) in texts.iter().flat_map(|a| texts.iter().rev().map(move |b| (a, b))) {
        let key = [Value::str("one"), Value::str(&format!("{first}{second}"))];
        table.put(&key, Some(&key), 1);
        keys.push(Key::of(&key).0);
    }
    keys.sort();
    keys.dedup();
    let mut found = Vec::new();
    table.take_changes().for_each(|_, key, _| found.push(Key(key.into()).0));
    assert_eq!(found, keys);
}

fn is_send<T: Send>(_: &T) {}

#[test]
fn what_was_taken_belongs_to_any_thread() {
    let mut table = Table::new(shapes()[1].clone(), 1);
    table.track();
    is_send(&table.take_changes());
}

/// The error about a stored row names what is wrong.
#[test]
fn a_row_that_does_not_fit_is_named() {
    let columns = vec![
        Column::new("id", DataType::Int),
        Column::new("v", DataType::Bool),
        Column::new("s", DataType::Str),
    ];
    let spec = Arc::new(TableSpec::new("t", vec![0], Arc::new(Schema::new(columns))));
    let good = [Value::Int(7), Value::Bool(true), Value::str("x")];
    let with = |at: usize, value: Value| {
        let mut row = good.clone();
        row[at] = value;
        encoded(&row)
    };
    let key = encoded(&good[..1]);
    let cases = [
        (&key[..3], encoded(&good), "its key does not fit the table"),
        (&key[..], with(0, Value::Int(8)), "its columns have another key"),
        (&key, with(0, Value::Null), "its columns have another key"),
        (&key, with(1, Value::Int(1)), "its column 'v' (bool) is damaged or of another type"),
        (&key, with(1, Value::Null), "its column 'v' (bool) is null and may not be"),
        (&key, with(2, Value::Null), "its column 's' (str) is null and may not be"),
        (&key, encoded(&good[..2]), "its column 's' (str) is damaged or of another type"),
        (&key, [encoded(&good), vec![0]].concat(), "there are bytes after its last column"),
    ];
    for (key, row, why) in cases {
        let mut table = Table::new(spec.clone(), 1);
        let error = table.loading(1).row(key, &row).unwrap_err();
        assert_eq!(error.kind, Kind::Io);
        assert!(error.what.starts_with("table t: stored row 0x02"), "{error}");
        assert!(error.what.ends_with(why), "{error}");
    }
}

/// A duplicate key is refused at the end of loading at the latest.
#[test]
fn no_key_is_loaded_twice() {
    for spec in specs() {
        for rows_between in [0, 1, 40] {
            let mut table = Table::new(spec.clone(), 1);
            let mut loading = table.loading(0);
            let mut load = |key: i64| {
                let (row, mut probe) = (row(&spec, key, 0), Table::new(spec.clone(), 1));
                probe.put(&key_of(&spec, &row), Some(&row), 1);
                let row: Row = probe.rows().remove(0);
                let key = Key::of(&key_of(&spec, &row)).0;
                loading.row(&key, &encoded(&row))
            };
            let mut result = load(0);
            for key in 1..=rows_between {
                result = result.and_then(|()| load(key));
            }
            let result = result.and_then(|()| load(0)).and_then(|()| loading.finish());
            let error = result.unwrap_err();
            assert!(error.what.ends_with("there is another row with this key"), "{error}");
        }
    }
}

/// A row written again with the number of the last commit, although a snapshot was taken in
/// between.
#[test]
fn a_number_that_is_used_again_is_taken_again() {
    for spec in specs() {
        let mut table = Table::new(spec.clone(), 1);
        table.track();
        for (times, v) in [1, 2, 3].into_iter().enumerate() {
            let row = row(&spec, 3, v);
            table.put(&key_of(&spec, &row), Some(&row), 4);
            if times > 0 {
                table.put(&key_of(&spec, &row), None, 4);
                table.put(&key_of(&spec, &row), Some(&row), 4);
            }
            table.commit(4);
            assert_eq!((table.take_changes().len(), table.take_changes().len()), (1, 0));
        }
    }
}

/// Keys that are added and deleted do not fill a table whose deletions are taken. Deletions that
/// are not taken keep their slots.
#[test]
fn deletions_that_were_taken_make_room() {
    for spec in shapes() {
        let mut table = Table::new(spec.clone(), 1);
        table.track();
        let mut come_and_go = |rounds: i64, every: i64| {
            let mut told = 0;
            for round in 0..rounds {
                let row = row(&spec, round * 7 + every, 1);
                let key = key_of(&spec, &row);
                let seq = table.floor + 1;
                table.put(&key, Some(&row), seq);
                table.put(&key, None, seq);
                table.commit(seq);
                if (round + 1) % every == 0 {
                    told += table.take_changes().deleted();
                }
            }
            (told, table.capacity)
        };
        let (told, capacity) = come_and_go(1000, 10);
        assert!(told > 0 && capacity <= 128, "{told} deletions, {capacity} slots");
    }
}
