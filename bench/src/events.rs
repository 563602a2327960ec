//! Events of a workload as the sequencer takes them: decoded batches, with cuts between them.

use std::ops::Range;
use std::sync::Arc;

use tidemill_core::batch::ColumnBuilder;
use tidemill_core::{Batch, BatchBuilder, Schema, SourceId, StreamId, Value};
use tidemill_txn::order::{CutInput, Run};

/// The events of a run. An event's place in the run is also its time. All columns are words.
pub(crate) trait Events {
    /// Returns the number of events.
    fn count(&self) -> usize;

    /// Returns the number of an event's stream among the workload's.
    fn stream(&self, at: usize) -> usize;

    /// Returns the words of its columns, the time first. There may be more of them than the stream
    /// has columns.
    fn words(&self, at: usize) -> impl Iterator<Item = i64>;
}

/// Returns an integer of an event or a row.
pub(crate) fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => unreachable!("{other} is in a column of integers"),
    }
}

/// Returns a list of an event or a row.
pub(crate) fn list(value: &Value) -> &[Value] {
    match value {
        Value::List(items) => items,
        other => unreachable!("{other} is in a column of lists"),
    }
}

/// An input stream with a source of its own: its id and its columns.
pub(crate) type Input = (StreamId, Arc<Schema>);

/// Returns the events of each epoch, with the number of its phase. A cut is after every `epoch`
/// events, and where a phase ends. `phases` has the number of events of each.
pub(crate) fn epochs(phases: &[usize], epoch: usize) -> Vec<(usize, Range<usize>)> {
    let mut epochs = Vec::new();
    let mut begun = 0;
    for (phase, events) in phases.iter().enumerate() {
        let end = begun + events;
        while begun < end {
            let to = end.min(begun + epoch);
            epochs.push((phase, begun..to));
            begun = to;
        }
    }
    epochs
}

/// Decoded events, cut into epochs.
#[derive(Debug)]
pub(crate) struct Arrivals(Vec<CutInput>);

impl Arrivals {
    /// Decodes the events of these epochs.
    pub(crate) fn of(
        events: &impl Events,
        epochs: &[(usize, Range<usize>)],
        inputs: &[Input],
    ) -> Arrivals {
        Arrivals(cuts(events, epochs, inputs).collect())
    }

    /// Returns the sequencer's input at each cut. The columns are shared, the rest is copied.
    pub(crate) fn cuts(&self) -> impl Iterator<Item = CutInput> + use<> {
        let copy = |input: &CutInput| CutInput {
            runs: input.runs.clone(),
            offsets: input.offsets.clone(),
            times_max: input.times_max.clone(),
            clock_us: input.clock_us,
            ended: input.ended.clone(),
            ..CutInput::default()
        };
        self.0.iter().map(copy).collect::<Vec<_>>().into_iter()
    }
}

/// Returns the sequencer's input at each cut, decoded on demand.
pub(crate) fn cuts<'a, E: Events>(
    events: &'a E,
    epochs: &'a [(usize, Range<usize>)],
    inputs: &'a [Input],
) -> impl Iterator<Item = CutInput> + 'a {
    let mut all = vec![0u64; inputs.len()];
    (0..events.count()).for_each(|at| all[events.stream(at)] += 1);
    let (mut offsets, mut times_max) = (vec![0u64; inputs.len()], vec![None; inputs.len()]);
    epochs.iter().enumerate().map(move |(index, (_, range))| {
        let mut sides: Vec<Side> = inputs.iter().map(Side::new).collect();
        for at in range.clone() {
            let source = events.stream(at);
            sides[source].push(events, at, offsets[source]);
            offsets[source] += 1;
            times_max[source] = Some(at as i64);
        }
        // A source that has ended holds no watermark back.
        let ended = (0..inputs.len()).filter(|s| offsets[*s] == all[*s]);
        let ended = ended.map(|s| SourceId(s as u32)).collect();
        let runs = sides.into_iter().zip(inputs).enumerate();
        CutInput {
            runs: runs.filter_map(|(s, (side, i))| side.finish(SourceId(s as u32), i.0)).collect(),
            offsets: offsets.clone(),
            times_max: times_max.clone(),
            clock_us: index as i64,
            ended,
            ..CutInput::default()
        }
    })
}

/// The events of one stream while they are decoded.
pub(crate) struct Side {
    builder: BatchBuilder,
    offsets: Vec<u64>,
    times: Vec<i64>,
}

impl Side {
    pub(crate) fn new((_, schema): &Input) -> Side {
        Side { builder: BatchBuilder::new(schema.clone()), offsets: Vec::new(), times: Vec::new() }
    }

    pub(crate) fn push(&mut self, events: &impl Events, at: usize, offset: u64) {
        push_words(&mut self.builder, events.words(at));
        self.offsets.push(offset);
        self.times.push(at as i64);
    }

    /// Returns the events so far and starts from none.
    pub(crate) fn batch(&mut self) -> Batch {
        self.builder.finish()
    }

    /// Returns the number of events.
    pub(crate) fn len(&self) -> usize {
        self.builder.len()
    }

    fn finish(mut self, source: SourceId, stream: StreamId) -> Option<Run> {
        let batch: Batch = self.builder.finish();
        let (offsets, times) = (self.offsets, self.times);
        (!batch.is_empty()).then_some(Run { stream, source, batch, offsets, times, admitted: None })
    }
}

/// Appends a row of integers and times.
pub(crate) fn push_words(builder: &mut BatchBuilder, words: impl IntoIterator<Item = i64>) {
    for (column, word) in builder.columns_mut().iter_mut().zip(words) {
        let ColumnBuilder::Int(column) = column else { unreachable!("all columns are integers") };
        column.append_value(word);
    }
    builder.advance(1);
}
