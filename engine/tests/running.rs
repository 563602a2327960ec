//! Asking an engine that runs, and one that has stopped.

#[path = "../../txn/tests/random/mod.rs"]
mod random;

use std::path::Path;
use std::sync::Arc;

use serde_json::{json, Value as Json};
use tidemill_core::{Batch, Column, DataType, Late, Row, TableId, Value};
use tidemill_engine::{ask, AppSpec, Durable, LifeSink, Mill, Settings, SourceDecl};
use tidemill_env::{Addr, Env};
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Abort, Builder, Opaque, Program, Tx};
use tidemill_txn::reference::{self, CutAt, InputRow};

const DATA: &str = "/data";

/// Accounts with a balance; what overdraws one is refused.
fn bank(late: Late) -> Program {
    let mut b = Builder::new("bank");
    let balance = Column::new("balance", DataType::Decimal(2)).default(Value::Decimal(0, 2));
    let name = Column::new("name", DataType::Str).nullable();
    let table = b.table("accounts", &["id"], vec![Column::new("id", DataType::Int), balance, name]);
    let columns = vec![
        Column::new("at", DataType::Int),
        Column::new("id", DataType::Int),
        Column::new("amount", DataType::Decimal(2)),
    ];
    let stream = b.stream("payments", columns);
    b.event_time(stream, "at", late);
    let mut h = b.handler("pay", stream);
    let (id, amount) = (h.column("id"), h.column("amount"));
    let row = h.row(table, &[id]);
    let balance = h.read(row, "balance");
    let balance = h.add(balance, amount);
    let zero = h.value(Value::Decimal(0, 2));
    let enough = h.ge(balance, zero);
    h.require(enough, "overdrawn");
    h.set(row, "balance", balance);
    h.output(&[("id", id), ("balance", balance)]);
    h.done();
    b.finish().unwrap()
}

fn push(stream: &str) -> SourceDecl {
    SourceDecl {
        stream: stream.into(),
        disorder_us: 0,
        idle_us: None,
        files: None,
        at: String::new(),
    }
}

fn settings() -> Settings {
    Settings { data_dir: Some(DATA.into()), workers: 1, ..Settings::default() }
}

fn app(program: Program, settings: Settings) -> AppSpec {
    let sources = vec![push("payments")];
    AppSpec { program, sources, sinks: Vec::new(), keep: Vec::new(), settings }
}

/// Without snapshots, so that a start makes all cuts again.
fn log_only() -> Settings {
    Settings { durable: Durable::Log, ..settings() }
}

fn start(sim: &SimEnv, settings: Settings) -> Mill {
    Mill::start(app(bank(Late::Side), settings), sim.env()).unwrap_or_else(|e| panic!("{e}"))
}

/// Sends payments (time, account, hundredths).
fn pay(mill: &Mill, rows: &[[i64; 3]]) {
    let schema = bank(Late::Side).streams[0].spec.schema.clone();
    let rows: Vec<[Value; 3]> = rows
        .iter()
        .map(|[at, id, amount]| [Value::Int(*at), Value::Int(*id), Value::Decimal(*amount, 2)])
        .collect();
    let batch = Batch::from_rows(schema, rows.iter().map(|r| &r[..]));
    mill.send("payments", batch).unwrap();
    mill.drain().unwrap();
}

