//! From one version of a program to another: what is different, what becomes of the rows and of all
//! that waits, what is refused, and what a crash in the midst leaves.

#[path = "../../txn/tests/random/mod.rs"]
mod random;

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
    ask, schema_diff, AppSpec, Durable, Mill, Settings, SinkDecl, SourceDecl, Upgrade,
};
use tidemill_env::{Disk as _, Env};
use tidemill_sim::{SimDisk, SimEnv};
use tidemill_txn::program::{Builder, Expr, Program};
use tidemill_txn::reference::{self, CutAt, InputRow};

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

fn pushed(stream: &str) -> SourceDecl {
    SourceDecl {
        stream: stream.into(),
        disorder_us: 0,
        idle_us: None,
        files: None,
        at: String::new(),
    }
}

fn app(program: Program, sources: &[&str], settings: Settings) -> AppSpec {
    let sources = sources.iter().map(|stream| pushed(stream)).collect();
    AppSpec { program, sources, sinks: Vec::new(), keep: Vec::new(), settings }
}

/// A table, and a stream whose events become its rows as far as columns have one name.
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

    /// Another table, and the same events.
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
            // Such events are passed over.
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

    /// A directory with these rows, of an engine that was stopped.
    fn written(&self, sim: &SimEnv, rows: &[Vec<Value>]) {
        let mill = self.start(sim, settings()).unwrap();
        mill.send("put", self.batch(rows)).unwrap();
        mill.drain().unwrap();
        assert_eq!(mill.table(self.table).unwrap().len(), rows.len());
        mill.stop().unwrap();
    }

    /// What the hash of all tables is when nothing but these rows has ever been there.
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

/// Upgrades what `old` has written with `before`, and finds `after`, as diff and hash say, also after
/// one more start.
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
    // What is done is not done again, and `renames` may stay.
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

#[test]
fn columns_are_added_with_null_or_their_default() {
    let new = people().with(vec![
        text("note").nullable(),
        int("id"),
        text("name"),
        money("fee", 2).default(Value::Int(3)),
        int("n"),
    ]);
    let row = |id, name, n| {
        vec![Value::Null, Value::Int(id), Value::str(name), Value::Decimal(300, 2), Value::Int(n)]
    };
    let found = becomes(&people(), &two(), &new, &[], &[row(1, "Ann", 10), row(2, "Ben", -7)]);
    assert_eq!(
        found,
        ["column added t.note: null in every row", "column added t.fee: 3.00 in every row",]
    );
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let new = people().with(vec![int("id"), text("name"), int("n"), int("more")]);
    let diff = new.diff(&sim, &[]);
    assert_eq!(diff["possible"], json!(false));
    assert!(diff["why"][0].as_str().unwrap().contains("give it a default"), "{diff}");
    refused(new.start(&sim, upgrading(&[])), &["t.more", "has no default"]);
}

#[test]
fn columns_are_widened_by_the_rules_of_values() {
    let new = people().with(vec![money("id", 3), text("name").nullable(), money("n", 2)]);
    let row = |id, name, n| vec![Value::Decimal(id, 3), Value::str(name), Value::Decimal(n, 2)];
    let found =
        becomes(&people(), &two(), &new, &[], &[row(1000, "Ann", 1000), row(2000, "Ben", -700)]);
    assert_eq!(
        found[..3],
        [
            "column widened t.id, from int, to decimal(3): converted",
            "column widened t.name, from str, to optional(str): kept",
            "column widened t.n, from int, to decimal(2): converted",
        ]
    );
    // An int is a float where it is small enough, and fits a decimal where that has room.
    let float = people().with(vec![int("id"), text("name"), Column::new("n", DataType::Float)]);
    let row = |id, name, n| vec![Value::Int(id), Value::str(name), Value::Float(n)];
    becomes(&people(), &two(), &float, &[], &[row(1, "Ann", 10.0), row(2, "Ben", -7.0)]);
    let large = [person(1, "Ann", (1 << 53) + 1), person(2, "Ben", i64::MAX)];
    let sim = SimEnv::new(1);
    people().written(&sim, &large);
    let diff = float.diff(&sim, &[]);
    assert_eq!(
        lines(&diff)[0],
        "column changed t.n, from int, to float: converted; 2 values rounded (lost)"
    );
    refused(float.start(&sim, upgrading(&[])), &["lose data", "lossy"]);
    let decimal = people().with(vec![int("id"), text("name"), money("n", 2)]);
    let diff = decimal.diff(&sim, &[]);
    assert!(
        diff["why"][0].as_str().unwrap().contains("t.n has 1 value that can't be converted"),
        "{diff}"
    );
    refused(decimal.start(&sim, lossy()), &["t.n", "overflow"]);
    let mill = float.start(&sim, lossy()).unwrap();
    assert_eq!(rows(&mill, "t")[0][2], Value::Float((1u64 << 53) as f64));
}

