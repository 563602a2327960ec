//! Outputs that several threads write directly to their places, so that they need not be merged.
//!
//! Every transaction of a handler may send one event to a stream that no other handler sends to.
//! Then the place of an output is that of its input event among the handler's events. This is not
//! known beforehand. It is assumed if it was so before, and checked afterwards. The places of
//! aborted transactions are holes, which are then closed.

use std::sync::{Mutex, PoisonError};

use super::{Origin, WordRows, NEAR};
use crate::pool::Pool;

/// No place.
const NONE: usize = usize::MAX;

/// The destinations of the outputs of a handler's events, one for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// The columns and the origin of the first event.
    columns: [*mut i64; NEAR],
    origin: *mut Origin,
    pub(in crate::execute) len: usize,
}

// SAFETY: these are pointers. A writer makes sure that no other thread writes to the same place.
unsafe impl Send for Places {}
// SAFETY: as above.
unsafe impl Sync for Places {}

/// The result of a thread that places rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) rows: usize,
    /// Whether an output had no place of its own.
    pub(crate) is_wrong: bool,
}

/// The state of a thread that places rows.
#[derive(Debug)]
pub(super) struct Placing {
    /// The place that was written last.
    last: usize,
    is_wrong: bool,
}

impl Placing {
    /// Whether an output may go to this place: it is below `room`, and not that of the output
    /// before.
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
    /// Creates `len` places after the existing rows. Returns `None` if rows are too wide.
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

    /// Turns the places into rows. All have been written, except the holes.
    ///
    /// # Safety
    /// This holds, and the places are the last that were [created](WordRows::places).
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
    /// The places exist until [`WordRows::unplace`], or as long as anything is written. No other
    /// thread writes to the same ones.
    pub(in crate::execute) unsafe fn place(&mut self, places: &Places) {
        debug_assert!(self.len == 0, "nothing was collected before");
        let Places { columns, origin, len } = *places;
        (self.near, self.origin, self.room) = (columns, origin, len);
        self.placing = Some(Placing { last: NONE, is_wrong: false });
    }

    /// Collects rows itself again. Returns the result of placing, if it placed rows.
    pub(in crate::execute) fn unplace(&mut self) -> Option<Placed> {
        let Placing { is_wrong, .. } = self.placing.take()?;
        let rows = std::mem::take(&mut self.len);
        self.look();
        Some(Placed { rows, is_wrong })
    }

    /// Removes the output that a transaction has placed last, if it has.
    pub(super) fn take_back_placed(&mut self, of: Origin) {
        if let Some(Placing { last, .. }) = &mut self.placing {
            // SAFETY: this thread has written there, and no other does.
            let is_of = |at: usize| unsafe { (*self.origin.add(at)).cause == of.cause };
            if *last != NONE && is_of(*last) {
                (*last, self.len) = (NONE, self.len - 1);
            }
        }
    }
}

/// Closes holes, which are in rising order.
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
    use crate::pool::SingleThread;

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
        // SAFETY: each event belongs to one part.
        parts.iter_mut().for_each(|part| unsafe { part.place(&places) });
        [11, 7, 12].iter().for_each(|event| pushed(&mut parts[0], *event));
        [10, 9].iter().for_each(|event| pushed(&mut parts[1], *event));
        parts[1].take_back(Origin::new(9, 0, 0));
        parts[1].take_back(Origin::new(8, 0, 0));
        let placed = parts.each_mut().map(|part| part.unplace());
        assert_eq!(placed, [3, 1].map(|rows| Some(Placed { rows, is_wrong: false })));
        // SAFETY: all but those have been written.
        unsafe { all.have_been_placed(&SingleThread, &places, vec![2, 1]) };
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
            // SAFETY: no other thread writes.
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
