//! The events of a stretch of an epoch's order.

use std::ops::Range;

use super::Member;
use crate::order::Ranked;

/// A lane's events in a stretch.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    pub(crate) range: Range<usize>,
    /// The number of rows of each event, and the place where their notes begin.
    pub(crate) rows: usize,
    pub(crate) first: usize,
}

impl Events {
    /// Finds the events of each lane in a stretch.
    ///
    /// They rise in every lane, so the first and the last of each lane are enough. The search ends
    /// as soon as all lanes have been seen.
    pub(crate) fn find(found: &mut Vec<Events>, member: &Member<'_>, stretch: &[Ranked]) {
        Events::find_of(found, member.lanes.iter().map(|lane| lane.rows()), stretch);
    }

    /// Finds the events of each lane in a stretch, with the number of rows of its transactions
    /// given by lane.
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

    /// Prefetches the beginning of a stretch. Lanes stage no other events, because these belong to
    /// other threads.
    pub(crate) fn stage(found: &[Events], member: &mut Member<'_>) {
        for (events, lane) in found.iter().zip(&mut member.lanes) {
            if !events.is_empty() {
                lane.stage_only(events.range.clone());
            }
        }
    }

    /// Whether the lane has no events in the stretch.
    pub(crate) fn is_empty(&self) -> bool {
        self.range.start >= self.range.end
    }
}
