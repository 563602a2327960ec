//! Tests with files that were changed from outside: they are refused by name, or read as they were
//! written.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use tidemill_core::{Error, Kind, Result};
use tidemill_env::Disk;
use tidemill_log::{is_begun, read, Log, LogKind, LogSpec, Record};
use tidemill_sim::{SimDisk, SimRandom};

use crate::common::*;

/// Opens for writing and reads everything.
fn open_and_read(disk: &Arc<SimDisk>, spec: &LogSpec, needed: u64) -> Result<(u64, Vec<Record>)> {
    let log = Log::open(disk.clone(), spec.clone(), needed)?;
    let all = log.read(log.first())?.collect::<Result<Vec<_>>>()?;
    assert_eq!(log.first() + all.len() as u64, log.durable());
    Ok((log.first(), all))
}

/// Checks that an error says which file and where, and what to do.
#[track_caller]
fn assert_clear(error: &Error, disk: &SimDisk) {
    assert!(!error.help.is_empty(), "{error}");
    assert!(error.what.contains(DIR), "{error}");
    let names = disk.list(DIR.as_ref()).unwrap();
    let named = names.iter().any(|path| error.what.contains(&path.display().to_string()));
    let is_missing = error.what.contains("this segment of the log is missing");
    assert!(named || is_missing || error.what.contains("ends with"), "{error}");
}

/// Checks damage that leaves the files' names: it is refused, or everything committed is read.
fn check_damaged(disk: &Arc<SimDisk>, spec: &LogSpec, model: &Model, may_refuse: bool) {
    let needed = match spec.kind {
        LogKind::Input => model.len() as u64,
        // A single damage is found without a known number of records.
        LogKind::Cuts if !may_refuse => 0,
        LogKind::Cuts => model.len() as u64,
    };
    let read_only = records(disk, spec, 0);
    match &read_only {
        Ok(all) => {
            assert_records(all, model, 0);
            assert!(all.len() == model.len() || may_refuse, "{} are left", all.len());
        }
        Err(error) => {
            assert!(may_refuse, "{error}");
            assert_clear(error, disk);
        }
    }
    let before = disk.take_calls().len();
    assert!(before > 0);
    match open_and_read(disk, spec, needed) {
        Ok((first, all)) => {
            assert_records(&all, model, first);
            assert_eq!(all.len(), model.len());
            assert_eq!(read_only.as_ref().map(Vec::len), Ok(all.len()));
            let again = open_and_read(disk, spec, needed).unwrap();
            assert_eq!(again, (first, all));
        }
        Err(error) => {
            assert!(may_refuse, "{error}");
            assert_clear(&error, disk);
            let read_only = read_only.map(|all| all.len());
            assert!(read_only.is_err() || read_only.unwrap() < model.len());
        }
    }
}

#[test]
fn any_flipped_bit_of_a_small_log_is_refused_or_does_not_matter() {
    for kind in KINDS {
        let segment_bytes = if kind == LogKind::Cuts { 640 } else { 320 };
        let (disk, spec, model) = small_log(kind, segment_bytes, 8);
        let names = segments(&disk);
        assert_eq!(names.len(), 3, "{names:?}");
        for name in &names {
            for bit in 0..len(&*disk, name) * 8 {
                let disk = copy(&disk);
                disk.flip_bit(name, bit).unwrap();
                check_damaged(&disk, &spec, &model, kind == LogKind::Input);
            }
        }
    }
}

/// Without a known number of records, only data that looks like an interrupted write is missing.
#[test]
fn damage_before_the_last_block_is_refused_whoever_vouches() {
    let (disk, spec, model) = small_log(LogKind::Input, 4096, 4);
    let name = segments(&disk).pop().unwrap();
    let places = block_places(spec.kind, &bytes(&*disk, &name));
    let (last, end) = (places[places.len() - 2] as u64, places[places.len() - 1] as u64);
    for bit in 0..end * 8 {
        let disk = copy(&disk);
        disk.flip_bit(&name, bit).unwrap();
        for result in [records(&disk, &spec, 0), open_and_read(&disk, &spec, 0).map(|all| all.1)] {
            match result {
                Ok(all) => {
                    assert!(bit / 8 >= last, "bit {bit}");
                    assert_records(&all, &model, 0);
                    assert_eq!(all.len(), model.len() - 3, "all but the last block");
                }
                Err(error) => {
                    assert!(bit / 8 < last, "bit {bit}: {error}");
                    assert_clear(&error, &disk);
                }
            }
        }
    }
}

