//! What the engine hands over: sources, steps, and the sequencer.

use std::fmt;
use std::sync::Arc;

use tidemill_core::{Result, SourceId, StreamId};
use tidemill_env::Env;

use crate::deposit::Deposits;
use crate::mesh::Mesh;
use crate::parcel::{Chunk, Parcel};

/// One source partition, as the flow sees it.
pub trait Ingress: Send {
    /// Reads what is there, up to `rows_max` rows, bad ones included, without waiting. Offsets are
    /// dense: so many rows read move the offset by so many.
    ///
    /// # Errors
    /// End the run.
    fn poll(&mut self, rows_max: usize) -> Result<Polled>;

    /// The offset of the row that will be read next.
    fn offset(&self) -> u64;
}

/// What a poll found.
#[derive(Debug)]
pub enum Polled {
    /// Rows, and maybe more after them.
    Rows(Chunk),
    /// Nothing now. Whoever has more later wakes the worker, or waits for its next look.
    Pending,
    /// Nothing for ever. The ingress is dropped.
    End,
}

/// A stateless step on the rows of a parcel.
pub trait Transform: Send + Sync {
    /// The parcel after the step. A map makes new columns and keeps every row that it can compute,
    /// with its offset and time; a filter keeps some of the rows as they are (see
    /// [`Parcel::retain`]).
    ///
    /// # Errors
    /// End the run.
    fn apply(&self, parcel: Parcel) -> Result<Parcel>;
}

/// A step from a source's rows to those of a stream.
#[derive(Clone)]
pub enum Stage {
    /// Makes new columns.
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

/// A stream that a source feeds: the source's own one (no stages), or one derived from it.
#[derive(Clone, Debug)]
pub struct Branch {
    /// The stream.
    pub stream: StreamId,
    /// The steps from the source's rows to the stream's, first to last.
    pub stages: Vec<Stage>,
}

/// A source, who reads it, and the streams that it feeds.
pub struct Input {
    /// The source.
    pub source: SourceId,
    /// The worker that reads it, counted over all processes of the mesh: process `p` has the
    /// workers from `p * workers`.
    pub worker: usize,
    /// The source itself; only in the process of its worker. All processes list all inputs in the
    /// same order, because the dataflow must be the same everywhere.
    pub ingress: Option<Box<dyn Ingress>>,
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

/// What to run.
#[derive(Debug)]
pub struct Spec {
    /// The world.
    pub env: Env,
    /// Workers in each process; at least 1.
    pub workers: usize,
    /// The other processes, if there are any.
    pub mesh: Option<Mesh>,
    /// All sources, those of other processes included.
    pub inputs: Vec<Input>,
    /// Most rows of one poll.
    pub rows_max: usize,
    /// How long an idle worker parks before it looks at its sources again, in microseconds.
    pub park_us: u64,
}

/// The sequencer: the engine's half. It is called by the first worker of the first process,
/// between timely's steps.
pub trait Conductor: Send {
    /// Everything of epochs before `closed` has been deposited, and nothing will be added.
    ///
    /// # Errors
    /// End the run.
    fn turn(&mut self, closed: u64, deposits: &mut Deposits) -> Result<Turn>;
}

/// What the conductor wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// To be called again at once.
    Busy,
    /// Nothing before input comes or time passes: the worker may park.
    Idle,
    /// To end the run.
    Stop,
}
