//! In every history the newest snapshot is the state at its epoch, bit for bit. A published
//! snapshot survives, and a failed one does no harm.

mod common;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;

use common::{cases, contents, whole, Dice, Model, Shape};
use proptest::prelude::*;
use tidemill_durable::{DirStore, Fault, FaultyStore, MemoryStore, Store};
use tidemill_sim::SimEnv;
use tidemill_snapshot::{open_at, Delta, Head, Merge, Merged, Snapshots};

const APP: u128 = 77;

/// The place of the snapshots, and the events that can happen there.
enum World {
    /// A directory on a disk that crashes.
    Disk(SimEnv),
    /// A store whose calls fail, and whose answers get lost.
    Faulty(FaultyStore),
}

impl World {
    fn store(&self) -> Arc<dyn Store> {
        match self {
            World::Disk(sim) => {
                let store = DirStore::alone(sim.disk.clone(), "/data/store");
                store.sweep().unwrap();
                Arc::new(store)
            }
            World::Faulty(store) => Arc::new(store.clone()),
        }
    }

    /// Plans a fault of some call soon.
    fn plan_fault(&self, dice: &Dice) {
        let nth = 1 + dice.below(40);
        match self {
            World::Disk(sim) => {
                let kind = [ErrorKind::Other, ErrorKind::StorageFull][dice.below(2) as usize];
                match dice.below(2) {
                    0 => sim.disk.fail_nth(None, nth, kind),
                    _ => sim.disk.fail_from(None, nth, kind),
                }
            }
            World::Faulty(store) => {
                let fault = [Fault::Before, Fault::After][dice.below(2) as usize];
                match dice.below(2) {
                    0 => store.fail_nth(None, nth, fault),
                    _ => store.fail_from(None, nth, fault),
                }
            }
        }
    }

    fn clear_faults(&self) {
        match self {
            World::Disk(sim) => sim.disk.clear_faults(),
            World::Faulty(store) => store.clear(),
        }
    }

    /// Ends the process, and also the machine where it can.
    fn crash(&self, dice: &Dice) {
        self.clear_faults();
        if let World::Disk(sim) = self {
            match dice.below(3) {
                0 => sim.disk.crash(),
                1 => sim.disk.crash_torn(),
                _ => {}
            }
        }
    }
}

/// The engine's knowledge.
struct Engine {
    snapshots: Snapshots,
    store: Arc<dyn Store>,
    merge: Option<Merge>,
    merged: Option<Merged>,
    model: Model,
    delta: Delta,
    epoch: u64,
    /// The newest epoch that was published.
    published: u64,
}

impl Engine {
    fn open(world: &World, writer: u64, states: &BTreeMap<u64, Model>, published: u64) -> Engine {
        let store = world.store();
        let snapshots = Snapshots::open(store.clone(), APP, writer).unwrap();
        let epoch = snapshots.newest().map_or(0, |newest| newest.head.epoch);
        assert!(epoch >= published, "the snapshot of epoch {published} survives, not {epoch}");
        let engine = Engine {
            snapshots,
            store,
            merge: None,
            merged: None,
            model: states.get(&epoch).cloned().unwrap_or_default(),
            delta: Delta::new(),
            epoch,
            published: epoch,
        };
        engine.check();
        engine
    }

    fn check(&self) {
        if let Some(newest) = self.snapshots.newest() {
            assert_eq!(contents(&self.store, newest).unwrap(), self.model);
            let internal = newest.internal(&*self.store).unwrap();
            assert_eq!(internal, internal_of(self.epoch));
        }
    }

    fn head(&self) -> Head {
        let epoch = self.epoch;
        let program = b"the program".to_vec();
        Head { epoch, fingerprint: 3, program, input_next: epoch * 2, cut_next: epoch * 3 }
    }

