//! Damaged logs. Missing acknowledged records are refused by name, before anything is written.
//! Other records may be missing. Nothing hangs.

use tidemill_sim::DiskOp;

use super::*;

/// The step between tried cases; 1 where `TIDEMILL_CASES` asks for many.
fn every(sampled: usize) -> usize {
    let cases: Option<usize> = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    if cases.is_some_and(|cases| cases >= 1000) {
        1
    } else {
        sampled
    }
}

/// A directory of a run that was interrupted.
struct Left {
    name: &'static str,
    sim: SimEnv,
    /// The number of acknowledged rows, and of sent ones: 0, 1, 2 and so on.
    acknowledged: u64,
    sent: u64,
}

/// A directory after some acknowledged rows, in blocks of their own, without any snapshot.
fn acknowledged(blocks: i64) -> Left {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    (0..blocks).for_each(|n| send_safe(&mill, n * 2..n * 2 + 2));
    let rows = blocks as u64 * 2;
    Left { name: "cuts behind", sim: copy(&sim), acknowledged: rows, sent: rows }
}

/// The same directory with further rows that are in the log and in no cut.
fn without_cut() -> Left {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    (0..2).for_each(|n| send_safe(&mill, n * 2..n * 2 + 2));
    let stall = sim.disk.stall_from(DiskOp::Write.under("/data/cuts"), 1);
    send(&mill, 4..6);
    soon("a cut", || stall.waiting() > 0);
    let left = Left { name: "no cut behind", sim: copy(&sim), acknowledged: 4, sent: 6 };
    stall.release();
    left
}

/// A directory with a snapshot, and rows after it.
fn after_a_snapshot() -> Left {
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    (0..2).for_each(|n| send_safe(&mill, n * 2..n * 2 + 2));
    mill.stop().unwrap();
    let mill = start(&sim, settings()).unwrap();
    (2..5).for_each(|n| send_safe(&mill, n * 2..n * 2 + 2));
    Left { name: "behind a snapshot", sim: copy(&sim), acknowledged: 10, sent: 10 }
}

fn all() -> [Left; 3] {
    [acknowledged(4), without_cut(), after_a_snapshot()]
}

/// The segments of a log. For the last one, also the begin of each block and the end of the last
/// block.
pub(super) fn blocks(sim: &SimEnv, log: &str) -> (Vec<PathBuf>, Vec<u64>) {
    let names: Vec<PathBuf> = (files(&*sim.disk, Path::new(log)).into_iter())
        .map(|(path, _)| path)
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    let copies = if log.ends_with("cuts") { 2 } else { 1 };
    let bytes = &files(&*sim.disk, Path::new(log))[names.len() - 1].1;
    let mut places = vec![64 * copies];
    while let Some(head) = places.last().and_then(|at| bytes.get(*at..at + 40)) {
        if head[8..12] != *b"TIDB" {
            break;
        }
        let payload = u32::from_le_bytes(head[16..20].try_into().unwrap()) as usize;
        places.push(places[places.len() - 1] + copies * (40 + payload).next_multiple_of(8));
    }
    (names, places.into_iter().map(|at| at as u64).collect())
}

/// The outcomes of all cases.
#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    whole: u64,
}

