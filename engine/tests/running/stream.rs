//! Followed streams, dead and late rows, backups, and invalid requests.

use super::*;

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
    assert!(why.contains("has no snapshot yet"), "{why}");

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
fn rows_of_before_a_snapshot_can_be_followed() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let limits = Settings { tail_rows: 4, ..settings() };
    let first = |paid: u64| paid.saturating_sub(4);
    let mut paid = 0;
    for upto in [3, 6, 9] {
        let mill = start(&sim, limits.clone());
        mill.drain().unwrap();
        let request =
            |from: u64| json!({"do": "tail", "stream": "pay", "from": from, "follow": false});
        let tail = |from: u64| {
            let lines = lines(&env, &request(from));
            lines.iter().filter_map(|l| l["row"].as_u64()).collect::<Vec<u64>>()
        };
        // The rows from before the stop have the same numbers.
        assert_eq!(tail(first(paid)), (first(paid)..paid).collect::<Vec<_>>());
        if first(paid) > 0 {
            let why = refused(&env, request(first(paid) - 1));
            assert!(why.contains("no longer retained"), "{why}");
        }
        while paid < upto {
            paid += 1;
            pay(&mill, &[[paid as i64, 7, 100]]);
        }
        assert_eq!(tail(first(paid)), (first(paid)..paid).collect::<Vec<_>>());
        mill.stop().unwrap();
    }
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
    // These are more rows than a connection holds, so the engine has to wait for the reader.
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
            return; // The reader kept up by chance.
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
    assert!(why.contains("is running"), "{why}");
    mill.stop().unwrap();
    let stopped = end(&env, to("/stopped"));
    assert_eq!(stopped["engine"], "stopped");
    for (folder, balance) in [("/backup", "1.00"), ("/stopped", "2.00")] {
        let there = Path::new("/restored").join(&folder[1..]);
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
    // No damaged byte is restored.
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
        let addr = tidemill_env::Addr::Unix(Path::new(DATA).join("engine.sock"));
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
        // The engine may have closed the connection.
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
    // These are more connections than allowed, and none sends anything.
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
