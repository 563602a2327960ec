//! Merging beside publishing: the bytes written, the number of objects, and that nothing waits for
//! a merge.

mod common;

use std::sync::Arc;

use common::{contents, push, Dice, Model};
use tidemill_durable::{FaultyStore, MemoryStore, Store, StoreOp};
use tidemill_env::{RealThreads, Threads};
use tidemill_snapshot::{Delta, Head, LoadedRow, Loader, Merged, Snapshots, SHARDS};

fn head(epoch: u64) -> Head {
    Head { epoch, ..Head::default() }
}

/// The bytes of the changes, the bytes written for them, the largest number of objects, and the
/// state.
struct Figures {
    changed: u64,
    written: u64,
    objects_max: usize,
}

/// Publishes `epochs` changes, with all merges in between. The first state is not counted.
fn history(epochs: u64, first: u64, change: impl Fn(&Dice, u64) -> Vec<u64>) -> Figures {
    let dice = Dice::new(epochs);
    let memory = MemoryStore::new();
    let counted = FaultyStore::new(Arc::new(memory));
    let store: Arc<dyn Store> = Arc::new(counted.clone());
    let mut snapshots = Snapshots::open(store.clone(), 1, 1).unwrap();
    let mut model = Model::new();
    let set = |model: &mut Model, delta: &mut Delta, key: u64, epoch: u64| {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (0, (hash >> 52) as u16, hash.to_be_bytes().to_vec());
        let row = [epoch as u8; 40];
        push(delta, &place, Some(&row));
        model.insert(place, row.to_vec());
    };
    let mut delta = Delta::new();
    (0..first).for_each(|key| set(&mut model, &mut delta, key, 0));
    snapshots.publish(head(1), b"", &delta).unwrap();

    let mut figures = Figures { changed: 0, written: 0, objects_max: 0 };
    let before = counted.written();
    let mut manifests = 0;
    for epoch in 2..epochs + 2 {
        let mut delta = Delta::new();
        let keys = change(&dice, epoch);
        figures.changed += keys.len() as u64 * 50;
        keys.iter().for_each(|key| set(&mut model, &mut delta, *key, epoch));
        let manifest = snapshots.publish(head(epoch), b"", &delta).unwrap();
        let name = manifest.name();
        manifests += store.get(&name).unwrap().unwrap().len() as u64;
        figures.objects_max = figures.objects_max.max(manifest.objects.len());
        while let Some(merge) = snapshots.plan() {
            assert!(snapshots.adopt(merge.run().unwrap()));
        }
        snapshots.retain(2).unwrap();
    }
    // Manifests do not grow with the changes.
    figures.written = counted.written() - before - manifests;
    let newest = snapshots.newest().unwrap();
    assert_eq!(contents(&store, newest).unwrap(), model);
    // The space in use before the newest objects have been merged.
    let there: u64 = store.list("data/").unwrap().iter().map(|object| object.len).sum();
    let least = model.len() as u64 * 50;
    assert!(there < 5 * least + (1 << 20), "{there} bytes for {least}");
    figures
}

fn check(what: &str, figures: &Figures, epochs: u64) {
    let Figures { changed, written, objects_max } = *figures;
    let levels = (epochs as f64).log(8.0).ceil();
    let factor = written as f64 / changed as f64;
    println!("{what}: {factor:.2} bytes written for each changed one, {objects_max} objects");
    // The bound of `layout.rs`, and a tenth for headers and indexes.
    assert!(factor < (3.0 + levels) * 1.1, "{what}: {factor}");
    assert!(objects_max <= SHARDS + 8 * (levels as usize + 1), "{what}: {objects_max}");
}

#[test]
fn what_is_written_stays_within_a_constant_of_what_changes() {
    let few = history(200, 100_000, |dice, _| (0..2000).map(|_| dice.below(100_000)).collect());
    check("2 % at random", &few, 200);
    let hot = history(200, 100_000, |dice, _| (0..2000).map(|_| dice.below(3000)).collect());
    check("a hot part", &hot, 200);
    let all = history(20, 20_000, |_, _| (0..20_000).collect());
    check("everything", &all, 20);
    let growing = history(100, 0, |_, epoch| (epoch * 2000..(epoch + 1) * 2000).collect());
    check("growing", &growing, 100);
    // One shard only, and usually the same keys.
    let skewed = history(300, 50_000, |dice, _| {
        (0..4000)
            .map(|_| dice.below(50_000))
            .filter(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58 == 5)
            .collect()
    });
    check("one shard", &skewed, 300);
}

