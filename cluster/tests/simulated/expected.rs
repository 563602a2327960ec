//! The outcome of a run that the guarantee of one serial order demands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_cluster::{EventSource, EventTime};
use tidemill_core::{Key, Late, Position, SourceId, StreamId, Value};
use tidemill_function::{Call, Functions as _, Sequencing, Tid};
use tidemill_reference::{CutAt, InputRow, Outcome};

use super::script::{Answers, OnNodes, Script, EVENTS};

/// Requests that were executed as one epoch, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Epoch {
    /// The cut's clock, in microseconds.
    pub clock_us: i64,
    /// The requests.
    pub requests: Vec<(Tid, Call)>,
}

/// The records that a cut has taken, where streams are in event time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// The cut's clock, in microseconds.
    pub clock_us: i64,
    /// The base of the cut's places.
    pub base: u64,
    /// The first record after the cut, for each source.
    pub upto: Vec<u64>,
    /// The event sources that did not hold the watermark back.
    pub idle: Vec<u32>,
    /// The event sources that have ended.
    pub ended: Vec<u32>,
    /// The requests by source and record, each with its number in the record.
    pub requests: Vec<(u32, u64, u32, Call)>,
}

/// The state, replies and events of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expected {
    /// The rows by key, for each table.
    pub tables: Vec<BTreeMap<Key, Arc<[Value]>>>,
    /// The returned value of each request, or the reason of its abort.
    pub replies: BTreeMap<Tid, Result<Value, String>>,
    /// The events in their order.
    pub events: Vec<Vec<Value>>,
    /// The numbers and times of the reported late events, in their order.
    pub late: Vec<Vec<Value>>,
    /// The watermark after each cut: the place before which all rows in event time have arrived.
    pub watermarks: Vec<Position>,
    /// The number of late events so far, after each cut.
    pub lates: Vec<u64>,
    /// The numbers of the requests that still wait for their watermark at the end.
    pub waiting: BTreeSet<i64>,
}

/// The bound of the number of requests in one record.
const TOGETHER_MAX: u64 = 1 << 10;

impl Expected {
    /// Executes the requests one after the other with the reference. `answers` has the answers from
    /// outside.
    pub fn of(script: &Arc<Script>, epochs: &[Epoch], answers: &Answers) -> Expected {
        let mut tids = Vec::new();
        let (mut rows, mut cuts) = (Vec::new(), Vec::new());
        for epoch in epochs {
            for (tid, call) in &epoch.requests {
                assert!(tids.last().is_none_or(|last| last < tid), "epochs are in the order");
                let offset = tids.len() as u64;
                rows.push(InputRow { offset, values: Script::event(offset as i64, call) });
                tids.push(*tid);
            }
            let (offsets, clock_us) = (vec![rows.len() as u64], epoch.clock_us);
            cuts.push(CutAt {
                offsets,
                clock_us,
                idle: Vec::new(),
                ended: Vec::new(),
                ..CutAt::default()
            });
        }
        let tids: Vec<Option<Tid>> = tids.into_iter().map(Some).collect();
        let (program, streams) = script.for_reference(&[], &tids, answers);
        let outcome = tidemill_reference::run(&program, &[rows], &ended(cuts));
        Expected::found(&outcome, &streams, &tids)
    }

