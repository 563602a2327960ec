//! Versions of rows over restarts and upgrades. Windows read the same after a restart as without
//! it, and a program with another history begins with the retained versions.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tidemill_core::{Batch, Column, DataType, Error, History, Kind, Row, Schema, Value};
use tidemill_engine::{ask, schema_diff, AppSpec, Mill, Settings, SourceDecl, Upgrade};
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Aggregate, Builder, Program, Window};

const DATA: &str = "/data";

fn by_time(us: i64) -> Option<History> {
    Some(History { time_us: Some(us), versions: None })
}

fn by_count(versions: u64) -> Option<History> {
    Some(History { time_us: None, versions: Some(versions) })
}

/// A table of numbers that are put and deleted, and a window over one of its rows.
#[derive(Clone)]
struct App {
    history: Option<History>,
    window: Option<Window>,
    number: Column,
    more: Vec<Column>,
}

impl App {
    fn new(history: Option<History>, window: Window) -> App {
        let number = Column::new("n", DataType::Int);
        let window = history.is_some().then_some(window);
        App { history, window, number, more: Vec::new() }
    }

    fn program(&self) -> Program {
        let int = |name: &str| Column::new(name, DataType::Int);
        let mut b = Builder::new("a");
        let mut columns = vec![int("k"), self.number.clone()];
        columns.extend(self.more.clone());
        let table = b.table("t", &["k"], columns);
        if let Some(history) = self.history {
            b.history(table, history);
        }
        let put = b.stream("put", vec![int("k"), int("n")]);
        let mut h = b.handler("put", put);
        let (k, n) = (h.column("k"), h.column("n"));
        let row = h.row(table, &[k]);
        let more = self.more.iter().filter(|column| column.default.is_none());
        let mut values = vec![(&*self.number.name, n)];
        values.extend(more.map(|column| (&*column.name, n)));
        h.upsert(row, &values);
        h.done();
        let take = b.stream("take", vec![int("k")]);
        let mut h = b.handler("take", take);
        let k = h.column("k");
        let row = h.row(table, &[k]);
        h.delete(row);
        h.done();
        let asks = b.stream("asks", vec![int("k")]);
        let mut h = b.handler("seen", asks);
        let k = h.column("k");
        let row = h.row(table, &[k]);
        let column = &self.number.name;
        let seen = match self.window {
            Some(window) => [Aggregate::Count, Aggregate::Sum]
                .map(|aggregate| h.window(row, column, window, aggregate)),
            None => [h.int(0), h.int(0)],
        };
        h.output(&[("count", seen[0]), ("sum", seen[1])]);
        h.done();
        b.finish().unwrap()
    }

    fn spec(&self, settings: Settings) -> AppSpec {
        let sources = ["put", "take", "asks"].map(SourceDecl::pushed);
        let (sources, keep) = (sources.to_vec(), vec!["seen".into()]);
        AppSpec { keep, ..AppSpec::new(self.program(), sources, settings) }
    }

    fn start(&self, sim: &SimEnv, upgrade: Upgrade) -> Result<Mill, Error> {
        let renames = match &*self.number.name {
            "n" => Vec::new(),
            new => vec![("t.n".to_owned(), format!("t.{new}"))],
        };
        let settings = Settings {
            data_dir: Some(DATA.into()),
            workers: 1,
            log_segment_bytes: 1 << 16,
            upgrade,
            renames: renames.into_iter().collect(),
            ..Settings::default()
        };
        Mill::start(self.spec(settings), sim.env())
    }

    fn opened(&self, sim: &SimEnv, upgrade: Upgrade) -> Mill {
        self.start(sim, upgrade).unwrap_or_else(|e| panic!("{e}"))
    }
}

fn send(mill: &Mill, stream: &str, columns: &[&str], rows: &[Vec<i64>]) {
    let columns = columns.iter().map(|name| Column::new(name, DataType::Int)).collect();
    let rows: Vec<Vec<Value>> =
        rows.iter().map(|row| row.iter().copied().map(Value::Int).collect()).collect();
    let schema = Arc::new(Schema::new(columns));
    mill.send(stream, Batch::from_rows(schema, rows.iter().map(|r| &r[..]))).unwrap();
    mill.drain().unwrap();
}

fn put(mill: &Mill, k: i64, numbers: impl IntoIterator<Item = i64>) {
    let rows: Vec<Vec<i64>> = numbers.into_iter().map(|n| vec![k, n]).collect();
    send(mill, "put", &["k", "n"], &rows);
}

