//! Tests with failing calls and full disks.

use std::io::ErrorKind;
use std::sync::Arc;

use tidemill_core::{Error, Kind, Result};
use tidemill_env::Disk;
use tidemill_log::{Log, LogSpec};
use tidemill_sim::{DiskOp, SimDisk};

use crate::common::*;

const OPS: [DiskOp; 13] = [
    DiskOp::CreateDirAll,
    DiskOp::Metadata,
    DiskOp::OpenRead,
    DiskOp::Read,
    DiskOp::Create,
    DiskOp::OpenAt,
    DiskOp::Rename,
    DiskOp::Remove,
    DiskOp::List,
    DiskOp::SyncDir,
    DiskOp::Write,
    DiskOp::SetLen,
    DiskOp::Sync,
];

/// Opens and works. Returns the first error, and the records durable by then.
fn work(disk: &Arc<SimDisk>, spec: &LogSpec, model: &mut Model) -> (u64, Option<Error>) {
    let mut durable = model.len() as u64;
    let mut log = match Log::open(disk.clone(), spec.clone(), 0) {
        Ok(log) => log,
        Err(error) => return (durable, Some(error)),
    };
    let work = |log: &mut Log, durable: &mut u64, model: &mut Model| -> Result<()> {
        for n in 0..12 {
            append(log, model, (n, vec![n; 60]))?;
            append(log, model, (n, vec![n; 70]))?;
            *durable = log.commit()?;
            if n % 4 == 3 {
                log.trim(*durable - 5)?;
            }
        }
        Ok(())
    };
    let error = work(&mut log, &mut durable, model).err();
    if error.as_ref().is_some_and(|error| error.kind != Kind::Resource && !harmless(error)) {
        // The log has stopped, though nothing fails any more.
        disk.clear_faults();
        let before = disk.take_calls().len();
        let refused = [log.append(1, b"").map(drop), log.commit().map(drop), log.trim(9).map(drop)];
        for refusal in refused {
            let refusal = refusal.unwrap_err();
            assert!(refusal.what.contains("the log has stopped"), "{refusal}");
            assert!(refusal.what.contains("simulated fault"), "{refusal}");
            assert!(!refusal.help.is_empty());
        }
        assert_eq!(disk.take_calls().len(), 0, "{before}");
        assert_eq!(log.durable(), durable);
    }
    (durable, error)
}

/// A file that can't be removed stays.
fn harmless(error: &Error) -> bool {
    error.what.contains("removing")
}

/// Checks that everything durable is there, and that the rest is a prefix; also if the machine
/// stops later.
fn check(disk: &Arc<SimDisk>, spec: &LogSpec, model: &Model, durable: u64) {
    disk.clear_faults();
    disk.kill();
    let log = Log::open(disk.clone(), spec.clone(), durable).unwrap();
    let answered = log.durable();
    let whole: Vec<_> = log.read(log.first()).unwrap().collect::<Result<_>>().unwrap();
    assert_records(&whole, model, log.first());
    assert_eq!(log.first() + whole.len() as u64, answered);
    disk.crash();
    let log = Log::open(disk.clone(), spec.clone(), answered).unwrap();
    let again: Vec<_> = log.read(log.first()).unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(whole, again, "what was answered for is stored");
}

#[test]
fn any_failing_call_stops_the_log_and_loses_nothing() {
    for kind in KINDS {
        for op in OPS {
            for error in [ErrorKind::Other, ErrorKind::StorageFull] {
                let mut failures = 0;
                for nth in 1.. {
                    let (disk, spec, mut model) = small_log(kind, 900, 3);
                    disk.fail_nth(op, nth, error);
                    disk.take_calls();
                    let (durable, failed) = work(&disk, &spec, &mut model);
                    let is_met = disk.take_calls().iter().any(|call| call.error.is_some());
                    check(&disk, &spec, &model, durable);
                    let Some(failed) = failed else {
                        // Opening may have met a full disk where it can wait for room.
                        match is_met && error == ErrorKind::StorageFull {
                            true => continue,
                            false => break,
                        }
                    };
                    assert!(failed.what.contains("simulated fault"), "{failed}");
                    failures += 1;
                }
                // Each kind of call is made, and its failure is reported.
                assert!(failures > 0, "{op:?}");
            }
        }
    }
}

/// After a failed sync the machine shows bytes that its disk does not have, and the next sync
/// succeeds. A reader of them must not confirm them.
#[test]
fn a_block_whose_sync_failed_is_stored_by_the_next_start_or_not_shown() {
    for kind in KINDS {
        let (disk, spec, mut model) = small_log(kind, 4096, 3);
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        append(&mut log, &mut model, (1, b"in doubt".to_vec())).unwrap();
        disk.fail_nth(DiskOp::Sync, 1, ErrorKind::Other);
        assert_eq!(log.commit().unwrap_err().kind, Kind::Io);
        drop(log);
        disk.kill();
        let log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        assert_eq!(log.durable(), model.len() as u64, "it is seen");
        disk.crash();
        let log = Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
        assert_eq!(log.durable(), model.len() as u64, "and so it is stored");
    }
}