/// Starts on a damaged directory. It is refused, or has all acknowledged rows. A check and a copy
/// find the same.
fn check(left: &Left, what: &str, damage: impl Fn(&SimDisk), tally: &mut Tally) {
    let sim = copy(&left.sim);
    damage(&sim.disk);
    let name = format!("{}, {what}", left.name);
    let before = files(&*sim.disk, Path::new(DATA));
    let env = sim.env();
    let verified = asked(&env, &json!({"do": "verify"}));
    let copied = asked(&env, &json!({"do": "backup", "to": "/backup"}));
    assert_eq!(verified.get("error"), copied.get("error"), "{name}");
    let is_good = verified.get("error").is_none();
    assert_eq!(files(&*sim.disk, Path::new(DATA)), before, "{name}: who reads writes nothing");
    let mill = match start(&sim, settings()) {
        Ok(mill) => mill,
        Err(error) => {
            assert_clear(&error, "/data/");
            assert!(!is_good, "{name}: {error}");
            let logs = |all: Vec<(PathBuf, Vec<u8>)>| -> Vec<_> {
                all.into_iter().filter(|(path, _)| !path.ends_with("LOCK")).collect()
            };
            let after = logs(files(&*sim.disk, Path::new(DATA)));
            assert!(after == logs(before), "{name}: a refusal changes nothing");
            tally.refused += 1;
            return;
        }
    };
    assert!(is_good, "{name}: {verified}");
    soon(&name, || !mill.status().recovering);
    let known = mill.sent("numbers").unwrap();
    assert!((left.acknowledged..=left.sent).contains(&known), "{name}: {known} are known");
    mill.acknowledge("numbers", known).unwrap();
    let seen = mill.table("seen").unwrap();
    let rows: Vec<Vec<Value>> = seen.rows().map(|row| row.to_vec()).collect();
    let wanted: Vec<Vec<Value>> =
        (0..known as i64).map(|n| vec![Value::Int(n), Value::Int(1)]).collect();
    assert_eq!(rows, wanted, "{name}");
    mill.stop().unwrap();
    tally.whole += 1;
}

/// One bit is flipped, anywhere in the last three blocks or just after them.
#[test]
fn any_bit_of_the_last_blocks_is_refused_or_does_not_matter() {
    let mut tally = Tally::default();
    for left in all() {
        for (log, step) in [("/data/input", 61), ("/data/cuts", 331)] {
            let (names, places) = blocks(&left.sim, log);
            let first = places[places.len().saturating_sub(4)];
            let end = places[places.len() - 1] + 16;
            for bit in (first * 8..end * 8).step_by(every(step)) {
                let name = names.last().unwrap();
                let what = format!("bit {bit} of {}", name.display());
                check(&left, &what, |disk| disk.flip_bit(name, bit).unwrap(), &mut tally);
            }
        }
    }
    println!("bits: {tally:?}");
    assert!(tally.refused > 0 && tally.whole > 0, "{tally:?}");
}

/// Nothing follows the last block of the input log, but the cuts know its size. So damage there is
/// named with file and place.
#[test]
fn damage_of_the_last_block_is_named() {
    let left = acknowledged(2);
    let (names, places) = blocks(&left.sim, "/data/input");
    let (name, at) = (names.last().unwrap(), places[places.len() - 2]);
    left.sim.disk.flip_bit(name, at * 8 + 400).unwrap();
    let error = start(&left.sim, settings()).map(drop).unwrap_err();
    let words = [&*name.display().to_string(), &format!("byte {at}"), "1 records, and 2"];
    words.iter().for_each(|word| assert!(error.what.contains(word), "{error}"));
}

/// A file is cut off at any length, or ends with zeros.
#[test]
fn any_length_is_refused_or_does_not_matter() {
    let mut tally = Tally::default();
    for left in all() {
        for (log, step) in [("/data/input", 37), ("/data/cuts", 149)] {
            let (names, places) = blocks(&left.sim, log);
            let name = names.last().unwrap();
            let len = left.sim.disk.metadata(name).unwrap().len;
            let (first, end) = (places[places.len().saturating_sub(4)], places[places.len() - 1]);
            let far = (end..len).step_by(every(20_011).max(97));
            for at in (0..64).chain(first..end).step_by(every(step)).chain(far).chain([len - 1]) {
                let what = format!("{} ends at {at}", name.display());
                check(&left, &what, |disk| disk.truncate(name, at).unwrap(), &mut tally);
            }
            for at in (first..end).step_by(every(step)) {
                let zeros = |disk: &SimDisk| {
                    let mut file = disk.open_at(name, at).unwrap();
                    file.write_all(&vec![0; (end - at) as usize]).unwrap();
                };
                check(&left, &format!("{} has zeros from {at}", name.display()), zeros, &mut tally);
            }
        }
    }
    println!("lengths: {tally:?}");
    assert!(tally.refused > 0 && tally.whole > 0, "{tally:?}");
}

