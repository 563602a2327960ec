//! Upgrades from one version of a program to another: the differences, the rows and buffered
//! events, refusals, and crashes during an upgrade.

#[path = "../inputs/mod.rs"]
mod inputs;
#[path = "../../../txn/tests/random/mod.rs"]
mod random;

mod any_program;
mod crash;
mod schema;
mod waiting;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{json, Value as Json};
use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::rules::Binary;
use tidemill_core::{
    Batch, Column, DataType, Error, Key, Kind, Late, Row, Schema, StreamId, TableSpec, Value,
};
use tidemill_engine::{
    ask, schema_diff, App as _, AppSpec, Durable, Mill, RetainedRows, Settings, SinkDecl,
    SourceDecl, Upgrade,
};
use tidemill_env::Disk as _;
use tidemill_reference::CutAt;
use tidemill_sim::{SimDisk, SimEnv};
use tidemill_txn::program::{Builder, Expr, Program};

const DATA: &str = "/data";

fn int(name: &str) -> Column {
    Column::new(name, DataType::Int)
}

fn text(name: &str) -> Column {
    Column::new(name, DataType::Str)
}

fn money(name: &str, scale: u8) -> Column {
    Column::new(name, DataType::Decimal(scale))
}

fn settings() -> Settings {
    Settings {
        data_dir: Some(DATA.into()),
        workers: 1,
        log_segment_bytes: 1 << 16,
        keep_cuts: true,
        ..Settings::default()
    }
}

fn upgrading(renames: &[(&str, &str)]) -> Settings {
    let renames = renames.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned()));
    Settings { upgrade: Upgrade::Lossless, renames: renames.collect(), ..settings() }
}

fn lossy() -> Settings {
    Settings { upgrade: Upgrade::Lossy, ..settings() }
}

fn app(program: Program, sources: &[&str], settings: Settings) -> AppSpec {
    let sources = sources.iter().map(|stream| SourceDecl::pushed(stream)).collect();
    AppSpec::new(program, sources, settings)
}

/// A table, and a stream whose events become its rows, by the columns with equal names.
#[derive(Clone)]
struct Sketch {
    table: &'static str,
    key: Vec<&'static str>,
    columns: Vec<Column>,
    events: Vec<Column>,
}

impl Sketch {
    fn new(key: &[&'static str], columns: Vec<Column>) -> Sketch {
        Sketch { table: "t", key: key.to_vec(), events: columns.clone(), columns }
    }

    /// The same events with other columns of the table.
    fn with(&self, columns: Vec<Column>) -> Sketch {
        Sketch { columns, ..self.clone() }
    }

    fn program(&self) -> Program {
        let mut b = Builder::new("a");
        self.build(&mut b);
        b.finish().unwrap()
    }

    fn build(&self, b: &mut Builder) {
        let table = b.table(self.table, &self.key, self.columns.clone());
        let stream = b.stream("put", self.events.clone());
        let mut h = b.handler("put", stream);
        let event = |name: &str| self.events.iter().find(|c| *c.name == *name);
        let has_key = self.key.iter().all(|name| {
            let column = self.columns.iter().find(|c| *c.name == **name);
            event(name).is_some_and(|e| column.is_some_and(|c| c.ty == e.ty))
        });
        let rest = self.columns.iter().filter(|c| !self.key.contains(&&*c.name));
        let fits = |c: &&Column| {
            let from = event(&c.name);
            from.is_some_and(|e| e.ty.stores_in(&c.ty) && (c.nullable || !e.nullable))
        };
        let needs = |c: &Column| !c.nullable && c.default.is_none();
        if !has_key || rest.clone().any(|c| needs(c) && !fits(&c)) {
            // Such events are ignored.
            h.done();
            return;
        }
        let key: Vec<_> = self.key.iter().map(|name| h.column(name)).collect();
        let row = h.row(table, &key);
        let values: Vec<_> = rest.filter(fits).map(|c| (&*c.name, h.column(&c.name))).collect();
        h.upsert(row, &values);
        h.done();
    }

    fn app(&self, settings: Settings) -> AppSpec {
        app(self.program(), &["put"], settings)
    }

    fn start(&self, sim: &SimEnv, settings: Settings) -> Result<Mill, Error> {
        Mill::start(self.app(settings), sim.env())
    }

    fn batch(&self, rows: &[Vec<Value>]) -> Batch {
        let schema = Arc::new(Schema::new(self.events.clone()));
        Batch::from_rows(schema, rows.iter().map(|r| &r[..]))
    }

    /// Creates a directory with these rows, of a stopped engine.
    fn written(&self, sim: &SimEnv, rows: &[Vec<Value>]) {
        let mill = self.start(sim, settings()).unwrap();
        mill.send("put", self.batch(rows)).unwrap();
        mill.drain().unwrap();
        assert_eq!(mill.table(self.table).unwrap().len(), rows.len());
        mill.stop().unwrap();
    }

    /// The hash of all tables with only these rows.
    fn hash(&self, rows: &[Vec<Value>]) -> String {
        let fresh = Sketch { events: self.columns.clone(), ..self.clone() };
        let mill = fresh
            .start(&SimEnv::new(9), Settings { data_dir: None, ..settings() })
            .unwrap_or_else(|e| panic!("{e}"));
        mill.send("put", fresh.batch(rows)).unwrap();
        mill.drain().unwrap();
        mill.summary().unwrap().state_hash
    }

    fn diff(&self, sim: &SimEnv, renames: &[(&str, &str)]) -> Json {
        schema_diff(&sim.env(), Path::new(DATA), &self.app(upgrading(renames)))
            .unwrap_or_else(|e| panic!("{e}"))
    }
}

fn rows(mill: &Mill, table: &str) -> Vec<Vec<Value>> {
    mill.table(table).unwrap().rows().map(|row| row.to_vec()).collect()
}

#[track_caller]
fn refused(result: Result<Mill, Error>, words: &[&str]) {
    let error = result.map(|_| ()).expect_err("it is refused");
    let text = error.to_string();
    assert_eq!(error.kind, Kind::Setting, "{text}");
    assert!(!error.help.is_empty(), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "'{word}' is not in: {text}"));
}

