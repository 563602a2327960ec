//! Upgrades of buffered events, of streams, sources and sinks, and of earlier states.

use super::*;

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
        "stream changed events, from late side, to late admit: late events are treated in the new way from now on",
        "stream added above: empty",
        "handler added count: it takes the events from now on",
    ] {
        assert!(found.iter().any(|found| found == line), "'{line}' is not in {found:#?}");
    }
    let mill = new.start(&sim, upgrading(&[])).unwrap();
    assert_eq!((mill.summary().unwrap().events, mill.status().buffered), (2, 5));
    let late = || -> Json {
        let request = json!({"do": "dlq_ls"}).to_string();
        serde_json::from_str(&ask(&sim.env(), Path::new(DATA), &request).next().unwrap()).unwrap()
    };
    let value = json!({"at": 3, "k": 1, "memo": null, "unit": 1, "x": "100.00"});
    assert_eq!(late()["value"], value);
    let summary = mill.finish().unwrap();
    let expected = [("1", "13.00"), ("2", "6.00")].map(|(k, x)| (k.to_owned(), x.to_owned()));
    assert_eq!(sums(&mill), expected);
    // The new stream has got the buffered events.
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
    // All of that is possible after the events have been executed.
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
        "source removed events/push: its place after 5 rows is dropped",
        "source added others/push: it is read from its first row on",
        "handler removed add: its earlier results stay",
    ] {
        assert!(found.iter().any(|found| found == line), "'{line}' is not in {found:#?}");
    }
    refused(Mill::start(spec(upgrading(&[])), sim.env()), &["lose data", "stream events"]);
    let mill = Mill::start(spec(lossy()), sim.env()).unwrap();
    assert_eq!(sums(&mill), [("1".to_owned(), "5".to_owned())]);
    assert_eq!(mill.sent("others").unwrap(), 0);
    mill.stop().unwrap();
}

/// Streams that come to share a table have one watermark: the higher one.
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
            .any(|line| line.contains("stream changed right: it shares a table with left")),
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

/// Files continue at their positions, whatever the order of their declarations, and a new one
/// begins at its first row. Outputs continue, and new ones begin.
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
            ..SourceDecl::pushed("put")
        };
        spec.sources = files.iter().map(from).collect();
        let sink = |path: &&str| SinkDecl {
            stream: "put.aborted".into(),
            files: Some(json!({"path": path})),
            kafka: None,
            at: String::new(),
        };
        spec.sinks = sinks.iter().map(sink).collect();
        spec
    };
    // An id that is a multiple of three is refused, by a null in its key.
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
        "sink added /more.jsonl: it gets the events from now on",
    ] {
        assert!(found.iter().any(|found| found == line), "'{line}' is not in {found:#?}");
    }
    let summary = Mill::start(changed, sim.env()).unwrap().finish().unwrap();
    assert_eq!(summary.events, 30 + 15);
    assert_eq!(summary.tables[0].rows, 25);
    assert_eq!((read("/out.jsonl"), read("/more.jsonl")), (0, 0));
    // An existing file is not overwritten, and a file keeps its columns.
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

/// The state before an upgrade belongs to another program.
#[test]
fn what_was_before_can_not_be_asked_for() {
    let sim = SimEnv::new(1);
    people().written(&sim, &two());
    let new = people().with(vec![int("id"), text("name"), int("n"), text("note").nullable()]);
    let mill = new
        .start(&sim, Settings { log_to: Some("/log".into()), ..upgrading(&[]) })
        .unwrap_or_else(|e| panic!("{e}"));
    let mut log = String::new();
    let mut file = sim.disk.open_read(Path::new("/log")).unwrap();
    std::io::Read::read_to_string(&mut file, &mut log).unwrap();
    let told = log.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
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

#[test]
fn whoever_follows_an_output_goes_on_where_its_columns_are_the_same() {
    let sim = SimEnv::new(1);
    Clocked::new().written(&sim);
    let kept = |mill: &Mill| {
        let RetainedRows { first, next, rows } = mill.retained("add", 0, 10).unwrap();
        let rows: Vec<Row> = rows.iter().flat_map(|(_, batch)| batch.rows()).collect();
        (first, next, rows)
    };
    let more = Clocked { extra: vec![int("more").nullable()], ..Clocked::new() };
    let mill = more.start(&sim, upgrading(&[])).unwrap();
    assert_eq!(kept(&mill), (0, 1, vec![[Value::Int(1), Value::Int(5)].into()]));
    mill.stop().unwrap();
    let other = Clocked { amount: DataType::Decimal(2), ..more };
    let mill = other.start(&sim, lossy()).unwrap();
    assert_eq!(kept(&mill), (1, 1, Vec::new()), "they are numbered on");
}
