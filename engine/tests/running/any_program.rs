//! Random programs, queried as of every retained epoch.

use super::inputs::write_file;
use super::*;

#[test]
fn every_kept_epoch_can_be_asked_for() {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let mut asked = 0;
    for seed in 0..cases {
        asked += check(seed);
    }
    assert!(asked > cases, "{asked}");
}

/// Compares with the reference, which gets the first cuts only. Returns how many epochs were
/// compared.
fn check(seed: u64) -> u64 {
    let mut dice = random::Dice(seed);
    let shape = random::Shape {
        plain: dice.chance(50),
        orderly: dice.chance(50),
        histories: true,
        words: false,
    };
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
        let (stream, out_of_orderness_us) = (spec.name.to_string(), source.out_of_orderness_us);
        sources.push(SourceDecl {
            stream,
            out_of_orderness_us,
            idle_us: source.idle_us,
            files,
            kafka: None,
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
    let spec = AppSpec::new(program.clone(), sources, settings);
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

fn compare(mill: &Mill, env: &Env, program: &Program, inputs: &[Vec<InputRow>], seed: u64) -> u64 {
    let cuts = mill.cuts();
    let at: Vec<CutAt> = cuts.iter().cloned().map(random::cut_at).collect();
    let mut compared = 0;
    let step = 1 + at.len() / 12;
    for epoch in (1..=at.len()).rev().step_by(step) {
        let wanted = tidemill_reference::run(program, inputs, &at[..epoch]);
        for (table, wanted) in program.tables.iter().zip(&wanted.tables) {
            let request =
                json!({"do": "query", "table": table.name, "as_of": epoch, "limit": 100_000});
            let found = lines(env, &request);
            let last = found.last().unwrap();
            if last.get("error").is_some() {
                let what = last["error"]["what"].as_str().unwrap();
                let gone = what.contains("no longer retained")
                    || what.contains("would have to be replayed");
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
