//! Every version reads the stores of earlier versions.
//!
//! `golden/v1` has the snapshots that `common::small` takes. A new format gets a directory of its
//! own, written by `cargo test -p tidemill-snapshot --test golden -- --ignored`. The old ones stay
//! as they are.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{contents, head, objects, small, APP, LAST};
use tidemill_durable::{DirStore, Store};
use tidemill_env::RealDisk;
use tidemill_snapshot::{epochs, open_at, VERSION};

fn golden(version: u16) -> DirStore {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    DirStore::alone(Arc::new(RealDisk::new()), root.join(format!("v{version}")))
}

#[test]
fn all_versions_are_read() {
    let (_, models) = small();
    for version in 1..=VERSION {
        let store: Arc<dyn Store> = Arc::new(golden(version));
        assert_eq!(epochs(&*store).unwrap(), [LAST - 1, LAST], "version {version}");
        for epoch in [LAST - 1, LAST] {
            let manifest = open_at(&*store, APP, epoch).unwrap();
            assert_eq!(manifest.head, head(epoch));
            assert_eq!(manifest.internal(&*store).unwrap(), [epoch as u8; 5]);
            assert_eq!(contents(&store, &manifest).unwrap(), models[&epoch]);
        }
    }
}

/// (For manifests, a unit test checks the same.)
#[test]
fn data_objects_have_the_format_of_the_golden_store() {
    let (golden, small) = (objects(&golden(VERSION)), objects(&small().0));
    let (first, bytes) = golden.first_key_value().unwrap();
    assert_eq!(small.get(first), Some(bytes), "a change of format: raise VERSION");
}

#[test]
#[ignore = "writes the golden store of a new format"]
fn write_golden() {
    let store = golden(VERSION);
    assert!(store.list("").unwrap().is_empty(), "what is there stays as it is");
    objects(&small().0).iter().for_each(|(name, bytes)| assert!(store.put(name, bytes).unwrap()));
}
