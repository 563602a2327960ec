use std::collections::BTreeMap;

use tidemill_env::{Disk, RealDisk, WriteFile};

use super::state::Node;
use super::*;
use crate::SimEnv;

mod faults;
mod trace;

fn disk(seed: u64) -> Arc<SimDisk> {
    let disk = SimEnv::new(seed).disk;
    disk.create_dir_all(Path::new("/d")).unwrap();
    disk
}

fn at(name: &str) -> PathBuf {
    Path::new("/d").join(name)
}

fn dir() -> PathBuf {
    PathBuf::from("/d")
}

/// Writes a file without any sync.
fn write(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Box<dyn WriteFile> {
    let mut file = disk.create(path).unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Writes a file so that it survives a crash.
fn store(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Box<dyn WriteFile> {
    let mut file = write(disk, path, bytes);
    file.sync().unwrap();
    disk.sync_dir(path.parent().unwrap()).unwrap();
    file
}

/// Reads a file; `None` when there is no such file.
fn read(disk: &dyn Disk, path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    match disk.open_read(path) {
        Ok(mut file) => file.read_to_end(&mut bytes).unwrap(),
        Err(e) if e.kind() == ErrorKind::NotFound => return None,
        Err(e) => panic!("{e}"),
    };
    Some(bytes)
}

#[test]
fn the_disk_keeps_the_contract() {
    tidemill_env::contract::disk(&*disk(1), Path::new("/deep/inside"));
    tidemill_env::contract::disk(&*disk(1), Path::new("relative/./x/../place"));
}

#[test]
fn a_crash_loses_what_was_not_synced() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"kept");
    file.write_all(b", lost").unwrap();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"kept, lost");
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"kept");
}

#[test]
fn a_crash_undoes_a_cut_that_was_not_synced() {
    let disk = disk(1);
    store(&*disk, &at("a"), b"kept");
    drop(disk.create(&at("a")).unwrap());
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"");
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"kept");
}

#[test]
fn a_crash_loses_a_name_that_was_not_synced() {
    let disk = disk(1);
    write(&*disk, &at("a"), b"x").sync().unwrap();
    disk.crash();
    assert_eq!(read(&*disk, &at("a")), None);
}

#[test]
fn a_synced_name_of_bytes_never_synced_is_an_empty_file() {
    let disk = disk(1);
    write(&*disk, &at("a"), b"x");
    disk.sync_dir(&dir()).unwrap();
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"");
}

#[test]
fn a_crash_undoes_renames_and_removals_that_were_not_synced() {
    let disk = disk(1);
    store(&*disk, &at("old"), b"old");
    store(&*disk, &at("new"), b"new");
    store(&*disk, &at("gone"), b"gone");
    disk.rename(&at("new"), &at("old")).unwrap();
    disk.remove(&at("gone")).unwrap();
    assert_eq!(disk.list(&dir()).unwrap(), [at("old")]);
    disk.crash();
    assert_eq!(read(&*disk, &at("old")).unwrap(), b"old");
    assert_eq!(read(&*disk, &at("new")).unwrap(), b"new");
    assert_eq!(read(&*disk, &at("gone")).unwrap(), b"gone");

    disk.rename(&at("new"), &at("old")).unwrap();
    disk.remove(&at("gone")).unwrap();
    disk.sync_dir(&dir()).unwrap();
    disk.crash();
    assert_eq!(disk.list(&dir()).unwrap(), [at("old")]);
    assert_eq!(read(&*disk, &at("old")).unwrap(), b"new");
}

#[test]
fn a_rename_between_directories_is_stored_on_both_sides() {
    for synced in ["/d", "/e"] {
        let disk = disk(1);
        disk.create_dir_all(Path::new("/e")).unwrap();
        let to = Path::new("/e/a");
        write(&*disk, &at("a"), b"x").sync().unwrap();
        disk.rename(&at("a"), to).unwrap();
        disk.sync_dir(Path::new(synced)).unwrap();
        disk.crash();
        assert_eq!(read(&*disk, &at("a")), None, "after sync of {synced}");
        assert_eq!(read(&*disk, to).unwrap(), b"x", "after sync of {synced}");
    }
}

