//! Tests of a log's life without failures.

use std::sync::Arc;

use tidemill_core::Kind;
use tidemill_env::{Disk, RealDisk};
use tidemill_log::{read, Log, LogKind, LogSpec};
use tidemill_sim::DiskOp;

use crate::common::*;

#[test]
fn records_come_back_by_number() {
    for kind in KINDS {
        let (disk, spec) = (sim_disk(1), spec(kind, 4096));
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        assert_eq!((log.first(), log.durable(), log.next()), (0, 0, 0));
        assert_eq!(log.commit().unwrap(), 0, "nothing to commit");
        assert_eq!(records(&disk, &spec, 0).unwrap(), []);
        let mut model = Model::new();
        append(&mut log, &mut model, (1, b"one".to_vec())).unwrap();
        append(&mut log, &mut model, (2, Vec::new())).unwrap();
        assert_eq!((log.durable(), log.next()), (0, 2));
        assert!(log.waiting_bytes() > 13);
        assert_eq!(records(&disk, &spec, 0).unwrap(), [], "not yet");
        assert_eq!(log.commit().unwrap(), 2);
        assert_eq!((log.durable(), log.waiting_bytes()), (2, 0));
        append(&mut log, &mut model, (3, b"never committed".to_vec())).unwrap();
        drop(log);
        assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);
        let log = Log::open(disk.clone(), spec.clone(), 2).unwrap();
        assert_eq!((log.first(), log.durable(), log.next()), (0, 2, 2));
        assert_eq!(records(&disk, &spec, 1).unwrap().len(), 1);
        assert_eq!(records(&disk, &spec, 2).unwrap(), []);
        let missing = records(&disk, &spec, 3).unwrap_err();
        assert!(missing.what.contains("ends with 2 records"), "{missing}");
    }
}

/// The log may be on a thread of its own, and its readers on others.
#[test]
fn a_log_and_its_readers_may_go_to_another_thread() {
    fn may_go<T: Send>() {}
    may_go::<Log>();
    may_go::<tidemill_log::Reader>();
}

/// A commit costs one write and one sync.
#[test]
fn a_commit_is_one_write_and_one_sync() {
    for kind in KINDS {
        let (disk, spec) = (sim_disk(1), spec(kind, 1 << 20));
        let mut log = Log::open(disk.clone(), spec, 0).unwrap();
        log.append(1, b"the file is opened").unwrap();
        log.commit().unwrap();
        disk.take_calls();
        for _ in 0..10 {
            log.append(1, &[7; 20]).unwrap();
            log.append(2, &[8; 20]).unwrap();
            log.commit().unwrap();
        }
        let ops: Vec<_> = disk.take_calls().iter().map(|call| call.op).collect();
        assert_eq!(ops, [DiskOp::Write, DiskOp::Sync].repeat(10));
    }
}

#[test]
fn segments_follow_each_other_and_are_trimmed() {
    for kind in KINDS {
        let (disk, spec, model) = small_log(kind, 512, 30);
        let names = segments(&disk);
        assert!(names.len() > 4, "{names:?}");
        assert!(names.iter().all(|name| len(&*disk, name) == 512));
        let mut log = Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
        for from in 0..=model.len() as u64 {
            let all: Vec<_> = log.read(from).unwrap().collect::<Result<_, _>>().unwrap();
            assert_eq!(all.len(), model.len() - from as usize);
            assert_records(&all, &model, from);
            assert_eq!(records(&disk, &spec, from).unwrap(), all);
        }
        assert!(log.read(model.len() as u64 + 1).is_err());
        assert_eq!(log.trim(0).unwrap(), 0);
        let second =
            u64::from_str_radix(names[1].file_stem().unwrap().to_str().unwrap(), 16).unwrap();
        assert_eq!(log.trim(second - 1).unwrap(), 0, "one record is needed yet");
        assert_eq!(log.trim(second).unwrap(), 1);
        assert_eq!(log.first(), second);
        let gone = log.read(0).unwrap_err();
        assert!(gone.what.contains(&format!("begins with record {second}")), "{gone}");
        assert_eq!(
            records(&disk, &spec, second - 1).unwrap_err(),
            log.read(second - 1).unwrap_err()
        );
        disk.take_calls();
        assert_eq!(log.trim(u64::MAX).unwrap(), names.len() as u64 - 2);
        let ops: Vec<_> = disk.take_calls().iter().map(|call| call.op).collect();
        assert_eq!(ops, [DiskOp::Remove, DiskOp::SyncDir].repeat(names.len() - 2), "in order");
        assert_eq!(segments(&disk), names[names.len() - 1..], "the last one stays");
        drop(log);
        let log = Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
        assert_eq!(log.durable(), model.len() as u64);
        assert_records(&records(&disk, &spec, log.first()).unwrap(), &model, log.first());
    }
}

#[test]
fn records_may_be_longer_than_a_segment() {
    for kind in KINDS {
        let (disk, spec) = (sim_disk(1), spec(kind, 1000));
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        let mut model = Model::new();
        for len in [0, 5, 300_000, 1, 1000, 129 << 10, 700_000, 3, 2 << 20] {
            append(&mut log, &mut model, (9, vec![len as u8; len])).unwrap();
            log.commit().unwrap();
        }
        assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);
        disk.crash();
        let log = Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
        let all: Vec<_> = log.read(0).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(all.len(), model.len());
        assert_records(&all, &model, 0);
    }
}

