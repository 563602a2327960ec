//! Which events a stretch of an epoch's order has.

use std::ops::Range;

use super::Member;
use crate::order::Ranked;

/// A lane's events in a stretch.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    pub(crate) range: Range<usize>,
    /// Rows of each, and where what is noted of them begins.
    pub(crate) rows: usize,
    pub(crate) first: usize,
}

impl Events {
    /// Finds out which events of each lane a stretch has. They rise in every lane, so the first and the
    /// last of each say all, and as soon as all lanes have been seen nobody looks further.
    pub(crate) fn find(found: &mut Vec<Events>, member: &Member<'_>, stretch: &[Ranked]) {
        Events::find_of(found, member.lanes.iter().map(|lane| lane.rows()), stretch);
    }

    /// The same where it is said, by lane, how many rows its transactions have.
    pub(super) fn find_of(
        found: &mut Vec<Events>,
        rows: impl Iterator<Item = usize>,
        stretch: &[Ranked],
    ) {
        found.clear();
        let unseen = Range { start: usize::MAX, end: 0 };
        found.extend(rows.map(|rows| Events { range: unseen.clone(), rows, first: 0 }));
        let mut unseen = found.len();
        for ranked in stretch {
            let Events { range, .. } = &mut found[ranked.lane as usize];
            if range.start == usize::MAX {
                range.start = ranked.row as usize;
                unseen -= 1;
                if unseen == 0 {
                    break;
                }
            }
        }
        let mut unseen = found.len() - unseen;
        for ranked in stretch.iter().rev() {
            let Events { range, .. } = &mut found[ranked.lane as usize];
            if range.end == 0 {
                range.end = ranked.row as usize + 1;
                unseen -= 1;
                if unseen == 0 {
                    break;
                }
            }
        }
    }

    /// Asks for what a stretch begins with, and lets lanes stage no other events: they are somebody else's.
    pub(crate) fn stage(found: &[Events], member: &mut Member<'_>) {
        for (events, lane) in found.iter().zip(&mut member.lanes) {
            if !events.is_empty() {
                lane.stage_only(events.range.clone());
            }
        }
    }

    /// Whether the lane has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.range.start >= self.range.end
    }
}
