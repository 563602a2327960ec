//! The fence of a partition: it decides which records count. These are the records after which no
//! higher generation has begun before them in the log.
//!
//! The fence stores the places where generations have begun, from some offset on. Appends wait
//! here, by their offsets, until all records before them have been seen.

use std::collections::VecDeque;

use tidemill_cluster::{Refused, Then};

use crate::message::Mark;
use crate::requests::Known;

/// An append whose offset is known.
pub(crate) struct Waiting {
    pub(crate) offset: u64,
    pub(crate) generation: u64,
    /// Its mark, as readers see it.
    pub(crate) mark: Mark,
    /// Whether its generation begins with it.
    pub(crate) begins: bool,
    /// The time at which it was delivered.
    pub(crate) since_ns: u64,
    pub(crate) then: Then<Result<u64, Refused>>,
}

/// A callback and the answer that it can be given.
pub(crate) type Answer = (Then<Result<u64, Refused>>, Result<u64, Refused>);

/// The state of a partition.
#[derive(Default)]
pub(crate) struct Fence {
    /// From this offset on, all beginnings are known.
    base: u64,
    /// The highest generation that has begun before `base`.
    below: u64,
    /// The offset of the latest record before `base` with which that generation begins.
    begun: Option<u64>,
    /// The offsets and generations of the beginnings since `base`, repeated ones included. Both
    /// rise.
    begins: Vec<(u64, u64)>,
    /// All records below this offset have been seen.
    scanned: u64,
    /// Whether the last append was at the first unseen offset. Then no other process appends.
    is_only_writer: bool,
    /// The appends that wait, by offset.
    waiting: VecDeque<Waiting>,
}

impl Fence {
    /// Adopts stored state if it is ahead of what was seen here. It then replaces everything known.
    pub(crate) fn recall(&mut self, known: Known) {
        if known.offset > self.scanned {
            (self.base, self.scanned) = (known.offset, known.offset);
            (self.below, self.begun) = (known.generation, known.begun);
            self.begins.clear();
        }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn scanned(&self) -> u64 {
        self.scanned
    }

    /// Returns the highest generation that has begun before an offset. The offset must be between
    /// `base` and `scanned`.
    pub(crate) fn before(&self, offset: u64) -> u64 {
        let n = self.begins.partition_point(|(begun, _)| *begun < offset);
        n.checked_sub(1).map_or(self.below, |last| self.begins[last].1)
    }

    /// Returns the offset of the latest record that begins the generation that was the highest
    /// before an offset.
    pub(crate) fn begun(&self, offset: u64) -> Option<u64> {
        let n = self.begins.partition_point(|(begun, _)| *begun < offset);
        n.checked_sub(1).map_or(self.begun, |last| Some(self.begins[last].0))
    }

    /// Records that the record at an offset has been seen. No record is between it and the records
    /// seen before.
    pub(crate) fn see(&mut self, offset: u64, mark: Mark) {
        if offset < self.scanned {
            return;
        }
        while self.begins.last().is_some_and(|(said, _)| *said >= offset) {
            // That beginning was only announced. It will be seen in its place.
            self.begins.pop();
        }
        if mark.begins.is_some_and(|begins| begins >= self.before(offset)) {
            self.begins.extend(mark.begins.map(|begins| (offset, begins)));
        }
        self.scanned = offset + 1;
    }

    /// Records that the newest generation has repeated its beginning at an offset.
    pub(crate) fn observe(&mut self, offset: u64, generation: u64) {
        if offset >= self.scanned && self.begins.last().is_none_or(|(last, _)| *last < offset) {
            self.begins.push((offset, generation));
        }
    }

    /// Records that everything below an offset was deleted without having been seen.
    pub(crate) fn skip(&mut self, upto: u64) {
        self.scanned = self.scanned.max(upto);
    }

    /// Forgets the state below an offset that no one will ask for again.
    pub(crate) fn forget(&mut self, below: u64) {
        if below > self.base && below <= self.scanned {
            self.begun = self.begun(below);
            self.below = self.before(below);
            self.base = below;
            self.begins.retain(|(begun, _)| *begun >= below);
        }
    }

    /// Whether no other process appends, as far as is known. Then there is nothing to see except
    /// the appends of this process.
    pub(crate) fn is_only_writer(&self) -> bool {
        self.is_only_writer
    }

    /// Adds an append whose offset is known. If all records before it have been seen, it has been
    /// seen, too.
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        self.is_only_writer = waiting.offset == self.scanned;
        if self.is_only_writer {
            self.see(waiting.offset, waiting.mark);
        }
        // Reports arrive in the order of their offsets. This handles the case that they do not.
        let at = self.waiting.partition_point(|w| w.offset < waiting.offset);
        self.waiting.insert(at, waiting);
    }

    /// Takes the answers that can be given.
    pub(crate) fn answers(&mut self, answers: &mut Vec<Answer>) {
        while self.waiting.front().is_some_and(|w| w.offset < self.scanned) {
            let Some(w) = self.waiting.pop_front() else { return };
            let before = self.before(w.offset);
            let is_fenced = before > w.generation || (w.begins && before == w.generation);
            answers.push((w.then, if is_fenced { Err(Refused::Fenced) } else { Ok(w.offset) }));
        }
    }

