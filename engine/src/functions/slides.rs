//! Windows by time. A clock ends them where no event does, and they end with their input.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_core::{Column, DataType, Late, Schema, StreamId, StreamSpec, StreamTime, Value};
use tidemill_function::{Call, Target};
use tidemill_txn::order::Groups;
use tidemill_txn::program::{Extent, Origin, Program, Stream, Timer, WindowId};

use super::batches::{call, Last};
use crate::spec::{AppSpec, SourceDecl};

/// The windows by time of an app.
pub(super) struct Slides {
    /// Timer streams of the clock, each with a stream whose windows it ends.
    timers: BTreeMap<StreamId, StreamId>,
    /// By input stream whose files all end: a stream whose windows end with them, and the number of
    /// sources of all such input streams.
    ends: BTreeMap<StreamId, (StreamId, i64)>,
    /// The streams whose windows end.
    windows: BTreeSet<StreamId>,
    /// The stream of slides whose triggers aborted.
    pub aborted: Option<StreamId>,
}

/// The name of that stream, with the window, its end, and the reason.
pub(crate) const ABORTED: &str = "tidemill.aborted_slides";

/// The number of checks within a slide, and the bounds of the period between checks, in
/// microseconds.
const LOOKS: i64 = 8;
const PERIOD_US: (i64, i64) = (10_000, 60_000_000);
/// The period between checks of event time, in microseconds.
const EVENT_TIME_US: i64 = 500_000;

impl Slides {
    /// The target of a check whether windows slide.
    pub const TARGET: Target = Target::Function(u32::MAX - 8);

    /// The target of a source's end.
    pub const LAST: Target = Target::Function(u32::MAX - 9);

    /// Adds to a program a timer for each group of streams whose handlers own windows by time.
    pub fn add(spec: &AppSpec, program: &mut Program, groups: &Groups) -> Slides {
        let mut slides = Slides {
            timers: BTreeMap::new(),
            ends: BTreeMap::new(),
            windows: BTreeSet::new(),
            aborted: None,
        };
        let timed = program.timed_windows(groups);
        if timed.iter().any(|windows| !windows.is_empty()) {
            let columns = vec![
                Column::new("window", DataType::Str),
                Column::new("end", DataType::Int),
                Column::new("reason", DataType::Str),
            ];
            let spec = StreamSpec {
                name: ABORTED.into(),
                schema: Schema::new(columns).into(),
                time: StreamTime::Arrival,
                late: Late::default(),
                at: String::new(),
            };
            slides.aborted = Some(StreamId(program.streams.len() as u16));
            program.streams.push(Stream { spec, origin: Origin::Emitted, batch: None });
        }
        for (group, windows) in timed.iter().enumerate() {
            let Some(first) = windows.first() else { continue };
            let slide_us = |id: &WindowId| match program.windows[id.index()].extent {
                Extent::Time { slide_us, .. } => slide_us,
                Extent::Rows { .. } => i64::MAX,
            };
            let shortest_us = windows.iter().map(slide_us).min().unwrap_or(i64::MAX);
            let period_us = match groups.event_time[group] {
                true => EVENT_TIME_US,
                false => (shortest_us / LOOKS).clamp(PERIOD_US.0, PERIOD_US.1),
            };
            let owner = program.windows[first.index()].owner;
            let of = program.handlers[owner.index()].input;
            slides.windows.insert(of);
            let (sources, inputs) =
                ends(spec, program, |stream| groups.of[stream.index()] == group);
            slides.ends.extend(inputs.into_iter().map(|input| (input, (of, sources))));
            let StreamSpec { name, at, .. } = &program.streams[of.index()].spec;
            let firings = StreamSpec {
                name: format!("{name}.slides").into(),
                schema: Schema::new(vec![Column::new("at", DataType::Timestamp)]).into(),
                time: StreamTime::Arrival,
                late: Late::default(),
                at: at.clone(),
            };
            let timer = StreamId(program.streams.len() as u16);
            program.streams.push(Stream { spec: firings, origin: Origin::Input, batch: None });
            program.timers.push(Timer { stream: timer, period_us });
            slides.timers.insert(timer, of);
        }
        program.forget();
        slides
    }

    /// Returns the check that a firing stands for, if it is a firing of these timers.
    pub fn look(&self, firing: StreamId) -> Option<Call> {
        let of = *self.timers.get(&firing)?;
        Some(call(Slides::TARGET, [Value::Int(of.0.into())].into()))
    }

    /// Returns the call at the end of a source of an input stream, whose newest event had the time
    /// `newest_us`. It comes after all events of that source.
    pub fn last(&self, input: StreamId, newest_us: Option<i64>) -> Option<Call> {
        let (of, sources) = *self.ends.get(&input)?;
        let newest = newest_us.map_or(Value::Null, Value::Timestamp);
        let args = [of.0.into(), input.0.into(), sources].map(Value::Int);
        let args = args.into_iter().chain([newest]).collect();
        Some(call(Slides::LAST, args))
    }

    /// The input streams that end the same windows as this one.
    pub fn together(&self, input: StreamId) -> impl Iterator<Item = StreamId> + '_ {
        let of = self.ends.get(&input).map(|(of, _)| *of);
        let is_with = move |(_, (other, _)): &(&StreamId, &(StreamId, i64))| Some(*other) == of;
        self.ends.iter().filter(is_with).map(|(stream, _)| *stream)
    }

    /// Returns the stream that a check is about. Any client may have written the call into the log.
    pub fn of(&self, call: &Call) -> Option<StreamId> {
        let [Value::Int(number)] = call.args[..] else { return None };
        self.windows.iter().copied().find(|stream| i64::from(stream.0) == number)
    }

    /// Parses a `LAST` call: the stream whose windows end, and the input that ends. Any client may
    /// have written the call into the log.
    pub fn last_of(&self, call: &Call) -> Option<(StreamId, Last)> {
        let [Value::Int(of), Value::Int(input), Value::Int(sources), newest] = &call.args[..]
        else {
            return None;
        };
        let time_us = match newest {
            Value::Timestamp(time_us) => Some(*time_us),
            Value::Null => None,
            _ => return None,
        };
        let stream = self.windows.iter().copied().find(|stream| i64::from(stream.0) == *of)?;
        let input = self.ends.keys().copied().find(|stream| i64::from(stream.0) == *input)?;
        Some((stream, Last { stream: input, sources: *sources, time_us }))
    }
}

/// The accepted input streams that are read from files, and the number of their sources. There are
/// none where any of their sources does not end.
fn ends(
    spec: &AppSpec,
    program: &Program,
    is_of: impl Fn(StreamId) -> bool,
) -> (i64, Vec<StreamId>) {
    let named = |decl: &SourceDecl| {
        let is_it = |stream: &Stream| *stream.spec.name == *decl.stream;
        program.streams.iter().position(is_it).map(|found| StreamId(found as u16))
    };
    let mut inputs = Vec::new();
    for decl in &spec.sources {
        let Some(stream) = named(decl).filter(|stream| is_of(*stream)) else { continue };
        if decl.files.as_ref().is_none_or(|files| files["follow"] == true) {
            return (0, Vec::new());
        }
        inputs.push(stream);
    }
    (inputs.len() as i64, inputs)
}