fn lines(env: &Env, request: &Json) -> Vec<Json> {
    let lines: Vec<Json> = ask(env, Path::new(DATA), &request.to_string())
        .map(|line| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    let ends: Vec<bool> = lines.iter().map(|line| line["end"] == json!(true)).collect();
    let last = ends.len() - 1;
    assert!(ends.iter().enumerate().all(|(i, end)| *end == (i == last)), "{lines:?}");
    lines
}

fn end(env: &Env, request: Json) -> Json {
    lines(env, &request).pop().unwrap()
}

fn refused(env: &Env, request: Json) -> String {
    let end = end(env, request);
    assert!(end["error"]["kind"].is_string(), "{end}");
    end["error"]["what"].as_str().unwrap().to_owned()
}

fn rows(env: &Env, request: Json) -> Vec<Json> {
    let lines = lines(env, &request);
    assert!(lines.last().unwrap().get("error").is_none(), "{lines:?}");
    lines.into_iter().filter_map(|mut line| Some(line.get_mut("row")?.take())).collect()
}

#[test]
fn status_inspect_summary_of_a_running_and_of_a_stopped_engine() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, settings());
    pay(&mill, &[[1, 7, 1000], [2, 7, -2000], [3, 8, 50]]);
    let status = end(&env, json!({"do": "status"}));
    assert_eq!(status["engine"], "running");
    let status = &status["status"];
    assert_eq!(status["state"], "running");
    assert_eq!((&status["app"], &status["events"]), (&json!("bank"), &json!(3)));
    assert_eq!((&status["transactions"], &status["aborted"]), (&json!(3), &json!(1)));
    assert_eq!(status["epoch"], status["executed_epoch"]);
    assert!(status["log"]["cuts"]["next"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(status["http"], Json::Null);
    let summary = end(&env, json!({"do": "summary"}));
    assert_eq!(summary["summary"]["refused"], 1);
    let inspect = end(&env, json!({"do": "inspect"}));
    let inspect = &inspect["inspect"];
    assert_eq!(inspect["tables"][0]["rows"], 2);
    assert_eq!(
        inspect["sources"][0],
        json!({"name": "payments/push", "stream": "payments", "offset": 3})
    );
    assert_eq!(inspect["outputs"]["pay"], 2);
    assert_eq!(inspect["handlers"][0]["name"], "pay");
    mill.finish().unwrap();

    let before = image(&sim);
    let status = end(&env, json!({"do": "status"}));
    assert_eq!((&status["engine"], &status["behind"]), (&json!("stopped"), &json!(0)));
    assert_eq!(status["status"]["state"], "stopped");
    assert_eq!((&status["status"]["events"], &status["status"]["aborted"]), (&json!(3), &json!(1)));
    let stopped = end(&env, json!({"do": "inspect"}));
    for field in ["tables", "sources", "outputs", "handlers", "dead", "late"] {
        assert_eq!(stopped["inspect"][field], inspect[field], "{field}");
    }
    let needs = refused(&env, json!({"do": "summary"}));
    assert!(needs.contains("needs one"), "{needs}");
    assert_eq!(image(&sim), before, "asking a stopped one writes nothing");
}

/// All files and their bytes.
fn image(sim: &SimEnv) -> Vec<(String, Vec<u8>)> {
    fn add(env: &Env, dir: &Path, all: &mut Vec<(String, Vec<u8>)>) {
        for path in env.disk.list(dir).unwrap() {
            if env.disk.metadata(&path).unwrap().is_dir {
                add(env, &path, all);
                continue;
            }
            let mut bytes = Vec::new();
            let mut file = env.disk.open_read(&path).unwrap();
            std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
            all.push((path.display().to_string(), bytes));
        }
    }
    let mut all = Vec::new();
    add(&sim.env(), Path::new(DATA), &mut all);
    all
}

#[test]
fn queries_by_key_by_filter_and_with_a_limit() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, settings());
    pay(&mill, &[[1, 7, 1050], [2, 3, 200], [3, 8, 50], [4, 9, 1_000_000]]);
    for state in ["running", "stopped"] {
        let all = json!({"do": "query", "table": "accounts"});
        let found = lines(&env, &all);
        assert_eq!(found[0]["key"], json!(["id"]));
        assert_eq!(found[0]["columns"][1], json!({"name": "balance", "type": "decimal(2)"}));
        assert_eq!(found[1]["row"], json!({"id": 3, "balance": "2.00", "name": null}));
        let last = found.last().unwrap();
        assert_eq!((&last["rows"], &last["more"]), (&json!(4), &json!(false)));
        assert_eq!(last["engine"], state);
        assert!(last["as_of"].as_u64().unwrap() > 0 && last["clock"].is_string(), "{last}");
        let ids = |mut request: Json| -> Vec<i64> {
            request["do"] = json!("query");
            request["table"] = json!("accounts");
            rows(&env, request).iter().map(|row| row["id"].as_i64().unwrap()).collect()
        };
        assert_eq!(ids(json!({"key": 7})), [7]);
        assert_eq!(ids(json!({"key": [7]})), [7]);
        assert_eq!(ids(json!({"key": 1})), [0i64; 0]);
        assert_eq!(ids(json!({"filter": "balance >= 2.00 and balance < 10.5"})), [3]);
        assert_eq!(ids(json!({"filter": "id != 8", "limit": 2})), [3, 7]);
        assert_eq!(ids(json!({"key": 7, "filter": "balance = 1"})), [0i64; 0]);
        let limited = end(&env, json!({"do": "query", "table": "accounts", "limit": 3}));
        assert_eq!((&limited["rows"], &limited["more"]), (&json!(3), &json!(true)));
        let ask = |request: Json| refused(&env, request);
        let no_table = ask(json!({"do": "query", "table": "acounts"}));
        assert!(no_table.contains("acounts"), "{no_table}");
        for wrong in [
            json!({"do": "query"}),
            json!({"do": "query", "table": 7}),
            json!({"do": "query", "table": "accounts", "key": "seven"}),
            json!({"do": "query", "table": "accounts", "key": [7, 8]}),
            json!({"do": "query", "table": "accounts", "key": null, "filter": "id ~ 7"}),
            json!({"do": "query", "table": "accounts", "limit": 100_001}),
            json!({"do": "query", "table": "accounts", "limit": -1}),
            json!({"do": "query", "table": "accounts", "as_of": -1}),
            json!({"do": "query", "table": "accounts", "as_of": "yesterday"}),
            json!({"do": "query", "table": "accounts", "as_of": 1_000_000}),
            json!({"do": "query", "table": "accounts", "colour": "red"}),
            json!({"do": "qery"}),
            json!({}),
            json!([]),
        ] {
            ask(wrong);
        }
        mill.stop().unwrap();
    }
}

#[test]
fn an_earlier_time_is_the_last_cut_before_it() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, settings());
    let mut clocks = Vec::new();
    for n in 1..5 {
        pay(&mill, &[[n, 7, 100]]);
        let now = end(&env, json!({"do": "query", "table": "accounts"}));
        clocks.push((now["clock"].clone(), now["as_of"].clone(), n));
        sim.clock.advance_us(1_000_000);
    }
    for _ in 0..2 {
        for (clock, epoch, n) in &clocks {
            for as_of in [clock, epoch] {
                let request = json!({"do": "query", "table": "accounts", "as_of": as_of});
                assert_eq!(rows(&env, request)[0]["balance"], json!(format!("{n}.00")));
            }
        }
        let request = json!({"do": "query", "table": "accounts", "as_of": "2999-01-01T00:00:00Z"});
        assert_eq!(rows(&env, request)[0]["balance"], "4.00");
        let before = json!({"do": "query", "table": "accounts", "as_of": "1999-01-01T00:00:00Z"});
        let lines = lines(&env, &before);
        assert!(lines.last().unwrap()["rows"] == 0 || lines.last().unwrap()["error"].is_object());
        // The second time when it has stopped, without a snapshot at the end of the run.
        mill.stop().unwrap();
    }
}