    /// Gives up the appends that have waited since this time or longer.
    pub(crate) fn overdue(&mut self, since_ns: u64, answers: &mut Vec<Answer>) {
        while self.waiting.front().is_some_and(|w| w.since_ns <= since_ns) {
            answers.extend(self.waiting.pop_front().map(|w| (w.then, Err(Refused::Unknown))));
        }
    }
}

/// Goes through the messages of a partition in order, and decides which of them count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Judge {
    /// The highest generation that has begun.
    pub(crate) generation: u64,
}

impl Judge {
    /// Whether the next message counts.
    pub(crate) fn counts(&mut self, mark: Mark) -> bool {
        match mark {
            Mark { begins: Some(begins), .. } => {
                let is_higher = begins > self.generation;
                self.generation = self.generation.max(begins);
                is_higher
            }
            Mark { generation: Some(generation), .. } => generation >= self.generation,
            // A message of an earlier generation, or of another program.
            Mark { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn of(generation: u64) -> Mark {
        Mark { generation: Some(generation), begins: None }
    }

    fn begins(generation: u64) -> Mark {
        Mark { generation: Some(generation), begins: Some(generation) }
    }

    #[test]
    fn a_record_counts_unless_a_higher_generation_has_begun() {
        let log = [
            (begins(1), true),
            (of(1), true),
            (begins(3), true),
            (of(1), false),
            (begins(2), false),
            (of(2), false),
            (begins(3), false),
            (of(3), true),
            (Mark::default(), false),
        ];
        let mut judge = Judge::default();
        let mut fence = Fence::default();
        fence.recall(Known { offset: 10, generation: 0, begun: None });
        for (offset, (mark, counts)) in (10..).zip(log) {
            assert_eq!(judge.counts(mark), counts, "{offset}");
            fence.see(offset, mark);
        }
        assert_eq!([10, 11, 12, 13, 19].map(|offset| fence.before(offset)), [0, 1, 1, 3, 3]);
        assert_eq!([10, 13, 19].map(|offset| fence.begun(offset)), [None, Some(12), Some(16)]);
        fence.forget(14);
        assert_eq!((fence.base(), fence.before(14), fence.begun(14)), (14, 3, Some(12)));
        // An announced beginning counts until it is seen.
        fence.observe(30, 3);
        fence.skip(40);
        fence.observe(35, 3);
        assert_eq!((fence.before(40), fence.begun(40)), (3, Some(30)));
        fence.observe(50, 3);
        fence.see(40, begins(4));
        fence.see(50, begins(3));
        assert_eq!((fence.before(51), fence.begun(51)), (4, Some(40)));
    }

    #[test]
    fn appends_are_answered_when_all_before_them_was_seen() {
        let mut fence = Fence { below: 1, ..Fence::default() };
        let mark = Mark::default();
        let (send, receive) = channel();
        for (offset, generation, begins) in
            [(3, 2, false), (1, 2, true), (2, 2, true), (4, 1, false)]
        {
            let send = send.clone();
            let then: Then<_> = Box::new(move |result| send.send((offset, result)).unwrap());
            let waiting = Waiting { offset, generation, mark, begins, since_ns: offset, then };
            fence.wait(waiting);
        }
        let mut answers = Vec::new();
        fence.answers(&mut answers);
        assert!(answers.is_empty());
        assert!(!fence.is_only_writer());
        fence.see(0, of(1));
        fence.see(1, begins(2));
        fence.see(2, begins(2));
        fence.see(3, of(2));
        fence.answers(&mut answers);
        fence.overdue(4, &mut answers);
        for (then, result) in answers {
            then(result);
        }
        let fenced = Err(Refused::Fenced);
        let expected = [(1, Ok(1)), (2, fenced), (3, Ok(3)), (4, Err(Refused::Unknown))];
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn who_appends_alone_has_seen_it() {
        let mut fence = Fence::default();
        fence.recall(Known { offset: 5, generation: 2, begun: Some(1) });
        let (send, receive) = channel();
        let append = |fence: &mut Fence, offset, generation, mark: Mark| {
            let send = send.clone();
            let then: Then<_> = Box::new(move |result| send.send((offset, result)).unwrap());
            let begins = mark.begins.is_some();
            fence.wait(Waiting { offset, generation, mark, begins, since_ns: 0, then });
            let mut answers = Vec::new();
            fence.answers(&mut answers);
            answers.into_iter().for_each(|(then, result)| then(result));
        };
        append(&mut fence, 5, 3, begins(3));
        append(&mut fence, 6, 3, of(3));
        assert!(fence.is_only_writer());
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), [(5, Ok(5)), (6, Ok(6))]);
        assert_eq!((fence.before(7), fence.begun(7)), (3, Some(5)));
        // Another process has appended, and its records must be seen.
        append(&mut fence, 8, 3, of(3));
        assert!(!fence.is_only_writer());
        assert_eq!(receive.try_iter().count(), 0);
        fence.see(7, begins(4));
        fence.see(8, of(3));
        append(&mut fence, 9, 3, of(3));
        let fenced = Err(Refused::Fenced);
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), [(8, fenced), (9, fenced)]);
    }
}