/// A file or a folder is missing, of logs with several segments.
#[test]
fn any_missing_segment_is_refused_or_does_not_matter() {
    let mut tally = Tally::default();
    let sim = SimEnv::new(1);
    let mill = start(&sim, settings()).unwrap();
    let mut sent = 0;
    let segments = |log| blocks(&sim, log).0.len();
    while segments("/data/cuts") < 3 || segments("/data/input") < 3 {
        let more = if segments("/data/input") < 3 { 400 } else { 1 };
        send_safe(&mill, sent..sent + more);
        sent += more;
    }
    let rows = sent as u64;
    let many = Left { name: "many", sim: copy(&sim), acknowledged: rows, sent: rows };
    for left in all().iter().chain([&many]) {
        for log in ["/data/input", "/data/cuts"] {
            let dir = Path::new(log);
            let all: Vec<PathBuf> =
                files(&*left.sim.disk, dir).into_iter().map(|(path, _)| path).collect();
            let segments = blocks(&left.sim, log).0;
            let mut gone: Vec<Vec<PathBuf>> = all.iter().map(|path| vec![path.clone()]).collect();
            gone.push(segments.clone());
            gone.push(all.clone());
            // The last segment and the file that names it. Other records need it.
            if log == "/data/input" {
                gone.push(vec![segments[segments.len() - 1].clone(), dir.join("LAST")]);
            }
            for gone in gone {
                let remove = |disk: &SimDisk| gone.iter().for_each(|p| disk.remove(p).unwrap());
                check(left, &format!("without {gone:?}"), remove, &mut tally);
            }
            let what = format!("without {log}");
            let remove = |disk: &SimDisk| {
                all.iter().for_each(|path| disk.remove(path).unwrap());
                disk.remove_dir(dir).unwrap();
            };
            check(left, &what, remove, &mut tally);
        }
    }
    println!("missing: {tally:?}");
    assert!(tally.refused > 20 && tally.whole > 0, "{tally:?}");
}

/// Cuts of an earlier version do not have the number of records that they need. Their rows show it.
/// A directory of that version is in `golden`; here its cuts are made from present ones.
#[test]
fn rows_of_the_last_cut_are_needed_whoever_has_recorded_it() {
    let left = acknowledged(3);
    let sim = copy(&left.sim);
    let env = sim.env();
    // The cut log again, without the numbers.
    let app = {
        let text = files(&*sim.disk, Path::new(DATA));
        let (_, text) = text.iter().find(|(path, _)| path.ends_with("APP")).unwrap().clone();
        let text: Json = serde_json::from_slice(&text).unwrap();
        u128::from_str_radix(text["app"].as_str().unwrap(), 16).unwrap()
    };
    let dir = PathBuf::from("/data/cuts");
    let kind = tidemill_log::LogKind::Cuts;
    let cuts = tidemill_log::LogSpec { dir: dir.clone(), kind, app, segment_bytes: 1 << 16 };
    let records: Vec<_> =
        tidemill_log::read(env.disk.clone(), &cuts, 0).unwrap().map(Result::unwrap).collect();
    for (path, _) in files(&*sim.disk, &dir) {
        sim.disk.remove(&path).unwrap();
    }
    let mut log = tidemill_log::Log::open(env.disk.clone(), cuts, 0).unwrap();
    for record in records {
        assert_eq!(record.kind, 4);
        log.append(3, &record.bytes[8..]).unwrap();
        log.commit().unwrap();
    }
    drop(log);
    let whole = copy(&sim);
    let mill = start(&whole, settings()).unwrap();
    assert_eq!(mill.table("seen").unwrap().len(), 6);
    let (names, places) = blocks(&sim, "/data/input");
    sim.disk.flip_bit(names.last().unwrap(), places[places.len() - 2] * 8 + 400).unwrap();
    let error = start(&sim, settings()).map(drop).unwrap_err();
    assert_clear(&error, "/data/input");
    assert!(error.what.contains("row 4 of stream numbers, and rows up to 6"), "{error}");
}