#[test]
fn columns_are_narrowed_only_where_every_value_fits() {
    let wide = Sketch::new(&["id"], vec![int("id"), text("name").nullable(), money("n", 3)]);
    let row =
        |id, name: &str, n, scale| vec![Value::Int(id), Value::str(name), Value::Decimal(n, scale)];
    let narrow = wide.with(vec![int("id"), text("name"), money("n", 1)]);
    let found = becomes(&wide, &[row(1, "Ann", 1500, 3)], &narrow, &[], &[row(1, "Ann", 15, 1)]);
    assert_eq!(
        found[..2],
        [
            "column changed t.name, from optional(str), to str: converted",
            "column changed t.n, from decimal(3), to decimal(1): converted",
        ]
    );
    let sim = SimEnv::new(1);
    wide.written(
        &sim,
        &[row(1, "Ann", 1250, 3), vec![Value::Int(2), Value::Null, Value::Decimal(0, 3)]],
    );
    let diff = narrow.diff(&sim, &[]);
    assert!(diff["why"][0].as_str().unwrap().contains("null in column 'name'"), "{diff}");
    assert!(lines(&diff)[1].contains("1 value rounded (lost)"), "{diff}");
    let other = wide.with(vec![int("id"), int("name").nullable(), money("n", 3)]);
    refused(other.start(&sim, lossy()), &["t.name", "can't be converted", "another name"]);
}

#[test]
fn names_change_and_rows_stay() {
    let new = Sketch {
        table: "people",
        key: vec!["number"],
        ..people().with(vec![int("number"), text("called"), int("n")])
    };
    let renames = [("t", "people"), ("t.id", "people.number"), ("t.name", "people.called")];
    let found = becomes(&people(), &two(), &new, &renames, &two());
    assert_eq!(
        found[..3],
        [
            "table renamed people, from t: kept",
            "column renamed people.number, from t.id: kept",
            "column renamed people.called, from t.name: kept",
        ]
    );
    // Two names change places, and what was widened may have another name, too.
    let new = people().with(vec![int("id"), money("name", 1), text("n")]);
    let row = |id, n, name| vec![Value::Int(id), Value::Decimal(n, 1), Value::str(name)];
    let renames = [("t.name", "t.n"), ("t.n", "t.name")];
    becomes(&people(), &two(), &new, &renames, &[row(1, 100, "Ann"), row(2, -70, "Ben")]);
}

#[test]
fn columns_and_tables_go_only_when_somebody_says_so() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let without = people().with(vec![int("id"), int("n")]);
    let diff = without.diff(&sim, &[]);
    assert_eq!(diff["possible"], json!(true));
    assert_eq!(lines(&diff)[0], "column removed t.name: its values in 2 rows are dropped (lost)");
    refused(without.start(&sim, upgrading(&[])), &["lose data", "t.name", "upgrade=\"lossy\""]);
    // A refusal has changed nothing.
    people().start(&sim, settings()).unwrap().stop().unwrap();
    let mill = without.start(&sim, lossy()).unwrap();
    assert_eq!(
        rows(&mill, "t"),
        [[Value::Int(1), Value::Int(10)], [Value::Int(2), Value::Int(-7)]]
    );
    mill.stop().unwrap();
    // Back again: what has gone does not come back.
    refused(people().start(&sim, upgrading(&[])), &["t.name", "has no default"]);
    let back = people().with(vec![int("id"), text("name").nullable(), int("n")]);
    let mill = back.start(&sim, upgrading(&[])).unwrap();
    assert_eq!(rows(&mill, "t")[0], [Value::Int(1), Value::Null, Value::Int(10)]);
    mill.stop().unwrap();
    let other = Sketch { table: "other", ..back };
    assert_eq!(
        lines(&other.diff(&sim, &[]))[..2],
        ["table removed t: its 2 rows are dropped (lost)", "table added other: empty"]
    );
    refused(other.start(&sim, upgrading(&[])), &["lose data", "table t"]);
    let mill = other.start(&sim, lossy()).unwrap();
    assert_eq!(rows(&mill, "other").len(), 0);
}

#[test]
fn a_key_is_what_rows_are() {
    let old = Sketch::new(&["a", "b"], vec![int("a"), text("b"), int("n")]);
    let row = vec![vec![Value::Int(1), Value::str("x"), Value::Int(5)]];
    for key in [vec!["a"], vec!["b", "a"], vec!["a", "b", "n"]] {
        let sim = SimEnv::new(1);
        old.written(&sim, &row);
        let new = Sketch { key, ..old.clone() };
        let diff = new.diff(&sim, &[]);
        assert!(diff["why"][0].as_str().unwrap().contains("key (a, b)"), "{diff}");
        refused(new.start(&sim, lossy()), &["leave the key as it is"]);
        // Without rows any key will do.
        let sim = SimEnv::new(1);
        old.written(&sim, &[]);
        new.start(&sim, upgrading(&[])).unwrap().stop().unwrap();
    }
    // Rows that would be one after rounding.
    let old = Sketch::new(&["k"], vec![money("k", 2), int("n")]);
    let sim = SimEnv::new(1);
    old.written(&sim, &[101, 102].map(|k| vec![Value::Decimal(k, 2), Value::Int(0)]));
    let new = old.with(vec![money("k", 1), int("n")]);
    refused(new.start(&sim, lossy()), &["key column t.k", "rounded"]);
}

#[test]
fn partitions_are_placed_anew() {
    let old = Sketch::new(&["a", "b"], vec![int("a"), text("b"), int("n")]);
    let all: Vec<Vec<Value>> = (0..200)
        .map(|n| vec![Value::Int(n / 20), Value::str(&format!("{:03}", n % 20)), Value::Int(n)])
        .collect();
    let sim = SimEnv::new(1);
    old.written(&sim, &all);
    let program = || {
        let mut program = old.program();
        program.tables[0] = TableSpec { partition_prefix: Some(1), ..program.tables[0].clone() };
        program
    };
    let mill = Mill::start(app(program(), &["put"], upgrading(&[])), sim.env()).unwrap();
    assert_eq!(rows(&mill, "t"), all);
    mill.send("put", old.batch(&all[..50])).unwrap();
    mill.drain().unwrap();
    mill.stop().unwrap();
    let mill = Mill::start(app(program(), &["put"], settings()), sim.env()).unwrap();
    assert_eq!(rows(&mill, "t"), all);
}