/// The parts of the file are from two histories of one log, and each part is whole.
#[test]
fn blocks_of_two_times_are_told_apart() {
    for kind in KINDS {
        let (disk, spec, model) = small_log(kind, 4096, 5);
        let other = sim_disk(2);
        let mut log = Log::open(other.clone(), spec.clone(), 0).unwrap();
        let mut next = 0;
        for block in 0..5_u64 {
            for _ in 0..2 + block % 2 {
                log.append(model[next].0, &vec![0xee; model[next].1.len()]).unwrap();
                next += 1;
            }
            log.commit().unwrap();
        }
        let name = segments(&disk).pop().unwrap();
        let (ours, theirs) = (bytes(&*disk, &name), bytes(&*other, &name));
        let places = block_places(kind, &ours);
        assert_eq!(places, block_places(kind, &theirs));
        let last = places[places.len() - 2];
        for at in (places[1]..=last).step_by(8) {
            let disk = copy(&disk);
            disk.open_at(&name, at as u64).unwrap().write_all(&theirs[at..]).unwrap();
            let result = records(&disk, &spec, 0);
            match result {
                Err(error) => assert_clear(&error, &disk),
                Ok(all) => panic!("{} records of two logs, changed at {at}", all.len()),
            }
            let opened = Log::open(disk.clone(), spec.clone(), model.len() as u64);
            assert_clear(&opened.unwrap_err(), &disk);
        }
    }
}

/// Data that is stored twice is repaired, and the log reports the damage.
#[test]
fn damage_of_one_copy_is_told_and_mended() {
    let (disk, spec, model) = small_log(LogKind::Cuts, 4096, 3);
    let name = segments(&disk).pop().unwrap();
    let whole = bytes(&*disk, &name);
    let block = (40 + 2 * 5 + 9 + 10_u64).next_multiple_of(8);
    for (at, damaged_at) in [(17, 0), (64 + 40, 64), (128, 128), (128 + block + 3, 128 + block)] {
        let disk = copy(&disk);
        disk.flip_bit(&name, at * 8).unwrap();
        let mut reader = read(disk.clone(), &spec, 0).unwrap();
        assert!(reader.by_ref().all(|record| record.is_ok()));
        let place = |damage: &tidemill_log::Damage| (damage.path.clone(), damage.at);
        let told: Vec<_> = reader.damaged().iter().map(place).collect();
        assert_eq!(told, [(name.clone(), damaged_at)]);
        assert_ne!(bytes(&*disk, &name), whole, "reading changes nothing");
        let log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        assert_eq!(log.damaged(), reader.damaged());
        assert_eq!(bytes(&*disk, &name), whole, "opening mends");
        let text = log.damaged()[0].to_string();
        assert!(text.contains(&format!("byte {damaged_at}")), "{text}");
        disk.crash();
        assert_eq!(bytes(&*disk, &name), whole);
        assert_eq!(Log::open(disk, spec.clone(), 0).unwrap().damaged(), []);
    }
    assert_eq!(model.len(), 7);
}

#[test]
fn any_cut_of_any_file_is_refused() {
    for kind in KINDS {
        let (disk, spec, model) = small_log(kind, 400, 6);
        for name in segments(&disk) {
            for left in 0..len(&*disk, &name) {
                let disk = copy(&disk);
                disk.truncate(&name, left).unwrap();
                let before = bytes(&*disk, &name);
                for error in [
                    Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap_err(),
                    Log::open(disk.clone(), spec.clone(), 0).unwrap_err(),
                    records(&disk, &spec, 0).unwrap_err(),
                ] {
                    assert_clear(&error, &disk);
                    assert_eq!(error.kind, Kind::Io);
                    assert!(error.what.contains(&format!("byte {left}")), "{error}");
                }
                assert_eq!(bytes(&*disk, &name), before, "it is left as it is");
            }
        }
    }
}

#[test]
fn a_longer_file_is_refused() {
    let (disk, spec, _) = small_log(LogKind::Input, 400, 6);
    disk.open_append(&segments(&disk)[0]).unwrap().write_all(&[0; 8]).unwrap();
    assert_clear(&Log::open(disk.clone(), spec, 0).unwrap_err(), &disk);
}