#[test]
fn syncing_a_directory_stores_its_own_names_only() {
    let disk = disk(1);
    disk.create_dir_all(Path::new("/e")).unwrap();
    write(&*disk, &at("a"), b"x").sync().unwrap();
    write(&*disk, Path::new("/e/a"), b"x").sync().unwrap();
    disk.sync_dir(Path::new("/e")).unwrap();
    disk.crash();
    assert_eq!(read(&*disk, &at("a")), None);
    assert_eq!(read(&*disk, Path::new("/e/a")).unwrap(), b"x");
}

#[test]
fn directories_survive() {
    let disk = disk(1);
    disk.create_dir_all(Path::new("/x/y/z")).unwrap();
    disk.crash();
    assert!(disk.metadata(Path::new("/x/y/z")).unwrap().is_dir);
}

#[test]
fn open_files_do_not_survive() {
    let disk = disk(1);
    let mut writing = store(&*disk, &at("a"), b"kept");
    let mut reading = disk.open_read(&at("a")).unwrap();
    disk.crash();
    let gone = ErrorKind::BrokenPipe;
    assert_eq!(writing.write(b"x").unwrap_err().kind(), gone);
    assert_eq!(writing.sync().unwrap_err().kind(), gone);
    assert_eq!(reading.read(&mut [0]).unwrap_err().kind(), gone);
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"kept");
}

#[test]
fn a_torn_crash_leaves_any_part_of_what_was_not_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = disk(seed);
        let mut file = store(&*disk, &at("a"), b"--");
        file.write_all(b"ab").unwrap();
        file.write_all(b"cd").unwrap();
        disk.crash_torn();
        let left = read(&*disk, &at("a")).unwrap();
        assert!(left.starts_with(b"--"), "synced bytes stay");
        for (left, written) in left.iter().zip(b"--abcd") {
            assert!(left == written || *left == 0);
        }
        seen.insert(left);
        disk.crash();
        assert!(seen.contains(&read(&*disk, &at("a")).unwrap()), "settled");
    }
    for left in [&b"--"[..], b"--a", b"--ab", b"--abc", b"--abcd", b"--\0\0cd"] {
        assert!(seen.contains(left), "{left:?}");
    }
}

#[test]
fn a_torn_crash_keeps_names_in_order_and_renames_whole() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let disk = disk(seed);
        write(&*disk, &at("1"), b"x");
        disk.rename(&at("1"), &at("2")).unwrap();
        write(&*disk, &at("3"), b"x");
        disk.crash_torn();
        seen.insert(disk.list(&dir()).unwrap());
    }
    let expected = [vec![], vec![at("1")], vec![at("2")], vec![at("2"), at("3")]];
    assert_eq!(seen, expected.into());
}

#[test]
fn a_torn_crash_repeats_from_its_seed() {
    let run = |seed| {
        let disk = disk(seed);
        let mut file = store(&*disk, &at("a"), b"");
        for i in 0..50 {
            file.write_all(&[i; 20]).unwrap();
        }
        disk.crash_torn();
        read(&*disk, &at("a")).unwrap()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn a_full_disk_takes_what_fits_and_no_more() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"1234");
    disk.set_capacity(Some(10));
    assert_eq!(file.write(b"56789012").unwrap(), 6);
    assert_eq!(disk.used(), 10);
    let full = ErrorKind::StorageFull;
    assert_eq!(file.write(b"x").unwrap_err().kind(), full);
    assert_eq!(file.set_len(11).unwrap_err().kind(), full);
    let mut other = disk.create(&at("b")).unwrap();
    assert_eq!(other.write_all(b"x").unwrap_err().kind(), full);
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"1234567890");

    // Overwriting needs no room, and removing frees some.
    file.set_len(10).unwrap();
    store(&*disk, &at("a"), b"0987654321");
    disk.remove(&at("a")).unwrap();
    other.write_all(b"x").unwrap();
    disk.set_capacity(None);
    other.write_all(&[0; 100]).unwrap();
}

