//! Problems with files are in the log, once each time that they happen.

use std::io::ErrorKind;

use tidemill_sim::DiskCall;

use super::logged::Logged;
use super::logs::blocks;
use super::*;

/// The texts of events with this name.
fn of(log: &Logged, event: &str) -> Vec<String> {
    let text = |line: &Json| line["what"].as_str().unwrap_or_default().to_owned();
    log.all(&[event]).iter().map(text).collect()
}

fn listen(env: Env) -> (Mill, Logged) {
    let log = Logged::default();
    let spec = spec(SourceDecl::pushed("numbers"), settings());
    (log.start(spec, env).unwrap(), log)
}

#[test]
fn damage_that_was_mended_is_told_once() {
    for (head, block) in [(true, false), (false, true), (true, true)] {
        let sim = SimEnv::new(1);
        let mill = start(&sim, settings()).unwrap();
        (0..3).for_each(|n| send_safe(&mill, n * 2..n * 2 + 2));
        let sim = copy(&sim);
        let (names, places) = blocks(&sim, "/data/cuts");
        let name = &names[0];
        // A bit of the first of two copies: of the file's head, and of a block.
        let bits = [(head, 9), (block, places[0] * 8 + 400)].into_iter().filter(|(is, _)| *is);
        let damaged = bits.map(|(_, bit)| sim.disk.flip_bit(name, bit).unwrap()).count();
        let (mill, log) = listen(sim.env());
        let told = of(&log, "damage");
        assert_eq!(told.len(), damaged, "{told:?}");
        assert!(told.iter().all(|what| what.contains(&*name.display().to_string())), "{told:?}");
        mill.stop().unwrap();
        assert_eq!(of(&log, "damage").len(), damaged);
        // The files are whole now.
        let (mill, log) = listen(sim.env());
        mill.stop().unwrap();
        assert_eq!(of(&log, "damage"), [""; 0]);
    }
}

#[test]
fn a_full_disk_is_told_once_however_often_it_is_tried() {
    let sim = SimEnv::new(1);
    let (mill, log) = listen(Env { clock: clock(), ..sim.env() });
    for time in 1..=2 {
        sim.disk.set_capacity(Some(sim.disk.used()));
        let sent = mill.sent("numbers").unwrap() as i64;
        send(&mill, sent..sent + 20_000);
        soon("the reason", || mill.status().stalled.is_some());
        let mut tries = 0;
        soon("other tries", || {
            let calls = sim.disk.take_calls();
            let is_full = |call: &DiskCall| call.error == Some(ErrorKind::StorageFull);
            tries += calls.iter().filter(|call| is_full(call)).count();
            tries > 3
        });
        let told = of(&log, "disk full");
        assert_eq!((told.len(), of(&log, "disk has room").len()), (time, time - 1), "{told:?}");
        assert!(told[time - 1].contains("/data/"), "{told:?}");
        sim.disk.set_capacity(None);
        mill.acknowledge("numbers", sent as u64 + 20_000).unwrap();
        soon("room", || of(&log, "disk has room").len() == time);
    }
    mill.stop().unwrap();
    assert_eq!((of(&log, "disk full").len(), of(&log, "disk has room").len()), (2, 2));
}