#[test]
fn renames_that_make_no_sense_are_refused() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let new = people().with(vec![int("id"), text("called"), int("n")]);
    for (renames, words) in [
        (&[("t.nam", "t.called")][..], &["no column 'nam'", "did you mean 'name'"][..]),
        (&[("t.name", "t.caled")], &["no column 'caled'", "did you mean 'called'"]),
        (&[("x", "t")], &["no table 'x'"]),
        (&[("t", "x")], &["no table 'x'"]),
        (&[("t", "t.called")], &["one is a table and the other a column"]),
        (&[("t.name", "called")], &["one is a table and the other a column"]),
        (&[("t.name", "t.n")], &["both", "would be n"]),
        (&[("t.name", "t.id")], &["would be id"]),
        (&[("t.id", "t.called"), ("t.name", "t.called")], &["would be called"]),
    ] {
        refused(new.start(&sim, upgrading(renames)), words);
        let error = schema_diff(&sim.env(), Path::new(DATA), &new.app(upgrading(renames)));
        assert!(error.is_err());
    }
    // What an earlier upgrade has done is not there to be done again.
    new.start(&sim, upgrading(&[("t.name", "t.called")])).unwrap().stop().unwrap();
    let more = new.with(vec![int("id"), text("called"), int("n"), text("note").nullable()]);
    let renames = [("t.name", "t.called")];
    refused(more.start(&sim, upgrading(&renames)), &["no column 'name'", "take it out of renames"]);
    let sim = SimEnv::new(2);
    people().written(&sim, &two());
    // What is no rename of the key changes it.
    let other = Sketch {
        key: vec!["number"],
        ..people().with(vec![int("number"), text("name"), int("n")])
    };
    refused(other.start(&sim, upgrading(&[])), &["key (id)", "key (number)"]);
    refused(other.start(&sim, lossy()), &["key (id)"]);
    people().start(&sim, settings()).unwrap().stop().unwrap();
}

#[test]
fn the_setting_is_a_bool_or_lossy() {
    for (text, wanted) in
        [("false", Upgrade::Off), ("true", Upgrade::Lossless), ("\"lossy\"", Upgrade::Lossy)]
    {
        let settings: Settings = serde_json::from_str(&format!("{{\"upgrade\": {text}}}")).unwrap();
        assert_eq!(settings.upgrade, wanted);
        assert_eq!(serde_json::to_string(&settings.upgrade).unwrap(), text);
    }
    for text in ["1", "\"yes\"", "null", "{}"] {
        let error = serde_json::from_str::<Settings>(&format!("{{\"upgrade\": {text}}}"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("true, false or \"lossy\""), "{error}");
    }
}

/// Only who recorded a cut can make it again.
#[test]
fn recorded_cuts_stand_against_it() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let quiet = Settings { snapshot_us: i64::MAX / 2000, ..settings() };
    let mill = people().start(&sim, quiet.clone()).unwrap();
    mill.send("put", people().batch(&[person(3, "Cem", 1)])).unwrap();
    mill.drain().unwrap();
    sim.disk.record();
    let new = people().with(vec![int("id"), text("name"), int("n"), text("note").nullable()]);
    // Beside a running engine that is no matter: it leaves a snapshot when it stops.
    assert_eq!(new.diff(&sim, &[])["possible"], json!(true));
    let killed = sim.disk.take_trace().images(0, 0).next().unwrap();
    mill.stop().unwrap();
    let world = SimEnv { disk: killed.disk.clone(), net: SimEnv::new(2).net, ..sim.clone() };
    let diff = new.diff(&world, &[]);
    assert_eq!(diff["possible"], json!(false));
    assert!(diff["why"][0].as_str().unwrap().contains("2 recorded cuts"), "{diff}");
    refused(new.start(&world, upgrading(&[])), &["2 recorded cuts", "start that version, stop it"]);
    refused(new.start(&world, lossy()), &["2 recorded cuts"]);
    people().start(&world, settings()).unwrap().stop().unwrap();
    let mill = new.start(&world, upgrading(&[])).unwrap();
    assert_eq!(rows(&mill, "t").len(), 3);
    mill.stop().unwrap();
    // Without any snapshot, too.
    let sim = SimEnv::new(3);
    let log = Settings { durable: Durable::Log, ..settings() };
    let mill = people().start(&sim, log.clone()).unwrap();
    mill.send("put", people().batch(&two())).unwrap();
    mill.drain().unwrap();
    mill.stop().unwrap();
    refused(new.start(&sim, upgrading(&[])), &["no snapshot", "log+snapshots"]);
    let error = schema_diff(&sim.env(), Path::new(DATA), &new.app(settings())).unwrap_err();
    assert!(error.what.contains("no snapshot yet"), "{error}");
    // And one in which nothing has happened is everybody's.
    people().start(&sim, Settings { upgrade: Upgrade::Lossless, ..log }).unwrap().stop().unwrap();
    let sim = SimEnv::new(4);
    people().start(&sim, upgrading(&[])).unwrap().stop().unwrap();
    new.start(&sim, upgrading(&[])).unwrap().stop().unwrap();
}

