//! The reports of an engine about itself.

use super::logged::Logged;
use super::*;
use tidemill_engine::App;

#[test]
fn status_inspect_summary_of_a_running_and_of_a_stopped_engine() {
    let sim = SimEnv::new(1);
    let env = sim.env();
    let mill = start(&sim, settings());
    pay(&mill, &[[1, 7, 1000], [2, 7, -2000], [3, 8, 50]]);
    let status = end(&env, json!({"do": "status"}));
    assert_eq!(status["engine"], "running");
    let status = &status["status"];
    assert_eq!(status["state"], "running");
    assert_eq!((&status["app"], &status["events"]), (&json!("bank"), &json!(3)));
    assert_eq!((&status["transactions"], &status["aborted"]), (&json!(3), &json!(1)));
    assert_eq!(status["epoch"], status["executed_epoch"]);
    assert!(status["log"]["cuts"]["next"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(status["http"], Json::Null);
    let summary = end(&env, json!({"do": "summary"}));
    assert_eq!(summary["summary"]["refused"], 1);
    let inspect = end(&env, json!({"do": "inspect"}));
    let inspect = &inspect["inspect"];
    assert_eq!(inspect["tables"][0]["rows"], 2);
    assert_eq!(
        inspect["sources"][0],
        json!({"name": "payments/push", "stream": "payments", "offset": 3})
    );
    assert_eq!(inspect["outputs"]["pay"], 2);
    assert_eq!(inspect["handlers"][0]["name"], "pay");
    mill.finish().unwrap();

    let before = image(&sim);
    let status = end(&env, json!({"do": "status"}));
    assert_eq!((&status["engine"], &status["behind"]), (&json!("stopped"), &json!(0)));
    assert_eq!(status["status"]["state"], "stopped");
    assert_eq!((&status["status"]["events"], &status["status"]["aborted"]), (&json!(3), &json!(1)));
    let stopped = end(&env, json!({"do": "inspect"}));
    for field in ["tables", "sources", "outputs", "handlers", "dead", "late"] {
        assert_eq!(stopped["inspect"][field], inspect[field], "{field}");
    }
    let needs = refused(&env, json!({"do": "summary"}));
    assert!(needs.contains("needs one"), "{needs}");
    assert_eq!(image(&sim), before, "asking a stopped one writes nothing");
}

/// The names of some events in a file.
fn names_in(sim: &SimEnv, path: &str, names: &[&str]) -> Vec<String> {
    let mut text = String::new();
    sim.env().disk.open_read(Path::new(path)).unwrap().read_to_string(&mut text).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let name = |event: Json| event["event"].as_str().unwrap().to_owned();
    events.map(name).filter(|name| names.contains(&&**name)).collect()
}

const MAIN: [&str; 6] = ["start", "recovery begun", "recovery ended", "snapshot", "stop", "error"];

#[test]
fn its_log_is_appended_to_a_file() {
    let sim = SimEnv::new(1);
    let settings = Settings { log_to: Some("/log.jsonl".into()), ..settings() };
    for _ in 0..2 {
        start(&sim, settings.clone()).stop().unwrap();
    }
    let events = names_in(&sim, "/log.jsonl", &MAIN);
    assert_eq!(events, ["start", "snapshot", "stop", "start", "snapshot", "stop"]);
    let nowhere = Settings { log_to: Some("/no/folder".into()), ..settings };
    let refused = Mill::start(app(bank(Late::Side), nowhere), sim.env()).map(|_| ()).unwrap_err();
    assert!(refused.what.contains("/no/folder"), "{refused}");
}

/// The threads of each engine log to its own file, whichever ran first.
#[test]
fn two_engines_of_one_process_have_two_logs() {
    let sim = SimEnv::new(1);
    let of = |n: u32, log: &str| {
        let (data_dir, log_to) = (Some(format!("/d{n}").into()), Some(format!("/{n}").into()));
        start(&sim, Settings { data_dir, log_to, log: Some(log.into()), ..settings() })
    };
    let (one, two) = (of(1, "info"), of(2, "trace,tidemill::snapshot=off"));
    pay(&two, &[[1, 7, 100]]);
    pay(&one, &[[1, 7, 100]]);
    two.stop().unwrap();
    one.stop().unwrap();
    let names = [&MAIN[..], &["epoch", "snapshot begun"]].concat();
    assert_eq!(names_in(&sim, "/1", &names), ["start", "snapshot", "stop"]);
    let mut other = names_in(&sim, "/2", &names);
    other.dedup();
    assert_eq!(other, ["start", "epoch", "stop"]);
}

#[test]
fn start_recovery_and_stop_are_logged() {
    let sim = SimEnv::new(1);
    for run in 0..3 {
        let log = Logged::default();
        let spec = app(bank(Late::Side), if run < 2 { log_only() } else { settings() });
        let mill = log.start(spec, sim.env()).unwrap();
        pay(&mill, &[[1 + run, 7, 100]]);
        mill.stop().unwrap();
        let events = log.names(&MAIN);
        match run {
            0 => assert_eq!(events, ["start", "stop"]),
            1 => assert_eq!(events, ["start", "recovery begun", "recovery ended", "stop"]),
            _ => assert_eq!(events[3..], ["snapshot", "stop"]),
        }
        let started = &log.all(&["start"])[0];
        assert_eq!((&started["app"], &started["data_dir"]), (&json!("bank"), &json!(DATA)));
        assert_eq!(started["settings"]["workers"], 1);
        assert_eq!(started["settings"].get("strategy"), None, "a default");
        let snapshots = log.all(&["snapshot"]);
        assert!(snapshots.iter().all(|line| line["bytes"].as_u64() > Some(0)), "{snapshots:?}");
    }
    let log = Logged::default();
    let spec = app(bank(Late::Side), Settings { poison_after: 1, ..settings() });
    assert!(log.start(spec, sim.env()).is_err());
    assert_eq!(log.names(&MAIN), ["error"]);
}

#[test]
fn late_events_are_counted_in_the_log() {
    let (sim, log) = (SimEnv::new(1), Logged::default());
    let mill = log.start(app(bank(Late::Side), settings()), sim.env()).unwrap();
    pay(&mill, &[[100, 7, 100], [1, 7, 100], [2, 7, 100]]);
    mill.stop().unwrap();
    let late = log.all(&["late events"]);
    let rows: u64 = late.iter().map(|line| line["rows"].as_u64().unwrap()).sum();
    assert_eq!(rows, 2, "{late:?}");
    assert_eq!(late[0]["target"], "tidemill::source");
}

#[test]
fn health_and_metrics() {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings());
    pay(&mill, &[[1, 7, 100], [2, 7, -200]]);
    let health = mill.health();
    assert!(health.ready && health.said["ready"] == true, "{health:?}");
    let metrics = mill.metrics();
    for line in [
        "tidemill_events_total 2\n",
        "tidemill_aborts_total 1\n",
        "# TYPE tidemill_lag_seconds gauge\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("tidemill_") && value.parse::<f64>().is_ok(), "{line}");
    }
    mill.stop().unwrap();
    assert!(!mill.health().ready);
}

/// Real sockets and files give the same answers.
#[test]
fn a_real_engine_answers() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::real();
    let data = dir.path().join("data");
    let settings = Settings { data_dir: Some(data.clone()), ..settings() };
    let mill = Mill::start(app(bank(Late::Side), settings.clone()), env.clone()).unwrap();
    pay(&mill, &[[1, 7, 100]]);
    let query = json!({"do": "query", "table": "accounts"}).to_string();
    let tail = json!({"do": "tail", "stream": "pay", "from": 0}).to_string();
    let mut follow = ask(&env, &data, &tail);
    assert!(follow.nth(1).unwrap().contains("\"row\":0"));
    let running: Vec<String> = ask(&env, &data, &query).collect();
    assert!(running[1].contains("\"balance\":\"1.00\""), "{running:?}");
    // A copy can be requested while it runs, and a follower does not keep it from ending.
    let to = dir.path().join("copy");
    let copied: Vec<String> =
        ask(&env, &data, &json!({"do": "backup", "to": to}).to_string()).collect();
    assert!(copied[0].contains("\"backup\""), "{copied:?}");
    mill.stop().unwrap();
    assert!(follow.last().unwrap().contains("\"end\":true"));
    assert!(!env.disk.exists(&data.join("engine.sock")).unwrap());
    for dir in [&data, &to] {
        let stopped: Vec<String> = ask(&env, dir, &query).collect();
        assert_eq!(stopped[1], running[1]);
    }
}
