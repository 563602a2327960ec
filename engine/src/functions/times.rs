//! Events with event time: their times, and the treatment of late ones.

use std::collections::BTreeMap;

use tidemill_core::{Late, Row, StreamId, StreamSpec, StreamTime, Value};
use tidemill_function::{Call, Context, Target};
use tidemill_txn::order::Groups;
use tidemill_txn::program::{Abort, Origin, Program, Stream};

/// The input streams with event time.
pub(super) struct Times {
    streams: BTreeMap<StreamId, InTime>,
    /// For each stream, a stream with event time that has the same watermark.
    beside: Vec<Option<StreamId>>,
}

struct InTime {
    /// The column of the times.
    column: usize,
    late: Late,
    /// The stream and those derived from it, each with the stream of its late events.
    sides: Vec<(StreamId, StreamId)>,
}

impl Times {
    /// The target of a late event that is passed on to the stream of late events.
    pub const LATE: Target = Target::Function(u32::MAX - 3);

    /// The target of a late event that is executed nevertheless. The arguments begin with the
    /// number of its stream and the time at which it stands. A bit for each stream in intervals
    /// follows, set where an interval ends with the event.
    pub const ADMITTED: Target = Target::Function(u32::MAX - 7);

    /// Finds the streams of a program. Adds a stream of late events for each whose late events are
    /// passed on.
    pub fn add(program: &mut Program, groups: &Groups) -> Times {
        let mut times = BTreeMap::new();
        for index in 0..program.streams.len() {
            let Stream { spec, origin, .. } = &program.streams[index];
            let StreamTime::Event { column } = spec.time else { continue };
            if *origin == Origin::Input {
                let late = spec.late;
                times.insert(StreamId(index as u16), InTime { column, late, sides: Vec::new() });
            }
        }
        for index in 0..program.streams.len() {
            let stream = StreamId(index as u16);
            let is_output = program.streams[index].is_output();
            let root = if is_output { stream } else { program.root_stream(stream) };
            let Some(of) = times.get_mut(&root).filter(|of| of.late == Late::Side) else {
                continue;
            };
            let StreamSpec { name, schema, at, .. } = &program.streams[index].spec;
            let spec = StreamSpec {
                name: format!("{name}.late").into(),
                schema: schema.clone(),
                time: StreamTime::Arrival,
                late: Late::default(),
                at: at.clone(),
            };
            of.sides.push((stream, StreamId(program.streams.len() as u16)));
            program.streams.push(Stream { spec, origin: Origin::Emitted, batch: None });
        }
        program.forget();
        let beside = |of: &usize| times.keys().copied().find(|s| groups.of[s.index()] == *of);
        Times { beside: groups.of.iter().map(beside).collect(), streams: times }
    }

    /// Returns the time at which an event of an input stream stands. That is its own time, or the
    /// watermark at the previous cut, if it is late or has none. It is the clock where no stream
    /// that shares a table has event time.
    pub fn stands(&self, stream: StreamId, time_us: Option<i64>, context: &dyn Context) -> i64 {
        let beside = self.beside.get(stream.index()).copied().flatten();
        match beside.and_then(|beside| context.mark_us(beside)) {
            None => context.now_us(),
            Some(mark_us) => time_us.map_or(mark_us, |time_us| time_us.max(mark_us)),
        }
    }

