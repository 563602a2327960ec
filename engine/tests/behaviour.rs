//! A running app at its limits: memory, sources that run ahead, idle and late input, stopping,
//! hidden non-determinism, existing output files.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

use serde_json::json;
use tidemill_core::{Batch, Column, DataType, Kind, Late, TableId, Value};
use tidemill_engine::{AppSpec, Mill, Settings, SinkDecl, SourceDecl};
use tidemill_env::Env;
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Abort, Builder, Opaque, Program, Tx};

/// A sum by key over two streams with event time.
fn sums(late: Late) -> Program {
    let mut b = Builder::new("sums");
    let sum = Column::new("sum", DataType::Int).default(Value::Int(0));
    let table = b.table("sums", &["k"], vec![Column::new("k", DataType::Int), sum]);
    for name in ["left", "right"] {
        let columns = ["at", "k", "v"].map(|c| Column::new(c, DataType::Int)).to_vec();
        let stream = b.stream(name, columns);
        b.event_time(stream, "at", late);
        let mut h = b.handler(&format!("add {name}"), stream);
        let (k, v) = (h.column("k"), h.column("v"));
        let row = h.row(table, &[k]);
        let sum = h.read(row, "sum");
        let sum = h.add(sum, v);
        h.set(row, "sum", sum);
        h.output(&[("k", k), ("sum", sum)]);
        h.done();
    }
    b.finish().unwrap()
}

fn app(program: Program, sources: Vec<SourceDecl>, settings: Settings) -> AppSpec {
    let keep = program.streams.iter().map(|s| s.spec.name.to_string()).collect();
    AppSpec { keep, ..AppSpec::new(program, sources, settings) }
}

fn rows(program: &Program, stream: u16, rows: &[[i64; 3]]) -> Batch {
    let schema = program.streams[usize::from(stream)].spec.schema.clone();
    let rows: Vec<Vec<Value>> = rows.iter().map(|r| r.map(Value::Int).to_vec()).collect();
    Batch::from_rows(schema, rows.iter().map(|r| &r[..]))
}

fn sum(mill: &Mill, k: i64) -> Option<i64> {
    match mill.row("sums", &[Value::Int(k)]).unwrap()?[1] {
        Value::Int(sum) => Some(sum),
        ref other => panic!("{other}"),
    }
}

#[test]
fn two_streams_meet_in_event_time() {
    let program = sums(Late::Side);
    let spec = app(
        program.clone(),
        vec![SourceDecl::pushed("left"), SourceDecl::pushed("right")],
        Settings::default(),
    );
    let mill = Mill::start(spec, SimEnv::new(1).env()).unwrap();
    mill.send("left", rows(&program, 0, &[[1, 7, 1], [5, 7, 10]])).unwrap();
    mill.send("right", rows(&program, 3, &[[2, 7, 100]])).unwrap();
    mill.drain().unwrap();
    assert_eq!(sum(&mill, 7), Some(111), "a drain flushes what waits");
    // The drain has let the watermark pass 5, so this one is late.
    mill.send("right", rows(&program, 3, &[[3, 7, 1000]])).unwrap();
    let summary = mill.finish().unwrap();
    assert_eq!((summary.late, summary.transactions, summary.events), (1, 3, 4));
    assert_eq!(sum(&mill, 7), Some(111));
}

#[test]
fn late_events_may_be_admitted_or_end_the_run() {
    for late in [Late::Admit, Late::Error] {
        let program = sums(late);
        let spec = app(
            program.clone(),
            vec![SourceDecl::pushed("left"), SourceDecl::pushed("right")],
            Settings::default(),
        );
        let mill = Mill::start(spec, SimEnv::new(1).env()).unwrap();
        mill.send("left", rows(&program, 0, &[[5, 7, 10]])).unwrap();
        mill.drain().unwrap();
        mill.send("left", rows(&program, 0, &[[1, 7, 1]])).unwrap();
        match late {
            Late::Admit => {
                mill.drain().unwrap();
                assert_eq!(sum(&mill, 7), Some(11));
            }
            _ => {
                let error = mill.drain().unwrap_err();
                assert_eq!(error.kind, Kind::Input);
                assert!(
                    error.what.contains("row 1 of source left/push (counted from 0) is late"),
                    "{error}"
                );
                assert!(error.help.contains("out_of_orderness"), "{error}");
                assert!(mill.finish().is_err());
                // A further send returns the error that ended the run, and nothing hangs.
                let more = mill.send("left", rows(&program, 0, &[[9, 7, 1]]));
                assert_eq!(more.unwrap_err(), error);
                assert_eq!(sum(&mill, 7), Some(10), "what was committed can still be read");
            }
        }
    }
}

