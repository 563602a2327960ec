//! Rows as they are and as they were.

use super::*;

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
        // The second time the engine has stopped, without a snapshot at the end of the run.
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
    // The copy is like a killed run, because a clean stop takes a snapshot.
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
