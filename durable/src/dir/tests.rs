use std::sync::mpsc::channel;

use tidemill_env::RealDisk;
use tidemill_sim::{DiskOp, SimDisk, SimEnv};

use super::*;

fn alone(disk: &Arc<SimDisk>) -> DirStore {
    DirStore::alone(disk.clone(), "/data/store")
}

fn shared(sim: &SimEnv) -> DirStore {
    DirStore::shared(&sim.env(), "/data/store").unwrap()
}

#[test]
fn a_directory_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let real = |name: &str| dir.path().join("some").join(name);
    for store in [
        DirStore::alone(Arc::new(RealDisk::new()), real("alone")),
        DirStore::shared(&Env::real(), real("shared")).unwrap(),
        alone(&SimEnv::new(1).disk),
        shared(&SimEnv::new(1)),
    ] {
        let store: Arc<dyn Store> = Arc::new(store);
        crate::contract::store(&store);
    }
}

/// Two stores of one directory act like two processes: only one of them puts.
#[test]
fn two_that_share_a_directory_put_once() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::real();
    let stores = [(); 2].map(|()| DirStore::shared(&env, dir.path()).unwrap());
    for round in 0..50 {
        let name = format!("x/{round}");
        let (send, receive) = channel();
        for (store, byte) in stores.iter().zip([1u8, 2]) {
            let (store, name, send) = (store.clone(), name.clone(), send.clone());
            let body = move || send.send((byte, store.put(&name, &[byte]).unwrap())).unwrap();
            env.threads.spawn("put", Box::new(body)).unwrap();
        }
        drop(send);
        let puts: Vec<(u8, bool)> = receive.iter().collect();
        assert_eq!(puts.len(), 2, "both have an answer");
        let winners: Vec<u8> = puts.iter().filter(|put| put.1).map(|put| put.0).collect();
        assert_eq!(stores[0].get(&name).unwrap(), Some(winners.clone()), "{winners:?}");
    }
}

#[test]
fn files_of_others_are_no_objects() {
    let disk = SimEnv::new(1).disk;
    let store = alone(&disk);
    store.put("a/b", b"x").unwrap();
    for name in [".DS_Store", "a/.hidden", "a/name with spaces"] {
        disk.create(&Path::new("/data/store").join(name)).unwrap();
    }
    store.sweep().unwrap();
    let names: Vec<String> = store.list("").unwrap().into_iter().map(|o| o.name).collect();
    assert_eq!(names, ["a/b"]);
    assert!(disk.exists(Path::new("/data/store/.DS_Store")).unwrap(), "not ours to remove");
}

/// Whichever call fails, and however the machine stops: objects that were put are there, and others
/// are whole or absent. Nothing else is left in the end.
#[test]
fn an_object_is_whole_or_absent_wherever_it_fails() {
    let kinds = [ErrorKind::Other, ErrorKind::StorageFull];
    for (nth, how) in (1..60).flat_map(|nth| (0..12).map(move |how| (nth, how))) {
        let sim = SimEnv::new(nth * 12 + how);
        let disk = &sim.disk;
        let is_shared = how >= 6;
        let open = || match is_shared {
            true => shared(&sim),
            false => alone(disk),
        };
        let store = open();
        assert!(store.put("x/old", b"old").unwrap());
        let kind = kinds[how as usize % 2];
        let how = how / 2 % 3;
        match how {
            0 => disk.fail_nth(None, nth, kind),
            _ => disk.fail_from(None, nth, kind),
        }
        let put = store.put("x/put", b"put");
        let streamed = store.create("y/streamed").and_then(|mut writer| {
            writer.write(b"str")?;
            writer.write(b"eamed")?;
            writer.finish()
        });
        let _ = store.delete("x/old");
        match how {
            0 | 1 => disk.crash_torn(),
            _ => disk.crash(),
        }
        // Of several processes, another one may still be writing for a day.
        sim.clock.advance_us(2 * STALE_US as u64);
        let store = open();
        store.sweep().unwrap();
        let check = |name: &str, bytes: &[u8], done: bool| match store.get(name).unwrap() {
            Some(found) => assert_eq!(found, bytes, "{name} is whole"),
            None => assert!(!done, "{name} was put"),
        };
        check("x/put", b"put", put.is_ok_and(|new| new));
        check("y/streamed", b"streamed", streamed.is_ok_and(|new| new));
        check("x/old", b"old", false);
        for dir in ["/data/store/x", "/data/store/y"] {
            for path in disk.list(Path::new(dir)).unwrap_or_default() {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                assert!(!name.starts_with('.'), "{name} was swept");
            }
        }
    }
}

#[test]
fn a_failed_sync_is_not_stored_and_not_tried_again() {
    let disk = SimEnv::new(1).disk;
    let store = alone(&disk);
    disk.fail_nth(DiskOp::Sync, 1, ErrorKind::Other);
    let error = store.put("a/b", b"x").unwrap_err();
    assert_eq!(error.kind, Kind::Io);
    assert!(error.what.contains("/data/store/a"), "{error}");
    assert_eq!(store.get("a/b").unwrap(), None);
    assert_eq!(disk.list(Path::new("/data/store/a")).unwrap(), [] as [PathBuf; 0]);

    let mut writer = store.create("a/c").unwrap();
    disk.fail_nth(DiskOp::Write, 1, ErrorKind::StorageFull);
    let full = writer.write(b"x").unwrap_err();
    assert_eq!(full.kind, Kind::Resource);
    assert!(!full.help.is_empty());
    assert!(writer.write(b"y").is_err());
    assert!(writer.finish().is_err());
    assert_eq!(store.list("").unwrap(), []);
}

#[test]
fn only_old_temporary_files_are_swept() {
    let sim = SimEnv::new(1);
    let store = shared(&sim);
    assert!(store.put("x/y", b"1").unwrap());
    let left = Path::new("/data/store/x/.tmp-1");
    sim.disk.create(left).unwrap();
    shared(&sim);
    assert!(sim.disk.exists(left).unwrap());
    sim.clock.advance_us(2 * STALE_US as u64);
    shared(&sim);
    assert!(!sim.disk.exists(left).unwrap());
}

/// A process that hangs while it gives a name holds the others up only for some time.
#[test]
fn a_held_lock_of_names_is_reported() {
    let sim = SimEnv::new(1);
    let store = shared(&sim);
    let held = sim.disk.try_lock(&Path::new("/data/store").join(NAMING)).unwrap().unwrap();
    let error = store.put("x/y", b"1").unwrap_err();
    assert!(error.what.contains(NAMING) && !error.help.is_empty(), "{error}");
    assert_eq!(store.list("").unwrap(), []);
    drop(held);
    assert!(store.put("x/y", b"1").unwrap());
}