    /// Executes the requests with the reference, where some are in event time. Also returns the
    /// epochs in the order that the guarantee gives.
    pub fn in_time(
        script: &Arc<Script>,
        of: &EventTime,
        taken: &[Taken],
        answers: &Answers,
    ) -> (Expected, Vec<Epoch>) {
        let sources = of.sources();
        let mut rows: Vec<Vec<InputRow>> = vec![Vec::new(); 1 + sources.len()];
        let (mut calls, mut cuts) = (Vec::new(), Vec::new());
        for cut in taken {
            for (source, record, nth, call) in &cut.requests {
                let values = Script::event(calls.len() as i64, call);
                let event_source = event_source(sources, *source, call);
                let to = &mut rows[event_source.map_or(0, |nth| 1 + nth as usize)];
                let offset = match event_source {
                    None => to.len() as u64,
                    Some(_) => record * TOGETHER_MAX + u64::from(*nth),
                };
                to.push(InputRow { offset, values });
                calls.push((*source, *record, *nth, call.clone()));
            }
            let mut offsets = vec![rows[0].len() as u64];
            let upto = |source: &EventSource| cut.upto[source.source as usize] * TOGETHER_MAX;
            offsets.extend(sources.iter().map(upto));
            let idle = cut.idle.iter().map(|nth| SourceId(nth + 1)).collect();
            let ended = cut.ended.iter().map(|nth| SourceId(nth + 1)).collect();
            cuts.push(CutAt { offsets, clock_us: cut.clock_us, idle, ended, ..CutAt::default() });
        }
        let cuts = ended(cuts);
        // The first run gives the watermarks, and so the places of transactions; no function
        // changes a watermark. The answers from outside are listed by place, so only the second run
        // has them.
        let (program, _) = script.for_reference(sources, &[], &Answers::new());
        let outcome = tidemill_reference::run(&program, &rows, &cuts);
        let watermarks = outcome.watermarks.iter().map(|of| of[2]);
        let watermarks: Vec<Position> = watermarks.take(taken.len()).map(own).collect();
        let (epochs, tids, lates) = epochs(script, sources, taken, &calls, &watermarks);
        let (program, streams) = script.for_reference(sources, &tids, answers);
        let outcome = tidemill_reference::run(&program, &rows, &cuts);
        let mut expected = Expected::found(&outcome, &streams, &tids);
        let side = program.streams.iter().position(|stream| *stream.spec.name == *"side");
        let late = side.and_then(|side| outcome.late.get(&StreamId(side as u16)));
        let told = |row: &tidemill_core::Row| vec![row[4].clone(), row[8].clone()];
        expected.late = late.into_iter().flatten().map(told).collect();
        (expected.watermarks, expected.lates) = (watermarks, lates);
        let told = epochs.iter().flat_map(|epoch| &epoch.requests);
        let told = told.filter(|(_, call)| Script::reports_late_event(call));
        expected.replies.extend(told.map(|(tid, _)| (*tid, Ok(Value::Null))));
        let waiting = calls.iter().zip(&tids).filter(|(_, tid)| tid.is_none());
        let number = |((.., call), _): (&(_, _, _, Call), _)| match call.args[0] {
            Value::Int(number) => number,
            ref other => unreachable!("{other} is no number of a request"),
        };
        expected.waiting = waiting.map(number).collect();
        (expected, epochs)
    }

    /// Reads the expected outcome from the reference's, for requests with these places.
    fn found(outcome: &Outcome, streams: &[[StreamId; 2]], tids: &[Option<Tid>]) -> Expected {
        let of = |stream: StreamId| outcome.outputs.get(&stream).into_iter().flatten();
        let index = |value: &Value| match value {
            Value::Int(n) => tids[*n as usize].expect("what is executed has a place"),
            other => unreachable!("{other} is no number of a request"),
        };
        let mut replies = BTreeMap::new();
        for [output, aborted] in streams {
            for (_, row) in of(*output) {
                replies.insert(index(&row[0]), Ok(row[1].clone()));
            }
            for (_, row) in of(*aborted) {
                let Some(Value::Str(reason)) = row.last() else {
                    unreachable!("a reason is a text")
                };
                replies.insert(index(&row[0]), Err(reason.to_string()));
            }
        }
        let rows = |table: &BTreeMap<Key, Box<[Value]>>| {
            table.iter().map(|(key, row)| (key.clone(), row.clone().into())).collect()
        };
        let tables = outcome.tables.iter().map(rows).collect();
        let events = of(EVENTS).map(|(_, row)| row.to_vec()).collect();
        Expected { tables, replies, events, ..Expected::default() }
    }
}

