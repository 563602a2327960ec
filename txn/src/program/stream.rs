//! Streams of a program, and the map and filter stages between them.

use serde::{Deserialize, Serialize};
use tidemill_core::{HandlerId, StreamId, StreamSpec};

use super::expr::{Block, ExprId};

/// A stream and where its events come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Name, columns, time.
    #[serde(flatten)]
    pub spec: StreamSpec,
    /// Where its events come from.
    pub origin: Origin,
}

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
