//! Any events at any number of workers have one order, in which the same events end intervals.

mod by_column;

use proptest::prelude::*;
use tidemill_core::{TableId, Value};
use tidemill_function::{Activation, Call, Target, Tid};
use tidemill_txn::program::{Abort, Builder, Program};

use super::*;
use crate::event_time::{EventSource, Interval};

const SOURCES: u32 = 3;
/// The intervals of streams in event time: of each stream by itself, and of a part of it.
const INTERVALS_US: [i64; 4] = [10, 4, 5, 20];
const ASIDE: u32 = 9;
/// Words of an event, after its time and its number: the streams on which it ends an interval, and
/// its time in the order.
const ENDS: usize = 2;
const STANDS: usize = 3;

/// Events that carry their streams. Late events of stream 1 go to another stream.
struct Marked(Program);

impl Functions for Marked {
    fn program(&self) -> &Program {
        &self.0
    }

    fn begin(&self, _: &Call) -> Result<Box<dyn Activation>, Abort> {
        unreachable!("the test executes no calls")
    }

    fn timed(&self, call: &Call) -> Option<(StreamId, i64)> {
        match call.target {
            Target::Function(stream @ 0..=1) => Some((StreamId(stream as u16), word(call, 0))),
            _ => None,
        }
    }

    fn late(&self, call: Call) -> Call {
        match call.target {
            Target::Function(1) => Call { target: Target::Function(ASIDE), ..call },
            _ => call,
        }
    }

    fn intervals(&self, call: &Call) -> u64 {
        let Target::Function(stream @ 0..=1) = call.target else { return 0 };
        let part = if word(call, 1) % 3 == 0 { 0b10 } else { 0 };
        (0b01 | part) << (2 * stream)
    }

    fn admitted(&self, call: Call, time_us: i64) -> Call {
        with(call, STANDS, time_us)
    }

    fn closes(&self, call: Call, streams: u64) -> Call {
        with(call, ENDS, streams as i64)
    }
}

fn word(call: &Call, at: usize) -> i64 {
    match call.args.get(at) {
        Some(Value::Int(word)) => *word,
        _ => 0,
    }
}

/// Returns the call with this word in that place.
fn with(call: Call, at: usize, word: i64) -> Call {
    let mut args = call.args.to_vec();
    args[at] = Value::Int(word);
    Call { args: args.into(), ..call }
}

/// A record: events with their streams and times. Other numbers are calls.
type Record = Vec<(u32, i64)>;

fn records() -> impl Strategy<Value = Vec<Vec<Record>>> {
    let event = (0..3u32, 0..12i64);
    let record = prop::collection::vec(event, 1..4);
    prop::collection::vec(prop::collection::vec(record, 0..12), SOURCES as usize)
}

/// The calls of an epoch in their order.
type Epoch = Vec<(Tid, Call)>;