struct Double;

impl Opaque for Double {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        tx.put(TableId(0), event)
    }
}

#[test]
fn with_an_opaque_handler_the_past_is_at_snapshots_only() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mut b = Builder::new("opaque");
    let columns = vec![Column::new("k", DataType::Int), Column::new("v", DataType::Int)];
    b.table("t", &["k"], columns.clone());
    let stream = b.stream("payments", columns.clone());
    b.opaque("double", stream, Arc::new(Double));
    let program = b.finish().unwrap();
    let schema = program.streams[0].spec.schema.clone();
    let mill = Mill::start(app(program, settings()), env.clone()).unwrap();
    for v in 1..4 {
        let row = [Value::Int(1), Value::Int(v)];
        mill.send("payments", Batch::from_rows(schema.clone(), [&row[..]])).unwrap();
        mill.drain().unwrap();
        if v == 2 {
            end(&env, json!({"do": "backup", "to": "/backup"}));
        }
    }
    let snapshot = end(&env, json!({"do": "status"}))["status"]["snapshot_epoch"].clone();
    let at = |as_of: Json| json!({"do": "query", "table": "t", "as_of": as_of});
    assert_eq!(rows(&env, at(snapshot.clone()))[0]["v"], 2);
    let why = refused(&env, at(json!(snapshot.as_u64().unwrap() + 1)));
    assert!(why.contains("handler double is opaque"), "{why}");
    assert_eq!(rows(&env, json!({"do": "query", "table": "t"}))[0]["v"], 3);
    // As if it had been killed now: a clean stop takes a snapshot.
    for (path, bytes) in image(&sim) {
        let path = Path::new("/killed").join(path.strip_prefix("/data/").unwrap());
        env.disk.create_dir_all(path.parent().unwrap()).unwrap();
        env.disk.create(&path).unwrap().write_all(&bytes).unwrap();
    }
    let request = json!({"do": "query", "table": "t"}).to_string();
    let killed = ask(&env, Path::new("/killed"), &request);
    let last: Vec<Json> = killed.map(|line| serde_json::from_str(&line).unwrap()).collect();
    assert_eq!(last[1]["row"]["v"], 2, "as of the snapshot");
    assert!(last[2]["behind"].as_u64().unwrap() > 0 && last[2]["as_of"] == snapshot, "{last:?}");
}

#[test]
fn a_stream_is_followed_over_a_restart() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, log_only());
    pay(&mill, &[[1, 7, 100], [2, 7, 100]]);
    let mut follow =
        ask(&env, Path::new(DATA), &json!({"do": "tail", "stream": "pay", "from": 1}).to_string());
    let mut event = || -> Json {
        loop {
            let line: Json = serde_json::from_str(&follow.next().unwrap()).unwrap();
            if line.get("next").is_none() || line.get("end").is_some() {
                return line;
            }
        }
    };
    assert_eq!(event()["columns"][1]["name"], "balance");
    assert_eq!(event(), json!({"row": 1, "value": {"id": 7, "balance": "2.00"}}));
    pay(&mill, &[[3, 7, 100], [4, 8, -100]]);
    assert_eq!(event(), json!({"row": 2, "value": {"id": 7, "balance": "3.00"}}));
    let aborted = json!({"do": "tail", "stream": "pay.aborted", "from": 0, "follow": false});
    assert_eq!(lines(&env, &aborted)[1]["value"]["reason"], "overdrawn");
    mill.stop().unwrap();
    assert_eq!(event()["next"], 3, "the end says where to go on");
    let why = refused(&env, json!({"do": "tail", "stream": "pay"}));
    assert!(why.contains("needs one"), "{why}");

    let mill = start(&sim, log_only());
    pay(&mill, &[[5, 7, 100]]);
    let tail = lines(&env, &json!({"do": "tail", "stream": "pay", "from": 0, "follow": false}));
    let numbers: Vec<u64> = tail.iter().filter_map(|l| l["row"].as_u64()).collect();
    assert_eq!(numbers, [0, 1, 2, 3], "a restart has made the earlier ones again");
    assert_eq!(tail[4]["value"]["balance"], "4.00");
    for wrong in
        [json!({"stream": "pay", "from": 9}), json!({"stream": "payments"}), json!({"stream": "x"})]
    {
        let mut request = wrong;
        request["do"] = json!("tail");
        refused(&env, request);
    }
}

#[test]
fn its_life_is_appended_to_a_file() {
    let sim = SimEnv::new(1);
    let settings = Settings { log_to: Some("/life.jsonl".into()), ..settings() };
    for _ in 0..2 {
        start(&sim, settings.clone()).stop().unwrap();
    }
    let mut text = String::new();
    sim.env().disk.open_read(Path::new("/life.jsonl")).unwrap().read_to_string(&mut text).unwrap();
    let events: Vec<Json> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let events: Vec<&str> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["start", "snapshot", "stop", "start", "snapshot", "stop"]);
    let nowhere = Settings { log_to: Some("/no/folder".into()), ..settings };
    let refused = Mill::start(app(bank(Late::Side), nowhere), sim.env()).map(|_| ()).unwrap_err();
    assert!(refused.what.contains("/no/folder"), "{refused}");
}

