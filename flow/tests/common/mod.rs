//! Sources, steps and a conductor for the tests.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, BooleanArray, Int64Array};
use tidemill_core::{Batch, Column, DataType, Error, Result, Schema, SourceId, StreamId};
use tidemill_env::Env;
use tidemill_flow::{
    Bad, Branch, Chunk, Conductor, Deposit, Deposits, Gate, Ingress, Input, Parcel, Polled, Spec,
    Stage, Transform, Turn,
};

pub fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![Column::new("v", DataType::Int)]))
}

/// Returns the value of a row, which shows its source and offset.
pub fn value(source: u32, offset: u64) -> i64 {
    i64::from(source) * 1_000_000_000 + offset as i64
}

pub fn time(offset: u64) -> i64 {
    offset as i64 * 3
}

/// The interval at which a row is bad.
pub const BAD_EVERY: u64 = 97;

/// The action of a counting source at an offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum At {
    End,
    Wait,
    Fail,
    Panic,
    Exit,
}

/// A source that counts rows. Some are bad, and every third poll finds nothing.
pub struct Count {
    pub source: u32,
    pub next: u64,
    pub stop: u64,
    pub at_stop: At,
    pub polls: u64,
}

impl Count {
    pub fn new(source: u32, stop: u64, at_stop: At) -> Count {
        Count { source, next: 0, stop, at_stop, polls: 0 }
    }
}

impl Ingress for Count {
    fn poll(&mut self, rows_max: usize) -> Result<Polled> {
        self.polls += 1;
        if self.next == self.stop {
            match self.at_stop {
                At::End => return Ok(Polled::End),
                At::Wait => return Ok(Polled::Pending),
                At::Fail => return Err(Error::input("the disk is gone")),
                At::Panic => panic!("on purpose"),
                At::Exit => std::process::exit(7),
            }
        }
        if self.polls.is_multiple_of(3) {
            return Ok(Polled::Pending);
        }
        let end = self.stop.min(self.next + rows_max as u64);
        let (mut offsets, mut bad) = (vec![], vec![]);
        for offset in self.next..end {
            if offset % BAD_EVERY == 5 {
                bad.push(Bad {
                    offset,
                    origin: "count".into(),
                    line: offset + 1,
                    raw: "x".into(),
                    reason: "not a number".into(),
                });
            } else {
                offsets.push(offset);
            }
        }
        let values: Vec<i64> = offsets.iter().map(|o| value(self.source, *o)).collect();
        let array: ArrayRef = Arc::new(Int64Array::from(values));
        let time_max = (end > self.next).then(|| time(end - 1));
        self.next = end;
        Ok(Polled::Rows(Chunk {
            batch: Batch::new(schema(), vec![array], offsets.len()),
            times: offsets.iter().map(|o| time(*o)).collect(),
            offsets,
            bad,
            next_offset: end,
            time_max,
            late: Vec::new(),
        }))
    }

    fn offset(&self) -> u64 {
        self.next
    }
}

/// A filter that retains rows whose value is divisible by this.
pub struct Divisible(pub i64);

impl Transform for Divisible {
    fn apply(&self, parcel: Parcel) -> Result<Parcel> {
        let ints = parcel.batch.ints(0).expect("no nulls");
        let keep: BooleanArray = ints.iter().map(|v| Some(v % self.0 == 0)).collect();
        parcel.retain(&keep)
    }
}

pub struct Negate;

impl Transform for Negate {
    fn apply(&self, parcel: Parcel) -> Result<Parcel> {
        let ints = parcel.batch.ints(0).expect("no nulls");
        let array: ArrayRef = Arc::new(Int64Array::from_iter_values(ints.iter().map(|v| -v)));
        let batch = Batch::new(schema(), vec![array], parcel.len());
        Ok(Parcel { batch, ..parcel })
    }
}

pub struct Refuse;

impl Transform for Refuse {
    fn apply(&self, parcel: Parcel) -> Result<Parcel> {
        Err(Error::input(format!("row {} divides by zero", parcel.offsets[0])))
    }
}

pub fn plain(stream: u16) -> Branch {
    Branch { stream: StreamId(stream), stages: vec![] }
}

pub fn divided(stream: u16, by: i64) -> Branch {
    Branch { stream: StreamId(stream), stages: vec![Stage::Filter(Arc::new(Divisible(by)))] }
}

pub fn input(source: u32, worker: usize, ingress: impl Ingress + 'static) -> Input {
    Input { source: SourceId(source), worker, ingress: Box::new(ingress), branches: vec![plain(0)] }
}

