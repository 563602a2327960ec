//! Random programs, upgraded during their input.

use super::inputs::write_file;
use super::*;

/// Random programs are stopped somewhere, and upgraded to the same program with other names and
/// more columns. The results are as if the new one had run from the beginning.
#[test]
fn an_upgraded_run_is_that_of_the_reference() {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut buffered = 0;
    for seed in 0..cases {
        buffered += u64::from(upgraded_in_the_midst(seed));
    }
    println!("in {buffered} of {cases} runs events waited");
    assert!(buffered > 0);
}

/// Runs a case. Returns whether events waited for their watermark at the upgrade.
fn upgraded_in_the_midst(seed: u64) -> bool {
    let mut dice = random::Dice(seed);
    let shape = random::Shape {
        plain: dice.chance(50),
        orderly: dice.chance(50),
        histories: true,
        words: false,
    };
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
            out_of_orderness_us: source.out_of_orderness_us,
            files: Some(json!({"path": format!("/in/{index}.jsonl")})),
            ..SourceDecl::pushed(&program.streams[source.stream.index()].spec.name)
        });
        let sources = sources.collect();
        AppSpec::new(program.clone(), sources, settings)
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
    let waited = mill.status().buffered > 0;
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
    let cuts: Vec<CutAt> = cuts.into_iter().map(random::cut_at).collect();
    let wanted = tidemill_reference::run(&new, &inputs, &cuts);
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
    // Reasons of refusals contain names of tables.
    if renames.is_empty() {
        let hash = streams_hash(hashes);
        assert_eq!(format!("{hash:032x}"), summary.output_hash, "seed {seed}");
    }
    waited
}

/// The same program with other names of tables and columns, more columns, more tables, and longer
/// histories.
fn changed(dice: &mut random::Dice, old: &Program) -> (Program, BTreeMap<String, String>) {
    let (mut new, mut renames) = (old.clone(), BTreeMap::new());
    let is_opaque = !old.opaques.is_empty();
    // The engine's own tables are not changed.
    for table in new.tables.iter_mut().filter(|table| table.keeps.is_none()) {
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
        // A function that writes whole rows depends on the columns of a table.
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
