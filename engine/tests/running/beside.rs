//! Queries work beside a slow disk and a full one, and see rows that have just been acknowledged.

use super::*;
use tidemill_engine::App;

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

/// While a sync takes long, epochs are executed that are not durable. They are not visible, and no
/// reader waits for them.
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

/// On a full disk every reader sees the durable rows, and nothing else.
#[test]
fn a_full_disk_keeps_nobody_from_reading() {
    let sim = SimEnv::new(1);
    // A writer that waits for space sleeps. That must not move the clock.
    let real = Env::real().clock;
    let env = Env { clock: real.clone(), ..sim.env() };
    let settings = || Settings { epoch_rows_max: 100, log_segment_bytes: 1 << 16, ..settings() };
    let start = || {
        let spec = app(bank(Late::Side), settings());
        Mill::start(spec, env.clone()).unwrap_or_else(|e| panic!("{e}"))
    };
    let mut mill = Arc::new(start());
    pay(&mill, &[[0, 7, 100], [0, 8, 100]]);
    let mut at = 1;
    for round in 0..2 {
        sim.disk.set_capacity(Some(sim.disk.used()));
        // Beyond the log's reserved space the disk is full.
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
        let of = mill.clone();
        let health = soon("health", move || of.health());
        assert!(!health.ready && health.said["stalled"] == true, "{health:?}");
        if round == 0 {
            // There is space again, and everything continues.
            sim.disk.set_capacity(None);
            sending.join().unwrap();
            mill.drain().unwrap();
            let all = Value::Decimal(100 + at - 1, 2);
            assert_eq!(mill.row("accounts", &[Value::Int(7)]).unwrap().unwrap()[1], all);
            assert_eq!(status()["state"], "running");
        } else {
            // The process dies instead. Visible rows are there again, also on a full disk.
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

/// Acknowledged rows are visible to every reader.
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