#[test]
fn a_crash_gives_locks_back() {
    let disk = disk(1);
    let old = disk.try_lock(&at("lock")).unwrap().unwrap();
    disk.sync_dir(&dir()).unwrap();
    disk.crash();
    let new = disk.try_lock(&at("lock")).unwrap().unwrap();
    drop(old);
    assert!(disk.try_lock(&at("lock")).unwrap().is_none(), "the old holder frees nothing");
    drop(new);
    assert!(disk.try_lock(&at("lock")).unwrap().is_some());
    let old = disk.try_lock_dir(&dir()).unwrap().unwrap();
    disk.crash();
    let _new = disk.try_lock_dir(&dir()).unwrap().unwrap();
    drop(old);
    assert!(disk.try_lock_dir(&dir()).unwrap().is_none(), "nor of a directory");
}

#[test]
fn the_nth_call_fails_once() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"");
    disk.fail_nth(DiskOp::Write, 2, ErrorKind::Other);
    file.write_all(b"1").unwrap();
    file.sync().unwrap();
    assert_eq!(file.write(b"2").unwrap_err().kind(), ErrorKind::Other);
    file.write_all(b"3").unwrap();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"13");

    // The second call of any kind from here.
    disk.fail_nth(None, 2, ErrorKind::TimedOut);
    assert!(disk.exists(&at("a")).unwrap());
    assert_eq!(disk.remove(&at("a")).unwrap_err().kind(), ErrorKind::TimedOut);
    disk.remove(&at("a")).unwrap();
}

#[test]
fn every_kind_of_call_can_fail() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"x");
    let mut open = disk.open_read(&at("a")).unwrap();
    let fails = |op, call: &mut dyn FnMut() -> io::Result<()>| {
        disk.fail_nth(op, 1, ErrorKind::Other);
        assert_eq!(call().unwrap_err().kind(), ErrorKind::Other, "{op:?}");
        call().unwrap();
    };
    fails(DiskOp::OpenRead, &mut || disk.open_read(&at("a")).map(drop));
    fails(DiskOp::Create, &mut || disk.create(&at("b")).map(drop));
    fails(DiskOp::OpenAppend, &mut || disk.open_append(&at("b")).map(drop));
    fails(DiskOp::OpenAt, &mut || disk.open_at(&at("b"), 3).map(drop));
    fails(DiskOp::TryLock, &mut || disk.try_lock(&at("b")).map(drop));
    fails(DiskOp::TryLock, &mut || disk.try_lock_dir(&dir()).map(drop));
    fails(DiskOp::Rename, &mut || disk.rename(&at("b"), &at("c")));
    fails(DiskOp::Remove, &mut || disk.remove(&at("c")));
    fails(DiskOp::List, &mut || disk.list(&dir()).map(drop));
    fails(DiskOp::Metadata, &mut || disk.metadata(&dir()).map(drop));
    fails(DiskOp::Metadata, &mut || open.len().map(drop));
    fails(DiskOp::CreateDirAll, &mut || disk.create_dir_all(&at("e")));
    fails(DiskOp::SyncDir, &mut || disk.sync_dir(&dir()));
    fails(DiskOp::Read, &mut || open.read(&mut [0]).map(drop));
    fails(DiskOp::Write, &mut || file.write(b"x").map(drop));
    fails(DiskOp::SetLen, &mut || file.set_len(1));
    fails(DiskOp::Sync, &mut || file.sync());
}