#[test]
fn a_full_disk_harms_nothing_and_the_log_goes_on() {
    for kind in KINDS {
        let (disk, spec, mut model) = small_log(kind, 2000, 3);
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        disk.set_capacity(Some(disk.used() + 1500));
        let full = loop {
            append(&mut log, &mut model, (1, vec![1; 100])).unwrap();
            match log.commit() {
                Ok(durable) => assert_eq!(durable, model.len() as u64),
                Err(full) => break full,
            }
        };
        assert_eq!(full.kind, Kind::Resource);
        assert!(full.what.contains("no room") && full.help.contains("free space"), "{full}");
        let durable = log.durable();
        assert_eq!(durable, model.len() as u64 - 1);
        assert_eq!(log.commit().unwrap_err(), full, "still full");
        append(&mut log, &mut model, (2, vec![2; 200])).unwrap();
        assert_eq!(log.commit().unwrap_err().kind, Kind::Resource);
        assert_eq!(segments(&disk).len(), 1, "nothing is left lying about");
        assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);

        // A crash now loses only records that were never committed.
        let crashed = copy(&disk);
        crashed.crash();
        assert_eq!(Log::open(crashed, spec.clone(), 0).unwrap().durable(), durable);

        disk.set_capacity(None);
        assert_eq!(log.commit().unwrap(), model.len() as u64);
        append(&mut log, &mut model, (3, vec![3; 20])).unwrap();
        log.commit().unwrap();
        assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);
        disk.crash();
        let log = Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
        assert_eq!(log.durable(), model.len() as u64);
    }
}

/// This also holds if a segment's room is not reserved in advance, as on disks that compress.
#[test]
fn a_block_that_meets_a_full_disk_can_be_tried_again() {
    for kind in KINDS {
        for retries in 0..3 {
            let (disk, spec, mut model) = small_log(kind, 4096, 3);
            disk.set_short_writes(true);
            let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
            for n in 0..retries {
                append(&mut log, &mut model, (1, vec![n; 300])).unwrap();
                disk.fail_nth(DiskOp::Write, 2, ErrorKind::StorageFull);
                assert_eq!(log.commit().unwrap_err().kind, Kind::Resource);
            }
            let crashed = copy(&disk);
            let seen = Log::open(crashed.clone(), spec.clone(), 0).unwrap().durable();
            assert!(seen >= 7 && seen <= model.len() as u64);
            assert_records(&records(&crashed, &spec, 0).unwrap(), &model, 0);
            disk.clear_faults();
            assert_eq!(log.commit().unwrap(), model.len() as u64);
            assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);
        }
    }
}

/// On a full disk a log is opened and read. The writes of opening are done when there is room, and
/// nothing is appended before.
#[test]
fn a_log_is_opened_on_a_full_disk() {
    for kind in KINDS {
        // There is no room for more bytes, or, on some file systems, not even for rewriting
        // existing ones.
        for in_place in [true, false] {
            let (disk, spec, mut model) = small_log(kind, 1 << 20, 3);
            let name = segments(&disk).pop().unwrap();
            let mut whole = bytes(&*disk, &name);
            let end = *block_places(kind, &whole).last().unwrap();
            // The rest of a torn block.
            disk.open_at(&name, end as u64).unwrap().write_all(&[7; 100]).unwrap();
            match in_place {
                // The last block, zeros over the rest of the torn one, and zeros ahead.
                true => disk.fail_nth(DiskOp::Write, 3, ErrorKind::StorageFull),
                false => disk.fail_from(DiskOp::Write, 1, ErrorKind::StorageFull),
            }
            let mut log = Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
            assert_eq!(log.is_settled(), in_place);
            let all: Vec<_> = log.read(0).unwrap().collect::<Result<_>>().unwrap();
            assert_records(&all, &model, 0);
            if !in_place {
                let full = log.make_ready().unwrap_err();
                assert_eq!(full.kind, Kind::Resource);
                append(&mut log, &mut model, (1, vec![1; 50])).unwrap();
                assert_eq!(log.commit().unwrap_err().kind, Kind::Resource, "nothing is appended");
                disk.clear_faults();
            } else {
                append(&mut log, &mut model, (1, vec![1; 50])).unwrap();
            }
            log.make_ready().unwrap();
            assert!(log.is_settled());
            whole.truncate(end);
            assert_eq!(bytes(&*disk, &name)[..end], whole);
            assert_eq!(log.commit().unwrap(), model.len() as u64);
            drop(log);
            disk.crash();
            assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);
            assert_clean_end(&disk, kind);
        }
    }
}

#[test]
fn a_log_without_its_directory_says_so() {
    let disk = sim_disk(1);
    let spec = spec(KINDS[0], 4096);
    let error = tidemill_log::read(disk.clone(), &spec, 0).unwrap_err();
    assert!(error.kind == Kind::Io && error.what.contains(DIR), "{error}");
    disk.create_dir_all("/data".as_ref()).unwrap();
    disk.create(DIR.as_ref()).unwrap();
    let error = Log::open(disk, spec, 0).unwrap_err();
    assert!(error.what.contains("making the directory"), "{error}");
}
