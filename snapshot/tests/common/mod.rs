//! Helpers of the tests: random changes, the model of tables, and the content of a store.

#![allow(dead_code)] // No test uses all of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::ProptestConfig;
use tidemill_core::{Result, TableId};
use tidemill_durable::{MemoryStore, Store};
use tidemill_place::Partition;
use tidemill_sim::SimRandom;
use tidemill_snapshot::{load, Delta, Head, Manifest, Snapshots};

/// The table, partition and key of a row.
pub type Place = (u16, u16, Vec<u8>);
/// All rows.
pub type Model = BTreeMap<Place, Vec<u8>>;

/// Returns the configuration of random tests. A build runs few of the seeds; `make soak` runs more.
pub fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(default))
}

/// Choices from a seed.
pub struct Dice(SimRandom);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(SimRandom::new(seed))
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The form of rows in a run.
pub struct Shape {
    tables: u64,
    keys: u64,
    partitions: u64,
    row_bytes: u64,
}

impl Shape {
    pub fn random(dice: &Dice) -> Shape {
        Shape {
            tables: 1 + dice.below(3),
            keys: [3, 30, 300][dice.below(3) as usize],
            partitions: [1, 5, 200, 4096][dice.below(4) as usize],
            // Some rows are larger than a block.
            row_bytes: if dice.chance(10) { 70_000 } else { 20 },
        }
    }

    fn place(&self, dice: &Dice) -> Place {
        let (table, key) = (dice.below(self.tables), dice.below(self.keys));
        // Any stable function of the key is suitable.
        let partition = (key * 7919 + table) % self.partitions * (4096 / self.partitions);
        let key = match key % 3 {
            0 => key.to_be_bytes().to_vec(),
            1 => format!("key {key}").into_bytes(),
            _ => vec![0; key as usize % 50],
        };
        (table as u16, partition as u16, key)
    }

    /// Changes some rows, in the model and in the delta.
    pub fn change(&self, dice: &Dice, model: &mut Model, delta: &mut Delta) {
        for _ in 0..dice.below(30) {
            let place = self.place(dice);
            let len = dice.below(self.row_bytes) as usize;
            let row = dice.chance(70).then(|| vec![dice.below(256) as u8; len]);
            push(delta, &place, row.as_deref());
            match row {
                Some(row) => model.insert(place, row),
                None => model.remove(&place),
            };
        }
    }
}

pub fn push(delta: &mut Delta, (table, partition, key): &Place, row: Option<&[u8]>) {
    delta.push(TableId(*table), Partition(*partition), key, row);
}

/// Returns a delta with the whole of a model.
pub fn whole(model: &Model) -> Delta {
    let mut delta = Delta::whole();
    model.iter().for_each(|(place, row)| push(&mut delta, place, Some(row)));
    delta
}

/// Returns all rows of a snapshot, each of which must occur once.
pub fn contents(store: &Arc<dyn Store>, manifest: &Manifest) -> Result<Model> {
    let mut model = Model::new();
    load(store, manifest, |row| {
        let place = (row.table.0, row.partition.0, row.key.to_vec());
        assert_eq!(model.insert(place, row.row.to_vec()), None, "a row came twice");
        Ok(())
    })?;
    Ok(model)
}

/// Returns all objects of a store.
pub fn objects(store: &dyn Store) -> BTreeMap<String, Vec<u8>> {
    let names = store.list("").unwrap().into_iter().map(|object| object.name);
    names.map(|name| (name.clone(), store.get(&name).unwrap().unwrap())).collect()
}

/// The last epoch of the small store.
pub const LAST: u64 = 10;

/// The app of the small store.
pub const APP: u128 = 0xabc;

pub fn head(epoch: u64) -> Head {
    let program = b"the program".to_vec();
    Head { epoch, fingerprint: 5, program, input_next: 10 * epoch, cut_next: epoch }
}

/// Creates ten snapshots, of which two are retained, and the state at each. They have rows,
/// changes, a deletion, a row in a shard that had none, and a merge that replaces a part of an
/// object. A format's golden store is made of this: do not change it.
pub fn small() -> (MemoryStore, BTreeMap<u64, Model>) {
    let store = MemoryStore::new();
    let mut snapshots = Snapshots::open(Arc::new(store.clone()), APP, 9).unwrap();
    let (mut model, mut models) = (Model::new(), BTreeMap::new());
    for epoch in 1..=LAST {
        let mut delta = Delta::new();
        for key in 0..13u8 {
            let is_new = key == 12 && epoch == 3;
            let is_changed = u64::from(key) == epoch || (key == 5 && epoch == LAST);
            if !(is_new || is_changed || epoch == 1 && key != 12) {
                continue;
            }
            let place = (u16::from(key) % 2, u16::from(key) * 330, vec![b'k', key]);
            let row = (epoch != 4).then(|| vec![epoch as u8; if key == 7 { 200 } else { 3 }]);
            push(&mut delta, &place, row.as_deref());
            match row {
                Some(row) => model.insert(place, row),
                None => model.remove(&place),
            };
        }
        if epoch == LAST {
            let merge = snapshots.plan().expect("there are eight deltas");
            assert!(snapshots.adopt(merge.run().unwrap()));
        }
        snapshots.publish(head(epoch), &[epoch as u8; 5], &delta).unwrap();
        models.insert(epoch, model.clone());
    }
    snapshots.retain(2).unwrap();
    (store, models)
}
