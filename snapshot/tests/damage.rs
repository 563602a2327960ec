//! Damage is reported by name, never ignored: each bit and each length of a small store, and
//! objects that are missing, mistaken for one another, of another app or of a later version.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{contents, head, objects, small, Model, APP, LAST};
use tidemill_core::{Error, Kind, Result, TableId};
use tidemill_durable::{Fault, FaultyStore, MemoryStore, Store, StoreOp};
use tidemill_place::Partition;
use tidemill_snapshot::{discard_after, manifest_at, newest, open_at, Delta, Manifest, Snapshots};

/// Reads everything that a start would read.
fn read(store: &MemoryStore) -> Result<Option<(Manifest, Model, Vec<u8>)>> {
    let store: Arc<dyn Store> = Arc::new(store.clone());
    let Some(manifest) = newest(&*store, APP)? else { return Ok(None) };
    let rows = contents(&store, &manifest)?;
    let internal = manifest.internal(&*store)?;
    Ok(Some((manifest, rows, internal)))
}

/// Creates a store with these objects.
fn store_of(objects: &BTreeMap<String, Vec<u8>>) -> MemoryStore {
    let store = MemoryStore::new();
    objects.iter().for_each(|(name, bytes)| assert!(store.put(name, bytes).unwrap()));
    store
}

/// Damages an object, or mends it.
fn replace(store: &MemoryStore, name: &str, bytes: &[u8]) {
    store.delete(name).unwrap();
    assert!(store.put(name, bytes).unwrap());
}

/// Whether an error names the object and gives help.
fn names(error: &Error, object: &str) -> bool {
    error.what.contains(object) && !error.help.is_empty()
}

/// Checks that the small store has all kinds of objects.
#[test]
fn the_small_store_has_everything() {
    let (store, models) = small();
    let model = models[&LAST].clone();
    let (manifest, rows, internal) = read(&store).unwrap().unwrap();
    assert_eq!((rows, &internal[..]), (model, &[LAST as u8; 5][..]));
    assert_eq!(manifest.head, head(LAST));
    // The base, the rest of the third object, the merged one, and the last one.
    assert_eq!(manifest.objects.len(), 4, "{:?}", manifest.objects);
    assert_eq!(tidemill_snapshot::epochs(&store).unwrap(), [LAST - 1, LAST]);
}

#[test]
fn every_bit_and_every_length_counts() {
    let (store, _) = small();
    let objects = objects(&store);
    let right = read(&store).unwrap();
    let newest = right.as_ref().unwrap().0.name();
    let used: Vec<&String> = objects.keys().filter(|name| !name.starts_with("manifest/")).collect();
    let (mut refused, mut harmless) = (0, 0);
    let mut try_with = |name: &String, bytes: &[u8]| {
        replace(&store, name, bytes);
        match read(&store) {
            Ok(found) => {
                assert!(found == right, "{name}: wrong data");
                harmless += 1;
            }
            Err(error) => {
                assert!(names(&error, name), "{name}: {error}");
                refused += 1;
            }
        }
    };
    for name in used.into_iter().chain([&newest]) {
        let bytes = &objects[name];
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            try_with(name, &flipped);
        }
        for len in 0..bytes.len() {
            try_with(name, &bytes[..len]);
        }
        try_with(name, &[bytes, &b"\0"[..]].concat());
        replace(&store, name, bytes);
    }
    // Objects that only the older snapshot needs are not read.
    assert!(refused > 10_000 && refused > 2 * harmless, "{refused} refused, {harmless} harmless");
}

/// All bits are covered, and not by chance: any flipped bit in the objects of the newest snapshot
/// is refused.
#[test]
fn every_flipped_bit_of_what_is_needed_is_refused() {
    let (store, _) = small();
    let (manifest, ..) = read(&store).unwrap().unwrap();
    let mut needed: Vec<String> = manifest.objects.iter().map(|o| o.name.clone()).collect();
    needed.extend([manifest.name(), manifest.internal.name]);
    let mut whole = 0;
    for (name, bytes) in objects(&store).iter().filter(|(name, _)| needed.contains(name)) {
        let live = manifest.objects.iter().find(|object| object.name == *name);
        // Blocks of shards in which the object no longer applies are not read.
        let is_whole = live.is_none_or(|object| {
            // The header and the footer, and for each shard a block with its entry in the index.
            let of_shard = |bytes: &u64| if *bytes > 0 { bytes + 32 } else { 0 };
            object.len == 64 + object.shards.iter().map(of_shard).sum::<u64>()
        });
        whole += u64::from(is_whole);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            replace(&store, name, &flipped);
            assert!(!is_whole || read(&store).is_err(), "{name}, bit {bit}");
        }
        replace(&store, name, bytes);
    }
    assert!(whole >= 3, "the manifest, the internal state, and the newest rows at least");
}