#[test]
fn a_diff_is_of_one_app_and_writes_nothing() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let mut other = people().app(settings());
    other.program.name = "b".into();
    let error = schema_diff(&sim.env(), Path::new(DATA), &other).unwrap_err();
    assert!(error.what.contains("belongs to app 'a', not to 'b'"), "{error}");
    let error = schema_diff(&sim.env(), Path::new("/nothing"), &other).unwrap_err();
    assert!(error.what.contains("no data directory"), "{error}");
    sim.disk.record();
    people().with(vec![money("id", 1), int("name"), int("x")]).diff(&sim, &[]);
    assert!(sim.disk.take_trace().is_empty());
    // What stands before a handler does not change it.
    let mut b = Builder::new("a");
    b.table("first", &["k"], vec![int("k")]);
    b.stream("before", vec![int("k")]);
    people().build(&mut b);
    let spec = app(b.finish().unwrap(), &["put", "before"], settings());
    let diff = schema_diff(&sim.env(), Path::new(DATA), &spec).unwrap();
    assert_eq!(
        lines(&diff),
        [
            "table added first: empty",
            "source added before/push: it is read from its first row on",
            "stream added before: empty",
        ]
    );
}

/// Counts events of a stream in event time by a key; what is behind the watermark waits.
struct Clocked {
    /// Beside time, key and amount.
    extra: Vec<Column>,
    /// Only events with a larger amount, counted in another table, if there is such a stream.
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
        app.sources[0].disorder_us = 5;
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