pub fn spec(workers: usize, inputs: Vec<Input>) -> Spec {
    Spec { env: Env::real(), workers, inputs, rows_max: 100, park_us: 1000 }
}

/// The deposits that the conductor took, by epoch.
pub type Taken = Arc<Mutex<BTreeMap<u64, Deposit>>>;

/// A conductor that opens an epoch, closes it when something is in it, takes it, and stops when all
/// sources have ended.
pub struct Collect {
    pub gate: Arc<Gate>,
    pub taken: Taken,
    /// The number of sources that have not ended.
    pub running: usize,
    /// The number of rows at which it closes an epoch. It also does so when nothing was added for
    /// some turns.
    pub rows: u64,
    pub same: (u64, u32),
    /// The next epoch to take.
    pub next: u64,
}

impl Collect {
    pub fn new(gate: &Arc<Gate>, sources: usize, rows: u64) -> (Collect, Taken) {
        let taken = Taken::default();
        let gate = gate.clone();
        (
            Collect { gate, taken: taken.clone(), running: sources, rows, same: (0, 0), next: 1 },
            taken,
        )
    }
}

impl Conductor for Collect {
    fn turn(&mut self, closed: u64, deposits: &mut Deposits) -> Result<Turn> {
        let open = self.gate.epoch();
        assert!(closed <= open, "an epoch that is open is not closed");
        while self.next < closed {
            let deposit = deposits.take(self.next);
            self.running -= deposit.reports.iter().filter(|r| r.ended).count();
            assert!(deposits.is_empty(self.next));
            self.taken.lock().unwrap().insert(self.next, deposit);
            self.next += 1;
        }
        if self.running == 0 {
            return Ok(Turn::Stop);
        }
        let (bytes, turns) = self.same;
        let same = if deposits.bytes(open) == bytes { turns + 1 } else { 0 };
        self.same = (deposits.bytes(open), same);
        let quiet = same > 5 && !deposits.is_empty(open);
        let enough = deposits.rows(open) >= self.rows || quiet || self.gate.is_full();
        if open == 0 || self.next == open && enough {
            self.gate.open(open + 1);
        }
        Ok(Turn::Idle)
    }
}

/// A function from a row's value to its value in a stream, if it is there.
pub type Becomes = fn(i64) -> Option<i64>;

/// Checks that every row of every source is there once, in the epoch of its offset, in order, and
/// all bad rows. `streams` has the function from values to those of each stream.
pub fn check(taken: &BTreeMap<u64, Deposit>, ends: &[(u32, u64)], streams: &[(u16, Becomes)]) {
    for &(source, end) in ends {
        let id = SourceId(source);
        let mut from = 0;
        let mut bad_from = 0;
        let mut ended = false;
        for (epoch, deposit) in taken {
            let report = deposit.reports.iter().find(|r| r.source == id);
            let to = report.map_or(from, |r| r.next_offset);
            assert!(to >= from);
            if let Some(report) = report {
                assert!(!ended, "nothing comes after the end");
                ended = report.ended;
                assert_eq!(report.rows, to - from);
                assert_eq!(report.time_max, (to > from).then(|| time(to - 1)));
                let bad: Vec<u64> = report.bad.iter().map(|b| b.offset).collect();
                let expected: Vec<u64> = (bad_from..to).filter(|o| o % BAD_EVERY == 5).collect();
                assert_eq!(bad, expected);
                bad_from = to;
            }
            for &(stream, becomes) in streams {
                let mine = deposit
                    .parcels
                    .iter()
                    .filter(|p| p.source == id && p.stream == StreamId(stream));
                let mut rows = Vec::new();
                for parcel in mine {
                    assert!(!parcel.is_empty());
                    assert_eq!(parcel.len(), parcel.times.len());
                    let values = parcel.batch.ints(0).expect("no nulls");
                    assert_eq!(values.len(), parcel.offsets.len());
                    let places = parcel.offsets.iter().zip(&parcel.times);
                    rows.extend(places.zip(values).map(|((o, t), v)| (*o, *t, *v)));
                }
                let expected: Vec<(u64, i64, i64)> = (from..to)
                    .filter(|o| o % BAD_EVERY != 5)
                    .filter_map(|o| becomes(value(source, o)).map(|v| (o, time(o), v)))
                    .collect();
                assert_eq!(rows, expected, "epoch {epoch}, source {source}, stream {stream}");
            }
            from = to;
        }
        assert_eq!(from, end, "source {source} was read to its end");
        assert!(ended);
    }
}