    /// Whether an input stream has event time.
    pub fn has(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// The time of an event of a stream, if it has one. Any client may have written the event into
    /// the log.
    pub fn of(&self, stream: StreamId, event: &[Value]) -> Option<i64> {
        match event.get(self.streams.get(&stream)?.column)? {
            Value::Timestamp(time) | Value::Int(time) | Value::Decimal(time, _) => Some(*time),
            _ => None,
        }
    }

    /// Returns the call that is executed for a late event.
    pub fn late(&self, stream: StreamId, call: Call) -> Call {
        match self.streams.get(&stream) {
            Some(InTime { late: Late::Side, .. }) => {
                let number = [Value::Int(stream.0.into())];
                let args = number.into_iter().chain(call.args.iter().cloned()).collect();
                Call { target: Times::LATE, args, ..call }
            }
            _ => call,
        }
    }

    /// Returns the call of a late event of a stream that is executed, and stands at this time.
    pub fn admitted(stream: StreamId, time_us: i64, call: Call) -> Call {
        let numbers = [Value::Int(stream.0.into()), Value::Timestamp(time_us), Value::Int(0)];
        let args = numbers.into_iter().chain(call.args.iter().cloned()).collect();
        Call { target: Times::ADMITTED, args, ..call }
    }

    /// Sets the intervals that end with an admitted event.
    pub fn admitted_ends(mut call: Call, ends: u64) -> Call {
        let mut args = call.args.to_vec();
        if let Some(bits) = args.get_mut(2) {
            *bits = Value::Int(ends.cast_signed());
        }
        call.args = args.into();
        call
    }

    /// Returns the stream and the values of a late event, from its call.
    fn late_event(&self, call: &Call) -> Option<(StreamId, Vec<Value>)> {
        let Some((Value::Int(number), event)) = call.args.split_first() else { return None };
        let stream = self.streams.keys().find(|stream| i64::from(stream.0) == *number)?;
        Some((*stream, event.to_vec()))
    }

    /// Returns the events of a late event on the late streams of all streams that it is on. Any
    /// client may have written the call into the log.
    ///
    /// # Errors
    /// If it is none.
    pub fn passed_on(&self, program: &Program, call: &Call) -> Result<Vec<(StreamId, Row)>, Abort> {
        let unknown = || Abort::refused("there is no such function");
        let (root, event) = self.late_event(call).ok_or_else(unknown)?;
        if program.streams[root.index()].spec.schema.columns.len() != event.len() {
            return Err(unknown());
        }
        let sides = &self.streams[&root].sides;
        let side = |(stream, row): (StreamId, Vec<Value>)| {
            let (_, late) = sides.iter().find(|(of, _)| *of == stream)?;
            let row = program.stored_output(*late, &row);
            Some(row.map(|row| (*late, row.into())))
        };
        program.views(root, &event).on.into_iter().filter_map(side).collect()
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, TableId};
    use tidemill_txn::program::{Builder, Expr};

    use super::*;

    #[test]
    fn late_events_are_told_where_their_stream_says_so() {
        let mut b = Builder::new("times");
        let columns = vec![Column::new("n", DataType::Int), Column::new("at", DataType::Timestamp)];
        let side = b.stream("side", columns.clone());
        let admitted = b.stream("admitted", columns.clone());
        let other = b.stream("other", columns);
        b.event_time(side, "at", Late::Side);
        b.event_time(admitted, "at", Late::Admit);
        let few = b.filter("few", side, |exprs, _| exprs.push(Expr::Const(Value::Bool(true))));
        let mut program = b.finish().unwrap();
        let before = program.streams.len();
        let groups = Groups::of(&program).unwrap();
        let times = Times::add(&mut program, &groups);
        let names: Vec<&str> = program.streams[before..].iter().map(|s| &*s.spec.name).collect();
        assert_eq!(names, ["side.late", "few.late"]);
        assert_eq!(times.streams[&side].sides[1].0, few);
        let event = [Value::Int(7), Value::Timestamp(-5)];
        assert_eq!(times.of(side, &event), Some(-5));
        assert_eq!((times.of(other, &event), times.of(side, &event[..1])), (None, None));
        assert_eq!(times.of(side, &[Value::Null, Value::Null]), None);
        let args: std::sync::Arc<[Value]> = event.into();
        let target = Target::Function(1);
        let call = Call { target, table: TableId(0), key: [].into(), args };
        assert_eq!(times.late(admitted, call.clone()), call);
        let late = times.late(side, call);
        assert_eq!((late.target, late.args.len()), (Times::LATE, 3));
        assert!(times.passed_on(&program, &late).is_ok());
        let wrong = Call { args: late.args[..2].into(), ..late };
        assert!(times.passed_on(&program, &wrong).is_err());
    }
}
