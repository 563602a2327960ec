//! A queue of ready units between threads.

use super::sync::{AtomicU32, AtomicUsize, Ordering};

/// A lock-free queue. Each unit goes through it at most once, so it has a place for each unit and
/// never reuses one. A taker draws the next place, and waits until a unit is there.
#[derive(Debug)]
pub(crate) struct Ready {
    /// One more than the unit in each place; 0 before it is there.
    places: Vec<AtomicU32>,
    put: AtomicUsize,
    drawn: AtomicUsize,
    /// The number of units that have not been executed.
    left: AtomicUsize,
}

impl Ready {
    pub(crate) fn new(units: usize) -> Ready {
        Ready {
            places: (0..units).map(|_| AtomicU32::new(0)).collect(),
            put: AtomicUsize::new(0),
            drawn: AtomicUsize::new(0),
            left: AtomicUsize::new(units),
        }
    }

    /// Puts a unit that has not been put before.
    pub(crate) fn put(&self, unit: u32) {
        let place = self.put.fetch_add(1, Ordering::Relaxed);
        // The work done for the unit happens before it is taken.
        self.places[place].store(unit + 1, Ordering::Release);
    }

    /// Draws the next place.
    pub(crate) fn draw(&self) -> usize {
        self.drawn.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the unit in a place, if it is there.
    pub(crate) fn at(&self, place: usize) -> Option<u32> {
        self.places.get(place)?.load(Ordering::Acquire).checked_sub(1)
    }

    /// Counts executed units.
    pub(crate) fn executed(&self, units: usize) {
        self.left.fetch_sub(units, Ordering::AcqRel);
    }

    /// Whether all units have been executed.
    pub(crate) fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    #[test]
    fn each_unit_is_taken_once_and_finds_what_was_done_for_it() {
        loom::model(|| {
            let shared = Arc::new((Ready::new(2), AtomicU32::new(0)));
            let take = |(ready, done): &(Ready, AtomicU32)| loop {
                let place = ready.draw();
                let unit = loop {
                    match ready.at(place) {
                        Some(unit) => break unit,
                        None if ready.is_done() => return,
                        None => loom::thread::yield_now(),
                    }
                };
                // The first unit makes the second one ready.
                assert_eq!(done.fetch_add(1, Ordering::Relaxed), unit);
                if unit == 0 {
                    ready.put(1);
                }
                ready.executed(1);
            };
            shared.0.put(0);
            let other = {
                let shared = shared.clone();
                loom::thread::spawn(move || take(&shared))
            };
            take(&shared);
            other.join().unwrap();
            assert_eq!(shared.1.load(Ordering::Relaxed), 2);
        });
    }
}
