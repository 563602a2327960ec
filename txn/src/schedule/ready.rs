//! Units that are ready, from thread to thread.

use super::sync::{AtomicU32, AtomicUsize, Ordering};

/// A queue without locks, through which each unit goes at most once: so it has a place for each, and
/// none is ever used again. Who takes from it draws the next place, and waits for that one.
#[derive(Debug)]
pub(crate) struct Ready {
    /// One more than the unit; 0 when there is none yet.
    places: Vec<AtomicU32>,
    put: AtomicUsize,
    drawn: AtomicUsize,
    /// Units that have not been executed.
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

    /// Puts a unit that nobody has put before.
    pub(crate) fn put(&self, unit: u32) {
        let place = self.put.fetch_add(1, Ordering::Relaxed);
        // What was done for the unit happened before it is taken.
        self.places[place].store(unit + 1, Ordering::Release);
    }

    /// Draws a place.
    pub(crate) fn draw(&self) -> usize {
        self.drawn.fetch_add(1, Ordering::Relaxed)
    }

    /// The unit in a place, when it is there.
    pub(crate) fn at(&self, place: usize) -> Option<u32> {
        self.places.get(place)?.load(Ordering::Acquire).checked_sub(1)
    }

    /// So many units have been executed.
    pub(crate) fn executed(&self, units: usize) {
        self.left.fetch_sub(units, Ordering::AcqRel);
    }

    /// Whether all have.
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
