//! A table that is restored from its snapshots retains the same versions. Snapshots have each
//! version once, and no longer than necessary.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidemill_core::{encode, Column, DataType, History, Kind, Schema, TableSpec, Value};
use tidemill_table::{Changed, StoredVersion, Table};

type Objects = BTreeMap<Vec<u8>, Vec<u8>>;

/// The entries of a table in its snapshots.
#[derive(Clone, Debug, Default)]
struct Stored {
    rows: Objects,
    versions: Objects,
}

impl Stored {
    fn take(&mut self, changed: &Changed) {
        changed.for_each(|_, key, row| match row {
            Some(row) => drop(self.rows.insert(key.into(), row.into())),
            None => drop(self.rows.remove(key)),
        });
        changed.for_each_version(|_, key, version| match version {
            Some(version) => {
                let before = self.versions.insert(key.into(), version.into());
                assert!(before.is_none(), "a version is stored once");
            }
            None => assert!(self.versions.remove(key).is_some(), "only stored versions go"),
        });
    }

    fn load(&self, spec: &Arc<TableSpec>, seed: u64) -> tidemill_core::Result<Table> {
        let mut table = Table::new(spec.clone(), seed);
        table.track();
        let mut loading = table.loading(self.rows.len());
        for (key, row) in &self.rows {
            loading.row(key, row)?;
        }
        for (key, version) in &self.versions {
            loading.version(key, version)?;
        }
        loading.finish()?;
        Ok(table)
    }
}

/// Returns a table with word keys, or with text keys and values of all kinds beside the slots.
fn spec(is_text: bool, history: History) -> Arc<TableSpec> {
    let columns = match is_text {
        false => vec![
            Column::new("k", DataType::Int),
            Column::new("n", DataType::Int),
            Column::new("f", DataType::Float).nullable(),
        ],
        true => vec![
            Column::new("n", DataType::Int),
            Column::new("k", DataType::Str),
            Column::new("l", DataType::List(Box::new(DataType::Float))),
        ],
    };
    let mut spec = TableSpec::new("t", vec![usize::from(is_text)], Arc::new(Schema::new(columns)));
    spec.history = Some(history);
    Arc::new(spec)
}

fn key(is_text: bool, k: i64) -> Value {
    match is_text {
        false => Value::Int(k),
        true => Value::str(&format!("k{k}")),
    }
}

fn row(is_text: bool, k: i64, n: i64) -> Vec<Value> {
    let float =
        [Value::Null, Value::Float(f64::NAN), Value::Float(n as f64)][n as usize % 3].clone();
    match is_text {
        false => vec![key(is_text, k), Value::Int(n), float],
        true => vec![Value::Int(n), key(is_text, k), Value::List(vec![float].into())],
    }
}

fn encoded<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.into_iter().for_each(|value| encode::value(value, &mut bytes));
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Write(i64, Option<i64>),
    /// The end of an epoch, final or until it is released. The frontier is so far in the past.
    Commit(i64),
    Seal(i64),
    Release,
    Take,
    /// A snapshot, and a restart with the stored entries.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0i64..12, prop::option::weighted(0.8, 0i64..50));
    let step = prop_oneof![
        10 => write.prop_map(|(k, n)| Step::Write(k, n)),
        2 => (0i64..20).prop_map(Step::Commit),
        2 => (0i64..20).prop_map(Step::Seal),
        1 => Just(Step::Release),
        2 => Just(Step::Take),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..150)
}

fn histories() -> impl Strategy<Value = History> {
    let both = (prop::option::of(1i64..30), prop::option::of(1u64..6));
    both.prop_map(|(time_us, versions)| History {
        time_us: time_us.or(versions.is_none().then_some(9)),
        versions,
    })
}

/// Returns how many versions a table has in memory.
fn held(table: &Table, is_text: bool) -> usize {
    let of = |k| table.versions(&[key(is_text, k)]).map_or(0, |v| v.end() - v.first());
    (0..12).map(of).sum::<u64>() as usize
}

