//! Queries to a running engine, and to a stopped one.

#[path = "../inputs/mod.rs"]
mod inputs;
#[path = "../logged/mod.rs"]
mod logged;
#[path = "../../../txn/tests/random/mod.rs"]
mod random;

mod any_program;
mod beside;
mod life;
mod query;
mod stream;

use std::path::Path;
use std::sync::Arc;

use serde_json::{json, Value as Json};
use tidemill_core::{Batch, Column, DataType, Late, Row, TableId, Value};
use tidemill_engine::{ask, AppSpec, Durable, Mill, Settings, SourceDecl};
use tidemill_env::Env;
use tidemill_reference::{CutAt, InputRow};
use tidemill_sim::SimEnv;
use tidemill_txn::program::{Abort, Builder, Opaque, Program, Tx};

const DATA: &str = "/data";

/// Accounts with a balance. A payment that overdraws one is refused.
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

fn settings() -> Settings {
    let data_dir = Some(DATA.into());
    Settings { data_dir, workers: 1, log_segment_bytes: 1 << 16, ..Settings::default() }
}

fn app(program: Program, settings: Settings) -> AppSpec {
    let sources = vec![SourceDecl::pushed("payments")];
    AppSpec::new(program, sources, settings)
}

/// Settings without snapshots, so that a start replays all cuts.
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