#[test]
fn missing_and_exchanged_files_are_refused() {
    for kind in KINDS {
        let (disk, spec, model) = small_log(kind, 320, 12);
        let names = segments(&disk);
        assert!(names.len() > 3);
        for (i, name) in names.iter().enumerate() {
            let disk = copy(&disk);
            disk.remove(name).unwrap();
            let opened = Log::open(disk.clone(), spec.clone(), model.len() as u64);
            match i {
                // The log looks trimmed, and a reader of the first records gets an error.
                0 => assert!(opened.unwrap().read(0).unwrap_err().what.contains("removed")),
                _ => assert_clear(&opened.unwrap_err(), &disk),
            }
            assert!(records(&disk, &spec, 0).is_err());
            if i + 1 == names.len() {
                // The known number of records does not matter, because the missing segment may have
                // acknowledged ones.
                let error = Log::open(disk.clone(), spec.clone(), 0).unwrap_err();
                assert!(error.what.contains(&name.display().to_string()), "{error}");
                assert_clear(&error, &disk);
            }
            for other in &names[..i] {
                let disk = disk_with(&disk, name, other);
                assert_clear(&Log::open(disk.clone(), spec.clone(), 0).unwrap_err(), &disk);
                assert!(records(&disk, &spec, 0).is_err());
            }
        }
        let empty = copy(&disk);
        for name in &names {
            empty.remove(name).unwrap();
        }
        for error in [
            Log::open(empty.clone(), spec.clone(), 0).unwrap_err(),
            is_begun(&*empty, &spec).unwrap_err(),
        ] {
            assert_clear(&error, &empty);
        }
        empty.remove(&spec.dir.join(LAST)).unwrap();
        assert!(!is_begun(&*empty, &spec).unwrap());
        let error = Log::open(empty.clone(), spec.clone(), 1).unwrap_err();
        assert!(error.what.contains("no segment") && !error.help.is_empty(), "{error}");
        assert!(records(&empty, &spec, 1).is_err());
    }
}

/// Returns a copy of the disk with the bytes of the file `other` also in the file `name`.
fn disk_with(disk: &SimDisk, name: &Path, other: &Path) -> Arc<SimDisk> {
    let disk = copy(disk);
    let bytes = bytes(&*disk, other);
    disk.create(name).unwrap().write_all(&bytes).unwrap();
    disk
}

#[test]
fn two_files_that_change_places_are_refused() {
    let (disk, spec, _) = small_log(LogKind::Input, 400, 12);
    let names = segments(&disk);
    disk.swap(&names[1], &names[2]).unwrap();
    assert_clear(&Log::open(disk.clone(), spec, 0).unwrap_err(), &disk);
}

/// The file of the same name is from another time of the same log.
#[test]
fn a_segment_of_another_time_is_refused() {
    for kind in KINDS {
        let (disk, spec, model) = small_log(kind, 400, 12);
        let other = sim_disk(9);
        let mut log = Log::open(other.clone(), spec.clone(), 0).unwrap();
        for (n, (kind, bytes)) in model.iter().enumerate() {
            log.append(*kind, &bytes.iter().map(|b| b ^ 1).collect::<Vec<_>>()).unwrap();
            if model.get(n + 1).is_none_or(|next| next.0 != *kind) {
                log.commit().unwrap();
            }
        }
        let names = segments(&disk);
        assert_eq!(names, segments(&other));
        for name in &names[..names.len() - 1] {
            let mixed = copy(&disk);
            mixed.create(name).unwrap().write_all(&bytes(&*other, name)).unwrap();
            let error = records(&mixed, &spec, 0).unwrap_err();
            assert_clear(&error, &mixed);
            assert!(error.what.contains("one after the other"), "{error}");
        }
    }
}

#[test]
fn fewer_records_than_needed_are_refused() {
    for kind in KINDS {
        let (disk, spec, model) = small_log(kind, 4096, 3);
        let there = model.len() as u64;
        let name = segments(&disk).pop().unwrap();
        let before = bytes(&*disk, &name);
        let error = Log::open(disk.clone(), spec.clone(), there + 1).unwrap_err();
        assert!(error.what.contains(&format!("{there} records, and {}", there + 1)), "{error}");
        assert_clear(&error, &disk);
        assert_eq!(bytes(&*disk, &name), before, "it is left as it is");
        let needing = |needed| -> Result<Vec<Record>> {
            read(disk.clone() as Arc<dyn Disk>, &spec, 0)?.needing(needed).collect()
        };
        assert_eq!(needing(there + 1).unwrap_err(), error, "a reader gets the same error");
        assert_eq!(needing(there).unwrap().len() as u64, there);
        Log::open(disk, spec, there).unwrap();
    }
}