#[test]
fn who_reads_too_slowly_is_told_where_to_go_on() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, Settings { tail_rows: 10, ..settings() });
    pay(&mill, &[[1, 7, 1]]);
    let mut follow =
        ask(&env, Path::new(DATA), &json!({"do": "tail", "stream": "pay", "from": 0}).to_string());
    assert!(follow.next().unwrap().contains("columns"), "it has begun");
    // More than a connection holds, so that the engine has to wait for us.
    for n in 0..100 {
        let rows: Vec<[i64; 3]> = (0..100).map(|i| [2 + n * 100 + i, 7, 1]).collect();
        pay(&mill, &rows);
    }
    let (mut next, mut last) = (0, Json::Null);
    for line in follow {
        last = serde_json::from_str(&line).unwrap();
        if let Some(row) = last["row"].as_u64() {
            assert_eq!(row, next, "no row is left out silently");
            next = row + 1;
        }
        if next == 10_001 {
            return; // The scheduler let it read along.
        }
    }
    assert_eq!(last["next"], next, "{last}");
    assert_eq!(last["error"]["kind"], "ResourceError", "{last}");
}

#[test]
fn dead_and_late_rows_outlive_the_engine_and_can_be_sent_again() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let limits = Settings { dlq_rows_max: 3, ..settings() };
    let mill = start(&sim, limits.clone());
    pay(&mill, &[[100, 7, 100]]);
    pay(&mill, &[[1, 7, 1], [2, 7, 2], [3, 7, 3], [4, 7, 4]]);
    let listed = |expected: &[u64]| {
        let lines = lines(&env, &json!({"do": "dlq_ls"}));
        let numbers: Vec<u64> = lines.iter().filter_map(|l| l["row"].as_u64()).collect();
        assert_eq!(numbers, expected, "{lines:?}");
        assert_eq!(lines[0]["stream"], "payments.late");
        lines
    };
    let lines = listed(&[1, 2, 3]);
    assert_eq!(lines[0]["value"], json!({"at": 2, "id": 7, "amount": "0.02"}));
    assert_eq!(lines[3]["streams"]["payments.late"], json!({"rows": 4, "dropped": 1}));
    end(&env, json!({"do": "backup", "to": "/backup"}));
    pay(&mill, &[[5, 7, 5]]);
    let running = listed(&[2, 3, 4]);
    let one = rows(&env, json!({"do": "dlq_ls", "stream": "payments.late", "limit": 1}));
    assert_eq!(one, [json!(4)]);
    refused(&env, json!({"do": "dlq_ls", "stream": "pay"}));
    mill.stop().unwrap();
    let stopped = Settings::default().dlq_rows_max;
    assert!(stopped > 3, "a stopped engine is read with the usual limits");
    let after = self::lines(&env, &json!({"do": "dlq_ls", "limit": 3}));
    assert_eq!(after[..3], running[..3]);

    let mill = start(&sim, limits);
    mill.drain().unwrap();
    listed(&[2, 3, 4]);
    let again = json!([{"row": 3, "value": {"at": 200, "id": 7, "amount": "2.50"}}, {"row": 4}]);
    let sent = end(&env, json!({"do": "dlq_replay", "stream": "payments.late", "rows": again}));
    assert_eq!(sent["sent"], 2, "{sent}");
    mill.drain().unwrap();
    let row = rows(&env, json!({"do": "query", "table": "accounts", "key": 7}));
    assert_eq!(row[0]["balance"], "3.50", "the one came late again");
    for wrong in [json!([{"row": 0}]), json!([{"row": 4, "value": {}}]), json!([{}]), json!(4)] {
        refused(&env, json!({"do": "dlq_replay", "stream": "payments.late", "rows": wrong}));
    }
}

#[test]
fn a_backup_is_a_data_directory() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, settings());
    pay(&mill, &[[1, 7, 100], [2, 8, 100]]);
    let to = |to: &str| json!({"do": "backup", "to": to});
    let report = end(&env, to("/backup"));
    assert_eq!(report["backup"]["rows"], 2, "{report}");
    assert!(refused(&env, to("/backup")).contains("not empty"));
    assert!(refused(&env, to("backup")).contains("absolute"));
    pay(&mill, &[[3, 7, 100]]);
    let why = refused(&env, json!({"do": "restore", "from": "/backup"}));
    assert!(why.contains("runs"), "{why}");
    mill.stop().unwrap();
    let stopped = end(&env, to("/stopped"));
    assert_eq!(stopped["engine"], "stopped");
    for (folder, balance) in [("/backup", "1.00"), ("/stopped", "2.00")] {
        let there = Path::new(folder).join("restored");
        let restore = json!({"do": "restore", "from": folder}).to_string();
        let lines: Vec<String> = ask(&env, &there, &restore).collect();
        assert!(lines[0].contains("\"restore\""), "{lines:?}");
        for dir in [Path::new(folder), &there] {
            let settings = Settings { data_dir: Some(dir.into()), ..settings() };
            let mill = start(&sim, settings);
            mill.drain().unwrap();
            let request = json!({"do": "query", "table": "accounts", "key": 7}).to_string();
            let row = ask(&env, dir, &request).nth(1).unwrap();
            assert!(row.contains(&format!("\"balance\":\"{balance}\"")), "{folder}: {row}");
            pay(&mill, &[[9, 9, 1]]);
            mill.stop().unwrap();
        }
    }
    // Not one damaged byte is copied back.
    let damaged = env.disk.list(Path::new("/backup/store/data")).unwrap().pop().unwrap();
    let mut file = env.disk.open_at(&damaged, 40).unwrap();
    file.write_all(b"x").unwrap();
    let again =
        ask(&env, Path::new("/new"), &json!({"do": "restore", "from": "/backup"}).to_string());
    assert!(again.last().unwrap().contains("\"error\""));
    let verify = ask(&env, Path::new("/backup"), &json!({"do": "verify"}).to_string());
    assert!(verify.last().unwrap().contains("\"error\""));
}