/// The changes, each in a line.
fn lines(diff: &Json) -> Vec<String> {
    let word = |change: &Json, name: &str| change[name].as_str().unwrap_or("").to_owned();
    let line = |change: &Json| {
        let mut line = ["what", "change", "name"].map(|name| word(change, name)).join(" ");
        for name in ["from", "to"] {
            if change.get(name).is_some() {
                line += &format!(", {name} {}", word(change, name));
            }
        }
        let lost = if change["lossless"] == json!(true) { "" } else { " (lost)" };
        format!("{line}: {}{lost}", word(change, "upgrade"))
    };
    diff["changes"].as_array().unwrap().iter().map(line).collect()
}

/// Upgrades the data of `old` with the rows `before`, and finds `after`. Checks the diff and the
/// hash, also after one more start.
#[track_caller]
fn becomes(
    old: &Sketch,
    before: &[Vec<Value>],
    new: &Sketch,
    renames: &[(&str, &str)],
    after: &[Vec<Value>],
) -> Vec<String> {
    let sim = SimEnv::new(1);
    old.written(&sim, before);
    let diff = new.diff(&sim, renames);
    assert_eq!((&diff["same"], &diff["possible"]), (&json!(false), &json!(true)), "{diff}");
    assert!(old.diff(&sim, &[])["same"] == json!(true), "a diff changes nothing");
    refused(new.start(&sim, settings()), &["another version", "tidemill schema diff", "--upgrade"]);
    let mill = new.start(&sim, upgrading(renames)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(rows(&mill, new.table), after);
    assert_eq!(mill.summary().unwrap().state_hash, new.hash(after));
    assert_eq!(mill.sent("put").unwrap(), before.len() as u64);
    mill.stop().unwrap();
    refused(old.start(&sim, settings()), &["another version"]);
    // A completed upgrade is not repeated, and `renames` may stay.
    let mill = new.start(&sim, upgrading(renames)).unwrap();
    assert_eq!(mill.summary().unwrap().state_hash, new.hash(after));
    mill.stop().unwrap();
    assert!(new.diff(&sim, renames)["same"] == json!(true));
    lines(&diff)
}

fn people() -> Sketch {
    Sketch::new(&["id"], vec![int("id"), text("name"), int("n")])
}

fn person(id: i64, name: &str, n: i64) -> Vec<Value> {
    vec![Value::Int(id), Value::str(name), Value::Int(n)]
}

fn two() -> Vec<Vec<Value>> {
    vec![person(1, "Ann", 10), person(2, "Ben", -7)]
}

/// Counts events of a stream with event time by a key. Events after the watermark are buffered.
struct Clocked {
    /// The columns beside time, key and amount.
    extra: Vec<Column>,
    /// If set, a stream of the events with a larger amount, which another table counts.
    above: Option<i64>,
    late: Late,
    amount: DataType,
    time: &'static str,
}

impl Clocked {
    fn new() -> Clocked {
        Clocked {
            extra: Vec::new(),
            above: None,
            late: Late::Side,
            amount: DataType::Int,
            time: "at",
        }
    }

    fn program(&self) -> Program {
        let mut b = Builder::new("a");
        let sum = Column::new("sum", self.amount.clone()).default(Value::Int(0));
        let sums = b.table("sums", &["k"], vec![int("k"), sum]);
        let mut columns = vec![int("at"), int("k")];
        columns.extend(self.extra.iter().cloned());
        columns.push(Column::new("x", self.amount.clone()));
        let stream = b.stream("events", columns);
        b.event_time(stream, self.time, self.late);
        let mut h = b.handler("add", stream);
        let (k, x) = (h.column("k"), h.column("x"));
        let row = h.row(sums, &[k]);
        let sum = h.read(row, "sum");
        let sum = h.add(sum, x);
        h.set(row, "sum", sum);
        h.output(&[("k", k), ("sum", sum)]);
        h.done();
        if let Some(above) = self.above {
            let counts = b.table("counts", &["k"], vec![int("k"), int("n").default(Value::Int(0))]);
            let above = b.filter("above", stream, |exprs, schema| {
                let x = exprs.push(Expr::Column(schema.index_of("x").unwrap() as u16));
                let limit = exprs.push(Expr::Const(Value::Int(above)));
                exprs.push(Expr::Binary(Binary::Gt, x, limit))
            });
            let mut h = b.handler("count", above);
            let k = h.column("k");
            let row = h.row(counts, &[k]);
            let (n, one) = (h.read(row, "n"), h.int(1));
            let n = h.add(n, one);
            h.set(row, "n", n);
            h.done();
        }
        b.finish().unwrap()
    }

    fn start(&self, sim: &SimEnv, settings: Settings) -> Result<Mill, Error> {
        Mill::start(self.app(settings), sim.env())
    }

    fn app(&self, settings: Settings) -> AppSpec {
        let mut app = app(self.program(), &["events"], settings);
        app.sources[0].out_of_orderness_us = 5;
        app
    }

    fn diff(&self, sim: &SimEnv) -> Json {
        schema_diff(&sim.env(), Path::new(DATA), &self.app(settings())).unwrap()
    }

    fn send(&self, mill: &Mill, rows: &[&[i64]]) {
        let schema = self.program().streams[0].spec.schema.clone();
        let rows: Vec<Vec<Value>> = rows
            .iter()
            .map(|row| {
                let columns = schema.columns.iter().zip(*row);
                columns
                    .map(|(c, v)| match c.ty {
                        DataType::Decimal(scale) => Value::Decimal(*v, scale),
                        _ => Value::Int(*v),
                    })
                    .collect()
            })
            .collect();
        mill.send("events", Batch::from_rows(schema, rows.iter().map(|r| &r[..]))).unwrap();
    }

    /// Creates a directory with a late event and some buffered ones.
    fn written(&self, sim: &SimEnv) {
        let mill = self.start(sim, settings()).unwrap();
        self.send(&mill, &[&[10, 1, 5], &[20, 2, 7]]);
        mill.acknowledge("events", 2).unwrap();
        self.send(&mill, &[&[3, 1, 100], &[20, 1, 8], &[20, 2, -1]]);
        mill.acknowledge("events", 5).unwrap();
        let summary = mill.stop().unwrap();
        assert_eq!(summary.late, 1, "{summary:?}");
        assert_eq!(rows(&mill, "sums"), [[Value::Int(1), Value::Int(5)]]);
    }
}

fn sums(mill: &Mill) -> Vec<(String, String)> {
    let rows = rows(mill, "sums").into_iter();
    rows.map(|row| (row[0].to_string(), row[1].to_string())).collect()
}
