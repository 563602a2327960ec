//! One process at a time. The second one is refused before anything is changed, and the first
//! continues.

use super::*;

/// A user removes the lock's file as a stale one.
#[test]
fn a_directory_is_held_without_its_file() {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    send_safe(&mill, 0..3);
    sim.disk.remove(Path::new("/data/LOCK")).unwrap();
    for fresh in [false, true] {
        let before = files(&*sim.disk, Path::new(DATA));
        let error = start(&sim, Settings { fresh, ..settings() }).map(drop).unwrap_err();
        assert_eq!(error.kind, Kind::Resource);
        assert_clear(&error, "another process runs on data directory /data");
        assert!(files(&*sim.disk, Path::new(DATA)) == before, "nothing is touched");
    }
    send_safe(&mill, 3..5);
    assert_eq!(mill.table("seen").unwrap().len(), 5);
    mill.stop().unwrap();
    let mill = start(&sim, settings()).unwrap();
    assert_eq!(mill.sent("numbers").unwrap(), 5);
    mill.stop().unwrap();
}

/// An earlier version holds no lock once its file is gone, but answers.
#[test]
fn a_directory_whose_engine_answers_is_taken() {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    send_safe(&mill, 0..3);
    mill.stop().unwrap();
    let env = sim.env();
    let socket = tidemill_env::Addr::Unix("/data/engine.sock".into());
    let listener = env.net.listen(&socket).unwrap();
    let before = files(&*sim.disk, Path::new(DATA));
    let error = start(&sim, settings()).map(drop).unwrap_err();
    assert_clear(&error, "another process runs on data directory /data");
    assert!(files(&*sim.disk, Path::new(DATA)) == before, "nothing is touched");
    drop(listener);
    start(&sim, settings()).unwrap().stop().unwrap();
}

/// A backup is neither written nor restored where a process is about to run.
#[test]
fn no_copy_is_made_where_somebody_is() {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    send_safe(&mill, 0..3);
    let env = sim.env();
    env.disk.create_dir_all(Path::new("/there")).unwrap();
    let held = tidemill_env::hold(&*env.disk, Path::new("/there")).unwrap().unwrap();
    let backup = json!({"do": "backup", "to": "/there"});
    let what = |answer: Json| answer["error"]["what"].as_str().unwrap_or_default().to_owned();
    assert!(what(asked(&env, &backup)).contains("another process"), "running");
    mill.stop().unwrap();
    assert!(what(asked(&env, &backup)).contains("another process"), "stopped");
    drop(held);
    assert!(asked(&env, &backup).get("error").is_none());
    let restored = |to: &str| {
        let request = json!({"do": "restore", "from": "/there"}).to_string();
        let last = ask(&env, Path::new(to), &request).last().unwrap();
        serde_json::from_str::<Json>(&last).unwrap()
    };
    env.disk.create_dir_all(Path::new("/again")).unwrap();
    let held = tidemill_env::hold(&*env.disk, Path::new("/again")).unwrap().unwrap();
    assert!(what(restored("/again")).contains("another process"));
    drop(held);
    assert!(restored("/again").get("error").is_none());
}
