//! Inputs with fewer rows than recorded cuts have. They are refused by name, and not awaited. Rows
//! that may still arrive are awaited, with a report, until a stop is requested.

use super::*;

fn write(sim: &SimEnv, path: &str, text: &str) {
    let mut file = sim.disk.create(Path::new(path)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync().unwrap();
}

fn lines(numbers: std::ops::Range<i64>) -> String {
    numbers.map(|n| format!("{{\"n\": {n}}}\n")).collect()
}

fn reads(path: &str, follow: bool) -> SourceDecl {
    SourceDecl {
        files: Some(json!({"path": path, "follow": follow})),
        ..SourceDecl::pushed("numbers")
    }
}

fn open(sim: &SimEnv, path: &str, follow: bool) -> Result<Mill, Error> {
    // The engine's own thread does not read.
    let settings = Settings { workers: 2, ..settings() };
    Mill::start(spec(reads(path, follow), settings), sim.env())
}

/// Advances the clock while the test waits.
fn while_time_passes(sim: &SimEnv, what: &str, mut is_there: impl FnMut() -> bool) {
    soon(what, || {
        sim.clock.advance_us(10_000);
        is_there()
    });
}

/// Leaves rows of files in cuts, and in no snapshot.
fn left(path: &str, follow: bool, files: &[(&str, i64)]) -> SimEnv {
    let sim = SimEnv::new(1);
    sim.disk.create_dir_all(Path::new("/in")).unwrap();
    let mut first = 0;
    for (name, rows) in files {
        write(&sim, &format!("/in/{name}"), &lines(first..first + rows));
        first += rows;
    }
    // A run that has ended takes a snapshot.
    let stall = sim.disk.stall_from(tidemill_sim::DiskOp::Write.under("/data/store"), 1);
    let mill = open(&sim, path, follow).unwrap();
    while_time_passes(&sim, "the rows", || mill.status().events == first as u64);
    let left = copy(&sim);
    stall.release();
    left
}

/// Checks that a start is refused, at once or in its recovery.
#[track_caller]
fn refused(sim: &SimEnv, path: &str, follow: bool, words: &[&str]) {
    let error = match open(sim, path, follow) {
        Err(error) => error,
        Ok(mill) => {
            while_time_passes(sim, "the refusal", || mill.wait(0).is_err());
            let error = mill.wait(0).unwrap_err();
            assert_eq!(mill.table("seen").unwrap_err(), error, "readers get the error");
            assert_eq!(mill.drain().unwrap_err(), error);
            error
        }
    };
    assert!(error.kind != Kind::Internal && !error.help.is_empty(), "{error}");
    words.iter().for_each(|word| assert!(error.what.contains(word), "'{word}' is not in: {error}"));
}

#[test]
fn a_shorter_file_is_refused() {
    for follow in [true, false] {
        let sim = left("/in/a.jsonl", follow, &[("a.jsonl", 2)]);
        write(&sim, "/in/a.jsonl", &lines(0..1));
        refused(&sim, "/in/a.jsonl", follow, &["a.jsonl", "row 1", "up to 2"]);
        // With the original file it continues.
        write(&sim, "/in/a.jsonl", &lines(0..3));
        let mill = open(&sim, "/in/a.jsonl", follow).unwrap();
        while_time_passes(&sim, "the rows", || mill.status().events == 3);
    }
}

#[test]
fn a_changed_file_is_refused() {
    let sim = left("/in/a.jsonl", true, &[("a.jsonl", 2)]);
    write(&sim, "/in/a.jsonl", "{\"n\": 0}\n{\"n\": 5}\n");
    refused(&sim, "/in/a.jsonl", true, &["a.jsonl", "not what was read before"]);
}

#[test]
fn an_empty_file_is_refused() {
    let sim = left("/in/a.jsonl", true, &[("a.jsonl", 2)]);
    write(&sim, "/in/a.jsonl", "");
    refused(&sim, "/in/a.jsonl", true, &["a.jsonl", "row 0", "up to 2"]);
}

#[test]
fn a_folder_that_has_less_is_refused() {
    for gone in ["a.jsonl", "b.jsonl"] {
        let sim = left("/in", true, &[("a.jsonl", 2), ("b.jsonl", 3)]);
        sim.disk.remove(&Path::new("/in").join(gone)).unwrap();
        refused(&sim, "/in", true, &["in"]);
    }
    let sim = left("/in", true, &[("a.jsonl", 2), ("b.jsonl", 3)]);
    write(&sim, "/in/b.jsonl", &lines(2..4));
    refused(&sim, "/in", true, &["row 4", "up to 5"]);
}

#[test]
fn a_file_that_has_gone_is_refused() {
    let sim = left("/in/*.jsonl", false, &[("a.jsonl", 2), ("b.jsonl", 3)]);
    sim.disk.remove(Path::new("/in/a.jsonl")).unwrap();
    refused(&sim, "/in/*.jsonl", false, &["2 sources", "1 now: numbers/b.jsonl"]);
    // A snapshot has the names.
    write(&sim, "/in/a.jsonl", &lines(0..2));
    open(&sim, "/in/*.jsonl", false).unwrap().stop().unwrap();
    sim.disk.remove(Path::new("/in/a.jsonl")).unwrap();
    refused(
        &sim,
        "/in/*.jsonl",
        false,
        &["files are not those", "there is no longer numbers/a.jsonl"],
    );
}

/// A recovery that waits reports the reason, and a stop ends it. Nothing is lost.
#[test]
fn a_recovery_gives_way() {
    let rows = 100_000;
    let sim = left("/in/a.jsonl", false, &[("a.jsonl", rows)]);
    // The file system does not answer.
    let stall = sim.disk.stall_from(tidemill_sim::DiskOp::Read.under("/in"), 8);
    let mill = Arc::new(open(&sim, "/in/a.jsonl", false).unwrap());
    while_time_passes(&sim, "the reason", || !mill.status().troubles.is_empty());
    let troubles = mill.status().troubles;
    assert!(troubles["numbers/a.jsonl"].contains("recovering: waiting for "), "{troubles:?}");
    let stopping = {
        let mill = mill.clone();
        sim.env().threads.spawn("stop", Box::new(move || drop(mill.stop().unwrap()))).unwrap()
    };
    // The engine's thread sees the stop at its next turn.
    clock().sleep_us(300_000);
    stall.release();
    stopping.join().unwrap();
    assert!(mill.status().recovering, "it has not been completed");
    drop(mill);

    for _ in 0..3 {
        let mill = open(&sim, "/in/a.jsonl", false).unwrap();
        mill.stop_now().unwrap();
    }
    let mill = open(&sim, "/in/a.jsonl", false).unwrap();
    assert_eq!(mill.table("seen").unwrap().len() as i64, rows);
    mill.stop().unwrap();
}