#[test]
fn garbage_stops_nobody() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, settings());
    let connect = || {
        let addr = Addr::Unix(Path::new(DATA).join("engine.sock"));
        env.net.connect(&addr, 1_000_000).unwrap()
    };
    let mut dice = random::Dice(7);
    let deep = "[".repeat(100_000);
    let long = "x".repeat((1 << 20) + 100_000);
    let mut texts: Vec<Vec<u8>> =
        ["", "{}", "null", "\"do\"", "{\"do\": 7}", "{\"do\": \"\"}", &deep, &long]
            .iter()
            .map(|text| text.as_bytes().to_vec())
            .collect();
    for _ in 0..200 {
        texts.push((0..dice.below(60)).map(|_| dice.below(256) as u8).collect());
    }
    let valid =
        json!({"do": "query", "table": "accounts", "filter": "id = 7", "as_of": 1}).to_string();
    for at in 0..valid.len() {
        let mut bytes = valid.clone().into_bytes();
        bytes[at] = dice.below(256) as u8;
        texts.push(bytes);
        texts.push(valid.as_bytes()[..at].to_vec());
    }
    for text in texts {
        let mut connection = connect();
        // It may have been closed on us.
        let _ = connection.write_all(&text);
        let _ = connection.write_all(b"\n");
        let _ = connection.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        for line in answer.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let line: Json = serde_json::from_slice(line).expect("answers are JSON");
            assert!(line.is_object());
        }
    }
    // More than there may be, and nobody says anything.
    let idle: Vec<_> = (0..100).map(|_| connect()).collect();
    pay(&mill, &[[1, 7, 100]]);
    drop(idle);
    let mut tries = 0;
    while end(&env, json!({"do": "status"})).get("status").is_none() {
        tries += 1;
        assert!(tries < 1000, "there is room again");
        mill.wait(1000).unwrap();
    }
    mill.stop().unwrap();
}

#[derive(Default)]
struct Heard(parking_lot::Mutex<Vec<Json>>);

impl LifeSink for Heard {
    fn line(&self, line: &str) {
        self.0.lock().push(serde_json::from_str(line).unwrap());
    }
}

#[test]
fn its_life_is_told() {
    let sim = SimEnv::new(1);
    for run in 0..3 {
        let heard = Arc::new(Heard::default());
        let spec = app(bank(Late::Side), if run < 2 { log_only() } else { settings() });
        let mill = Mill::start_with(spec, sim.env(), Some(heard.clone())).unwrap();
        pay(&mill, &[[1 + run, 7, 100]]);
        mill.stop().unwrap();
        let events: Vec<String> =
            heard.0.lock().iter().map(|e| e["event"].as_str().unwrap().to_owned()).collect();
        match run {
            0 => assert_eq!(events, ["start", "stop"]),
            1 => assert_eq!(events, ["start", "recovery begun", "recovery ended", "stop"]),
            _ => assert_eq!(events[3..], ["snapshot", "stop"]),
        }
    }
    let heard = Arc::new(Heard::default());
    let spec = app(bank(Late::Side), Settings { poison_after: 0, ..settings() });
    assert!(Mill::start_with(spec, sim.env(), Some(heard.clone())).is_err());
    assert_eq!(heard.0.lock()[0]["event"], "error");
}