proptest! {
    #[test]
    fn a_restart_changes_nothing(is_text: bool, history in histories(), steps in steps()) {
        let spec = spec(is_text, history);
        let (mut table, mut twin) = (Table::new(spec.clone(), 1), Table::new(spec.clone(), 2));
        table.track();
        let mut stored = Stored::default();
        let (mut seq, mut time_us, mut frontier_us) = (0, 0, i64::MIN);
        for step in steps {
            let behind = match step {
                Step::Commit(behind) | Step::Seal(behind) => behind,
                _ => i64::MAX,
            };
            frontier_us = frontier_us.max(time_us - behind);
            if let Step::Write(k, _) = step {
                (seq, time_us) = (seq + 1, time_us + k % 4);
            }
            for table in [&mut table, &mut twin] {
                table.frontier(frontier_us);
                match &step {
                    Step::Write(k, n) => {
                        let row = n.map(|n| row(is_text, *k, n));
                        table.put_at(&[key(is_text, *k)], row.as_deref(), seq, time_us);
                    }
                    Step::Commit(_) => table.commit(seq),
                    Step::Release => table.release(seq),
                    Step::Seal(_) | Step::Take | Step::Restart => table.seal(seq),
                }
            }
            if matches!(step, Step::Take | Step::Restart) {
                stored.take(&table.take_changes());
                prop_assert_eq!(stored.versions.len(), held(&table, is_text));
            }
            if matches!(step, Step::Restart) {
                table = stored.load(&spec, 3).unwrap();
                table.frontier(frontier_us);
                prop_assert_eq!(held(&table, is_text), stored.versions.len());
                table.commit(seq);
                twin.commit(seq);
                prop_assert_eq!(table.rows(), twin.rows());
                prop_assert_eq!(table.state_hash(), twin.state_hash());
            }
        }
        // Old versions are dropped from memory, and then from the stored entries.
        for table in [&mut table, &mut twin] {
            table.frontier(time_us + 100);
            table.commit(seq);
        }
        stored.take(&table.take_changes());
        prop_assert_eq!(held(&table, is_text), stored.versions.len());
        let mut kept = Vec::new();
        for table in [&table, &twin] {
            let mut histories: Vec<_> = table.newest().histories().collect();
            histories.sort_by(|a, b| a.0.cmp(&b.0));
            kept.push(format!("{histories:?}"));
        }
        prop_assert_eq!(&kept[0], &kept[1]);
    }
}

/// Versions that are missing or do not belong to the rows are refused, with the reason.
#[test]
fn versions_that_do_not_fit_are_refused() {
    let spec = spec(false, History { time_us: Some(100), versions: None });
    let mut table = Table::new(spec.clone(), 1);
    table.track();
    for n in 1..=5 {
        table.put_at(&[Value::Int(7)], Some(&row(false, 7, n)), n as u64, n);
    }
    table.commit(5);
    let mut whole = Stored::default();
    whole.take(&table.take_changes());
    assert_eq!(whole.versions.len(), 5);
    let keys: Vec<Vec<u8>> = whole.versions.keys().cloned().collect();
    let refused = |stored: &Stored, spec: &Arc<TableSpec>, why: &str| {
        let error = stored.load(spec, 1).expect_err("it does not fit");
        assert_eq!(error.kind, Kind::Io);
        assert!(error.to_string().contains(why), "{error}");
    };
    let without = |key: &[u8]| {
        let mut stored = whole.clone();
        stored.versions.remove(key);
        stored
    };
    refused(&without(&keys[2]), &spec, "there is no version before number 3");
    refused(&without(&keys[4]), &spec, "its newest version differs from the row");
    let mut cut_off = whole.clone();
    cut_off.versions.insert(keys[0][..4].to_vec(), Vec::new());
    refused(&cut_off, &spec, "one of its versions is truncated");
    let mut damaged = whole.clone();
    damaged.versions.get_mut(&keys[1]).unwrap().pop();
    refused(&damaged, &spec, "damaged");
    let none = Arc::new(TableSpec { history: None, ..TableSpec::clone(&spec) });
    refused(&whole, &none, "the table retains none");
    // The oldest may have been dropped.
    assert_eq!(without(&keys[0]).load(&spec, 1).unwrap().newest().histories().count(), 1);
    let version = StoredVersion::of(&keys[1], &whole.versions[&keys[1]]).unwrap();
    let of_row = encoded(&row(false, 7, 2));
    assert_eq!((version.number, version.time_us, version.row), (1, 2, &of_row[..]));
}