/// Publishing continues while a merge hangs in the store, and while it runs.
#[test]
fn nobody_waits_for_a_merge() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::new(Arc::new(memory.clone()));
    let store: Arc<dyn Store> = Arc::new(faulty.clone());
    let mut snapshots = Snapshots::open(store.clone(), 1, 1).unwrap();
    let mut model = Model::new();
    let change = |model: &mut Model, epoch: u64| {
        let mut delta = Delta::new();
        for key in 0..100u8 {
            let place = (0, u16::from(key) * 40, vec![key]);
            push(&mut delta, &place, Some(&[epoch as u8]));
            model.insert(place, vec![epoch as u8]);
        }
        delta
    };
    for epoch in 1..3 {
        snapshots.publish(head(epoch), b"", &change(&mut model, epoch)).unwrap();
    }
    let merge = snapshots.plan().expect("all has changed");
    let stall = faulty.stall_nth(StoreOp::Finish, 1);
    let (send, receive) = std::sync::mpsc::channel::<Merged>();
    let body = move || send.send(merge.run().unwrap()).unwrap();
    let thread = RealThreads::new().spawn("merge", Box::new(body)).unwrap();
    stall.wait();
    for epoch in 3..5 {
        snapshots.publish(head(epoch), b"", &change(&mut model, epoch)).unwrap();
        snapshots.retain(1).unwrap();
    }
    assert!(receive.try_recv().is_err());
    stall.release();
    thread.join().unwrap();
    assert!(snapshots.adopt(receive.recv().unwrap()));
    // The object is not in a snapshot yet, but it is not removed as unused.
    snapshots.retain(1).unwrap();
    let newest = snapshots.publish(head(5), b"", &Delta::new()).unwrap();
    assert_eq!(newest.objects.len(), 3, "two have become one");
    assert_eq!(contents(&store, &newest).unwrap(), model);
}

/// Many objects accumulate without merging, and can be merged later.
#[test]
fn merging_may_fall_behind() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut snapshots = Snapshots::open(store.clone(), 1, 1).unwrap();
    let mut model = Model::new();
    for epoch in 1..400u64 {
        let mut delta = Delta::new();
        for n in 0..if epoch == 1 { 2000 } else { 5 } {
            let key = (epoch * 31 + n) % 2000;
            let place = (0, (key * 2) as u16, key.to_be_bytes().to_vec());
            push(&mut delta, &place, Some(&epoch.to_be_bytes()));
            model.insert(place, epoch.to_be_bytes().to_vec());
        }
        snapshots.publish(head(epoch), b"", &delta).unwrap();
    }
    let newest = snapshots.newest().unwrap();
    assert_eq!(newest.objects.len(), 399);
    assert_eq!(contents(&store, newest).unwrap(), model);
    while let Some(mut merge) = snapshots.plan() {
        // The merge runs in steps, some of which are empty.
        let merged = (0..).find_map(|n| merge.step(n % 3 * 500).unwrap()).unwrap();
        assert!(merge.step(1).is_err(), "it is over");
        assert!(snapshots.adopt(merged));
    }
    let newest = snapshots.publish(head(400), b"", &Delta::new()).unwrap();
    assert!(newest.objects.len() < 40, "{}", newest.objects.len());
    assert_eq!(contents(&store, &newest).unwrap(), model);
}

/// Several threads load a snapshot, each row once.
#[test]
fn pieces_are_the_whole() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut snapshots = Snapshots::open(store.clone(), 1, 1).unwrap();
    for partitions in [1u64, 70, 4096] {
        let mut delta = Delta::whole();
        for key in 0..5000u64 {
            let place = (0, (key % partitions) as u16, key.to_be_bytes().to_vec());
            push(&mut delta, &place, Some(b"row"));
        }
        let newest = snapshots.publish(head(partitions), b"", &delta).unwrap();
        let loader = Arc::new(Loader::open(&store, &newest).unwrap());
        assert_eq!(loader.rows_max(), 5000);
        for count in [1, 2, 3, 8, 64, 1000] {
            let pieces = loader.pieces(count);
            assert!(!pieces.is_empty() && pieces.len() <= count);
            let (send, receive) = std::sync::mpsc::channel();
            let number = pieces.len();
            for piece in pieces {
                let (loader, send) = (loader.clone(), send.clone());
                let body = move || {
                    let mut rows = 0;
                    let visit = |_: LoadedRow<'_>| {
                        rows += 1;
                        Ok(())
                    };
                    loader.load(&piece, visit).unwrap();
                    send.send(rows).unwrap();
                };
                RealThreads::new().spawn("load", Box::new(body)).unwrap();
            }
            drop(send);
            let sizes: Vec<u64> = receive.iter().collect();
            assert_eq!(sizes.iter().sum::<u64>(), 5000);
            if partitions == 4096 && count <= 8 {
                let fair = 5000 / count as u64;
                assert_eq!(number, count);
                assert!(sizes.iter().all(|s| s.abs_diff(fair) < 300), "{sizes:?}");
            }
        }
    }
}