#[test]
fn a_missing_object_is_named_and_nothing_older_taken() {
    let (store, _) = small();
    let all = objects(&store);
    let (manifest, ..) = read(&store).unwrap().unwrap();
    let mut needed: Vec<String> = manifest.objects.iter().map(|o| o.name.clone()).collect();
    needed.push(manifest.internal.name.clone());
    for name in &needed {
        store.delete(name).unwrap();
        let error = read(&store).unwrap_err();
        assert!(names(&error, name) && error.kind == Kind::Io, "{error}");
        assert!(Snapshots::open(Arc::new(store.clone()), APP, 1).is_err());
        assert!(store.put(name, &all[name]).unwrap());
    }
    // An operator may decide otherwise.
    store.delete(&manifest.internal.name).unwrap();
    let older = open_at(&store, APP, LAST - 1).unwrap();
    assert_eq!(older.internal(&store).unwrap(), [LAST as u8 - 1; 5]);
    assert_eq!(older.head, head(LAST - 1));
    let error = open_at(&store, APP, 1).unwrap_err();
    assert!(error.help.contains("9, 10"), "{error}");
    assert!(discard_after(&store, APP, 1).is_err(), "there is none");
    discard_after(&store, APP, LAST - 1).unwrap();
    let mut snapshots = Snapshots::open(Arc::new(store.clone()), APP, 10).unwrap();
    assert_eq!(snapshots.newest().unwrap().head, head(LAST - 1));
    snapshots.publish(head(LAST), b"again", &Delta::new()).unwrap();
}

/// Damage does not spread, because merged blocks are verified.
#[test]
fn a_merge_refuses_what_is_damaged() {
    let memory = MemoryStore::new();
    let mut snapshots = Snapshots::open(Arc::new(memory.clone()), APP, 1).unwrap();
    for epoch in 1..3 {
        let mut delta = Delta::new();
        delta.push(TableId(0), Partition(0), b"k", Some(&[epoch as u8]));
        snapshots.publish(head(epoch), b"", &delta).unwrap();
    }
    for (name, bytes) in objects(&memory).iter().filter(|(name, _)| name.starts_with("data/")) {
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            replace(&memory, name, &flipped);
            let error = snapshots.plan().unwrap().run().err().expect("it is damaged");
            assert!(names(&error, name), "{name}, bit {bit}: {error}");
        }
        replace(&memory, name, bytes);
    }
    assert!(snapshots.plan().unwrap().run().is_ok());
    assert_eq!(memory.list("data/").unwrap().len(), 3, "nothing came of the others");
}

#[test]
fn objects_mistaken_for_one_another_are_refused() {
    let (store, _) = small();
    let all = objects(&store);
    let (right, ..) = read(&store).unwrap().unwrap();
    let needed = |name: &str| {
        right.objects.iter().any(|object| object.name == name)
            || right.internal.name == name
            || right.name() == name
    };
    for (a, b) in all.keys().flat_map(|a| all.keys().map(move |b| (a, b))) {
        if a == b || !(needed(a) || needed(b)) {
            continue;
        }
        let mut swapped = all.clone();
        swapped.insert(a.clone(), all[b].clone());
        swapped.insert(b.clone(), all[a].clone());
        let error = read(&store_of(&swapped)).unwrap_err();
        assert!(names(&error, a) || names(&error, b), "{a}, {b}: {error}");
    }
}

#[test]
fn other_apps_and_newer_versions_are_refused() {
    let (store, _) = small();
    for result in [newest(&store, 1).map(|_| ()), manifest_at(&store, 1, LAST).map(|_| ())] {
        let error = result.unwrap_err();
        assert!(names(&error, "manifest/000000000000000a") && error.kind == Kind::Setting);
        assert!(error.what.contains("another app"), "{error}");
    }
    assert!(Snapshots::open(Arc::new(store.clone()), 1, 1).is_err());

    let all = objects(&store);
    let (manifest, ..) = read(&store).unwrap().unwrap();
    for name in [manifest.name(), manifest.objects[0].name.clone()] {
        let mut bytes = all[&name].clone();
        bytes[8..10].copy_from_slice(&2u16.to_le_bytes());
        replace(&store, &name, &bytes);
        let error = read(&store).unwrap_err();
        assert!(names(&error, &name) && error.kind == Kind::Setting, "{error}");
        assert!(error.what.contains("format 2"), "{error}");
        replace(&store, &name, &all[&name]);
    }
}

