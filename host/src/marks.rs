//! The epochs whose outputs have left, for a writer that copies them elsewhere and may be slow.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::Left;

/// The minimum number of output records between two waiting marks. So a slow writer takes few
/// records at once, and few marks wait.
const APART: u64 = 4096;

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Left>,
    /// The number of records before the last mark but one, or the last one that was taken.
    before: u64,
    last: Option<Left>,
}

/// The waiting marks.
#[derive(Default)]
pub(crate) struct LeftMarks {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

fn records(left: &Left) -> u64 {
    left.ends.iter().sum()
}

impl LeftMarks {
    /// Adds a mark, unless it equals the last one.
    pub fn add(&self, left: Left) {
        let mut waiting = self.waiting.lock();
        if waiting.last.as_ref() == Some(&left) {
            return;
        }
        if waiting.last.as_ref().is_some_and(|last| last.generation != left.generation) {
            // Marks of an earlier generation contain less.
            waiting.queue.clear();
        }
        waiting.last = Some(left.clone());
        let is_near = records(&left) < waiting.before.saturating_add(APART);
        match waiting.queue.pop_back() {
            Some(last) if !is_near => {
                waiting.before = records(&last);
                waiting.queue.push_back(last);
            }
            _ => {}
        }
        waiting.queue.push_back(left);
        drop(waiting);
        self.more.notify_all();
    }

    /// Returns the next mark, or `None` if there is none within this time.
    pub fn next(&self, wait: Duration) -> Option<Left> {
        let mut waiting = self.waiting.lock();
        if waiting.queue.is_empty() {
            self.more.wait_for(&mut waiting, wait);
        }
        let next = waiting.queue.pop_front()?;
        if waiting.queue.is_empty() {
            waiting.before = records(&next);
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_wait_and_each_is_no_large_step() {
        let marks = LeftMarks::default();
        let left = |generation, end| {
            let written = std::sync::Arc::default();
            Left { generation, base: end, ends: vec![end], recorded: 0, written }
        };
        (1..=20_000).for_each(|end| marks.add(left(1, end)));
        let next = || marks.next(Duration::ZERO).map(|left| left.base);
        let taken: Vec<u64> = std::iter::from_fn(next).collect();
        assert!(taken.len() < 10 && taken.last() == Some(&20_000), "{taken:?}");
        assert!(taken.windows(2).all(|two| two[1] - two[0] <= APART + 1), "{taken:?}");
        marks.add(left(1, 20_000));
        assert_eq!(next(), None);
        marks.add(left(1, 30_000));
        marks.add(left(2, 20_001));
        assert_eq!((next(), next()), (Some(20_001), None));
    }
}