    fn publish(&mut self, states: &mut BTreeMap<u64, Model>, dice: &Dice) {
        // Sometimes this is the same epoch again, whose attempt failed.
        if !states.contains_key(&self.epoch) || self.epoch == self.published || dice.chance(70) {
            self.epoch += 1;
            states.insert(self.epoch, self.model.clone());
        }
        let state = &states[&self.epoch];
        if *state != self.model {
            // The attempt was of an older state, so it can't be repeated.
            self.epoch += 1;
            states.insert(self.epoch, self.model.clone());
        }
        let delta = if dice.chance(5) { whole(&self.model) } else { self.delta.clone() };
        if self.snapshots.publish(self.head(), &internal_of(self.epoch), &delta).is_ok() {
            self.published = self.epoch;
            self.delta = Delta::new();
        }
    }

    fn retain(&self, states: &BTreeMap<u64, Model>, dice: &Dice, world: &World) {
        let count = 1 + dice.below(3) as usize;
        let Ok(Some(kept)) = self.snapshots.retain(count) else { return };
        world.clear_faults();
        assert!(kept.epochs.contains(&self.published));
        assert!(kept.epochs.iter().filter(|epoch| **epoch <= self.published).count() <= count);
        let oldest = kept.epochs[0];
        assert_eq!((kept.input_next, kept.cut_next), (oldest * 2, oldest * 3));
        for epoch in kept.epochs {
            let manifest = open_at(&*self.store, APP, epoch).unwrap();
            assert_eq!(contents(&self.store, &manifest).unwrap(), states[&epoch]);
        }
    }

    fn merge(&mut self, dice: &Dice) {
        if let Some(merged) = self.merged.take() {
            // Otherwise the result is dropped.
            if dice.chance(90) {
                self.snapshots.adopt(merged);
            }
        } else if let Some(mut merge) = self.merge.take() {
            match merge.step(1 + dice.below(200)) {
                Ok(Some(merged)) => self.merged = Some(merged),
                Ok(None) => self.merge = Some(merge).filter(|_| dice.chance(98)),
                Err(_) => {}
            }
        } else {
            self.merge = self.snapshots.plan();
        }
    }
}

fn internal_of(epoch: u64) -> Vec<u8> {
    vec![epoch as u8; epoch as usize % 100]
}

fn run(seed: u64) {
    let dice = Dice::new(seed);
    let world = match dice.below(2) {
        0 => World::Disk(SimEnv::new(seed)),
        _ => World::Faulty(FaultyStore::new(Arc::new(MemoryStore::new()))),
    };
    let shape = Shape::random(&dice);
    // The states whose snapshots were attempted, successful or not.
    let mut states = BTreeMap::new();
    let mut engine = Engine::open(&world, 0, &states, 0);
    for step in 1..20 + dice.below(150) {
        match dice.below(100) {
            0..=29 => shape.change(&dice, &mut engine.model, &mut engine.delta),
            30..=54 => engine.publish(&mut states, &dice),
            55..=84 => engine.merge(&dice),
            85..=90 => engine.retain(&states, &dice, &world),
            91..=94 => world.plan_fault(&dice),
            95..=96 => world.clear_faults(),
            _ => {
                let published = engine.published;
                world.crash(&dice);
                // The engine ends without cleaning up.
                std::mem::forget(engine);
                engine = Engine::open(&world, step, &states, published);
            }
        }
    }
    world.clear_faults();
    engine.epoch += 1;
    states.insert(engine.epoch, engine.model.clone());
    let head = engine.head();
    engine.snapshots.publish(head, &internal_of(engine.epoch), &engine.delta).unwrap();
    engine.check();
    while let Some(merge) = engine.snapshots.plan() {
        assert!(engine.snapshots.adopt(merge.run().unwrap()));
    }
    engine.epoch += 1;
    let head = engine.head();
    engine.snapshots.publish(head, &internal_of(engine.epoch), &Delta::new()).unwrap();
    engine.check();
    (engine.merge, engine.merged) = (None, None);
    let kept = engine.snapshots.retain(1).unwrap().unwrap();
    assert_eq!(kept.epochs, [engine.epoch]);
    engine.check();
    // Only the needed objects are left.
    let newest = engine.snapshots.newest().unwrap();
    assert_eq!(engine.store.list("").unwrap().len(), newest.objects.len() + 2);
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn the_newest_snapshot_is_the_state_at_its_epoch(seed: u64) {
        run(seed);
    }
}