#[test]
fn faults_that_stay_end_with_a_crash() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"kept");
    disk.fail_from(None, 1, ErrorKind::Other);
    assert!(file.write(b"x").is_err());
    assert!(disk.open_read(&at("a")).is_err());
    assert!(disk.list(&dir()).is_err());
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"kept");

    disk.fail_from(DiskOp::List, 1, ErrorKind::Other);
    assert!(disk.list(&dir()).is_err());
    disk.clear_faults();
    assert!(disk.list(&dir()).is_ok());
}

#[test]
fn bytes_whose_sync_failed_are_lost_though_the_next_one_succeeds() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"kept");
    file.write_all(b"lost").unwrap();
    disk.fail_nth(DiskOp::Sync, 1, ErrorKind::Other);
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"keptlost", "still seen");
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"kept");
}

#[test]
fn a_flipped_bit_is_seen_and_stays() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"aa");
    file.write_all(b"aa").unwrap();
    disk.flip_bit(&at("a"), 8).unwrap();
    disk.flip_bit(&at("a"), 2 * 8 + 1).unwrap();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"a`ca");
    file.sync().unwrap();
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"a`ca");

    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(disk.flip_bit(&at("a"), 32)), ErrorKind::InvalidInput);
    assert_eq!(kind(disk.flip_bit(&at("b"), 0)), ErrorKind::NotFound);
}

#[test]
fn calls_are_logged() {
    let disk = disk(1);
    disk.take_calls();
    let mut file = disk.create(&at("a")).unwrap();
    file.write_all(b"abc").unwrap();
    disk.fail_nth(DiskOp::Sync, 1, ErrorKind::Other);
    file.sync().unwrap_err();
    disk.remove(&at("b")).unwrap_err();
    let call = |op, name: &str, bytes, error| DiskCall { op, path: at(name), bytes, error };
    assert_eq!(
        disk.take_calls(),
        [
            call(DiskOp::Create, "a", 0, None),
            call(DiskOp::Write, "a", 3, None),
            call(DiskOp::Sync, "a", 0, Some(ErrorKind::Other)),
            call(DiskOp::Remove, "b", 0, Some(ErrorKind::NotFound)),
        ]
    );
    assert_eq!(disk.take_calls(), []);
}

#[test]
fn changes_are_dated_by_the_simulated_clock() {
    let sim = SimEnv::new(1);
    let path = Path::new("/a");
    let mut file = sim.disk.create(path).unwrap();
    sim.clock.advance_us(5_000);
    file.write_all(b"x").unwrap();
    let written = sim.clock.now_us();
    sim.clock.advance_us(5_000);
    assert_eq!(sim.disk.metadata(path).unwrap().modified_us, written);
}

/// Published files are old or new in whole, wherever the machine stops.
#[test]
fn publishing_by_rename_survives_a_crash_before_any_call() {
    let publish = |disk: &dyn Disk, bytes: &[u8]| -> io::Result<()> {
        let mut file = disk.create(&at("tmp"))?;
        file.write_all(bytes)?;
        file.sync()?;
        disk.rename(&at("tmp"), &at("a"))?;
        disk.sync_dir(&dir())
    };
    for seed in 0..200 {
        for nth in 1.. {
            let disk = disk(seed);
            publish(&*disk, b"old").unwrap();
            disk.fail_from(None, nth, ErrorKind::Other);
            let done = publish(&*disk, b"new").is_ok();
            disk.crash_torn();
            let left = read(&*disk, &at("a")).unwrap();
            assert!(left == b"new" || !done && left == b"old", "{left:?}");
            if done {
                break;
            }
        }
    }
}

/// Any sequence of calls has the same visible outcome as on a real disk.
#[test]
fn the_simulated_disk_behaves_as_the_real_one() {
    for seed in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        let real = random_calls(&RealDisk::new(), dir.path(), &SimRandom::new(seed), || ());
        let sim = disk(seed);
        let simulated = random_calls(&*sim, Path::new("/d"), &SimRandom::new(seed), || ());
        assert_eq!(real, simulated, "seed {seed}");
    }
}

