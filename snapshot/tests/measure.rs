//! How long it takes to publish and load ten million rows in a real directory. By hand:
//! `cargo test --release -p tidemill-snapshot --test measure -- --ignored --nocapture`, with
//! `TIDEMILL_ROWS` for another number of rows and `TIDEMILL_DIR` for another place.

#![allow(clippy::disallowed_methods)] // It measures the real world.

use std::sync::Arc;
use std::time::Instant;

use tidemill_core::TableId;
use tidemill_env::RealDisk;
use tidemill_place::Partition;
use tidemill_snapshot::{Delta, DirStore, FaultyStore, Head, Loader, Snapshots, Store};

/// Seconds of processor time of this process.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or_default();
    (ticks(12) + ticks(13)) / 100.0
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (start, cpu_start) = (Instant::now(), cpu());
    let result = work();
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:<44} {seconds:>7.2} s, {:>6.2} s of processor", cpu() - cpu_start);
    result
}

/// Key and partition in an order that no index would give.
fn scattered(i: u64) -> (u64, Partition) {
    let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (key, Partition((key.rotate_left(17).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 52) as u16))
}

fn push(delta: &mut Delta, i: u64, value: u64) {
    let (key, partition) = scattered(i);
    let mut row = [0; 16];
    row[..8].copy_from_slice(&value.to_le_bytes());
    row[8..].copy_from_slice(&key.to_le_bytes());
    delta.push(TableId(0), partition, &key.to_be_bytes(), Some(&row));
}

#[test]
#[ignore = "takes seconds and a gigabyte; a measurement"]
fn ten_million_rows() {
    let rows: u64 =
        std::env::var("TIDEMILL_ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000_000);
    let dir = match std::env::var("TIDEMILL_DIR") {
        Ok(dir) => tempfile::tempdir_in(dir),
        Err(_) => tempfile::tempdir(),
    };
    let dir = dir.expect("a directory");
    let real = DirStore::new(Arc::new(RealDisk::new()), dir.path());
    let counted = FaultyStore::new(Arc::new(real));
    let store: Arc<dyn Store> = Arc::new(counted.clone());
    let mut snapshots = Snapshots::open(store.clone(), 1, 1).expect("it opens");
    let head = |epoch| Head { epoch, ..Head::default() };

    let mut delta = Delta::new();
    timed("collect all rows", || (0..rows).for_each(|i| push(&mut delta, i, i)));
    println!("  {} MB of memory", delta.bytes() >> 20);
    timed("publish them", || snapshots.publish(head(1), b"", &delta).expect("it is published"));
    println!("  {} MB written", counted.written() >> 20);
    drop(delta);

    let load = |what: &str, snapshots: &Snapshots| {
        let newest = snapshots.newest().expect("there is one");
        let mut count = 0;
        let mut sum = 0u64;
        timed(what, || {
            let loader = Loader::open(&store, newest).expect("it opens");
            for piece in loader.pieces(1) {
                let visit = |row: tidemill_snapshot::LoadedRow<'_>| {
                    count += 1;
                    sum = sum.wrapping_add(u64::from(row.row[0]) + u64::from(row.key[7]));
                    Ok(())
                };
                loader.load(&piece, visit).expect("it loads");
            }
        });
        assert_eq!(count, rows);
        println!("  from {} objects ({sum})", newest.objects.len());
    };
    load("load them", &snapshots);

    let before = counted.written();
    for epoch in 2..10 {
        let mut delta = Delta::new();
        (0..rows / 100).for_each(|i| push(&mut delta, (i * 97 + epoch * 13) % rows, epoch));
        let mut publish = || snapshots.publish(head(epoch), b"", &delta).expect("it is published");
        if epoch == 2 {
            timed("publish a change of 1 %", publish);
        } else {
            publish();
        }
    }
    println!("  {} MB written for 8 of them", (counted.written() - before) >> 20);
    load("load them with 8 deltas", &snapshots);
    let merge = snapshots.plan().expect("there are 8 deltas");
    println!("  to merge: {} MB", merge.bytes() >> 20);
    let merged = timed("merge the deltas", || merge.run().expect("it merges"));
    assert!(snapshots.adopt(merged));

    let mut delta = Delta::new();
    (0..rows).for_each(|i| push(&mut delta, i, i + 1));
    timed("publish a change of everything", || {
        snapshots.publish(head(10), b"", &delta).expect("it is published")
    });
    drop(delta);
    load("load everything twice over", &snapshots);
    timed("merge everything", || {
        while let Some(merge) = snapshots.plan() {
            assert!(snapshots.adopt(merge.run().expect("it merges")));
        }
    });
    snapshots.publish(head(11), b"", &Delta::new()).expect("it is published");
    load("load the merged objects", &snapshots);
    timed("remove what is not needed", || snapshots.retain(1).expect("it retains"));
}
