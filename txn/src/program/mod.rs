//! The transaction program: tables, streams, sources, and handlers that turn each event of a
//! stream into one transaction.
//!
//! A handler is *declared* (operations and expressions known before it runs), *native* (rows known
//! before it runs, a Rust closure computes on them) or *opaque* (it finds its accesses by
//! running). A program is data: the Python tracer and the Rust builder both make this one.

mod answers;
mod build;
mod check;
mod columns;
mod expr;
pub mod firing;
mod footprint;
mod groups;
mod handler;
pub(crate) mod hooks;
pub(crate) mod inside;
pub(crate) mod ints;
mod moment;
pub(crate) mod owned;
pub mod reasons;
pub(crate) mod rounds;
mod stored;
mod stream;
mod take;
mod window;

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use tidemill_core::{SourceSpec, StreamId, TableSpec, Value};

pub use crate::execute::NativeTx;
pub use answers::{Answers, Asker, QuestionId};
pub use build::{Builder, HandlerBuilder, RowHandle};
pub(crate) use check::reason_column;
pub use columns::{Applied, ColumnStage, KeyColumns, KeyValues, Keys};
pub use expr::{evaluate, Block, Expr, ExprId, Node, Scope};
pub use firing::{event_of_slide, slide_of, Until};
pub use footprint::{Access, Footprint, RowUse};
pub use groups::GroupAggregate;
pub(crate) use handler::NativeBody;
pub use handler::{
    key_value, Abort, AbortKind, Body, Declared, EventBatch, Handler, Input, Native, Op, Opaque,
    RowId, RowRef, Step, Takes, Tx, VarId, FAULT, OPERATIONS_MAX,
};
pub use hooks::{Index, On, Trigger};
pub use moment::{Moment, When};
pub use owned::{Extent, OwnedWindow, WindowId};
pub use rounds::Nested;
pub use stream::{Batching, Origin, Stage, Stream, Timer};
pub use take::Take;
pub use window::{Aggregate, Fold, Window, WindowRead};

/// A program. [`Builder`] builds it, and [`Program::from_json`] reads the tracer's JSON.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The app's name.
    pub name: Arc<str>,
    /// The seed of functions' random numbers. Each number also depends on the transaction's place
    /// in the one order.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seed: u64,
    /// Tables by [`tidemill_core::TableId`].
    pub tables: Vec<TableSpec>,
    /// Streams by [`StreamId`]: input, derived by map and filter, output, aborted and emitted ones.
    pub streams: Vec<Stream>,
    /// Source partitions by [`tidemill_core::SourceId`].
    pub sources: Vec<SourceSpec>,
    /// Handlers by [`tidemill_core::HandlerId`], in declaration order.
    pub handlers: Vec<Handler>,
    /// Input streams whose events are calls: the caller of each receives its transaction's result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<StreamId>,
    /// Timers: input streams whose events the clock sends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<Timer>,
    /// Nested transactions: procedures that run as one transaction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nested: Vec<Nested>,
    /// Triggers: functions that run inside transactions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
    /// Windows that belong to procedures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<OwnedWindow>,
    /// The indexes and triggers of writes and emitted events, computed at first use.
    #[serde(skip)]
    hooks: OnceLock<hooks::Hooks>,
    /// The closures of native handlers.
    #[serde(skip)]
    pub natives: Vec<Native>,
    /// The windows that closures read.
    #[serde(skip)]
    pub window_reads: Vec<WindowRead>,
    /// The functions of opaque handlers.
    #[serde(skip)]
    pub opaques: Vec<Arc<dyn Opaque>>,
    /// The limit of emitted events, where they leave in messages.
    #[serde(skip)]
    pub event_limit: Option<EventLimit>,
}

/// A limit of emitted events. It returns why an event is refused. Compiled handlers, whose events are
/// short, do not ask.
#[derive(Clone)]
pub struct EventLimit(Arc<Fits>);

/// Returns why an event is refused.
type Fits = dyn Fn(&[Value]) -> Result<(), Abort> + Send + Sync;

impl EventLimit {
    /// Wraps a function.
    pub fn new(of: impl Fn(&[Value]) -> Result<(), Abort> + Send + Sync + 'static) -> EventLimit {
        EventLimit(Arc::new(of))
    }

    /// Returns why an event is refused, if it is.
    pub fn refuses(&self, event: &[Value]) -> Option<Abort> {
        (self.0)(event).err()
    }
}

fn is_zero(seed: &u64) -> bool {
    *seed == 0
}

impl Program {
    /// The handlers on a stream, in declaration order, as indices.
    pub fn handlers_on(&self, stream: StreamId) -> impl Iterator<Item = usize> + '_ {
        (0..self.handlers.len())
            .filter(move |&h| self.handlers[h].inputs().any(|input| input.stream == stream))
    }

    /// Drops what was derived from the program. Call this after changing a program that may have
    /// been used.
    pub fn forget(&mut self) {
        self.hooks = OnceLock::new();
    }

    /// Returns the abort event of a handler that takes single events: the event, then the reason. A
    /// call's columns beside its parameters belong to the engine, so the abort event leaves them
    /// out.
    pub fn abort_event(&self, handler: usize, event: &[Value], reason: &str) -> Vec<Value> {
        let aborted = &self.streams[self.handlers[handler].aborted.index()].spec.schema;
        let event = &event[..aborted.len() - 1];
        event.iter().cloned().chain([Value::str(reason)]).collect()
    }

    /// Returns the input stream that a stream derived by map and filter goes back to.
    pub fn root_stream(&self, stream: StreamId) -> StreamId {
        match &self.streams[stream.index()].origin {
            Origin::Derived { from, .. } => self.root_stream(*from),
            _ => stream,
        }
    }
}

#[cfg(test)]
mod tests;