/// Stored and pending names together are the visible names, in whatever order they were stored.
#[test]
fn stored_and_pending_names_make_up_what_is_seen() {
    let files = |names: &BTreeMap<PathBuf, Node>| -> Vec<(PathBuf, bool)> {
        let is_dir = |node: &Node| matches!(node, Node::Dir { .. });
        let pairs = names.iter();
        pairs.map(|(p, node)| (p.clone(), is_dir(node))).collect()
    };
    for seed in 0..200 {
        let disk = disk(seed);
        random_calls(&*disk, Path::new("/d"), &SimRandom::new(seed), || {
            let state = &disk.shared.machine.lock().state;
            let mut names = state.durable.clone();
            for change in &state.pending {
                change.clone().apply(&mut names);
            }
            assert_eq!(files(&names), files(&state.names), "seed {seed}");
        });
    }
}

/// Makes random calls under `root`, with `check` after each, and returns their outcomes.
fn random_calls(disk: &dyn Disk, root: &Path, random: &SimRandom, check: impl Fn()) -> Vec<String> {
    const NAMES: [&str; 6] = ["a", "b", "x", "x/a", "x/y", "x/y/a"];
    let name = || root.join(NAMES[random.below(6) as usize]);
    let kind = |e: io::Error| e.kind();
    let mut open: Vec<Box<dyn WriteFile>> = Vec::new();
    let mut outcome = Vec::new();
    for _ in 0..300 {
        let text = match random.below(11) {
            0 => format!("{:?}", disk.create(&name()).map(|f| open.push(f)).map_err(kind)),
            1 => format!("{:?}", disk.open_append(&name()).map(|f| open.push(f)).map_err(kind)),
            2 => {
                let (from, to) = (name(), name());
                // The system decides which of two errors it reports.
                format!("{:?}", disk.rename(&from, &to).map_err(drop))
            }
            3 => format!("{:?}", disk.remove(&name()).map_err(drop)),
            4 if random.below(4) == 0 => {
                format!("{:?}", disk.create_dir_all(&name()).map_err(kind))
            }
            5 => {
                let path = name();
                let dir = match disk.metadata(&path) {
                    Ok(meta) if meta.is_dir => &path,
                    _ => root,
                };
                format!("{:?}", disk.sync_dir(dir).map_err(kind))
            }
            6 => {
                let list = disk.list(&name()).map_err(kind);
                let short = |p: &PathBuf| p.strip_prefix(root).unwrap().to_owned();
                format!("{:?}", list.map(|l| l.iter().map(short).collect::<Vec<_>>()))
            }
            7 => {
                let meta = disk.metadata(&name()).map_err(kind);
                format!("{:?}", meta.map(|m| (m.is_dir, (!m.is_dir).then_some(m.len))))
            }
            8 => {
                let path = name();
                match disk.metadata(&path) {
                    Ok(meta) if !meta.is_dir => format!("{:?}", read(disk, &path)),
                    _ => "no file".to_owned(),
                }
            }
            9 => {
                let at = random.below(40);
                format!("{:?}", disk.open_at(&name(), at).map(|f| open.push(f)).map_err(kind))
            }
            _ if open.is_empty() => continue,
            _ => {
                let i = random.below(open.len() as u64) as usize;
                let file = &mut open[i];
                match random.below(4) {
                    0 => format!("{:?}", file.set_len(random.below(50)).map_err(kind)),
                    1 => format!("{:?} {:?}", file.sync().is_ok(), file.len().map_err(kind)),
                    _ => {
                        let bytes = vec![random.below(256) as u8; random.below(8) as usize];
                        format!("{:?}", file.write(&bytes).map_err(kind))
                    }
                }
            }
        };
        outcome.push(text);
        check();
    }
    outcome
}