#[test]
fn an_idle_source_no_longer_holds_the_others_back() {
    let program = sums(Late::Side);
    let mut right = SourceDecl::pushed("right");
    right.idle_us = Some(1_000_000);
    let spec = app(program.clone(), vec![SourceDecl::pushed("left"), right], Settings::default());
    let sim = SimEnv::new(1);
    let mill = Mill::start(spec, sim.env()).unwrap();
    mill.send("left", rows(&program, 0, &[[1, 7, 1], [5, 7, 10]])).unwrap();
    while mill.status().buffered < 2 {
        assert!(!mill.wait(100).unwrap());
    }
    assert_eq!(sum(&mill, 7), None, "the right stream might still send something earlier");
    sim.clock.advance_us(1_000_001);
    while sum(&mill, 7) != Some(11) {
        assert!(!mill.wait(100).unwrap());
    }
    mill.finish().unwrap();
}

fn file(env: &Env, path: &str, text: &str) {
    env.disk.create_dir_all(Path::new("/data")).unwrap();
    let mut file = env.disk.create(Path::new(path)).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    file.sync().unwrap();
}

fn read(stream: &str, path: &str) -> SourceDecl {
    SourceDecl { files: Some(json!({ "path": path })), ..SourceDecl::pushed(stream) }
}

#[test]
fn a_source_that_runs_ahead_waits_for_the_one_behind() {
    // All of `left` is later than all of `right`, so every row of it waits for the end of `right`.
    let env = SimEnv::new(1).env();
    let line = |at: i64| format!("{at},{},1\n", at % 10);
    let text = |from: i64| -> String { (from..from + 50_000).map(line).collect() };
    file(&env, "/data/left.csv", &format!("at,k,v\n{}", text(1_000_000)));
    file(&env, "/data/right.csv", &format!("at,k,v\n{}", text(0)));
    for workers in [1, 3] {
        let settings = Settings {
            workers,
            buffered_bytes_max: 100_000,
            epoch_bytes_max: 100_000,
            epoch_rows_max: 500,
            ..Settings::default()
        };
        let sources = vec![read("left", "/data/left.csv"), read("right", "/data/right.csv")];
        let spec = AppSpec { keep: Vec::new(), ..app(sums(Late::Error), sources, settings) };
        let mill = Mill::start(spec, env.clone()).unwrap();
        let mut buffered_max = 0;
        while !mill.wait(20).unwrap() {
            buffered_max = buffered_max.max(mill.status().buffered);
        }
        let summary = mill.finish().unwrap();
        assert_eq!((summary.events, summary.late), (100_000, 0));
        assert_eq!((0..10).map(|k| sum(&mill, k).unwrap()).sum::<i64>(), 100_000);
        assert!(buffered_max < 25_000, "{buffered_max} rows waited at once");
    }
}

#[test]
fn tables_beyond_the_limit_end_the_run_by_name() {
    let program = sums(Late::Side);
    let settings = Settings { memory_bytes_max: 1 << 20, ..Settings::default() };
    let spec = AppSpec {
        keep: Vec::new(),
        ..app(
            program.clone(),
            vec![SourceDecl::pushed("left"), SourceDecl::pushed("right")],
            settings,
        )
    };
    let mill = Mill::start(spec, SimEnv::new(1).env()).unwrap();
    let error = (0..1000)
        .find_map(|i| {
            let batch: Vec<[i64; 3]> = (0..1000).map(|j| [i, i * 1000 + j, 1]).collect();
            mill.send("left", rows(&program, 0, &batch)).and_then(|_| mill.drain()).err()
        })
        .expect("a million rows do not fit into a megabyte");
    assert_eq!(error.kind, Kind::Resource);
    assert!(error.what.contains("the largest table is sums"), "{error}");
}

#[test]
fn stopping_keeps_what_was_committed() {
    let program = sums(Late::Side);
    let spec = app(
        program.clone(),
        vec![SourceDecl::pushed("left"), SourceDecl::pushed("right")],
        Settings::default(),
    );
    let mill = Mill::start(spec, SimEnv::new(1).env()).unwrap();
    mill.send("left", rows(&program, 0, &[[1, 7, 1]])).unwrap();
    mill.drain().unwrap();
    mill.send("left", rows(&program, 0, &[[9, 7, 1]])).unwrap();
    let summary = mill.stop().unwrap();
    assert_eq!(summary.transactions, 1, "what waits for its watermark stays unexecuted");
    assert_eq!(sum(&mill, 7), Some(1));
    assert_eq!(mill.stop().unwrap(), summary, "a second time changes nothing");
    assert!(mill.send("left", rows(&program, 0, &[[9, 7, 1]])).is_err());
}

