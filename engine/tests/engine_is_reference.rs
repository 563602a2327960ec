//! The whole engine equals the reference, bit for bit. Random programs run over random files on a
//! simulated disk, with 1, 2, 3 and 8 workers, and with the engine's own cuts.

#[path = "../../txn/tests/random/mod.rs"]
mod random;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use random::{Dice, Shape};
use serde_json::json;
use tidemill_core::{Key, Row, Schema, StreamId, Value};
use tidemill_engine::{AppSpec, Mill, Settings, SourceDecl};
use tidemill_reference::{CutAt, InputRow};
use tidemill_sim::SimEnv;
use tidemill_txn::program::Program;
use tidemill_txn::schedule::Strategy;

/// A value in a JSON line.
fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => json!(null),
        Value::Bool(b) => json!(b),
        Value::Int(i) | Value::Timestamp(i) => json!(i),
        Value::Float(f) if f.is_nan() => json!("NaN"),
        Value::Float(f) => json!(f),
        Value::Str(s) => json!(&**s),
        Value::Decimal(units, scale) => json!(tidemill_core::value::format_decimal(*units, *scale)),
        other => unreachable!("{other} is not in random rows"),
    }
}

fn file(schema: &Schema, rows: &[InputRow]) -> String {
    let (mut text, mut line) = (String::new(), 0);
    for row in rows {
        // Offsets without a row are undecodable lines.
        while line < row.offset {
            writeln!(text, "oops {line}").unwrap();
            line += 1;
        }
        let fields = schema.columns.iter().zip(&row.values);
        let object: serde_json::Map<String, serde_json::Value> =
            fields.map(|(c, v)| (c.name.to_string(), json_value(v))).collect();
        writeln!(text, "{}", serde_json::Value::from(object)).unwrap();
        line += 1;
    }
    text
}

fn settings(dice: &mut Dice, workers: usize) -> Settings {
    Settings {
        workers,
        epoch_idle: dice.chance(70),
        epoch_rows_max: 1 + dice.below(40) as usize,
        epoch_us_max: 1,
        strategy: dice.pick(&Strategy::all()).to_string(),
        rerun_every: 2,
        keep_cuts: true,
        ..Settings::default()
    }
}

fn app(program: &Program, settings: Settings) -> AppSpec {
    let sources = (program.sources.iter().enumerate())
        .map(|(index, source)| SourceDecl {
            stream: program.streams[source.stream.index()].spec.name.to_string(),
            out_of_orderness_us: source.out_of_orderness_us,
            idle_us: None,
            files: Some(json!({"path": format!("/data/{index}.jsonl")})),
            kafka: None,
            at: String::new(),
        })
        .collect();
    let keep = program.streams.iter().flat_map(|s| {
        let name = s.spec.name.to_string();
        let is_input = !matches!(
            s.origin,
            tidemill_txn::program::Origin::Output(_)
                | tidemill_txn::program::Origin::Aborted(_)
                | tidemill_txn::program::Origin::Emitted
        );
        if is_input {
            vec![format!("{name}.late"), name]
        } else {
            vec![name]
        }
    });
    let keep = keep.collect();
    AppSpec { keep, ..AppSpec::new(program.clone(), sources, settings) }
}

fn rows_of(mill: &Mill, stream: &str) -> Vec<Row> {
    mill.output(stream, 0).unwrap().iter().flat_map(|b| b.rows().collect::<Vec<_>>()).collect()
}

fn check(seed: u64, workers: usize) {
    let mut dice = Dice(seed);
    let shape = Shape { plain: dice.chance(50), orderly: false, histories: true, words: false };
    let program = random::program(&mut dice, shape);
    let sources = random::sources(&mut dice, &program, shape);
    let sim = SimEnv::new(seed);
    let env = sim.env();
    env.disk.create_dir_all(Path::new("/data")).unwrap();
    for (index, rows) in sources.iter().enumerate() {
        let stream = program.sources[index].stream;
        let text = file(&program.streams[stream.index()].spec.schema, rows);
        let mut out = env.disk.create(Path::new(&format!("/data/{index}.jsonl"))).unwrap();
        std::io::Write::write_all(&mut out, text.as_bytes()).unwrap();
        out.sync().unwrap();
    }
    let mill = Mill::start(app(&program, settings(&mut dice, workers)), env).unwrap();
    // Epochs that wait for time wait for the simulated clock.
    while !mill.wait(50).unwrap() {
        sim.clock.advance_us(1);
    }
    let summary = mill.finish().unwrap();
    let cuts: Vec<CutAt> = mill.cuts().into_iter().map(random::cut_at).collect();
    let wanted = tidemill_reference::run(&program, &sources, &cuts);
    let watermarks: Vec<_> = mill.cuts().into_iter().map(|c| c.watermarks).collect();
    assert_eq!(wanted.watermarks, watermarks, "watermarks");
    for (table, wanted) in program.tables.iter().zip(&wanted.tables) {
        let key = |row: &Row| Key::of(table.key.iter().map(|c| &row[*c]));
        let rows = mill.table(&table.name).unwrap();
        let got: BTreeMap<Key, Row> = rows.rows().map(|row| (key(&row), row)).collect();
        assert_eq!(*wanted, got, "table {}", table.name);
    }
    for (index, stream) in program.streams.iter().enumerate() {
        let id = StreamId(index as u16);
        let name = &stream.spec.name;
        let hashed = !matches!(
            stream.origin,
            tidemill_txn::program::Origin::Input | tidemill_txn::program::Origin::Derived { .. }
        );
        if hashed {
            let wanted: Vec<Row> = (wanted.outputs.get(&id).into_iter().flatten())
                .map(|(_, row)| row.clone())
                .collect();
            assert_eq!(wanted, rows_of(&mill, name), "stream {name}");
        } else {
            let wanted = wanted.late.get(&id).cloned().unwrap_or_default();
            let got = rows_of(&mill, &format!("{name}.late"));
            // Late events of one cut come source by source.
            let sort = |rows: Vec<Row>| {
                let mut keys: Vec<Key> = rows.iter().map(|r| Key::of(r.iter())).collect();
                keys.sort();
                keys
            };
            assert_eq!(sort(wanted), sort(got), "late events of {name}");
        }
    }
    assert_eq!(
        (wanted.transactions, wanted.aborts),
        (summary.transactions, summary.refused),
        "transactions and aborts"
    );
    assert!(summary.unstable.is_empty());
    let bad: u64 = sources
        .iter()
        .map(|rows| rows.last().map_or(0, |r| r.offset + 1) - rows.len() as u64)
        .sum();
    assert_eq!(summary.dead, bad);
    assert_eq!(summary.events, sources.iter().map(|r| r.len() as u64).sum::<u64>() + bad);
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(60))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_program_with_any_number_of_workers(seed: u64) {
        for workers in [1, 2, 3, 8] {
            check(seed, workers);
        }
    }
}