fn take(mill: &Mill, k: i64) {
    send(mill, "take", &["k"], &[vec![k]]);
}

/// Count and sum of the window over a row.
fn seen(mill: &Mill, k: i64) -> (Value, Value) {
    send(mill, "asks", &["k"], &[vec![k]]);
    let rows: Vec<Row> =
        mill.output("seen", 0).unwrap().iter().flat_map(|b| b.rows().collect::<Vec<_>>()).collect();
    let last = rows.last().unwrap();
    (last[0].clone(), last[1].clone())
}

fn ints(count: i64, sum: i64) -> (Value, Value) {
    (Value::Int(count), Value::Int(sum))
}

#[track_caller]
fn refused(result: Result<Mill, Error>, word: &str) {
    let error = result.map(drop).expect_err("it is refused");
    assert_eq!(error.kind, Kind::Setting, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

#[test]
fn windows_go_on_over_a_restart() {
    for (history, window) in [
        (by_count(4), Window::Last { versions: 4 }),
        (by_time(1_000_000_000), Window::Sliding { size_us: 1_000_000_000 }),
    ] {
        let app = App::new(history, window);
        let sim = SimEnv::new(1);
        let mill = app.opened(&sim, Upgrade::Off);
        put(&mill, 7, 1..=3);
        put(&mill, 8, [10, 20]);
        take(&mill, 8);
        let hash = mill.stop().unwrap().state_hash;
        for start in 1..=3 {
            let mill = app.opened(&sim, Upgrade::Off);
            assert_eq!(mill.summary().unwrap().state_hash, hash);
            assert_eq!(seen(&mill, 7), ints(3, 6), "start {start}");
            assert_eq!(seen(&mill, 8), ints(2, 30), "of a row that is gone");
            let past = json!({"do": "query", "table": "t"}).to_string();
            mill.stop().unwrap();
            // Queries of a stopped directory load versions, too.
            let said: Vec<String> = ask(&sim.env(), Path::new(DATA), &past).collect();
            assert!(!said[0].contains("error"), "{said:?}");
            let verify = json!({"do": "verify"}).to_string();
            let said: Vec<String> = ask(&sim.env(), Path::new(DATA), &verify).collect();
            assert!(said[0].contains("\"rows\":1"), "{said:?}");
        }
        // A killed engine replays the last cuts.
        let mill = app.opened(&sim, Upgrade::Off);
        put(&mill, 8, [40]);
        put(&mill, 7, [4]);
        drop(mill);
        sim.disk.crash();
        let mill = app.opened(&sim, Upgrade::Off);
        assert_eq!(seen(&mill, 7), ints(4, 10));
        assert_eq!(seen(&mill, 8), ints(3, 70));
        mill.stop().unwrap();
    }
}

#[test]
fn what_is_too_old_does_not_come_back() {
    let app = App::new(by_time(1_000), Window::Sliding { size_us: 1_000 });
    let sim = SimEnv::new(1);
    let mill = app.opened(&sim, Upgrade::Off);
    put(&mill, 7, 1..=4);
    // The last cut is so late that all versions are too old, and memory still has them.
    sim.clock.advance_us(5_000);
    let hash = mill.stop().unwrap().state_hash;
    let mill = app.opened(&sim, Upgrade::Off);
    assert_eq!(mill.summary().unwrap().state_hash, hash);
    mill.stop().unwrap();
    // A longer history does not bring them back, though memory may still have had them.
    let longer = App::new(by_time(100_000), Window::Sliding { size_us: 100_000 });
    let mill = longer.opened(&sim, Upgrade::Lossless);
    assert_eq!(seen(&mill, 7), ints(0, 0));
    mill.stop().unwrap();
}

#[test]
fn a_longer_history_begins_with_what_was_kept() {
    let sim = SimEnv::new(1);
    let mill = App::new(by_count(3), Window::Last { versions: 3 }).opened(&sim, Upgrade::Off);
    // Memory has more versions than the history retains.
    put(&mill, 7, 1..=6);
    mill.stop().unwrap();
    let longer = App::new(by_count(5), Window::Last { versions: 5 });
    refused(longer.start(&sim, Upgrade::Off), "another version");
    let mill = longer.opened(&sim, Upgrade::Lossless);
    assert_eq!(seen(&mill, 7), ints(3, 4 + 5 + 6));
    put(&mill, 7, 7..=9);
    assert_eq!(seen(&mill, 7), ints(5, 5 + 6 + 7 + 8 + 9));
    mill.stop().unwrap();
    // Versions are numbered as before: 5 of them, and then 4.
    let fives = App::new(by_count(5), Window::TumblingVersions { versions: 5 });
    let mill = fives.opened(&sim, Upgrade::Lossless);
    assert_eq!(seen(&mill, 7), ints(4, 6 + 7 + 8 + 9));
    mill.stop().unwrap();
}

#[test]
fn a_table_that_had_no_history_begins_with_its_rows() {
    let sim = SimEnv::new(1);
    let mill = App::new(None, Window::Last { versions: 1 }).opened(&sim, Upgrade::Off);
    put(&mill, 7, 1..=3);
    mill.stop().unwrap();
    let app = App::new(by_count(9), Window::Last { versions: 9 });
    for start in 1..=2 {
        let mill = app.opened(&sim, Upgrade::Lossless);
        assert_eq!(seen(&mill, 7), ints(1, 3), "start {start}");
        mill.stop().unwrap();
    }
    let mill = app.opened(&sim, Upgrade::Off);
    put(&mill, 7, [4]);
    mill.stop().unwrap();
    let mill = app.opened(&sim, Upgrade::Off);
    assert_eq!(seen(&mill, 7), ints(2, 7));
    mill.stop().unwrap();
}

#[test]
fn a_shorter_history_forgets_when_somebody_says_so() {
    for shorter in [
        App::new(by_count(2), Window::Last { versions: 2 }),
        App::new(None, Window::Last { versions: 2 }),
    ] {
        let sim = SimEnv::new(1);
        let four = App::new(by_count(4), Window::Last { versions: 4 });
        let mill = four.opened(&sim, Upgrade::Off);
        put(&mill, 7, 1..=6);
        mill.stop().unwrap();
        let diff = schema_diff(&sim.env(), Path::new(DATA), &shorter.spec(Settings::default()));
        let diff = diff.unwrap();
        let change = diff["changes"].as_array().unwrap().iter().find(|c| c["what"] == "table");
        let change = change.unwrap();
        assert_eq!(
            (&change["from"], &change["lossless"]),
            (&json!("a history of 4 versions"), &json!(false))
        );
        refused(shorter.start(&sim, Upgrade::Lossless), "versions beyond it are dropped");
        let mill = shorter.opened(&sim, Upgrade::Lossy);
        if shorter.history.is_some() {
            assert_eq!(seen(&mill, 7), ints(2, 5 + 6));
        }
        mill.stop().unwrap();
        // Dropped versions do not come back.
        let mill = four.opened(&sim, Upgrade::Lossless);
        let left = if shorter.history.is_some() { ints(2, 11) } else { ints(1, 6) };
        assert_eq!(seen(&mill, 7), left);
        mill.stop().unwrap();
    }
}

#[test]
fn versions_get_the_columns_that_rows_get() {
    let sim = SimEnv::new(1);
    let app = App::new(by_count(4), Window::Last { versions: 4 });
    let mill = app.opened(&sim, Upgrade::Off);
    put(&mill, 7, 1..=3);
    put(&mill, 8, 1..=2);
    take(&mill, 8);
    mill.stop().unwrap();
    let nowhere = App { more: vec![Column::new("extra", DataType::Int)], ..app.clone() };
    refused(nowhere.start(&sim, Upgrade::Lossy), "extra");
    let wider = App {
        number: Column::new("amount", DataType::Decimal(2)),
        more: vec![Column::new("extra", DataType::Int).default(Value::Int(5))],
        ..app.clone()
    };
    let mill = wider.opened(&sim, Upgrade::Lossless);
    assert_eq!(seen(&mill, 7), (Value::Int(3), Value::Decimal(600, 2)));
    assert_eq!(seen(&mill, 8), (Value::Int(2), Value::Decimal(300, 2)), "of a row that is gone");
    mill.stop().unwrap();
    // Versions alone can also prevent an upgrade.
    let sim = SimEnv::new(2);
    let mill = app.opened(&sim, Upgrade::Off);
    put(&mill, 8, [1]);
    take(&mill, 8);
    mill.stop().unwrap();
    refused(nowhere.start(&sim, Upgrade::Lossy), "extra");
}