fn http(env: &Env, addr: &Addr, request: &[u8]) -> String {
    let mut connection = env.net.connect(addr, 1_000_000).unwrap();
    let _ = connection.write_all(request);
    let _ = connection.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn health_and_metrics() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, Settings { http_port: Some(0), ..settings() });
    pay(&mill, &[[1, 7, 100], [2, 7, -200]]);
    let addr = end(&env, json!({"do": "status"}))["status"]["http"].as_str().unwrap().to_owned();
    assert!(addr.starts_with("127.0.0.1:"), "{addr}");
    let addr: Addr = addr.parse().unwrap();
    let get = |path: &str| {
        http(&env, &addr, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
    };
    let health = get("/health");
    assert!(
        health.starts_with("HTTP/1.1 200 OK\r\n") && health.contains("\"ready\":true"),
        "{health}"
    );
    let metrics = get("/metrics");
    for line in [
        "tidemill_events_total 2\n",
        "tidemill_aborts_total 1\n",
        "# TYPE tidemill_lag_seconds gauge\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    let (head, body) = metrics.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("tidemill_") && value.parse::<f64>().is_ok(), "{line}");
    }
    let status = |request: &[u8]| {
        let answer = http(&env, &addr, request);
        answer.split(' ').nth(1).unwrap_or("closed").to_owned()
    };
    assert_eq!(status(b"GET /secret HTTP/1.1\r\n\r\n"), "404");
    assert_eq!(status(b"POST /health HTTP/1.1\r\n\r\n"), "405");
    assert_eq!(status(b"GET /health\r\n\r\n"), "400");
    assert_eq!(status(b"\xff\xfe\r\n\r\n"), "400");
    assert_eq!(
        status(&[b"GET /health HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 20_000]].concat()),
        "431"
    );
    assert_eq!(status(b"GET /health HTTP/1.1\r\n"), "closed");
    assert_eq!(status(b"HEAD /health HTTP/1.1\r\n\r\n"), "200");
    mill.stop().unwrap();
    assert!(env.net.connect(&addr, 1_000_000).is_err());
}

/// With real sockets and files, the same.
#[test]
fn a_real_engine_answers() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::real();
    let data = dir.path().join("data");
    let settings = Settings { data_dir: Some(data.clone()), ..settings() };
    let mill = Mill::start(app(bank(Late::Side), settings.clone()), env.clone()).unwrap();
    pay(&mill, &[[1, 7, 100]]);
    let query = json!({"do": "query", "table": "accounts"}).to_string();
    let tail = json!({"do": "tail", "stream": "pay", "from": 0}).to_string();
    let mut follow = ask(&env, &data, &tail);
    assert!(follow.nth(1).unwrap().contains("\"row\":0"));
    let running: Vec<String> = ask(&env, &data, &query).collect();
    assert!(running[1].contains("\"balance\":\"1.00\""), "{running:?}");
    // A copy can be asked for while it runs, and somebody who follows does not keep it from ending.
    let to = dir.path().join("copy");
    let copied: Vec<String> =
        ask(&env, &data, &json!({"do": "backup", "to": to}).to_string()).collect();
    assert!(copied[0].contains("\"backup\""), "{copied:?}");
    mill.stop().unwrap();
    assert!(follow.last().unwrap().contains("\"end\":true"));
    assert!(!env.disk.exists(&data.join("engine.sock")).unwrap());
    for dir in [&data, &to] {
        let stopped: Vec<String> = ask(&env, dir, &query).collect();
        assert_eq!(stopped[1], running[1]);
    }
}

#[test]
fn every_kept_epoch_can_be_asked_for() {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let mut asked = 0;
    for seed in 0..cases {
        asked += check(seed);
    }
    assert!(asked > cases, "{asked}");
}

/// Against the reference, which is given the first cuts only: how many epochs were compared.
fn check(seed: u64) -> u64 {
    let mut dice = random::Dice(seed);
    let shape = random::Shape { plain: dice.chance(50), orderly: dice.chance(50), histories: true };
    let program = random::program(&mut dice, shape);
    let inputs = random::sources(&mut dice, &program, shape);
    let first = program.sources[0].stream;
    let alone = program.sources.iter().filter(|s| s.stream == first).count() == 1;
    let pushed = alone && inputs[0].iter().enumerate().all(|(i, r)| r.offset == i as u64);
    let sim = SimEnv::new(seed);
    let env = sim.env();
    env.disk.create_dir_all(Path::new("/in")).unwrap();
    let mut sources = Vec::new();
    for (index, rows) in inputs.iter().enumerate() {
        let spec = &program.streams[program.sources[index].stream.index()].spec;
        let path = format!("/in/{index}.jsonl");
        let files = (!(pushed && index == 0)).then(|| json!({"path": path}));
        if files.is_some() {
            write_file(&env, &path, &spec.schema, rows);
        }
        let source = &program.sources[index];
        let (stream, disorder_us) = (spec.name.to_string(), source.disorder_us);
        sources.push(SourceDecl {
            stream,
            disorder_us,
            idle_us: source.idle_us,
            files,
            at: String::new(),
        });
    }
    let settings = Settings {
        workers: 1 + dice.below(3) as usize,
        epoch_rows_max: 1 + dice.below(40) as usize,
        epoch_us_max: 1,
        snapshot_us: if dice.chance(70) { 1 } else { 1_000_000_000 },
        keep_cuts: true,
        rerun_every: 0,
        ..self::settings()
    };
    let spec = AppSpec {
        program: program.clone(),
        sources,
        sinks: Vec::new(),
        keep: Vec::new(),
        settings,
    };
    let Ok(mill) = Mill::start(spec, env.clone()) else { return 0 };
    let mut compared = 0;
    if pushed {
        let spec = &program.streams[first.index()].spec;
        for piece in inputs[0].chunks(1 + dice.below(5) as usize) {
            let batch = Batch::from_rows(spec.schema.clone(), piece.iter().map(|r| &r.values[..]));
            if mill.send(&spec.name, batch).is_err() {
                break;
            }
            sim.clock.advance_us(1);
            mill.wait(50).ok();
        }
    }
    for _ in 0..20 {
        sim.clock.advance_us(1);
        if mill.wait(100).unwrap_or(true) {
            break;
        }
    }
    compared += compare(&mill, &env, &program, &inputs, seed);
    let ended = mill.stop().is_ok();
    if ended {
        compared += compare(&mill, &env, &program, &inputs, seed);
    }
    compared
}

fn write_file(env: &Env, path: &str, schema: &tidemill_core::Schema, rows: &[InputRow]) {
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
    out.write_all(&text).unwrap();
    out.sync().unwrap();
    env.disk.sync_dir(Path::new("/in")).unwrap();
}

fn compare(mill: &Mill, env: &Env, program: &Program, inputs: &[Vec<InputRow>], seed: u64) -> u64 {
    let cuts = mill.cuts();
    let at: Vec<CutAt> = cuts
        .iter()
        .cloned()
        .map(|c| CutAt { offsets: c.offsets, clock_us: c.clock_us, idle: c.idle, ended: c.ended })
        .collect();
    let mut compared = 0;
    let step = 1 + at.len() / 12;
    for epoch in (1..=at.len()).rev().step_by(step) {
        let wanted = reference::run(program, inputs, &at[..epoch]);
        for (table, wanted) in program.tables.iter().zip(&wanted.tables) {
            let request =
                json!({"do": "query", "table": table.name, "as_of": epoch, "limit": 100_000});
            let found = lines(env, &request);
            let last = found.last().unwrap();
            if last.get("error").is_some() {
                let what = last["error"]["what"].as_str().unwrap();
                let gone =
                    what.contains("no longer kept") || what.contains("would have to be made again");
                assert!(
                    gone || what.contains("no snapshot yet"),
                    "seed {seed}, epoch {epoch}: {what}"
                );
                return compared;
            }
            assert_eq!(last["as_of"], epoch);
            let text = |row: &Row| {
                let mut out = Vec::new();
                tidemill_connect::values::write_row(&table.schema, row, &mut out);
                serde_json::from_slice::<Json>(&out).unwrap()
            };
            let wanted: Vec<Json> = wanted.values().map(text).collect();
            let found: Vec<Json> =
                found.into_iter().filter_map(|mut l| Some(l.get_mut("row")?.take())).collect();
            assert_eq!(found, wanted, "seed {seed}, table {} as of {epoch}", table.name);
        }
        compared += 1;
    }
    compared
}

fn beside(act: impl FnOnce() + Send + 'static) -> tidemill_env::Handle {
    Env::real().threads.spawn("beside", Box::new(act)).unwrap()
}

/// Does something beside, which must not take long.
fn soon<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    beside(move || drop(done.send(act())));
    let result = result.recv_timeout(std::time::Duration::from_secs(20));
    result.unwrap_or_else(|_| panic!("{what} waits, or has failed"))
}

