//! Streams of a program, and the map and filter stages between them.

use serde::{Deserialize, Serialize};
use tidemill_core::rules::{self, Fault};
use tidemill_core::{HandlerId, Schema, StreamId, StreamSpec, StreamTime, Value};

use super::expr::{evaluate, Block, ExprId};
use super::Program;

/// A stream and the origin of its events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Its name, columns and time.
    #[serde(flatten)]
    pub spec: StreamSpec,
    /// The origin of its events.
    pub origin: Origin,
    /// The size of the batches that procedures take. By default a batch is all that one event
    /// triggers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batching>,
}

impl Stream {
    /// Whether transactions make its events. Events of other streams come from a source, or from
    /// such streams by `map` and `filter`.
    pub fn is_output(&self) -> bool {
        !matches!(self.origin, Origin::Input | Origin::Derived { .. })
    }
}

/// An input stream of timer events. Its one column is the time at which the event was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timer {
    /// The stream.
    pub stream: StreamId,
    /// The period in microseconds. The timer fires at its multiples since 1970.
    pub period_us: i64,
}

/// The shortest period of a timer, in microseconds.
pub(super) const PERIOD_US_MIN: i64 = 1_000;

/// The size of a stream's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// A number of consecutive events.
    Count(u64),
    /// The events of an interval of this length, in microseconds or in the unit of an int time
    /// column. Intervals begin at multiples of the length; in arrival time, at a batch's first
    /// event.
    TimeUs(i64),
}

/// The most events of a batch. They wait in memory.
const COUNT_MAX: u64 = 1_000_000;

impl Batching {
    /// Refuses an invalid batch size.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Batching::Count(count) if *count == 0 || *count > COUNT_MAX => {
                Err(format!("a batch has 1 to {COUNT_MAX} events, not {count}"))
            }
            Batching::TimeUs(us) if *us <= 0 || *us > TIME_US_MAX => Err(format!(
                "a batch lasts more than 0 microseconds and at most a day, not {us} microseconds"
            )),
            _ => Ok(()),
        }
    }
}

/// The longest interval, a day. This bounds the common multiple of several intervals.
const TIME_US_MAX: i64 = 86_400_000_000;

/// The origin of a stream's events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Sources, or pushed rows.
    Input,
    /// Another stream, before transactions. The events keep their stamps.
    Derived {
        /// The other stream: an input, or derived itself.
        from: StreamId,
        /// The step applied to each event.
        stage: Stage,
    },
    /// The return values of a handler.
    Output(HandlerId),
    /// The events whose transaction of this handler aborted. The columns are those of the handler's
    /// input, then `reason`.
    Aborted(HandlerId),
    /// Handlers that emit into the stream by name.
    Emitted,
}

/// A stateless step on events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Keeps the events for which the expression is true.
    Filter {
        /// The expressions.
        exprs: Block,
        /// The condition.
        keep: ExprId,
    },
    /// Computes the stream's columns, in order.
    Map {
        /// The expressions.
        exprs: Block,
        /// One expression for each column of the new stream.
        columns: Vec<ExprId>,
    },
}

impl Stage {
    /// Applies the stage to an event. Returns the columns of the new stream's `schema`, or `None`
    /// if a filter drops the event.
    ///
    /// # Errors
    /// If an expression has no value. The event does not get into the new stream.
    pub fn apply(&self, schema: &Schema, event: &[Value]) -> Result<Option<Vec<Value>>, Fault> {
        match self {
            Stage::Filter { exprs, keep } => match evaluate(exprs, *keep, event)? {
                Value::Bool(keep) => Ok(keep.then(|| event.to_vec())),
                _ => Err(Fault::NULL),
            },
            Stage::Map { exprs, columns } => columns
                .iter()
                .zip(&schema.columns)
                .map(|(id, column)| rules::store(&evaluate(exprs, *id, event)?, column))
                .collect::<Result<Vec<Value>, Fault>>()
                .map(Some),
        }
    }
}