/// Counts its calls, a hidden state beside its input.
struct Moody(AtomicI64);

impl Opaque for Moody {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let mood = self.0.fetch_add(1, Ordering::Relaxed);
        tx.put(TableId(0), &[event[0].clone(), Value::Int(mood)])
    }
}

#[test]
fn hidden_non_determinism_is_named() {
    let mut b = Builder::new("moody");
    b.table("t", &["k"], ["k", "v"].map(|c| Column::new(c, DataType::Int)).to_vec());
    let stream = b.stream("s", vec![Column::new("k", DataType::Int)]);
    b.opaque("moody", stream, Arc::new(Moody(AtomicI64::new(0))));
    let program = b.finish().unwrap();
    let schema = program.streams[0].spec.schema.clone();
    let mill = Mill::start(
        app(program, vec![SourceDecl::pushed("s")], Settings::default()),
        SimEnv::new(1).env(),
    )
    .unwrap();
    let rows: Vec<[Value; 1]> = (0..200).map(|k| [Value::Int(k)]).collect();
    mill.send("s", Batch::from_rows(schema, rows.iter().map(|r| &r[..]))).unwrap();
    let summary = mill.finish().unwrap();
    assert_eq!(summary.unstable.len(), 1);
    assert_eq!(summary.unstable[0].handler, "moody");
    assert_eq!(summary.unstable[0].times, 3, "every 64th of 200");
}

#[test]
fn outputs_go_to_files_that_are_not_replaced_by_accident() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    file(&env, "/data/left.csv", "at,k,v\n1,7,5\n2,8,oops\n3,7,6\n");
    let mut program = sums(Late::Side);
    program.sources.clear();
    let sink = |stream: &str, path: &str| SinkDecl {
        stream: stream.into(),
        files: Some(json!({ "path": path })),
        kafka: None,
        at: "app.py:9".into(),
    };
    let spec = |fresh| AppSpec {
        sinks: vec![
            sink("add left", "/out/sums.csv"),
            sink("left.dead", "/out/dead.jsonl"),
            sink("left", "/out/copy.jsonl"),
        ],
        settings: Settings { fresh, ..Settings::default() },
        ..app(program.clone(), vec![read("left", "/data/left.csv")], Settings::default())
    };
    let summary = Mill::start(spec(false), env.clone()).unwrap().finish().unwrap();
    assert_eq!((summary.dead, summary.transactions), (1, 2));
    let content = |path: &str| {
        let mut text = String::new();
        let mut file = env.disk.open_read(Path::new(path)).unwrap();
        std::io::Read::read_to_string(&mut file, &mut text).unwrap();
        text
    };
    assert_eq!(content("/out/sums.csv"), "k,sum\n7,5\n7,11\n");
    assert_eq!(content("/out/copy.jsonl").lines().count(), 2);
    let dead = content("/out/dead.jsonl");
    assert!(dead.contains("\"line\":3") && dead.contains("column 'v'"), "{dead}");
    let error = Mill::start(spec(false), env.clone()).err().expect("the files are there");
    assert!(error.help.contains("--fresh"), "{error}");
    assert_eq!(error.at.as_deref(), Some("app.py:9"));
    Mill::start(spec(true), env).unwrap().finish().unwrap();
}

#[test]
fn wrong_names_are_refused_before_anything_runs() {
    let env = SimEnv::new(1).env();
    let start = |spec: AppSpec| Mill::start(spec, env.clone()).err().expect("refused").to_string();
    let text = start(app(sums(Late::Side), vec![SourceDecl::pushed("up")], Settings::default()));
    assert!(text.contains("there is no stream up"), "{text}");
    let missing = vec![read("left", "/data/nothing.csv")];
    let text = start(app(sums(Late::Side), missing, Settings::default()));
    assert!(text.contains("/data/nothing.csv"), "{text}");
    let settings = Settings { epoch_rows_max: 0, ..Settings::default() };
    let text = start(app(sums(Late::Side), vec![SourceDecl::pushed("left")], settings));
    assert!(text.contains("epoch_rows_max is 0"), "{text}");
    let spec = app(sums(Late::Side), vec![SourceDecl::pushed("left")], Settings::default());
    let mill = Mill::start(spec, env.clone()).unwrap();
    assert!(mill.table("sumz").is_err());
    assert!(mill.send("right", rows(&sums(Late::Side), 3, &[[1, 1, 1]])).is_err());
    assert!(mill.row("sums", &[]).is_err());
}
