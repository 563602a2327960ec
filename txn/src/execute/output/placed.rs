//! Outputs that several threads write to their places at once, so that nobody has to put them together.
//!
//! Where every transaction of a handler sends one event to a stream, and nobody else sends any, the place of an output among
//! all is that of its input event among the handler's. Nobody knows beforehand that it will be so: it is taken for so where it
//! was so before, and is looked at behind. Those of transactions that abort are holes, and are closed then.

use std::sync::{Mutex, PoisonError};

use super::{Origin, WordRows, NEAR};
use crate::pool::Pool;

/// No place.
const NONE: usize = usize::MAX;

/// Where the outputs of a handler's events go, one for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Those of the first event.
    columns: [*mut i64; NEAR],
    origin: *mut Origin,
    pub(in crate::execute) len: usize,
}

// SAFETY: pointers; whoever writes to where they lead sees to it that nobody else does.
unsafe impl Send for Places {}
// SAFETY: as above.
unsafe impl Sync for Places {}

/// What a thread has placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) rows: usize,
    /// Something was to be placed that has no place of its own.
    pub(crate) is_wrong: bool,
}

/// How a thread places rows.
#[derive(Debug)]
pub(super) struct Placing {
    /// The place that was written to last.
    last: usize,
    is_wrong: bool,
}

impl Placing {
    /// Whether an output may go to this place: it is one of so many, and not that of the output before.
    #[inline(always)]
    pub(super) fn goes_to(&mut self, place: usize, room: usize) -> bool {
        if place >= room || place == self.last {
            self.is_wrong = true;
            return false;
        }
        self.last = place;
        true
    }
}

impl WordRows {
    /// So many places behind what there is; none where rows are too wide.
    pub(in crate::execute) fn places(&mut self, len: usize) -> Option<Places> {
        if self.columns.len() > NEAR || len == 0 {
            return None;
        }
        if self.room - self.len < len {
            self.make_room(len);
        }
        let at = self.len;
        let columns = self.near.map(|column| column.wrapping_add(at));
        let origin = self.origin.wrapping_add(at);
        Some(Places { columns, origin, len })
    }

    /// All places but these, which are left as holes, have been written to: they are rows now.
    ///
    /// # Safety
    /// So it is, and they are the last that were [given](WordRows::places).
    pub(in crate::execute) unsafe fn have_been_placed(
        &mut self,
        pool: &dyn Pool,
        places: &Places,
        mut holes: Vec<usize>,
    ) {
        let begin = self.len;
        self.len += places.len;
        self.settle();
        if holes.is_empty() {
            return;
        }
        holes.sort_unstable();
        holes.iter_mut().for_each(|hole| *hole += begin);
        let columns: Vec<Mutex<&mut Vec<i64>>> = self.columns.iter_mut().map(Mutex::new).collect();
        let origins = Mutex::new(&mut self.origins);
        pool.run(&|thread| {
            for column in columns.iter().skip(thread).step_by(pool.threads()) {
                close(&mut column.lock().unwrap_or_else(PoisonError::into_inner), &holes);
            }
            if thread + 1 == pool.threads() {
                close(&mut origins.lock().unwrap_or_else(PoisonError::into_inner), &holes);
            }
        });
        self.len -= holes.len();
    }

    /// Writes to places from now on.
    ///
    /// # Safety
    /// Until [`WordRows::unplace`], or as long as anything is written, they are there, and nobody else writes to those that
    /// are written to here.
    pub(in crate::execute) unsafe fn place(&mut self, places: &Places) {
        debug_assert!(self.len == 0, "nothing was collected before");
        let Places { columns, origin, len } = *places;
        (self.near, self.origin, self.room) = (columns, origin, len);
        self.placing = Some(Placing { last: NONE, is_wrong: false });
    }

    /// Collects by itself again. What it has placed, if it did.
    pub(in crate::execute) fn unplace(&mut self) -> Option<Placed> {
        let Placing { is_wrong, .. } = self.placing.take()?;
        let rows = std::mem::take(&mut self.len);
        self.look();
        Some(Placed { rows, is_wrong })
    }

    /// Takes back what a transaction has placed, if it has: the last one.
    pub(super) fn take_back_placed(&mut self, of: Origin) {
        if let Some(Placing { last, .. }) = &mut self.placing {
            // SAFETY: this thread has written there, and nobody else does.
            let is_of = |at: usize| unsafe { (*self.origin.add(at)).cause == of.cause };
            if *last != NONE && is_of(*last) {
                (*last, self.len) = (NONE, self.len - 1);
            }
        }
    }
}

/// Closes holes, which rise.
fn close<T: Copy>(items: &mut Vec<T>, holes: &[usize]) {
    let mut to = holes.first().copied().unwrap_or(items.len());
    for (nth, hole) in holes.iter().enumerate() {
        let end = holes.get(nth + 1).copied().unwrap_or(items.len());
        items.copy_within(hole + 1..end, to);
        to += end - hole - 1;
    }
    items.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Alone;

    fn pushed(rows: &mut WordRows, event: usize) {
        let word = |column| (event * 10 + column) as u64;
        rows.push(Origin::new(event as u32, 0, 0), event.wrapping_sub(7), 2, word);
    }

    #[test]
    fn rows_are_where_their_events_are_and_holes_are_closed() {
        let mut all = WordRows::new(2, 0);
        pushed(&mut all, 3);
        let places = all.places(6).expect("two columns");
        let mut parts = [0, 1].map(|_| WordRows::new(2, 0));
        // SAFETY: each event is one part's.
        parts.iter_mut().for_each(|part| unsafe { part.place(&places) });
        [11, 7, 12].iter().for_each(|event| pushed(&mut parts[0], *event));
        [10, 9].iter().for_each(|event| pushed(&mut parts[1], *event));
        parts[1].take_back(Origin::new(9, 0, 0));
        parts[1].take_back(Origin::new(8, 0, 0));
        let placed = parts.each_mut().map(|part| part.unplace());
        assert_eq!(placed, [3, 1].map(|rows| Some(Placed { rows, is_wrong: false })));
        // SAFETY: all but those have been written.
        unsafe { all.have_been_placed(&Alone, &places, vec![2, 1]) };
        let raw = all.take();
        assert_eq!(raw.columns, [[30, 70, 100, 110, 120], [31, 71, 101, 111, 121]]);
        let roots: Vec<u32> = raw.origins.iter().map(|origin| origin.root()).collect();
        assert_eq!(roots, [3, 7, 10, 11, 12]);
    }

    #[test]
    fn what_has_no_place_of_its_own_is_wrong() {
        let wrong = |places: &[usize]| {
            let to = places;
            let mut all = WordRows::new(1, 0);
            let places = all.places(3).expect("one column");
            let mut part = WordRows::new(1, 0);
            // SAFETY: nobody else writes.
            unsafe { part.place(&places) };
            for place in to {
                part.push(Origin::new(*place as u32, 0, 0), *place, 1, |_| 0);
            }
            part.unplace().expect("it was placing").is_wrong
        };
        assert!(!wrong(&[0, 1, 2]));
        assert!(wrong(&[0, 1, 1]));
        assert!(wrong(&[3]));
        assert!(wrong(&[usize::MAX]));
    }
}