/// The note of the last segment helps if a segment is missing, and does no harm otherwise.
#[test]
fn a_damaged_note_of_the_last_segment_is_mended() {
    for kind in KINDS {
        let (disk, spec, model) = small_log(kind, 320, 12);
        let path = spec.dir.join(LAST);
        let whole = bytes(&*disk, &path);
        for damage in 0..=whole.len() * 8 {
            let disk = copy(&disk);
            match damage.checked_sub(1) {
                None => disk.remove(&path).unwrap(),
                Some(bit) => disk.flip_bit(&path, bit as u64).unwrap(),
            }
            assert_eq!(records(&disk, &spec, 0).unwrap().len(), model.len());
            drop(Log::open(disk.clone(), spec.clone(), 0).unwrap());
            assert_eq!(bytes(&*disk, &path), whole);
            disk.crash();
            assert_eq!(bytes(&*disk, &path), whole, "durably");
        }
    }
}

#[test]
fn logs_of_others_are_refused() {
    let (disk, spec, _) = small_log(LogKind::Input, 4096, 3);
    let open = |spec: LogSpec| {
        let error = Log::open(disk.clone(), spec.clone(), 0).unwrap_err();
        assert_eq!(read(disk.clone(), &spec, 0).unwrap_err(), error);
        assert_clear(&error, &disk);
        error
    };
    let error = open(LogSpec { app: 5, ..spec.clone() });
    assert_eq!(error.kind, Kind::Setting);
    assert!(error.what.contains("another app"), "{error}");
    let error = open(LogSpec { kind: LogKind::Cuts, ..spec });
    assert!(error.what.contains("a segment of the input log"), "{error}");
}

#[test]
fn other_files_are_left_alone() {
    let (disk, spec, model) = small_log(LogKind::Input, 4096, 3);
    let others = ["notes.txt", "0.log", "00000000000000zz.log", "000000000000000A.log", "x"];
    for name in others {
        disk.create(&spec.dir.join(name)).unwrap().write_all(b"mine").unwrap();
    }
    let unfinished = spec.dir.join("0000000000000007.new");
    disk.create(&unfinished).unwrap().write_all(b"half").unwrap();
    assert_eq!(records(&disk, &spec, 0).unwrap().len(), model.len());
    assert!(disk.exists(&unfinished).unwrap(), "reading changes nothing");
    Log::open(disk.clone(), spec.clone(), model.len() as u64).unwrap();
    assert!(!disk.exists(&unfinished).unwrap());
    for name in others {
        assert_eq!(bytes(&*disk, &spec.dir.join(name)), b"mine");
    }
}

proptest! {
    #![proptest_config(config(100, 2))]

    /// Tests larger logs with several damages at once: there is never wrong data, and never a
    /// panic.
    #[test]
    fn any_damage_of_a_large_log_is_refused_or_does_not_matter(seed: u64) {
        let random = SimRandom::new(seed);
        let kind = KINDS[random.below(2) as usize];
        let (disk, spec) = (sim_disk(seed), spec(kind, 500 + random.below(8000)));
        let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
        let mut model = Model::new();
        for _ in 0..60 {
            append(&mut log, &mut model, random_record(&random, 600)).unwrap();
            if random.below(3) == 0 {
                log.commit().unwrap();
            }
        }
        log.commit().unwrap();
        drop(log);
        let names = segments(&disk);
        for _ in 0..20 {
            let disk = copy(&disk);
            let flips = 1 + random.below(4);
            for _ in 0..flips {
                let name = &names[random.below(names.len() as u64) as usize];
                let len = len(&*disk, name);
                match random.below(4) {
                    // A range of other bytes.
                    0 if flips > 1 => {
                        let at = random.below(len);
                        let size = random.below(len - at).min(600);
                        let byte = [0, 0xff, b'T'][random.below(3) as usize];
                        let mut file = disk.open_at(name, at).unwrap();
                        file.write_all(&vec![byte; size as usize]).unwrap();
                    }
                    // A piece of the log in another place.
                    1 if flips > 1 => {
                        let whole = bytes(&*disk, name);
                        let (from, to) = (random.below(len) / 8 * 8, random.below(len) / 8 * 8);
                        let size = random.below(len - from.max(to)) as usize;
                        let piece = &whole[from as usize..from as usize + size];
                        disk.open_at(name, to).unwrap().write_all(piece).unwrap();
                    }
                    _ => disk.flip_bit(name, random.below(len * 8)).unwrap(),
                }
            }
            check_damaged(&disk, &spec, &model, kind == LogKind::Input || flips > 1);
        }
    }
}