/// An event of an input stream on the streams that are derived from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Views {
    /// The streams that it is on, the input stream first, with its columns there.
    pub on: Vec<(StreamId, Vec<Value>)>,
    /// The streams that it does not reach because their map or filter can't compute: the columns
    /// before that step, and why.
    pub failed: Vec<(StreamId, Vec<Value>, Fault)>,
}

impl Program {
    /// Returns the streams that an event of an input stream is on.
    pub fn views(&self, root: StreamId, event: &[Value]) -> Views {
        let mut views = Views { on: vec![(root, event.to_vec())], failed: Vec::new() };
        for (stream, of) in (0..).map(StreamId).zip(&self.streams) {
            let Origin::Derived { from, stage } = &of.origin else { continue };
            let Some((_, values)) = views.on.iter().find(|(on, _)| on == from) else { continue };
            match stage.apply(&of.spec.schema, values) {
                Ok(view) => views.on.extend(view.map(|view| (stream, view))),
                Err(fault) => views.failed.push((stream, values.clone(), fault)),
            }
        }
        views
    }

    /// Returns the handlers of an input stream's events, each with the stream on which it takes
    /// them: the input stream, or one derived from it.
    pub fn takers(&self, input: StreamId) -> impl Iterator<Item = (usize, StreamId)> + '_ {
        let of = move |number: usize| {
            let inputs = self.handlers[number].inputs();
            let is_of = move |stream: StreamId| {
                let derived = matches!(self.streams[stream.index()].origin, Origin::Derived { .. });
                stream == input || derived && self.root_stream(stream) == input
            };
            inputs.filter(move |i| is_of(i.stream)).map(move |input| (number, input.stream))
        };
        (0..self.handlers.len()).flat_map(of)
    }

    /// Returns the streams in batches by intervals of event time, with the lengths of the
    /// intervals.
    pub fn batches_by_event_time(&self) -> impl Iterator<Item = (StreamId, i64)> + '_ {
        (0..self.streams.len() as u16).map(StreamId).filter_map(|stream| {
            match self.streams[stream.index()].batch {
                Some(Batching::TimeUs(us)) if self.batch_by_arrival(stream).is_none() => {
                    Some((stream, us))
                }
                _ => None,
            }
        })
    }

    /// Returns the length of a stream's batches by arrival time, if it has such batches.
    pub fn batch_by_arrival(&self, stream: StreamId) -> Option<i64> {
        let root = &self.streams[self.root_stream(stream).index()].spec;
        match self.streams[stream.index()].batch {
            Some(Batching::TimeUs(us)) if root.time == StreamTime::Arrival => Some(us),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::rules::Binary;
    use tidemill_core::{Column, DataType};

    use super::*;
    use crate::program::Expr;

    #[test]
    fn a_stage_keeps_drops_or_can_not_compute() {
        let mut exprs = Block::default();
        let x = exprs.push(Expr::Column(0));
        let ten = exprs.push(Expr::Const(Value::Int(10)));
        let (keep, sum) = (
            exprs.push(Expr::Binary(Binary::Gt, x, ten)),
            exprs.push(Expr::Binary(Binary::Add, x, ten)),
        );
        let schema = Schema::new(vec![Column::new("y", DataType::Int)]);
        let filter = Stage::Filter { exprs: exprs.clone(), keep };
        let map = Stage::Map { exprs, columns: vec![sum] };
        let apply = |stage: &Stage, x: Value| stage.apply(&schema, &[x]);
        assert_eq!(apply(&filter, Value::Int(11)), Ok(Some(vec![Value::Int(11)])));
        assert_eq!(apply(&filter, Value::Int(10)), Ok(None));
        assert_eq!(apply(&filter, Value::Null), Err(Fault::NULL));
        assert_eq!(apply(&map, Value::Int(1)), Ok(Some(vec![Value::Int(11)])));
        assert_eq!(apply(&map, Value::Int(i64::MAX)), Err(Fault::OVERFLOW));
    }
}
