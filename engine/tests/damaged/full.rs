//! A start on a full disk. It starts, reports why it waits, answers queries, and continues when
//! there is space.

use super::*;

/// The environment with the real clock, because a writer that waits for space sleeps.
fn waking(sim: &SimEnv) -> Env {
    Env { clock: clock(), ..sim.env() }
}

#[test]
fn a_start_on_a_full_disk_waits_for_room() {
    // After a stop and after a crash, with nothing and with something to replay.
    for (stopped, rows) in [(true, 3), (false, 3), (true, 0)] {
        let sim = SimEnv::new(1);
        let mill = start(&sim, settings()).unwrap();
        send_safe(&mill, 0..rows);
        if stopped {
            mill.stop().unwrap();
        }
        let sim = copy(&sim);
        sim.disk.set_capacity(Some(sim.disk.used()));
        let env = waking(&sim);
        // The log's reserved space is too small.
        let source = SourceDecl::pushed("numbers");
        let mill = Mill::start(spec(source, settings()), env.clone()).unwrap();
        soon("the recovery", || !mill.status().recovering);
        assert_eq!(mill.table("seen").unwrap().len() as i64, rows);
        send(&mill, rows..rows + 9000);
        soon("the reason", || mill.status().stalled.is_some());
        let why = mill.status().stalled.unwrap();
        assert!(why.contains("/data/") && why.contains("no room"), "{why}");
        let status = asked(&env, &json!({"do": "status"}));
        assert_eq!(status["status"]["state"], "stalled", "{status}");
        let found = asked(&env, &json!({"do": "query", "table": "seen"}));
        assert!(found.get("error").is_none(), "{found}");
        sim.disk.set_capacity(None);
        mill.acknowledge("numbers", rows as u64 + 9000).unwrap();
        assert_eq!(mill.table("seen").unwrap().len() as i64, rows + 9000);
        soon("room", || mill.status().stalled.is_none());
        mill.stop().unwrap();
    }
}

/// Some file systems have no space even for rewriting existing bytes. Then rows that were read
/// count only after they are known to be stored.
#[test]
fn what_is_not_known_to_be_stored_is_waited_for() {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    send_safe(&mill, 0..3);
    let sim = copy(&sim);
    sim.disk.fail_from(tidemill_sim::DiskOp::Write, 1, std::io::ErrorKind::StorageFull);
    let env = waking(&sim);
    let source = SourceDecl::pushed("numbers");
    let mill = Mill::start(spec(source, settings()), env).unwrap();
    soon("the reason", || mill.status().stalled.is_some());
    assert!(mill.status().recovering);
    sim.disk.clear_faults();
    soon("the recovery", || mill.recovered_within(10_000).unwrap());
    assert_eq!(mill.table("seen").unwrap().len(), 3);
    mill.stop().unwrap();
}

/// A stop while no write waits does not report the disk.
#[test]
fn a_stop_on_a_full_disk_ends() {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    send_safe(&mill, 0..3);
    let sim = copy(&sim);
    sim.disk.set_capacity(Some(sim.disk.used()));
    let source = SourceDecl::pushed("numbers");
    let mill = Mill::start(spec(source, settings()), waking(&sim)).unwrap();
    soon("the recovery", || !mill.status().recovering);
    // It ends whether the last snapshot has space or not, and the next start has everything.
    let _ = mill.stop();
    sim.disk.set_capacity(None);
    let mill = start(&sim, settings()).unwrap();
    assert_eq!(mill.table("seen").unwrap().len(), 3);
}
