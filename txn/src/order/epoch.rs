//! An epoch: runs of events, ranked.

use tidemill_core::stamp::Admission;
use tidemill_core::{Batch, Position, SourceId, Stamp, StreamId};

use crate::program::Program;

/// Events of one stream from one source, by column.
#[derive(Clone, Debug)]
pub struct Run {
    /// The stream that the events are on (after map and filter).
    pub stream: StreamId,
    /// The source partition.
    pub source: SourceId,
    /// The events.
    pub batch: Batch,
    /// Per event: its row in the source.
    pub offsets: Vec<u64>,
    /// Per event: its time, or its admission's when admitted.
    pub times: Vec<i64>,
    /// Set for events that stand at a watermark instead of their own place: the watermark, and
    /// the epoch that admitted them.
    pub admitted: Option<(Position, u64)>,
}

impl Run {
    /// The stamp of an event.
    pub fn stamp(&self, row: usize) -> Stamp {
        let (source, offset) = (self.source, self.offsets[row]);
        match self.admitted {
            Some((at, epoch)) => Stamp::admitted(at, Admission { epoch, source, offset }),
            None => Stamp::of(self.position(row)),
        }
    }

    /// The event's own place among the input events.
    pub fn position(&self, row: usize) -> Position {
        Position { time_us: self.times[row], source: self.source, offset: self.offsets[row] }
    }

    /// The events at these rows.
    pub fn take(&self, rows: &[u32]) -> Run {
        let batch = self.batch.take(rows);
        let offsets = rows.iter().map(|r| self.offsets[*r as usize]).collect();
        let times = rows.iter().map(|r| self.times[*r as usize]).collect();
        Run { batch, offsets, times, ..*self }
    }

    /// The events from `start` on, `len` of them.
    pub fn slice(&self, start: usize, len: usize) -> Run {
        Run {
            batch: self.batch.slice(start, len),
            offsets: self.offsets[start..start + len].to_vec(),
            times: self.times[start..start + len].to_vec(),
            ..*self
        }
    }
}

/// A run as one handler sees it: each of its events is one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Index of the run.
    pub run: u32,
    /// Index of the handler.
    pub handler: u32,
}

/// A transaction of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Index of the lane.
    pub lane: u32,
    /// The event's row in the lane's run.
    pub row: u32,
}

/// Events in stamp order, ready to be executed.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// The events.
    pub runs: Vec<Run>,
    /// Runs by handler, in the handlers' declaration order within a run.
    pub lanes: Vec<Lane>,
    /// One entry for each transaction of an input event, in stamp order; the handlers on one
    /// event in declaration order.
    pub order: Vec<Ranked>,
}

impl Epoch {
    /// Ranks events. They may come in any order, in runs and within them; afterwards each run is
    /// in stamp order, so that every lane is walked from front to back.
    pub fn rank(program: &Program, mut runs: Vec<Run>) -> Epoch {
        for run in &mut runs {
            if !in_order(run) {
                let mut rows: Vec<u32> = (0..run.times.len() as u32).collect();
                rows.sort_by_key(|&r| (run.times[r as usize], run.offsets[r as usize]));
                *run = run.take(&rows);
            }
        }
        let mut lanes = Vec::new();
        for (run, events) in runs.iter().enumerate() {
            for handler in program.handlers_on(events.stream) {
                lanes.push(Lane { run: run as u32, handler: handler as u32 });
            }
        }
        let order = match &lanes[..] {
            [] => Vec::new(),
            [lane] => {
                let rows = runs[lane.run as usize].times.len() as u32;
                (0..rows).map(|row| Ranked { lane: 0, row }).collect()
            }
            [a, b] => {
                let (ra, rb) = (&runs[a.run as usize], &runs[b.run as usize]);
                if ra.admitted.is_none() && rb.admitted.is_none() && a.run != b.run {
                    merge_two(ra, rb, a.handler < b.handler)
                } else {
                    sort(&runs, &lanes)
                }
            }
            _ => sort(&runs, &lanes),
        };
        Epoch { runs, lanes, order }
    }

    /// Number of input events.
    pub fn events(&self) -> usize {
        self.runs.iter().map(|r| r.batch.len()).sum()
    }

    /// The stamp of a transaction's input event.
    pub fn stamp(&self, ranked: Ranked) -> Stamp {
        let lane = self.lanes[ranked.lane as usize];
        self.runs[lane.run as usize].stamp(ranked.row as usize)
    }
}

/// Whether a run is in stamp order. Admitted events have one time, and so are in order of rows.
fn in_order(run: &Run) -> bool {
    let (t, o) = (&run.times, &run.offsets);
    (1..t.len()).all(|i| (t[i - 1], o[i - 1]) < (t[i], o[i]))
}

/// Merges two runs in order without a branch that depends on the data: which comes next is not to
/// be predicted.
fn merge_two(a: &Run, b: &Run, a_first: bool) -> Vec<Ranked> {
    let (na, nb) = (a.times.len(), b.times.len());
    let mut order = Vec::with_capacity(na + nb);
    let (mut i, mut j) = (0, 0);
    // Among equal times the source decides, then (one source, two streams) the row, then the
    // handlers' order.
    let tie = a.source.cmp(&b.source);
    while i < na && j < nb {
        let (ta, tb) = (a.times[i], b.times[j]);
        let rows = a.offsets[i].cmp(&b.offsets[j]);
        let own = if a_first { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater };
        let take_b = (tb < ta) | ((tb == ta) & tie.then(rows).then(own).is_gt());
        order.push(Ranked {
            lane: u32::from(take_b),
            row: if take_b { j as u32 } else { i as u32 },
        });
        j += usize::from(take_b);
        i += usize::from(!take_b);
    }
    order.extend((i..na).map(|row| Ranked { lane: 0, row: row as u32 }));
    order.extend((j..nb).map(|row| Ranked { lane: 1, row: row as u32 }));
    order
}

/// The general case. The standard library's stable sort finds runs in order and merges them.
fn sort(runs: &[Run], lanes: &[Lane]) -> Vec<Ranked> {
    let mut order = Vec::new();
    if runs.iter().all(|r| r.admitted.is_none()) {
        let mut keyed = Vec::new();
        for (index, lane) in lanes.iter().enumerate() {
            let run = &runs[lane.run as usize];
            for row in 0..run.times.len() {
                let ranked = Ranked { lane: index as u32, row: row as u32 };
                keyed.push((run.times[row], run.source, run.offsets[row], lane.handler, ranked));
            }
        }
        keyed.sort_by_key(|k| (k.0, k.1, k.2, k.3));
        order.extend(keyed.into_iter().map(|k| k.4));
    } else {
        let mut keyed = Vec::new();
        for (index, lane) in lanes.iter().enumerate() {
            let run = &runs[lane.run as usize];
            for row in 0..run.times.len() {
                let ranked = Ranked { lane: index as u32, row: row as u32 };
                keyed.push(((run.stamp(row), lane.handler), ranked));
            }
        }
        keyed.sort_by(|a, b| a.0.cmp(&b.0));
        order.extend(keyed.into_iter().map(|k| k.1));
    }
    order
}
