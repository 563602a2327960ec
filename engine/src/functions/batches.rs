//! Batches of procedures: the clock that completes batches in arrival time, and the calls that end
//! batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{
    Column, DataType, Late, Schema, StreamId, StreamSpec, StreamTime, TableId, Value,
};
use tidemill_function::{Call, Target};
use tidemill_txn::program::{Origin, Program, Stream, Timer};

/// Creates a call of the engine itself. A sole owner executes it, so it has no place among the rows.
pub(super) fn call(target: Target, args: Arc<[Value]>) -> Call {
    Call { target, table: TableId(0), key: [].into(), args }
}

/// The end of a source.
pub(super) struct Last {
    /// The batched stream: the source's stream, or one derived from it.
    pub stream: StreamId,
    /// The number of its sources.
    pub sources: i64,
    /// The time of the newest event, if it had one.
    pub time_us: Option<i64>,
}

/// Timer streams of the clock, each with the stream whose batches it completes.
pub(super) struct Batches(BTreeMap<StreamId, StreamId>);

/// The number of checks within the interval of a batch, and the bounds of the period between
/// checks, in microseconds.
const LOOKS: i64 = 8;
const PERIOD_US: (i64, i64) = (10_000, 60_000_000);

impl Batches {
    /// The target of a check whether a batch is due.
    pub const TARGET: Target = Target::Function(u32::MAX - 4);

    /// The target of a source's end. When all sources of a stream have ended, its waiting events
    /// are the last batch.
    pub const LAST: Target = Target::Function(u32::MAX - 6);

    /// The target of an event that ends intervals. The arguments begin with the number of its
    /// stream. A bit for each of the streams [in intervals](Program::batches_by_event_time) follows,
    /// set where an interval ends.
    pub const ENDING: Target = Target::Function(u32::MAX - 5);

    /// Adds to a program a timer for each stream whose batches are complete after some time.
    pub fn add(program: &mut Program) -> Batches {
        let mut batches = BTreeMap::new();
        for index in 0..program.streams.len() {
            let stream = StreamId(index as u16);
            let Some(us) = program.batch_by_arrival(stream) else { continue };
            let (of, timer) = (&program.streams[index].spec, program.streams.len() as u16);
            let spec = StreamSpec {
                name: format!("{}.due", of.name).into(),
                schema: Schema::new(vec![Column::new("at", DataType::Timestamp)]).into(),
                time: StreamTime::Arrival,
                late: Late::default(),
                at: of.at.clone(),
            };
            program.streams.push(Stream { spec, origin: Origin::Input, batch: None });
            let period_us = (us / LOOKS).clamp(PERIOD_US.0, PERIOD_US.1);
            program.timers.push(Timer { stream: StreamId(timer), period_us });
            batches.insert(StreamId(timer), stream);
        }
        program.forget();
        Batches(batches)
    }

    /// Returns the check that a firing stands for, if it is a firing of these timers.
    pub fn look(&self, firing: StreamId) -> Option<Call> {
        let args = [Value::Int(self.0.get(&firing)?.0.into())].into();
        Some(call(Batches::TARGET, args))
    }

    /// Returns the calls at the end of one of `sources` sources of an input stream, whose newest
    /// event had the time `newest_us`. There is a call for each batched stream that comes from it,
    /// except those with intervals of event time. Each call comes after all events of that source.
    pub fn last(
        program: &Program,
        input: StreamId,
        (sources, newest_us): (usize, Option<i64>),
    ) -> Vec<Call> {
        let comes_so = |stream: &StreamId| {
            let by_event_time = program.batches_by_event_time().any(|(of, _)| of == *stream);
            program.streams[stream.index()].batch.is_some()
                && program.root_stream(*stream) == input
                && !by_event_time
        };
        let all = (0..program.streams.len() as u16).map(StreamId).filter(comes_so);
        let end = |of: StreamId| {
            let newest = newest_us.map_or(Value::Null, Value::Timestamp);
            let args = [Value::Int(of.0.into()), Value::Int(sources as i64), newest].into();
            call(Batches::LAST, args)
        };
        all.map(end).collect()
    }

    /// Parses the arguments of a `LAST` call. Any client may have written them into the log.
    pub fn last_of(program: &Program, call: &Call) -> Option<Last> {
        let [Value::Int(number), Value::Int(sources), newest] = &call.args[..] else { return None };
        let stream = StreamId(u16::try_from(*number).ok()?);
        let time_us = match newest {
            Value::Timestamp(time_us) => Some(*time_us),
            Value::Null => None,
            _ => return None,
        };
        let is_batched = program.streams.get(stream.index())?.batch.is_some();
        is_batched.then_some(Last { stream, sources: *sources, time_us })
    }

    /// Returns the stream that a check is about. Any client may have written the call into the log.
    pub fn of(&self, call: &Call) -> Option<StreamId> {
        let [Value::Int(number)] = call.args[..] else { return None };
        self.0.values().copied().find(|stream| i64::from(stream.0) == number)
    }

    /// Parses an `ENDING` call: the stream, the streams whose intervals end, and the event itself.
    /// Returns `None` where it is not an event of a stream. Any client may have written the call
    /// into the log.
    pub fn ending(program: &Program, call: &Call) -> Option<(StreamId, Arc<[StreamId]>, Call)> {
        let [Value::Int(number), Value::Int(ends), event @ ..] = &call.args[..] else {
            return None;
        };
        Batches::event_ending(program, call, (*number, *ends), event)
    }

    /// Parses an `ADMITTED` call in the same way. Also returns the time at which the event stands.
    pub fn admitted(
        program: &Program,
        call: &Call,
    ) -> Option<(StreamId, Arc<[StreamId]>, i64, Call)> {
        let [Value::Int(number), Value::Timestamp(time_us), Value::Int(ends), event @ ..] =
            &call.args[..]
        else {
            return None;
        };
        let found = Batches::event_ending(program, call, (*number, *ends), event);
        found.map(|(stream, ends, event)| (stream, ends, *time_us, event))
    }

    fn event_ending(
        program: &Program,
        call: &Call,
        (number, ends): (i64, i64),
        event: &[Value],
    ) -> Option<(StreamId, Arc<[StreamId]>, Call)> {
        let stream = StreamId(u16::try_from(number).ok()?);
        let of = program.streams.get(stream.index())?;
        let ends = (0..).zip(program.batches_by_event_time()).filter_map(|(bit, (of, _))| {
            let ends = program.root_stream(of) == stream && ends >> bit & 1 == 1;
            ends.then_some(of)
        });
        let is_event = of.origin == Origin::Input && event.len() == of.spec.schema.len();
        is_event.then(|| (stream, ends.collect(), Call { args: event.into(), ..call.clone() }))
    }

    /// Makes an event of a stream one that ends intervals.
    pub fn ends(stream: StreamId, ends: u64, call: Call) -> Call {
        let numbers = [Value::Int(stream.0.into()), Value::Int(ends.cast_signed())];
        let args = numbers.into_iter().chain(call.args.iter().cloned()).collect();
        Call { target: Batches::ENDING, args, ..call }
    }
}
