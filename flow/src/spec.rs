//! The interface to the engine: sources, steps, and the sequencer.

use std::fmt;
use std::sync::Arc;

use tidemill_core::{Result, SourceId, StreamId};
use tidemill_env::Env;

use crate::deposit::Deposits;
use crate::parcel::{Chunk, Parcel};

/// One source partition, as the flow sees it.
pub trait Ingress: Send {
    /// Reads available rows, at most `rows_max`, including bad ones, without blocking. Offsets are
    /// dense: each row read moves the offset by one.
    ///
    /// # Errors
    /// Any error ends the run.
    fn poll(&mut self, rows_max: usize) -> Result<Polled>;

    /// Returns the offset of the next row.
    fn offset(&self) -> u64;
}

/// The result of a poll.
#[derive(Debug)]
pub enum Polled {
    /// Rows, with possibly more after them.
    Rows(Chunk),
    /// Nothing now. The producer of later rows wakes the worker, or waits for its next poll.
    Pending,
    /// The end of the source. The ingress is dropped.
    End,
}

/// A stateless step on the rows of a parcel.
pub trait Transform: Send + Sync {
    /// Returns the parcel after the step. A map computes new columns, and keeps every row that it
    /// can compute, with its offset and time. A filter keeps some of the rows unchanged (see
    /// [`Parcel::retain`]).
    ///
    /// # Errors
    /// Any error ends the run.
    fn apply(&self, parcel: Parcel) -> Result<Parcel>;
}

/// A step from a source's rows to those of a stream.
#[derive(Clone)]
pub enum Stage {
    /// Computes new columns.
    Map(Arc<dyn Transform>),
    /// Drops rows.
    Filter(Arc<dyn Transform>),
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Map(_) => "Map",
            Stage::Filter(_) => "Filter",
        })
    }
}

/// A stream that a source feeds: the source's own stream (without stages), or one derived from it.
#[derive(Clone, Debug)]
pub struct Branch {
    /// The stream.
    pub stream: StreamId,
    /// The steps from the source's rows to the stream's, from first to last.
    pub stages: Vec<Stage>,
}

/// A source, its worker, and the streams that it feeds.
pub struct Input {
    /// The source.
    pub source: SourceId,
    /// The worker that reads it.
    pub worker: usize,
    /// The source itself.
    pub ingress: Box<dyn Ingress>,
    /// The streams.
    pub branches: Vec<Branch>,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("source", &self.source)
            .field("worker", &self.worker)
            .field("branches", &self.branches)
            .finish_non_exhaustive()
    }
}

/// The description of a flow.
#[derive(Debug)]
pub struct Spec {
    /// The environment.
    pub env: Env,
    /// The number of workers, at least 1.
    pub workers: usize,
    /// All sources.
    pub inputs: Vec<Input>,
    /// The maximum number of rows in one poll.
    pub rows_max: usize,
    /// The time for which an idle worker parks before it polls its sources again, in microseconds.
    pub park_us: u64,
}

/// The sequencer, implemented by the engine. The first worker calls it after each poll of its
/// sources.
pub trait Conductor: Send {
    /// Handles the state of the deposits. Everything of epochs before `closed` has been deposited,
    /// and nothing will be added.
    ///
    /// # Errors
    /// Any error ends the run.
    fn turn(&mut self, closed: u64, deposits: &mut Deposits) -> Result<Turn>;
}

/// The next action that the conductor wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Call it again at once.
    Busy,
    /// Do nothing before there is input or time passes. The worker may park.
    Idle,
    /// End the run.
    Stop,
}
