//! Starts on changed directories: damaged logs, shorter inputs, a full disk, and another running
//! process.

mod full;
mod held;
mod inputs;
#[path = "../logged/mod.rs"]
mod logged;
mod logs;
mod reported;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{json, Value as Json};
use tidemill_core::{Batch, Column, DataType, Error, Kind, Value};
use tidemill_engine::{ask, AppSpec, Mill, Settings, SourceDecl};
use tidemill_env::{Clock, Disk, Env};
use tidemill_sim::{SimDisk, SimEnv};
use tidemill_txn::program::{Builder, Program};

const DATA: &str = "/data";

/// Counts how often each number came.
fn program() -> Program {
    let mut b = Builder::new("counts");
    let int = |name: &str| Column::new(name, DataType::Int);
    let times = int("times").default(Value::Int(0));
    let table = b.table("seen", &["n"], vec![int("n"), times]);
    let stream = b.stream("numbers", vec![int("n")]);
    let mut h = b.handler("count", stream);
    let n = h.column("n");
    let row = h.row(table, &[n]);
    let (times, one) = (h.read(row, "times"), h.int(1));
    let more = h.add(times, one);
    h.set(row, "times", more);
    h.output(&[("n", n), ("times", more)]);
    h.done();
    b.finish().unwrap()
}

fn settings() -> Settings {
    Settings {
        data_dir: Some(DATA.into()),
        workers: 1,
        log_segment_bytes: 1 << 16,
        snapshot_us: 1 << 48,
        // The real clock continues after the simulated one.
        clock_jump_us_max: 315_576_000_000_000,
        ..Settings::default()
    }
}

fn spec(source: SourceDecl, settings: Settings) -> AppSpec {
    AppSpec::new(program(), vec![source], settings)
}

fn start(sim: &SimEnv, settings: Settings) -> Result<Mill, Error> {
    Mill::start(spec(SourceDecl::pushed("numbers"), settings), sim.env())
}

fn send(mill: &Mill, numbers: std::ops::Range<i64>) {
    let schema = program().streams[0].spec.schema.clone();
    let rows: Vec<[Value; 1]> = numbers.map(|n| [Value::Int(n)]).collect();
    mill.send("numbers", Batch::from_rows(schema, rows.iter().map(|r| &r[..]))).unwrap();
}

/// Sends numbers, and waits until they are durable.
fn send_safe(mill: &Mill, numbers: std::ops::Range<i64>) {
    let end = numbers.end as u64;
    send(mill, numbers);
    mill.acknowledge("numbers", end).unwrap();
}

/// Another machine with the same files, as they are now.
fn copy(sim: &SimEnv) -> SimEnv {
    sim.disk.record();
    let image = sim.disk.take_trace().images(1, 0).nth(1).expect("an image with everything");
    SimEnv { disk: image.disk, ..SimEnv::new(1) }
}

fn clock() -> Arc<dyn Clock> {
    Env::real().clock
}

/// Waits for something that happens soon, or fails, because nothing may hang.
fn soon(what: &str, mut is_there: impl FnMut() -> bool) {
    let clock = clock();
    for _ in 0..60_000 {
        if is_there() {
            return;
        }
        clock.sleep_us(1000);
    }
    panic!("{what} does not come");
}

/// All files below a folder, with their bytes.
fn files(disk: &dyn Disk, dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut stack) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = stack.pop() {
        for path in disk.list(&dir).unwrap_or_default() {
            if disk.metadata(&path).unwrap().is_dir {
                stack.push(path);
                continue;
            }
            let mut bytes = Vec::new();
            disk.open_read(&path).unwrap().read_to_end(&mut bytes).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

/// The last line of an answer.
fn asked(env: &Env, request: &Json) -> Json {
    let last = ask(env, Path::new(DATA), &request.to_string()).last().expect("a line");
    serde_json::from_str(&last).unwrap()
}

/// Checks that an error has the fault, the place and the remedy.
#[track_caller]
fn assert_clear(error: &Error, word: &str) {
    assert!(error.kind != Kind::Internal, "{error}");
    assert!(!error.help.is_empty() && error.what.contains(word), "{error}");
}