/// Room is made in steps, and no commit goes where there is none.
#[test]
fn long_segments_are_zeroed_ahead_in_steps() {
    for kind in KINDS {
        let (disk, spec) = (sim_disk(1), spec(kind, 4 << 20));
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        let mut model = Model::new();
        disk.take_calls();
        for n in 0..200 {
            let len = if n % 20 == 0 { 100_000 } else { 3000 };
            append(&mut log, &mut model, (n as u8, vec![n as u8; len])).unwrap();
            log.commit().unwrap();
        }
        let written: u64 =
            disk.take_calls().iter().filter(|c| c.op == DiskOp::Write).map(|c| c.bytes).sum();
        let stored: u64 = model.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let copies = if kind == LogKind::Cuts { 2 } else { 1 };
        assert!(written < stored * copies * 21 / 10 + (1 << 20), "{written} for {stored}");
        assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);
        drop(log);
        let log = Log::open(disk.clone(), spec, model.len() as u64).unwrap();
        assert_eq!(log.durable(), 200);
    }
}

/// Long commits are stored in several blocks, each durable before the next.
#[test]
fn a_very_long_commit_is_cut_into_blocks() {
    let (disk, spec) = (sim_disk(1), spec(LogKind::Input, 1 << 20));
    let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
    let mut model = Model::new();
    for n in 0..5 {
        append(&mut log, &mut model, (n, vec![n; 30 << 20])).unwrap();
    }
    disk.take_calls();
    log.commit().unwrap();
    let syncs = disk.take_calls().iter().filter(|call| call.op == DiskOp::Sync).count();
    assert_eq!(syncs, 3 + 2 * 3, "three blocks in three segments, each said to be the last");
    assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);
    let error = log.append(1, &vec![0; tidemill_log::RECORD_BYTES_MAX + 1]).unwrap_err();
    assert_eq!(error.kind, Kind::Input);
    assert_eq!(log.append(1, b"still there").unwrap(), 5);
}

/// Reading goes through the files once, in pieces.
#[test]
fn a_long_log_is_read_in_pieces() {
    let (disk, spec) = (sim_disk(1), spec(LogKind::Cuts, 3 << 20));
    let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
    for n in 0..4000_u32 {
        log.append(1, &[n as u8; 1200]).unwrap();
        log.commit().unwrap();
    }
    disk.take_calls();
    assert_eq!(records(&disk, &spec, 0).unwrap().len(), 4000);
    let reads: Vec<u64> =
        disk.take_calls().iter().filter(|call| call.op == DiskOp::Read).map(|c| c.bytes).collect();
    assert!(reads.iter().all(|bytes| *bytes <= 300 << 10), "{:?}", reads.iter().max());
    assert!(reads.iter().sum::<u64>() < 13 << 20, "{}", reads.iter().sum::<u64>());
}

/// A reader shows the records that were durable when it was created, however the log continues.
#[test]
fn a_log_is_read_while_it_is_written() {
    for kind in KINDS {
        let (disk, spec, mut model) = small_log(kind, 600, 10);
        let mut log = Log::open(disk, spec, 0).unwrap();
        let before = model.len();
        let mut reader = log.read(0).unwrap();
        let mut all = Vec::new();
        while all.len() < before {
            all.push(reader.next().unwrap().unwrap());
            append(&mut log, &mut model, (1, vec![5; 30])).unwrap();
            log.commit().unwrap();
        }
        assert!(reader.next().is_none());
        assert_eq!(reader.next_number(), before as u64);
        assert_records(&all, &model, 0);
    }
}

#[test]
fn segments_may_get_another_length_later() {
    for kind in KINDS {
        let (disk, mut spec, mut model) = small_log(kind, 512, 9);
        for segment_bytes in [0, 333, 5000, 1] {
            spec.segment_bytes = segment_bytes;
            let mut log = Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
            for _ in 0..5 {
                append(&mut log, &mut model, (1, vec![4; 100])).unwrap();
                log.commit().unwrap();
            }
        }
        assert_records(&records(&disk, &spec, 0).unwrap(), &model, 0);
        assert_eq!(records(&disk, &spec, 0).unwrap().len(), model.len());
    }
}

#[test]
#[allow(clippy::disallowed_methods)] // A real disk.
fn a_real_disk_keeps_a_log() {
    for kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("data").join("log");
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
        let spec = LogSpec { dir: dir.clone(), kind, app: APP, segment_bytes: 8192 };
        let mut model = Model::new();
        for _ in 0..5 {
            let mut log = Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
            for n in 0..40 {
                append(&mut log, &mut model, (n, vec![n; 20 * usize::from(n)])).unwrap();
                if n % 3 == 0 {
                    log.commit().unwrap();
                }
            }
            log.commit().unwrap();
            let all: Vec<_> = log.read(log.first()).unwrap().collect::<Result<_, _>>().unwrap();
            assert_records(&all, &model, log.first());
            log.trim(log.durable() - 30).unwrap();
            assert!(log.first() + 30 <= log.durable());
        }
        let first = Log::open(disk.clone(), spec.clone(), 0).unwrap().first();
        assert!(first > 0);
        let all: Vec<_> =
            read(disk.clone(), &spec, first).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(first + all.len() as u64, 200);
        assert_records(&all, &model, first);

        let mut names = disk.list(&dir).unwrap();
        names.retain(|name| !name.ends_with(LAST));
        let last = names.pop().unwrap();
        let cut = std::fs::OpenOptions::new().write(true).open(&last).unwrap();
        cut.set_len(8000).unwrap();
        let error = Log::open(disk, spec, 0).unwrap_err();
        assert!(error.what.contains(&last.display().to_string()), "{error}");
    }
}
