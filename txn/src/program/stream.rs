//! Streams of a program, and the map and filter stages between them.

use serde::{Deserialize, Serialize};
use tidemill_core::rules::{self, Fault};
use tidemill_core::{HandlerId, Schema, StreamId, StreamSpec, Value};

use super::expr::{evaluate, Block, ExprId};

/// A stream and where its events come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Name, columns, time.
    #[serde(flatten)]
    pub spec: StreamSpec,
    /// Where its events come from.
    pub origin: Origin,
    /// Of how many of its events procedures take a batch; of all that one event sets off, if nobody
    /// says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batching>,
}

impl Stream {
    /// Whether the program makes its events, and they do not come in: from a source, or of others that do
    /// by `map` and `filter`.
    pub fn is_output(&self) -> bool {
        !matches!(self.origin, Origin::Input | Origin::Derived { .. })
    }
}

/// An input stream of firings: its one column is the time at which one was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timer {
    /// The stream.
    pub stream: StreamId,
    /// It fires at the multiples of so many microseconds since 1970.
    pub period_us: i64,
}

/// The shortest period of a timer: less is no clock's business.
pub(super) const PERIOD_US_MIN: i64 = 1_000;

/// What a batch of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// So many events, one after the other.
    Count(u64),
    /// The events of an interval of so many microseconds (in the unit of an int time column), from a
    /// multiple on; in arrival time those of so long after the first.
    TimeUs(i64),
}

/// Events of a batch are at most so many: they wait in memory.
const COUNT_MAX: u64 = 1_000_000;

impl Batching {
    /// Refuses what can't be a batch.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Batching::Count(count) if *count == 0 || *count > COUNT_MAX => {
                Err(format!("a batch has 1 to {COUNT_MAX} events, not {count}"))
            }
            Batching::TimeUs(us) if *us <= 0 || *us > TIME_US_MAX => Err(format!(
                "a batch of {us} microseconds: it is of more than 0, and at most a day"
            )),
            _ => Ok(()),
        }
    }
}

/// A day: whatever intervals have in common stays small.
const TIME_US_MAX: i64 = 86_400_000_000;

/// Where a stream's events come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// From sources, or pushed.
    Input,
    /// From another stream, before transactions; the events keep their stamps.
    Derived {
        /// The stream it comes from: an input, or derived itself.
        from: StreamId,
        /// What is done to each event.
        stage: Stage,
    },
    /// What a handler returns.
    Output(HandlerId),
    /// The events whose transaction of this handler aborted: the handler's input columns, then
    /// `reason`.
    Aborted(HandlerId),
    /// What handlers emit into it by name.
    Emitted,
}

/// A stateless step on events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Keeps the events for which the expression is true.
    Filter {
        /// The nodes.
        exprs: Block,
        /// The condition.
        keep: ExprId,
    },
    /// Computes the stream's columns, in order.
    Map {
        /// The nodes.
        exprs: Block,
        /// One for each column of the new stream.
        columns: Vec<ExprId>,
    },
}

impl Stage {
    /// What the stage makes of an event, as columns of the new stream's `schema`; `None` when a
    /// filter drops it.
    ///
    /// # Errors
    /// When an expression has no value: the event does not come to the new stream.
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
