//! Failing, waiting and short calls, and damage by outsiders.

use super::*;

#[test]
fn faults_may_concern_one_directory() {
    let disk = disk(1);
    disk.create_dir_all(Path::new("/e")).unwrap();
    disk.fail_from(DiskOp::Create.under("/e"), 2, ErrorKind::Other);
    disk.fail_nth(Which::any().under("/d/x"), 1, ErrorKind::TimedOut);
    for _ in 0..3 {
        disk.create(&at("a")).unwrap();
    }
    disk.create(Path::new("/e/a")).unwrap();
    assert_eq!(disk.create(Path::new("/e/b")).map(drop).unwrap_err().kind(), ErrorKind::Other);
    disk.create(Path::new("/es")).unwrap();
    assert_eq!(disk.metadata(&at("x")).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(disk.metadata(&at("x")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_stalled_call_waits_while_others_go_on() {
    let disk = disk(1);
    let stall = disk.stall_nth(DiskOp::Sync, 1);
    let mut file = write(&*disk, &at("a"), b"slow");
    let slow = SimEnv::new(1).env().threads.spawn("slow", Box::new(move || file.sync().unwrap()));
    let slow = slow.unwrap();
    stall.wait();
    assert_eq!(stall.waiting(), 1);
    write(&*disk, &at("b"), b"quick").sync().unwrap();
    disk.sync_dir(&dir()).unwrap();
    assert!(!disk.take_calls().iter().any(|call| call.op == DiskOp::Sync && call.path == at("a")));
    stall.release();
    slow.join().unwrap();
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"slow");
    assert_eq!(read(&*disk, &at("b")).unwrap(), b"quick");
}

#[test]
fn a_call_that_waited_through_a_crash_fails() {
    let disk = disk(1);
    let stall = disk.stall_from(DiskOp::Sync, 1);
    let mut file = store_name(&disk, "a");
    file.write_all(b"x").unwrap();
    let threads = SimEnv::new(1).env().threads;
    let body = move || assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::BrokenPipe);
    let slow = threads.spawn("slow", Box::new(body)).unwrap();
    stall.wait();
    disk.crash();
    drop(stall);
    slow.join().unwrap();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"");
}

fn store_name(disk: &SimDisk, name: &str) -> Box<dyn WriteFile> {
    let file = disk.create(&at(name)).unwrap();
    disk.sync_dir(&dir()).unwrap();
    file
}

#[test]
fn short_writes_take_a_part() {
    let disk = disk(1);
    disk.set_short_writes(true);
    let mut file = disk.create(&at("a")).unwrap();
    let lens: Vec<usize> = (0..50).map(|_| file.write(&[1; 10]).unwrap()).collect();
    assert!(lens.iter().all(|len| (1..=10).contains(len)) && lens.iter().any(|len| *len < 10));
    file.write_all(&[2; 1000]).unwrap();
    disk.set_short_writes(false);
    assert_eq!(file.write(&[3; 10]).unwrap(), 10);
    let whole = lens.iter().sum::<usize>() + 1010;
    assert_eq!(read(&*disk, &at("a")).unwrap().len(), whole);
}

#[test]
fn others_cut_and_exchange_files() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"one");
    file.write_all(b" and more").unwrap();
    store(&*disk, &at("b"), b"two");
    disk.truncate(&at("a"), 5).unwrap();
    assert_eq!(disk.truncate(&at("a"), 5).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"one a");
    disk.swap(&at("a"), &at("b")).unwrap();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"two");
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"two");
    assert_eq!(read(&*disk, &at("b")).unwrap(), b"one a");
    assert_eq!(disk.swap(&at("a"), &at("c")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_killed_process_loses_nothing_but_its_locks_and_files() {
    let disk = disk(1);
    let mut file = store(&*disk, &at("a"), b"kept");
    let lock = disk.try_lock(&at("lock")).unwrap().unwrap();
    file.write_all(b", not synced").unwrap();
    disk.kill();
    assert!(file.sync().is_err());
    assert!(disk.try_lock(&at("lock")).unwrap().is_some());
    drop(lock);
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"kept, not synced");
    disk.crash();
    assert_eq!(read(&*disk, &at("a")).unwrap(), b"kept");
}

#[test]
fn a_torn_write_may_lack_sectors() {
    let mut holes = 0;
    for seed in 0..200 {
        let disk = disk(seed);
        let mut file = store(&*disk, &at("a"), &[1; 100]);
        file.write_all(&[2; 2000]).unwrap();
        disk.crash_torn();
        let mut left = read(&*disk, &at("a")).unwrap();
        assert_eq!(left[..100], [1; 100]);
        left.resize(2100, 0);
        // Sectors are whole, except where the write ends or was cut short.
        let sectors = left.chunks(512).map(|sector| sector.iter().filter(|b| **b == 2).count());
        let sectors: Vec<usize> = sectors.collect();
        let end = sectors.iter().rposition(|twos| *twos > 0).unwrap_or(0);
        assert!(sectors[..end]
            .iter()
            .zip([412, 512, 512, 512])
            .all(|(n, all)| [0, all].contains(n)));
        holes += usize::from(sectors[..end].contains(&0));
    }
    assert!(holes > 20, "{holes}");
}

/// A file without a name is dropped, but not while it is open.
#[test]
fn a_file_without_a_name_lives_while_it_is_open() {
    let disk = disk(1);
    store(&*disk, &at("a"), b"x");
    let mut open = disk.open_read(&at("a")).unwrap();
    for _ in 0..3 {
        disk.remove(&at("a")).unwrap();
        store(&*disk, &at("a"), b"y");
    }
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"x");
    let files = || disk.shared.machine.lock().state.files_held();
    assert_eq!(files(), 2);
    drop(open);
    disk.sync_dir(&dir()).unwrap();
    assert_eq!(files(), 1);
}