    /// A directory with a late event and some that wait.
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

#[test]
fn events_that_wait_are_executed_by_the_new_program() {
    let sim = SimEnv::new(1);
    Clocked::new().written(&sim);
    let new = Clocked {
        extra: vec![text("memo").nullable(), int("unit").default(Value::Int(1))],
        above: Some(0),
        late: Late::Admit,
        amount: DataType::Decimal(2),
        ..Clocked::new()
    };
    let diff = new.diff(&sim);
    assert_eq!(diff["possible"], json!(true), "{diff}");
    let found = lines(&diff);
    for line in [
        "column added events.memo: null in every event",
        "column added events.unit: 1 in every event",
        "column widened events.x, from int, to decimal(2): converted",
        "stream changed events, from late side, to late admit: late events are treated so from now on",
        "stream added above: empty",
        "handler added count: it takes the events from now on",
    ] {
        assert!(found.iter().any(|found| found == line), "'{line}' is not in {found:#?}");
    }
    let mill = new.start(&sim, upgrading(&[])).unwrap();
    assert_eq!((mill.summary().unwrap().events, mill.status().parked), (2, 5));
    let late = || -> Json {
        let request = json!({"do": "dlq_ls"}).to_string();
        serde_json::from_str(&ask(&sim.env(), Path::new(DATA), &request).next().unwrap()).unwrap()
    };
    let value = json!({"at": 3, "k": 1, "memo": null, "unit": 1, "x": "100.00"});
    assert_eq!(late()["value"], value);
    let summary = mill.finish().unwrap();
    let expected = [("1", "13.00"), ("2", "6.00")].map(|(k, x)| (k.to_owned(), x.to_owned()));
    assert_eq!(sums(&mill), expected);
    // The new stream has got what waited.
    assert_eq!(
        rows(&mill, "counts"),
        [[Value::Int(1), Value::Int(1)], [Value::Int(2), Value::Int(1)]]
    );
    assert_eq!((summary.events, summary.late, summary.transactions), (5, 1, 6));
    assert_eq!(summary.outputs["add"], 4);
    assert_eq!(late()["value"], value);
}

#[test]
fn events_that_wait_stand_against_what_they_do_not_fit() {
    let sim = SimEnv::new(1);
    Clocked::new().written(&sim);
    let needs = Clocked { extra: vec![int("unit")], ..Clocked::new() };
    refused(needs.start(&sim, lossy()), &["events.unit", "has no default"]);
    let text = Clocked { amount: DataType::Float, ..Clocked::new() };
    text.start(&sim, upgrading(&[])).unwrap().stop().unwrap();
    refused(Clocked::new().start(&sim, lossy()), &["events.x", "can't be converted"]);
    let timed = Clocked { amount: DataType::Float, time: "k", ..Clocked::new() };
    refused(timed.start(&sim, lossy()), &["another time", "another name"]);
    // Who lets them be executed first may do all that.
    text.start(&sim, settings()).unwrap().finish().unwrap();
}

#[test]
fn a_stream_that_goes_takes_its_events_along_when_somebody_says_so() {
    let sim = SimEnv::new(1);
    Clocked::new().written(&sim);
    let program = || {
        let mut b = Builder::new("a");
        b.table("sums", &["k"], vec![int("k"), int("sum").default(Value::Int(0))]);
        b.stream("others", vec![int("x")]);
        b.finish().unwrap()
    };
    let spec = |settings| app(program(), &["others"], settings);
    let diff = schema_diff(&sim.env(), Path::new(DATA), &spec(settings())).unwrap();
    let found = lines(&diff);
    for line in [
        "stream removed events: 4 events that wait, and late and bad ones, are dropped (lost)",
        "source removed events/push: its place behind 5 rows is dropped",
        "source added others/push: it is read from its first row on",
        "handler removed add: what it has done stays",
    ] {
        assert!(found.iter().any(|found| found == line), "'{line}' is not in {found:#?}");
    }
    refused(Mill::start(spec(upgrading(&[])), sim.env()), &["lose data", "stream events"]);
    let mill = Mill::start(spec(lossy()), sim.env()).unwrap();
    assert_eq!(sums(&mill), [("1".to_owned(), "5".to_owned())]);
    assert_eq!(mill.sent("others").unwrap(), 0);
    mill.stop().unwrap();
}

/// Streams that touch a common table have one watermark: from now on the higher one.
#[test]
fn streams_that_meet_stand_where_the_first_of_them_is() {
    let program = |common: bool| {
        let mut b = Builder::new("a");
        let columns = || vec![int("k"), int("n").default(Value::Int(0))];
        let tables = [b.table("left", &["k"], columns()), b.table("right", &["k"], columns())];
        for (index, name) in ["left", "right"].into_iter().enumerate() {
            let stream = b.stream(name, vec![int("at"), int("k")]);
            b.event_time(stream, "at", Late::Side);
            let mut h = b.handler(name, stream);
            let k = h.column("k");
            let row = h.row(tables[if common { 0 } else { index }], &[k]);
            let at = h.column("at");
            h.set(row, "n", at);
            h.done();
        }
        b.finish().unwrap()
    };
    let spec = |common, names: &[&str], settings| app(program(common), names, settings);
    let send = |mill: &Mill, stream: &str, times: &[i64]| {
        let schema = program(false).streams[0].spec.schema.clone();
        let rows: Vec<[Value; 2]> =
            times.iter().map(|at| [Value::Int(*at), Value::Int(1)]).collect();
        mill.send(stream, Batch::from_rows(schema, rows.iter().map(|r| &r[..]))).unwrap();
    };
    let sim = SimEnv::new(1);
    let mill = Mill::start(spec(false, &["left", "right"], settings()), sim.env()).unwrap();
    send(&mill, "left", &[10, 20, 30]);
    send(&mill, "right", &[5, 6]);
    mill.drain().unwrap();
    mill.stop().unwrap();
    // Sources in another order have other numbers.
    let new = |settings| spec(true, &["right", "left"], settings);
    let diff = schema_diff(&sim.env(), Path::new(DATA), &new(settings())).unwrap();
    assert!(
        lines(&diff)
            .iter()
            .any(|line| line.contains("stream changed right: it has a table in common with left")),
        "{diff:#}"
    );
    refused(Mill::start(new(upgrading(&[])), sim.env()), &["lose data", "stream right"]);
    let mill = Mill::start(new(lossy()), sim.env()).unwrap();
    assert_eq!((mill.sent("left").unwrap(), mill.sent("right").unwrap()), (3, 2));
    send(&mill, "right", &[7, 40]);
    send(&mill, "left", &[29, 41]);
    mill.drain().unwrap();
    let summary = mill.finish().unwrap();
    assert_eq!((summary.late, summary.events), (2, 9));
    assert_eq!(rows(&mill, "left"), [[Value::Int(1), Value::Int(41)]]);
}

/// Files are read on where they were, whatever the order in which they are declared; a new one from its
/// beginning; outputs go on, and new ones begin.
#[test]
fn sources_and_sinks_keep_their_places() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    env.disk.create_dir_all(Path::new("/in")).unwrap();
    let append = |name: &str, rows: std::ops::Range<i64>| {
        let mut file = env.disk.open_append(Path::new(&format!("/in/{name}.jsonl"))).unwrap();
        for n in rows {
            let line = format!("{{\"id\":{n},\"name\":\"x\",\"n\":{n}}}\n");
            std::io::Write::write_all(&mut file, line.as_bytes()).unwrap();
        }
        file.sync().unwrap();
    };
    let read = |path: &str| {
        let mut text = String::new();
        let mut file = env.disk.open_read(Path::new(path)).unwrap();
        std::io::Read::read_to_string(&mut file, &mut text).unwrap();
        text.lines().count()
    };
    let spec = |sketch: &Sketch, files: &[&str], sinks: &[&str], settings| {
        let mut spec = sketch.app(settings);
        let from = |name: &&str| SourceDecl {
            files: Some(json!({"path": format!("/in/{name}.jsonl")})),
            ..pushed("put")
        };
        spec.sources = files.iter().map(from).collect();
        let sink = |path: &&str| SinkDecl {
            stream: "put.aborted".into(),
            files: json!({"path": path}),
            at: String::new(),
        };
        spec.sinks = sinks.iter().map(sink).collect();
        spec
    };
    // An id that is a multiple of three is refused: a null in its key.
    let old = Sketch::new(&["id"], vec![int("id"), text("name"), int("n")]);
    ["a", "b"].iter().for_each(|name| append(name, 0..10));
    append("b", 10..20);
    let mill =
        Mill::start(spec(&old, &["a", "b"], &["/out.jsonl"], settings()), sim.env()).unwrap();
    mill.finish().unwrap();
    ["a", "b", "c"].iter().for_each(|name| append(name, 20..25));
    let new = old.with(vec![int("id"), text("name"), int("n"), text("note").nullable()]);
    let changed = spec(&new, &["c", "b", "a"], &["/out.jsonl", "/more.jsonl"], upgrading(&[]));
    let diff = schema_diff(&env, Path::new(DATA), &changed).unwrap();
    let found = lines(&diff);
    for line in [
        "source added put/c.jsonl: it is read from its first row on",
        "sink added /more.jsonl: it gets what comes from now on",
    ] {
        assert!(found.iter().any(|found| found == line), "'{line}' is not in {found:#?}");
    }
    let summary = Mill::start(changed, sim.env()).unwrap().finish().unwrap();
    assert_eq!(summary.events, 30 + 15);
    assert_eq!(summary.tables[0].rows, 25);
    assert_eq!((read("/out.jsonl"), read("/more.jsonl")), (0, 0));
    // A file that is there is nobody's to write over, and columns are those that a file has.
    append("foreign", 0..1);
    let foreign = spec(&new, &["b"], &["/in/foreign.jsonl"], lossy());
    refused(Mill::start(foreign, sim.env()), &["/in/foreign.jsonl is there already"]);
    let mut wider = new.clone();
    wider.events.push(int("unit").default(Value::Int(0)));
    let wider = spec(&wider, &["c", "b", "a"], &["/out.jsonl"], upgrading(&[]));
    refused(
        Mill::start(wider, sim.env()),
        &["/out.jsonl has rows with the columns", "another file"],
    );
    // Sinks alone are a change, too.
    let fewer = |settings| spec(&new, &["c", "b", "a"], &["/new.jsonl"], settings);
    assert_eq!(
        schema_diff(&env, Path::new(DATA), &fewer(settings())).unwrap()["same"],
        json!(false)
    );
    Mill::start(fewer(upgrading(&[])), sim.env()).unwrap().finish().unwrap();
}