/// A lost put of which the store says that it succeeded is found at the next start.
#[test]
fn what_a_store_has_lost_is_found() {
    for nth in 1.. {
        let memory = MemoryStore::new();
        let faulty = FaultyStore::new(Arc::new(memory.clone()));
        let mut snapshots = Snapshots::open(Arc::new(faulty.clone()), APP, 1).unwrap();
        let mut delta = Delta::new();
        delta.push(TableId(0), Partition(0), b"k", Some(b"1"));
        snapshots.publish(head(1), b"one", &delta).unwrap();
        faulty.take_calls();
        faulty.fail_nth(None, nth, Fault::Lost);
        delta.push(TableId(0), Partition(0), b"k", Some(b"2"));
        let published = snapshots.publish(head(2), b"two", &delta);
        let calls = faulty.take_calls();
        if calls.len() < nth as usize {
            break;
        }
        let (op, lost) = calls[nth as usize - 1].clone();
        match read(&memory) {
            Ok(found) => {
                // Without its manifest it is not a snapshot.
                let (manifest, ..) = found.unwrap();
                let is_manifest = lost.starts_with("manifest/");
                assert_eq!(manifest.head.epoch, 1, "{op:?}");
                assert!(is_manifest || published.is_err(), "{op:?}");
            }
            Err(error) => assert!(names(&error, &lost), "{op:?} {lost}: {error}"),
        }
    }
}

#[test]
fn a_snapshot_whose_answer_was_lost_can_be_published_again() {
    let memory = MemoryStore::new();
    let faulty = FaultyStore::new(Arc::new(memory.clone()));
    let mut snapshots = Snapshots::open(Arc::new(faulty.clone()), APP, 1).unwrap();
    let mut delta = Delta::new();
    delta.push(TableId(0), Partition(0), b"k", Some(b"1"));
    // The first put is that of the internal state, the second that of the manifest.
    faulty.fail_nth(StoreOp::Put, 2, Fault::After);
    assert!(snapshots.publish(head(1), b"one", &delta).is_err());
    assert!(snapshots.newest().is_none(), "it does not count here");
    assert_eq!(snapshots.retain(1).unwrap(), None);
    snapshots.publish(head(1), b"one", &delta).unwrap();
    let kept = snapshots.retain(1).unwrap().unwrap();
    assert_eq!(kept.epochs, [1]);
    assert_eq!(memory.list("").unwrap().len(), 3, "the second attempt is swept");
    snapshots.publish(head(2), b"two", &Delta::new()).unwrap();
    assert_eq!(read(&memory).unwrap().unwrap().1.len(), 1);

    // A manifest of another writer is refused.
    let mut other = Snapshots::open(Arc::new(memory.clone()), APP, 2).unwrap();
    snapshots.publish(head(3), b"three", &Delta::new()).unwrap();
    let error = other.publish(head(3), b"three", &Delta::new()).unwrap_err();
    assert!(names(&error, "manifest/0000000000000003") && error.kind == Kind::Resource, "{error}");
    assert_eq!(other.publish(head(2), b"", &Delta::new()).unwrap_err().kind, Kind::Internal);
}

#[test]
fn names_are_never_used_again() {
    let memory = MemoryStore::new();
    for epoch in 1..4 {
        // A careless caller uses the same writer number each time.
        let faulty = FaultyStore::new(Arc::new(memory.clone()));
        let mut snapshots = Snapshots::open(Arc::new(faulty.clone()), APP, 1).unwrap();
        let mut delta = Delta::new();
        delta.push(TableId(0), Partition(epoch as u16), b"k", Some(b"1"));
        faulty.fail_nth(StoreOp::Put, 2, Fault::Before);
        assert!(snapshots.publish(head(epoch), b"", &delta).is_err());
        snapshots.publish(head(epoch), b"", &delta).unwrap();
    }
    assert_eq!(memory.list("data/").unwrap().len(), 6);
    assert_eq!(read(&memory).unwrap().unwrap().1.len(), 3);
}