/// While a sync takes long, epochs are executed that are not durable: nobody sees them, and nobody
/// who reads waits for them.
#[test]
fn a_slow_disk_keeps_nobody_from_reading() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = Arc::new(start(&sim, settings()));
    pay(&mill, &[[0, 7, 100]]);
    let status = || end(&env, json!({"do": "status"}))["status"].clone();
    let durable = status()["epoch"].as_u64().unwrap();
    let slow = sim.disk.stall_from(tidemill_sim::DiskOp::Sync.under("/data/cuts"), 1);
    let schema = bank(Late::Side).streams[0].spec.schema.clone();
    let mut at = 1;
    while status()["executed_epoch"].as_u64().unwrap() < durable + 3 {
        let row = [Value::Int(at), Value::Int(6 + at % 3), Value::Decimal(1, 2)];
        mill.send("payments", Batch::from_rows(schema.clone(), [&row[..]])).unwrap();
        at += 1;
        Env::real().clock.sleep_us(1000);
    }
    let of = mill.clone();
    let [table, row] = soon("a table and a row", move || {
        let row = of.row("accounts", &[Value::Int(7)]).unwrap();
        [of.table("accounts").unwrap().rows().collect(), row.into_iter().collect::<Vec<Row>>()]
    });
    let expected = [Value::Int(7), Value::Decimal(100, 2), Value::Null];
    assert_eq!((&table, &table[0][..]), (&row, &expected[..]));
    let of = env.clone();
    let query = json!({"do": "query", "table": "accounts"});
    let said = soon("a query", move || lines(&of, &query));
    assert_eq!((&said[1]["row"]["balance"], said.len()), (&json!("1.00"), 3), "{said:?}");
    assert_eq!(said[2]["as_of"], durable);
    let summary = mill.summary().unwrap();
    assert_eq!((summary.tables[0].rows, summary.events), (1, 1));
    slow.release();
    mill.drain().unwrap();
    assert_eq!(mill.table("accounts").unwrap().len(), 3);
    let whole = mill.summary().unwrap();
    assert_eq!((whole.tables[0].rows, whole.events), (3, at as u64));
    mill.stop().unwrap();
}