/// The past before an upgrade is another program's.
#[test]
fn what_was_before_can_not_be_asked_for() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let new = people().with(vec![int("id"), text("name"), int("n"), text("note").nullable()]);
    let mill = new
        .start(&sim, Settings { log_to: Some("/life".into()), ..upgrading(&[]) })
        .unwrap_or_else(|e| panic!("{e}"));
    let mut life = String::new();
    let mut file = sim.disk.open_read(Path::new("/life")).unwrap();
    std::io::Read::read_to_string(&mut file, &mut life).unwrap();
    let told = life.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let told = told.into_iter().find(|event| event["event"] == "upgrade").unwrap();
    assert_eq!(told["changes"][0]["name"], "t.note");
    let query = |as_of: u64| -> Json {
        let request = json!({"do": "query", "table": "t", "as_of": as_of}).to_string();
        let last = ask(&sim.env(), Path::new(DATA), &request).last().unwrap();
        serde_json::from_str(&last).unwrap()
    };
    let status: Json = serde_json::from_str(
        &ask(&sim.env(), Path::new(DATA), &json!({"do": "status"}).to_string()).last().unwrap(),
    )
    .unwrap();
    let epoch = status["status"]["snapshot_epoch"].as_u64().unwrap();
    assert_eq!(told["epoch"], epoch);
    assert_eq!(query(epoch)["rows"], json!(2));
    assert!(query(epoch - 1)["error"]["what"].as_str().unwrap().contains("before an upgrade"));
    mill.stop().unwrap();
    let verify = json!({"do": "verify"}).to_string();
    let verified = ask(&sim.env(), Path::new(DATA), &verify).last().unwrap();
    assert!(!verified.contains("error"), "{verified}");
}

/// Wherever the machine stops, there is the old program's directory or the new one's.
#[test]
fn a_crash_leaves_the_old_or_the_new() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let renames = [("t.name", "t.called")];
    let new =
        people().with(vec![int("id"), text("called"), money("n", 2), text("note").nullable()]);
    let row =
        |id, name, n| vec![Value::Int(id), Value::str(name), Value::Decimal(n, 2), Value::Null];
    let after = [row(1, "Ann", 1000), row(2, "Ben", -700)];
    sim.disk.record();
    let mill = new.start(&sim, upgrading(&renames)).unwrap();
    assert_eq!(rows(&mill, "t"), after);
    mill.stop().unwrap();
    let trace = sim.disk.take_trace();
    let on = |disk: &Arc<SimDisk>| SimEnv { disk: disk.clone(), ..SimEnv::new(5) };
    let images = || trace.images(7, 3);
    let (mut old, mut upgraded) = (0, 0);
    for ((first, second), third) in images().zip(images()).zip(images()) {
        let place = format!("{first:?}");
        match people().start(&on(&first.disk), settings()) {
            Ok(mill) => {
                assert_eq!(rows(&mill, "t"), two(), "{place}");
                old += 1;
            }
            Err(error) => {
                assert!(error.what.contains("another version"), "{place}: {error}");
                let mill = new.start(&on(&second.disk), settings());
                let mill = mill.unwrap_or_else(|e| panic!("{place}: {e}"));
                assert_eq!(rows(&mill, "t"), after, "{place}");
                upgraded += 1;
            }
        }
        let mill = new.start(&on(&third.disk), upgrading(&renames));
        let mill = mill.unwrap_or_else(|e| panic!("{place}: {e}"));
        assert_eq!(rows(&mill, "t"), after, "{place}");
        assert_eq!(mill.sent("put").unwrap(), 2, "{place}");
        mill.stop().unwrap();
    }
    println!("{old} images of the old program, {upgraded} of the new one");
    assert!(old > 10 && upgraded > 10, "{old}, {upgraded}");
}

