//! Tests every moment of a run at which the machine may stop, and the state that may be left then.

use std::sync::Arc;

use proptest::prelude::*;
use tidemill_core::Result;
use tidemill_log::{Log, LogSpec};
use tidemill_sim::{Image, SimRandom, Trace};

use crate::common::*;

struct Run {
    spec: LogSpec,
    model: Model,
    /// The number of durable records when the recording began.
    durable: u64,
    trace: Trace,
}

/// Creates a run over some segments, with trims, recorded from before the log is created or from
/// its reopening.
fn run(seed: u64) -> Run {
    let random = SimRandom::new(seed);
    let kind = KINDS[random.below(2) as usize];
    let spec = spec(kind, 200 + random.below(1500));
    let disk = sim_disk(seed);
    let mut model = Model::new();
    let mut durable = 0;
    disk.record();
    for part in 0..2 {
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        if part == 1 && random.below(2) == 0 {
            durable = log.durable();
            disk.record();
        }
        for _ in 0..10 {
            for _ in 0..1 + random.below(3) {
                append(&mut log, &mut model, random_record(&random, 300)).unwrap();
            }
            disk.mark(log.commit().unwrap());
            if random.below(4) == 0 {
                log.trim(random.below(log.durable() + 1)).unwrap();
            }
        }
    }
    Run { spec, model, durable, trace: disk.take_trace() }
}

/// Opens the state that a crash has left, checks it, and continues.
fn check(run: &Run, image: &Image) {
    let acknowledged = image.mark.unwrap_or(run.durable);
    let name = format!("{image:?}");
    let mut log = Log::open(image.disk.clone(), run.spec.clone(), 0).expect(&name);
    assert!(log.durable() >= acknowledged, "{name}: {} are left", log.durable());
    let mut model = run.model.clone();
    model.truncate(log.durable() as usize);
    check_records(&log, &model);
    assert_clean_end(&image.disk, run.spec.kind);
    for record in [b"goes".to_vec(), vec![0; 700]] {
        append(&mut log, &mut model, (7, record)).unwrap();
        assert_eq!(log.commit().unwrap(), model.len() as u64);
    }
    check_records(&log, &model);
    drop(log);
    image.disk.crash();
    let log = Log::open(image.disk.clone(), run.spec.clone(), model.len() as u64).expect(&name);
    check_records(&log, &model);
}

fn check_records(log: &Log, model: &Model) {
    let all: Vec<_> = log.read(log.first()).unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(log.first() + all.len() as u64, model.len() as u64);
    assert_records(&all, model, log.first());
}

proptest! {
    #![proptest_config(config(8, 30))]

    #[test]
    fn any_moment_of_a_run_can_be_recovered(seed: u64) {
        let run = run(seed);
        for image in run.trace.images(seed, 3) {
            check(&run, &image);
        }
    }

    /// After a crash there is another one, at any moment while the log is opened and continued.
    #[test]
    fn any_moment_of_a_recovery_can_be_recovered(seed: u64) {
        let first = run(seed);
        let random = SimRandom::new(seed);
        for image in first.trace.images(seed, 1) {
            if random.below(40) > 0 {
                continue;
            }
            let acknowledged = image.mark.unwrap_or(first.durable);
            image.disk.record();
            let mut log = Log::open(image.disk.clone(), first.spec.clone(), 0).unwrap();
            let mut model = first.model.clone();
            model.truncate(log.durable() as usize);
            for _ in 0..4 {
                append(&mut log, &mut model, random_record(&random, 500)).unwrap();
                image.disk.mark(log.commit().unwrap());
            }
            drop(log);
            let trace = image.disk.take_trace();
            let second = Run { spec: first.spec.clone(), model, durable: acknowledged, trace };
            for image in second.trace.images(seed, 3) {
                check(&second, &image);
            }
        }
    }
}

/// Only the block that was being written when the machine stopped may be in doubt.
#[test]
fn only_the_block_that_was_being_written_is_in_doubt() {
    for kind in KINDS {
        let (disk, spec, mut model) = small_log(kind, 4096, 3);
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        let before = model.len();
        disk.record();
        append(&mut log, &mut model, (1, vec![1; 900])).unwrap();
        log.commit().unwrap();
        let trace = disk.take_trace();
        let mut seen = [0, 0];
        for image in trace.images(1, 200) {
            let log = Log::open(Arc::clone(&image.disk) as _, spec.clone(), 0).unwrap();
            seen[log.durable() as usize - before] += 1;
        }
        assert!(seen[0] > 50 && seen[1] > 50, "{seen:?}");
    }
}

/// The rest of a torn block is removed, however long it was.
#[test]
fn a_torn_end_is_overwritten() {
    for kind in KINDS {
        let (disk, spec, mut model) = small_log(kind, 4 << 20, 3);
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        disk.record();
        append(&mut log, &mut model, (1, vec![1; 1 << 20])).unwrap();
        log.commit().unwrap();
        let trace = disk.take_trace();
        let mut torn = 0;
        for image in trace.images(1, 10) {
            let log = Log::open(Arc::clone(&image.disk) as _, spec.clone(), 0).unwrap();
            torn += u64::from(log.durable() < model.len() as u64);
            assert_clean_end(&image.disk, kind);
            image.disk.crash();
            assert_clean_end(&image.disk, kind);
        }
        assert!(torn > 5, "{torn}");
    }
}