/// Adds a cut that ends the source of requests without event time.
fn ended(mut cuts: Vec<CutAt>) -> Vec<CutAt> {
    if let Some(last) = cuts.last().cloned() {
        let clock_us = last.clock_us + 1;
        let ended = [&[SourceId(0)], &last.ended[..]].concat();
        cuts.push(CutAt { clock_us, ended, ..last });
    }
    cuts
}

/// Returns the event source of a request, or `None` if the request is not in event time.
fn event_source(sources: &[EventSource], source: u32, call: &Call) -> Option<u32> {
    let (stream, _) = Script::timed(call)?;
    let stream = super::script::TIMED[stream];
    let is_it = |of: &EventSource| of.source == source && of.stream == stream;
    Some(sources.iter().position(is_it).expect("events come by event sources") as u32)
}

/// Converts a place of the reference into one of the recorded cuts.
fn own(at: Position) -> Position {
    match at {
        Position::MIN | Position::MAX => at,
        Position { time_us, source, offset } => {
            Position { time_us, source: SourceId(source.0 - 1), offset: offset / TOGETHER_MAX }
        }
    }
}

/// Returns the requests of each cut in the order of execution, the place of each request in the
/// list of all, and the number of late events so far.
fn epochs(
    script: &Arc<Script>,
    sources: &[EventSource],
    taken: &[Taken],
    calls: &[(u32, u64, u32, Call)],
    watermarks: &[Position],
) -> (Vec<Epoch>, Vec<Option<Tid>>, Vec<u64>) {
    let functions = OnNodes::new(script);
    let count = taken.first().map_or(1, |cut| cut.upto.len() as u32);
    let mut tids = vec![None; calls.len()];
    let (mut epochs, mut lates, mut lates_before) = (Vec::new(), Vec::new(), 0);
    let mut waiting: Vec<(Position, u32, usize)> = Vec::new();
    let mut newest: Vec<Option<i64>> = vec![None; sources.len()];
    let (mut number, mut before) = (0, Position::MIN);
    for (cut, now) in taken.iter().zip(watermarks) {
        let (mut arrivals, mut late) = (Vec::new(), Vec::new());
        for (source, record, nth, call) in &cut.requests {
            match event_source(sources, *source, call) {
                None => arrivals.push((*source, *record, *nth, number)),
                Some(of) => {
                    let (_, time_us) = Script::timed(call).expect("it is in event time");
                    let (source, newest) = (&sources[of as usize], &mut newest[of as usize]);
                    let bound_us =
                        newest.map_or(i64::MIN, |newest| newest - source.out_of_orderness_us);
                    *newest = (*newest).max(Some(time_us));
                    let (is_late, is_reported) = (time_us < bound_us, source.late == Late::Side);
                    let time_us = time_us.max(bound_us);
                    let at = Position { time_us, source: SourceId(of), offset: *record };
                    lates_before += u64::from(is_late || at < before);
                    match at < before || (is_late && is_reported) {
                        true => late.push((of, *record, *nth, number)),
                        false => waiting.push((at, *nth, number)),
                    }
                }
            }
            number += 1;
        }
        arrivals.sort();
        late.sort();
        waiting.sort();
        let on_time = waiting.partition_point(|(at, ..)| at < now);
        let order = arrivals.iter().map(|(.., number)| (*number, false));
        let order = order.chain(late.iter().map(|(.., number)| (*number, true)));
        let order: Vec<(usize, bool)> =
            order.chain(waiting.drain(..on_time).map(|(.., number)| (number, false))).collect();
        let places = Sequencing { sources: count, base: cut.base };
        let mut requests = Vec::new();
        for (rank, (number, is_late)) in order.into_iter().enumerate() {
            let (source, _, _, call) = &calls[number];
            let tid = places.tid(*source, rank as u64);
            let call = if is_late { functions.late(call.clone()) } else { call.clone() };
            tids[number] = Some(tid);
            requests.push((tid, call));
        }
        requests.sort_by_key(|(tid, _)| *tid);
        epochs.push(Epoch { clock_us: cut.clock_us, requests });
        before = *now;
        lates.push(lates_before);
    }
    (epochs, tids, lates)
}