/// The same with events that wait and files that are written: whoever sends goes on behind what is known,
/// and in the end everything is there once.
#[test]
fn a_crash_in_an_upgraded_run_loses_and_repeats_nothing() {
    let sinks = |names: &[&str]| -> Vec<SinkDecl> {
        let sink = |name: &&str| SinkDecl {
            stream: (*name).to_owned(),
            files: json!({"path": format!("/out/{name}.jsonl")}),
            at: String::new(),
        };
        names.iter().map(sink).collect()
    };
    let old = Clocked::new();
    let new = Clocked { extra: vec![text("memo").nullable()], above: Some(0), ..Clocked::new() };
    let rows_after: [&[i64]; 4] = [&[22, 1, 100], &[23, 3, 250], &[30, 1, -100], &[31, 3, 1]];
    let sim = SimEnv::new(1);
    let spec = AppSpec { sinks: sinks(&["add"]), ..old.app(settings()) };
    let mill = Mill::start(spec, sim.env()).unwrap();
    old.send(&mill, &[&[10, 1, 5], &[20, 2, 7], &[20, 1, 8], &[21, 2, -1]]);
    mill.acknowledge("events", 4).unwrap();
    mill.stop().unwrap();
    let run = |sim: &SimEnv, acknowledged: u64| {
        let settings = Settings { snapshot_us: 1, ..upgrading(&[]) };
        let spec = AppSpec { sinks: sinks(&["add", "above"]), ..new.app(settings) };
        let mill = Mill::start(spec, sim.env())?;
        let schema = new.program().streams[0].spec.schema.clone();
        let known = mill.sent("events")?;
        assert!(
            known >= acknowledged,
            "{known} rows are known, and {acknowledged} were answered for"
        );
        for row in &rows_after[known as usize - 4..] {
            let row = [Value::Int(row[0]), Value::Int(row[1]), Value::Null, Value::Int(row[2])];
            let rows = mill.send("events", Batch::from_rows(schema.clone(), [&row[..]]))?;
            mill.acknowledge("events", rows)?;
            sim.disk.mark(rows);
        }
        let summary = mill.finish()?;
        let files = sim.disk.list(Path::new("/out")).unwrap().into_iter().map(|path| {
            let mut text = String::new();
            let mut file = sim.disk.open_read(&path).unwrap();
            std::io::Read::read_to_string(&mut file, &mut text).unwrap();
            (path, text)
        });
        let files: Vec<_> = files.collect();
        let tables = (rows(&mill, "sums"), rows(&mill, "counts"));
        Ok::<_, Error>((files, tables, summary.output_hash, summary.events))
    };
    sim.disk.record();
    let whole = run(&sim, 4).unwrap();
    let trace = sim.disk.take_trace();
    assert_eq!(whole.0.len(), 2);
    assert_eq!(whole.0[0].1.lines().count(), 5);
    assert_eq!(whole.0[1].1.lines().count(), 8);
    let mut images = 0;
    for image in trace.images(3, 1) {
        let place = format!("{image:?}");
        let world = SimEnv { disk: image.disk, ..SimEnv::new(5) };
        let again = run(&world, image.mark.unwrap_or(4)).unwrap_or_else(|e| panic!("{place}: {e}"));
        assert_eq!(again, whole, "{place}");
        images += 1;
    }
    println!("{images} images");
}

/// A disk that fails in the midst: the start fails, and the next one finds the old or the new.
#[test]
fn a_disk_that_fails_leaves_the_old_or_the_new() {
    use std::io::ErrorKind;
    let new = people().with(vec![int("id"), text("name"), int("n"), text("note").nullable()]);
    let mut failed = 0;
    for nth in 1..60 {
        for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
            let sim = SimEnv::new(nth);
            people().written(&sim, &two());
            sim.disk.fail_nth(None, nth, kind);
            let first = new.start(&sim, upgrading(&[]));
            failed += u64::from(first.is_err());
            drop(first);
            sim.disk.clear_faults();
            sim.disk.crash();
            let mill = new.start(&sim, upgrading(&[])).unwrap_or_else(|e| panic!("{nth}: {e}"));
            assert_eq!(rows(&mill, "t").len(), 2);
        }
    }
    assert!(failed > 10, "{failed}");
}

/// Random programs, stopped somewhere and upgraded to the same with other names and more columns: as
/// if the new one had run from the beginning.
#[test]
fn an_upgraded_run_is_that_of_the_reference() {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut parked = 0;
    for seed in 0..cases {
        parked += u64::from(upgraded_in_the_midst(seed));
    }
    println!("in {parked} of {cases} runs events waited");
    assert!(parked > 0);
}

