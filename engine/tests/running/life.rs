//! The reports of an engine about itself.

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

#[test]
fn its_life_is_appended_to_a_file() {
    let sim = SimEnv::new(1);
    let settings = Settings { log_to: Some("/life.jsonl".into()), ..settings() };
    for _ in 0..2 {
        start(&sim, settings.clone()).stop().unwrap();
    }
    let mut text = String::new();
    sim.env().disk.open_read(Path::new("/life.jsonl")).unwrap().read_to_string(&mut text).unwrap();
    let events: Vec<Json> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let events: Vec<&str> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["start", "snapshot", "stop", "start", "snapshot", "stop"]);
    let nowhere = Settings { log_to: Some("/no/folder".into()), ..settings };
    let refused = Mill::start(app(bank(Late::Side), nowhere), sim.env()).map(|_| ()).unwrap_err();
    assert!(refused.what.contains("/no/folder"), "{refused}");
}

#[derive(Default)]
struct Heard(parking_lot::Mutex<Vec<Json>>);

impl LifeSink for Heard {
    fn line(&self, line: &str) {
        self.0.lock().push(serde_json::from_str(line).unwrap());
    }
}

#[test]
fn its_life_is_told() {
    let sim = SimEnv::new(1);
    for run in 0..3 {
        let heard = Arc::new(Heard::default());
        let spec = app(bank(Late::Side), if run < 2 { log_only() } else { settings() });
        let mill = Mill::start_with(spec, sim.env(), Some(heard.clone())).unwrap();
        pay(&mill, &[[1 + run, 7, 100]]);
        mill.stop().unwrap();
        let events: Vec<String> =
            heard.0.lock().iter().map(|e| e["event"].as_str().unwrap().to_owned()).collect();
        match run {
            0 => assert_eq!(events, ["start", "stop"]),
            1 => assert_eq!(events, ["start", "recovery begun", "recovery ended", "stop"]),
            _ => assert_eq!(events[3..], ["snapshot", "stop"]),
        }
    }
    let heard = Arc::new(Heard::default());
    let spec = app(bank(Late::Side), Settings { poison_after: 1, ..settings() });
    assert!(Mill::start_with(spec, sim.env(), Some(heard.clone())).is_err());
    assert_eq!(heard.0.lock()[0]["event"], "error");
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
