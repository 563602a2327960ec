//! The rows of changed tables, and changes that prevent an upgrade.

use super::*;

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
    // An int becomes a float where it is small enough, and a decimal where that has enough digits.
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
    // Two names are exchanged, and a widened column may have a new name, too.
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
    // Removed values do not come back.
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
        // Without rows any key is possible.
        let sim = SimEnv::new(1);
        old.written(&sim, &[]);
        new.start(&sim, upgrading(&[])).unwrap().stop().unwrap();
    }
    // These rows would be equal after rounding.
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
        (&[("t", "t.called")], &["is a table, and the other is a column"]),
        (&[("t.name", "called")], &["is a table, and the other is a column"]),
        (&[("t.name", "t.n")], &["both", "would become n"]),
        (&[("t.name", "t.id")], &["would become id"]),
        (&[("t.id", "t.called"), ("t.name", "t.called")], &["would become called"]),
    ] {
        refused(new.start(&sim, upgrading(renames)), words);
        let error = schema_diff(&sim.env(), Path::new(DATA), &new.app(upgrading(renames)));
        assert!(error.is_err());
    }
    // The changes of an earlier upgrade are not repeated.
    new.start(&sim, upgrading(&[("t.name", "t.called")])).unwrap().stop().unwrap();
    let more = new.with(vec![int("id"), text("called"), int("n"), text("note").nullable()]);
    let renames = [("t.name", "t.called")];
    refused(more.start(&sim, upgrading(&renames)), &["no column 'name'", "remove it from renames"]);
    let sim = SimEnv::new(2);
    people().written(&sim, &two());
    // A change of the key's columns without a rename changes the key.
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

/// Only the version that recorded a cut can replay it.
#[test]
fn recorded_cuts_stand_against_it() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let quiet = Settings { snapshot_us: 300_000_000_000_000, ..settings() };
    let mill = people().start(&sim, quiet.clone()).unwrap();
    mill.send("put", people().batch(&[person(3, "Cem", 1)])).unwrap();
    mill.drain().unwrap();
    sim.disk.record();
    let new = people().with(vec![int("id"), text("name"), int("n"), text("note").nullable()]);
    // With a running engine the cuts do not matter: it leaves a snapshot when it stops.
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
    // The same without any snapshot.
    let sim = SimEnv::new(3);
    let log = Settings { durable: Durable::Log, ..settings() };
    let mill = people().start(&sim, log.clone()).unwrap();
    mill.send("put", people().batch(&two())).unwrap();
    mill.drain().unwrap();
    mill.stop().unwrap();
    refused(new.start(&sim, upgrading(&[])), &["no snapshot", "log+snapshots"]);
    let error = schema_diff(&sim.env(), Path::new(DATA), &new.app(settings())).unwrap_err();
    assert!(error.what.contains("no snapshot yet"), "{error}");
    // An empty directory can be taken over by every program.
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
    assert!(error.what.contains("not a data directory"), "{error}");
    sim.disk.record();
    people().with(vec![money("id", 1), int("name"), int("x")]).diff(&sim, &[]);
    assert!(sim.disk.take_trace().is_empty());
    // Declarations before a handler do not change it.
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