/// Whether events waited for their watermark at the upgrade.
fn upgraded_in_the_midst(seed: u64) -> bool {
    let mut dice = random::Dice(seed);
    let shape = random::Shape { plain: dice.chance(50), orderly: dice.chance(50), histories: true };
    let old = random::program(&mut dice, shape);
    let inputs = random::sources(&mut dice, &old, shape);
    let (new, renames) = changed(&mut dice, &old);
    let sim = SimEnv::new(seed);
    let env = sim.env();
    env.disk.create_dir_all(Path::new("/in")).unwrap();
    for (index, rows) in inputs.iter().enumerate() {
        let schema = &old.streams[old.sources[index].stream.index()].spec.schema;
        write_file(&env, &format!("/in/{index}.jsonl"), schema, rows);
    }
    let spec = |program: &Program, settings: Settings| {
        let sources = program.sources.iter().enumerate().map(|(index, source)| SourceDecl {
            disorder_us: source.disorder_us,
            files: Some(json!({"path": format!("/in/{index}.jsonl")})),
            ..pushed(&program.streams[source.stream.index()].spec.name)
        });
        let sources = sources.collect();
        let (program, sinks, keep) = (program.clone(), Vec::new(), Vec::new());
        AppSpec { program, sources, sinks, keep, settings }
    };
    let settings = |dice: &mut random::Dice| Settings {
        workers: 1 + dice.below(3) as usize,
        epoch_rows_max: 1 + dice.below(30) as usize,
        epoch_us_max: 1,
        rerun_every: 0,
        ..settings()
    };
    let mill = Mill::start(spec(&old, settings(&mut dice)), env.clone()).unwrap();
    for _ in 0..dice.below(4) {
        sim.clock.advance_us(1);
        if mill.wait(20).unwrap() {
            break;
        }
    }
    mill.stop().unwrap();
    let waited = mill.status().parked > 0;
    let mut cuts = mill.cuts();
    let upgrade =
        Settings { upgrade: Upgrade::Lossless, renames: renames.clone(), ..settings(&mut dice) };
    let mill = Mill::start(spec(&new, upgrade), env).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    if dice.chance(50) {
        sim.clock.advance_us(1);
        let _ = mill.wait(20);
        mill.stop().unwrap();
        cuts.extend(mill.cuts());
    } else {
        while !mill.wait(50).unwrap() {
            sim.clock.advance_us(1);
        }
        mill.finish().unwrap();
        cuts.extend(mill.cuts());
    }
    let summary = mill.summary().unwrap();
    let cuts: Vec<CutAt> = cuts
        .into_iter()
        .map(|c| CutAt { offsets: c.offsets, clock_us: c.clock_us, idle: c.idle, ended: c.ended })
        .collect();
    let wanted = reference::run(&new, &inputs, &cuts);
    for (table, wanted) in new.tables.iter().zip(&wanted.tables) {
        let key = |row: &Row| Key::of(table.key.iter().map(|c| &row[*c]));
        let found = mill.table(&table.name).unwrap();
        let found: BTreeMap<Key, Row> = found.rows().map(|row| (key(&row), row)).collect();
        assert_eq!(*wanted, found, "seed {seed}: table {}", table.name);
    }
    assert_eq!(
        (wanted.transactions, wanted.aborts),
        (summary.transactions, summary.refused),
        "seed {seed}"
    );
    let mut hashes = BTreeMap::new();
    for (name, rows) in &summary.outputs {
        let index = new.streams.iter().position(|s| *s.spec.name == **name).unwrap();
        let wanted = wanted.outputs.get(&StreamId(index as u16)).map_or(&[][..], |rows| rows);
        assert_eq!(wanted.len() as u64, *rows, "seed {seed}: stream {name}");
        let mut hash = RowsHash::default();
        let schema = new.streams[index].spec.schema.clone();
        hash.take(&Batch::from_rows(schema, wanted.iter().map(|(_, row)| &row[..])));
        hashes.insert(&**name, hash);
    }
    // Why something was refused has the names of tables in it.
    if renames.is_empty() {
        let hash = streams_hash(hashes);
        assert_eq!(format!("{hash:032x}"), summary.output_hash, "seed {seed}");
    }
    waited
}

/// The same program with other names of tables and columns, more columns and more tables, and more
/// versions of their rows.
fn changed(dice: &mut random::Dice, old: &Program) -> (Program, BTreeMap<String, String>) {
    let (mut new, mut renames) = (old.clone(), BTreeMap::new());
    let is_opaque = !old.opaques.is_empty();
    for table in &mut new.tables {
        let before = table.name.to_string();
        if dice.chance(40) {
            table.name = format!("{before}s").into();
            renames.insert(before.clone(), table.name.to_string());
        }
        let mut columns = table.schema.columns.clone();
        for column in &mut columns {
            if dice.chance(30) {
                let (old, new) = (column.name.to_string(), format!("{}_{}", column.name, before));
                renames.insert(format!("{before}.{old}"), format!("{}.{new}", table.name));
                column.name = new.into();
            }
        }
        // A function that writes whole rows knows how many columns a table has.
        if !is_opaque {
            if dice.chance(60) {
                columns.push(int("added").default(Value::Int(4)));
            }
            if before == "rich" && dice.chance(60) {
                columns.push(text("remark").nullable());
            }
        }
        table.schema = Arc::new(Schema::new(columns));
        if let (Some(history), true) = (&mut table.history, dice.chance(40)) {
            history.versions = Some(history.versions.unwrap_or(1) + dice.below(9));
        }
        if table.key.len() > 1 && dice.chance(40) {
            table.partition_prefix = Some(1);
        }
    }
    if dice.chance(50) {
        let schema = Arc::new(Schema::new(vec![int("k"), text("v")]));
        new.tables.push(TableSpec::new("extra", vec![0], schema));
    }
    if new.tables == old.tables {
        return changed(dice, old);
    }
    new.check().unwrap();
    (new, renames)
}

fn write_file(env: &Env, path: &str, schema: &Schema, rows: &[InputRow]) {
    let (mut text, mut line) = (Vec::new(), 0);
    for row in rows {
        while line < row.offset {
            text.extend_from_slice(b"oops\n");
            line += 1;
        }
        tidemill_connect::values::write_row(schema, &row.values, &mut text);
        text.push(b'\n');
        line += 1;
    }
    let mut out = env.disk.create(Path::new(path)).unwrap();
    std::io::Write::write_all(&mut out, &text).unwrap();
    out.sync().unwrap();
    env.disk.sync_dir(Path::new("/in")).unwrap();
}