/// While there is no room to write, everybody may read: what is durable, and nothing else.
#[test]
fn a_full_disk_keeps_nobody_from_reading() {
    let sim = SimEnv::new(1);
    // Who waits for room sleeps: that must not move the clock.
    let real = Env::real().clock;
    let env = Env { clock: real.clone(), ..sim.env() };
    let settings = || Settings {
        http_port: Some(0),
        epoch_rows_max: 100,
        log_segment_bytes: 1 << 16,
        ..settings()
    };
    let start = || {
        let spec = app(bank(Late::Side), settings());
        Mill::start(spec, env.clone()).unwrap_or_else(|e| panic!("{e}"))
    };
    let mut mill = Arc::new(start());
    pay(&mill, &[[0, 7, 100], [0, 8, 100]]);
    let mut at = 1;
    for round in 0..2 {
        sim.disk.set_capacity(Some(sim.disk.used()));
        // Behind the room that the log has made ahead the disk is full.
        let sending = {
            let (mill, first) = (mill.clone(), at);
            beside(move || {
                let schema = bank(Late::Side).streams[0].spec.schema.clone();
                for at in first..first + 20_000 {
                    let row = [Value::Int(at), Value::Int(7), Value::Decimal(1, 2)];
                    let batch = Batch::from_rows(schema.clone(), [&row[..]]);
                    if mill.send("payments", batch).is_err() {
                        return;
                    }
                }
            })
        };
        at += 20_000;
        let status = {
            let env = env.clone();
            move || end(&env, json!({"do": "status"}))["status"].clone()
        };
        let mut now = status();
        while now["state"] != "stalled" {
            real.sleep_us(5000);
            now = soon("status", status.clone());
        }
        assert!(now["why"].as_str().unwrap().contains("no room"), "{now}");
        // Both accounts got 1.00, and every further event has brought 0.01.
        let events = now["events"].as_i64().unwrap();
        let balance = Value::Decimal(100 + events - 2, 2);
        let expected: Vec<Vec<Value>> = vec![
            vec![Value::Int(7), balance.clone(), Value::Null],
            vec![Value::Int(8), Value::Decimal(100, 2), Value::Null],
        ];
        let of = mill.clone();
        let table = soon("a table", move || of.table("accounts").unwrap());
        assert_eq!(table.rows().map(Vec::from).collect::<Vec<_>>(), expected, "{now} {}", status());
        let of = mill.clone();
        let row = soon("a row", move || of.row("accounts", &[Value::Int(7)]).unwrap());
        assert_eq!(row.map(Vec::from).as_ref(), expected.first());
        let of = mill.clone();
        assert_eq!(soon("a summary", move || of.summary().unwrap()).events, events as u64);
        let ask = |what: &str, request: Json| {
            let env = env.clone();
            soon(what, move || lines(&env, &request))
        };
        let expected = tidemill_core::value::format_decimal(100 + events - 2, 2);
        for request in [
            json!({"do": "query", "table": "accounts", "key": 7}),
            json!({"do": "query", "table": "accounts", "filter": "id = 7"}),
            json!({"do": "query", "table": "accounts", "key": 7, "as_of": now["epoch"]}),
            json!({"do": "query", "table": "accounts", "key": 7, "as_of": "2200-01-01T00:00:00Z"}),
        ] {
            let said = ask("a query", request);
            assert_eq!(said[1]["row"]["balance"], json!(expected), "{said:?}");
            assert_eq!(said[2]["as_of"], now["epoch"]);
        }
        let tail = json!({"do": "tail", "stream": "pay", "from": events - 1, "follow": false});
        let tail = ask("a tail", tail);
        assert_eq!(tail[1]["value"]["balance"], json!(expected), "{tail:?}");
        assert_eq!(ask("inspect", json!({"do": "inspect"}))[0]["inspect"]["tables"][0]["rows"], 2);
        assert_eq!(ask("dead rows", json!({"do": "dlq_ls"}))[0]["rows"], 0);
        let to = json!({"do": "backup", "to": "/copy"});
        let refused = ask("a backup", to).pop().unwrap();
        assert_eq!(refused["error"]["kind"], "ResourceError", "{refused}");
        let addr: Addr = now["http"].as_str().unwrap().parse().unwrap();
        let of = env.clone();
        let get = move || http(&of, &addr, b"GET /health HTTP/1.1\r\n\r\n");
        let health = soon("health", get);
        assert!(health.contains("503") && health.contains("\"stalled\":true"), "{health}");
        if round == 0 {
            // There is room again, and all goes on.
            sim.disk.set_capacity(None);
            sending.join().unwrap();
            mill.drain().unwrap();
            let all = Value::Decimal(100 + at - 1, 2);
            assert_eq!(mill.row("accounts", &[Value::Int(7)]).unwrap().unwrap()[1], all);
            assert_eq!(status()["state"], "running");
        } else {
            // The process dies instead. What was shown is there again, also on a full disk.
            sim.disk.kill();
            assert!(mill.stop().is_err());
            sending.join().unwrap();
            mill = Arc::new(start());
            let of = mill.clone();
            let row = soon("a row", move || of.row("accounts", &[Value::Int(7)]).unwrap());
            let Value::Decimal(again, 2) = row.as_ref().unwrap()[1] else { panic!("{row:?}") };
            assert!(again >= 100 + events - 2, "{again}, {events} events were shown");
            sim.disk.set_capacity(None);
            mill.drain().unwrap();
            let row = mill.row("accounts", &[Value::Int(7)]).unwrap().unwrap();
            let all = 100 + mill.sent("payments").unwrap() as i64 - 2;
            assert_eq!(row[1], Value::Decimal(all, 2));
        }
    }
    mill.stop().unwrap();
}

/// Rows that are acknowledged can be seen, by whoever asks.
#[test]
fn what_is_acknowledged_can_be_seen() {
    let sim = SimEnv::new(1);
    let mut b = Builder::new("seen");
    b.table("seen", &["n"], vec![Column::new("n", DataType::Int)]);
    let stream = b.stream("payments", vec![Column::new("n", DataType::Int)]);
    b.opaque("see", stream, Arc::new(See));
    let program = b.finish().unwrap();
    let schema = program.streams[0].spec.schema.clone();
    let mill = Mill::start(app(program, settings()), sim.env()).unwrap();
    for n in 0..3000 {
        let row = [Value::Int(n)];
        let rows = mill.send("payments", Batch::from_rows(schema.clone(), [&row[..]])).unwrap();
        mill.acknowledge("payments", rows).unwrap();
        assert!(mill.row("seen", &row).unwrap().is_some(), "{n} was acknowledged");
    }
    mill.stop().unwrap();
}

/// Writes its event.
struct See;

impl Opaque for See {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        tx.put(TableId(0), event)
    }
}