/// Executes cuts that take this many records of each source, at this many workers.
fn at_workers(workers: u16, all: &[Vec<Record>], step: u64) -> Vec<Epoch> {
    let functions = Marked(Builder::new("marked").finish().expect("a program"));
    let source = |nth: u32| EventSource {
        source: nth / 2,
        stream: StreamId((nth % 2) as u16),
        group: 0,
        out_of_orderness_us: i64::from(nth),
        idle_us: None,
        late: [Late::Admit, Late::Side][(nth % 2) as usize],
    };
    let intervals = INTERVALS_US.map(|us| Interval { group: 0, us }).to_vec();
    let of = Arc::new(EventTime::new((0..2 * SOURCES).map(source).collect(), intervals));
    let mut times = of.begin();
    let manifest = Manifest { times: times.clone(), ..Manifest::default() };
    let mut ranks: Vec<Ranks> = (0..workers).map(|_| Ranks::after(of.clone(), &manifest)).collect();
    let mut before: Vec<Before> = of.newest(&times).into_iter().map(Before::new).collect();
    let (mut upto, mut epochs, mut at) = (vec![0; SOURCES as usize], Vec::new(), 0);
    let longest = all.iter().map(Vec::len).max().unwrap_or(0) as u64;
    for epoch in 1..=longest.div_ceil(step) {
        let from = upto.clone();
        let mut read: Vec<Vec<(u32, Item)>> = (0..workers).map(|_| Vec::new()).collect();
        for (source, records) in (0..).zip(all) {
            let behind = (epoch * step).min(records.len() as u64);
            upto[source as usize] = behind;
            for record in from[source as usize]..behind {
                for (nth, (stream, time_us)) in (0..).zip(&records[record as usize]) {
                    // Time advances.
                    let time_us = time_us + 3 * record as i64;
                    at += 1;
                    let args = [time_us, at, 0, time_us].map(Value::Int).into();
                    let target = Target::Function(*stream);
                    let call = Call { target, table: TableId(0), key: [].into(), args };
                    let (id, at) = ([].into(), (record, nth));
                    let task = Task { id, call, place: None, is_first: true };
                    let read_one = Read::new(at, task, source, &of, &functions);
                    let read_one = read_one.known(&mut before);
                    if let Some((event_source, time_us)) = read_one.timed {
                        let newest = &mut times.newest[event_source as usize];
                        *newest = (*newest).max(Some(time_us));
                    }
                    read[(source % u32::from(workers)) as usize]
                        .push((source, Item::Task(read_one)));
                }
            }
        }
        of.advance(&mut times, &upto);
        let (count, clock_us) = (1 << 20, 0);
        let base = epoch << 20;
        let cut = CutRecord {
            epoch,
            clock_us,
            base,
            count,
            from,
            upto: upto.clone(),
            times: times.clone(),
            by_owner: true,
            stops_on_fault: false,
        };
        let reported: Vec<RankReport> = ranks
            .iter_mut()
            .zip(read)
            .map(|(ranks, read)| ranks.take(&cut, read, false, &functions))
            .collect();
        let mut calls = Vec::new();
        for (nth, ranks) in ranks.iter_mut().enumerate() {
            for (other, reported) in reported.iter().enumerate().filter(|(other, _)| *other != nth)
            {
                ranks.receive(epoch, NodeId(other as u16), reported.clone());
            }
            let order = Sequencing { sources: SOURCES, base };
            let others = usize::from(workers) - 1;
            let (parts, _) = ranks
                .places(epoch, order, others, (u64::MAX, u64::MAX), &functions)
                .expect("all reported");
            let tasks = parts.into_iter().flat_map(|part| part.tasks);
            calls.extend(tasks.map(|(tid, task)| (tid, task.call)));
        }
        calls.sort_by_key(|(tid, _)| *tid);
        epochs.push(calls);
    }
    epochs
}

proptest! {
    #[test]
    fn intervals_end_with_the_same_events_at_any_number_of_workers(
        all in records(), step in 1..4u64,
    ) {
        let alone = at_workers(1, &all, step);
        for workers in [2, 3] {
            prop_assert_eq!(&at_workers(workers, &all, step), &alone);
        }
        let functions = Marked(Builder::new("marked").finish().unwrap());
        for calls in &alone {
            let on: Vec<u64> = calls.iter().map(|(_, call)| functions.intervals(call)).collect();
            for (bit, us) in INTERVALS_US.iter().enumerate() {
                // Late events have the time at which their source stood.
                let interval = |nth: usize| word(&calls[nth].1, STANDS).div_euclid(*us);
                let is_on = |nth: &usize| on[*nth] >> bit & 1 == 1;
                for nth in (0..calls.len()).filter(is_on) {
                    let mut behind = (nth + 1..calls.len()).filter(is_on);
                    let is_last = behind.all(|other| interval(other) != interval(nth));
                    let ends = word(&calls[nth].1, ENDS) as u64;
                    prop_assert_eq!(ends >> bit & 1 == 1, is_last);
                }
            }
        }
    }
}
