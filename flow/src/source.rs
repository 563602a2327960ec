//! The source operator. It polls an ingress for the epoch that is open at that time.

use std::cell::Cell;
use std::rc::Rc;

use tidemill_core::{Error, Result, SourceId, StreamId};
use timely::dataflow::channels::pushers::Output;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::Capability;
use timely::dataflow::Scope;
use timely::scheduling::Activator;

use crate::load::{Item, Load, What};
use crate::parcel::{Chunk, Parcel, Report};
use crate::spec::{Branch, Ingress, Polled};
use crate::worker::{Hand, Loads};

/// The outputs of a source's operator.
pub(crate) struct Outflow<'scope> {
    /// Reports, and the rows of branches without stages.
    pub(crate) direct: Loads<'scope>,
    /// The rows of each branch that has stages, in order.
    pub(crate) staged: Vec<Loads<'scope>>,
}

/// Lets the worker's loop run a source's operator.
pub(crate) struct Tap {
    pub(crate) source: SourceId,
    pub(crate) activator: Activator,
    /// Whether there may be more rows.
    pub(crate) live: Rc<Cell<bool>>,
}

/// Builds the operator of a source. Only the worker that reads the source has an ingress and a tap.
/// The others have the same operator because timely requires it, and it does nothing.
pub(crate) fn source<'scope>(
    scope: Scope<'scope, u64>,
    hand: &Hand,
    source: SourceId,
    branches: &[Branch],
    ingress: Option<Box<dyn Ingress>>,
) -> (Outflow<'scope>, Option<Tap>) {
    let mut builder = OperatorBuilder::new(format!("Source {}", source.0), scope);
    let activator = scope.activator_for(builder.operator_info().address);
    // All branches without stages share one output. Each output has its own capability, and each
    // capability is one more change that all workers receive at the end of an epoch.
    let (output, direct) = builder.new_output();
    let mut outputs = vec![output];
    let mut staged = Vec::new();
    let mut ports = Vec::new();
    for branch in branches {
        let mut port = Port { stream: branch.stream, output: 0 };
        if !branch.stages.is_empty() {
            port.output = outputs.len();
            let (output, stream) = builder.new_output();
            outputs.push(output);
            staged.push(stream);
        }
        ports.push(port);
    }
    let live = Rc::new(Cell::new(ingress.is_some()));
    let tap = ingress.is_some().then(|| Tap { source, activator, live: live.clone() });
    let hand = hand.clone();
    builder.build(move |capabilities| {
        let mut reader = ingress.map(|ingress| Reader {
            source,
            offset: ingress.offset(),
            ingress,
            capabilities,
            outputs,
            ports,
            hand,
        });
        move |_frontiers| {
            if let Some(open) = &mut reader {
                let more = open.read().unwrap_or_else(|error| {
                    open.hand.fail(error);
                    false
                });
                if !more {
                    // This drops the capabilities, so this source no longer holds an epoch open.
                    reader = None;
                    live.set(false);
                }
            }
        }
    });
    (Outflow { direct, staged }, tap)
}

struct Reader {
    source: SourceId,
    /// The next row's offset.
    offset: u64,
    ingress: Box<dyn Ingress>,
    /// One capability for each output, all for the same epoch.
    capabilities: Vec<Capability<u64>>,
    outputs: Vec<Output<u64, Load>>,
    /// The output of each branch.
    ports: Vec<Port>,
    hand: Hand,
}

/// The destination of the rows of a branch.
#[derive(Clone, Copy)]
struct Port {
    stream: StreamId,
    output: usize,
}

impl Reader {
    /// Polls once, if that is allowed now. Returns whether there may be more.
    fn read(&mut self) -> Result<bool> {
        let ticket = self.hand.gate.ticket(self.source);
        if *self.capabilities[0].time() < ticket.epoch {
            for capability in &mut self.capabilities {
                capability.downgrade(&ticket.epoch);
            }
        }
        let room = ticket.limit.saturating_sub(self.offset);
        // Nothing is read before the first epoch is opened.
        let shut = ticket.epoch == 0 || ticket.paused || room == 0;
        if shut || self.hand.gate.is_full() {
            return Ok(true);
        }
        let rows_max = self.hand.rows_max.min(usize::try_from(room).unwrap_or(usize::MAX));
        match self.ingress.poll(rows_max)? {
            Polled::Rows(chunk) => {
                self.check(&chunk, ticket.limit)?;
                self.send(chunk);
                self.hand.busy.set(true);
                Ok(true)
            }
            Polled::Pending => Ok(true),
            Polled::End => {
                let report = Report {
                    source: self.source,
                    next_offset: self.offset,
                    rows: 0,
                    time_max: None,
                    late: vec![],
                    ended: true,
                    bad: vec![],
                };
                let item = self.hand.charged(What::Report(report));
                self.give(0, vec![item]);
                Ok(false)
            }
        }
    }

    fn send(&mut self, chunk: Chunk) {
        let rows = chunk.next_offset - self.offset;
        self.offset = chunk.next_offset;
        let report = Report {
            source: self.source,
            next_offset: chunk.next_offset,
            rows,
            time_max: chunk.time_max,
            late: chunk.late,
            ended: false,
            bad: chunk.bad,
        };
        let mut direct = vec![self.hand.charged(What::Report(report))];
        if !chunk.batch.is_empty() {
            let parcel = Parcel {
                source: self.source,
                stream: StreamId(0),
                batch: chunk.batch,
                offsets: chunk.offsets,
                times: chunk.times,
            };
            // All get copies except the last one. Most sources have one branch.
            let copies = std::iter::repeat_n(parcel, self.ports.len());
            for (at, parcel) in copies.enumerate() {
                let Port { stream, output } = self.ports[at];
                let item = self.hand.charged(What::Rows(Parcel { stream, ..parcel }));
                match output {
                    0 => direct.push(item),
                    _ => self.give(output, vec![item]),
                }
            }
        }
        self.give(0, direct);
    }

    fn give(&mut self, output: usize, items: Vec<Item>) {
        self.outputs[output].activate().give(&self.capabilities[output], &mut Load::new(items));
    }

    /// Refuses a chunk that would break the order or the limit. The checks do not iterate over the
    /// rows.
    fn check(&self, chunk: &Chunk, limit: u64) -> Result<()> {
        let rows = chunk.batch.len();
        let wrong = if [chunk.offsets.len(), chunk.times.len()] != [rows; 2] {
            "has not one offset and one time for each row"
        } else if chunk.next_offset < self.offset {
            "goes back"
        } else if chunk.next_offset > limit {
            "reads past its limit"
        } else if chunk.next_offset != self.ingress.offset() {
            "does not end where the source stands"
        } else if chunk.offsets.first().is_some_and(|first| *first < self.offset)
            || chunk.offsets.last().is_some_and(|last| *last >= chunk.next_offset)
        {
            "has rows outside its offsets"
        } else {
            return Ok(());
        };
        Err(Error::internal(format!(
            "a chunk of source {} {wrong}: {rows} rows from offset {} to {}, limit {limit}",
            self.source.0, self.offset, chunk.next_offset
        )))
    }
}
