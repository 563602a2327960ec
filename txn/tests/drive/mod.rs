//! A driver for the sequencer and an executor, like the engine's. It reports results in the form of
//! the reference.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::ProptestConfig;
use tidemill_core::{Batch, Key, Row, SourceId, StreamId, StreamTime, Value};
use tidemill_reference::{CutAt, InputRow, Outcome};
use tidemill_table::{Seq, Table};
use tidemill_txn::execute;
use tidemill_txn::order::{CutInput, Epoch, Groups, Newest, Run, Sequencer};
use tidemill_txn::pool::SingleThread;
use tidemill_txn::program::{evaluate, Origin, Program, Stage};

use crate::random::Dice;

/// The content of a table's snapshots: its rows by key, and their versions.
#[derive(Clone, Default)]
struct Stored {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    versions: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Takes a snapshot of the changes.
fn snapshot(tables: &mut [Table], stored: &mut [Stored]) {
    for (table, stored) in tables.iter_mut().zip(stored) {
        let apply = |to: &mut BTreeMap<_, _>, key: &[u8], bytes: Option<&[u8]>| {
            match bytes {
                Some(bytes) => to.insert(key.to_vec(), bytes.to_vec()),
                None => to.remove(key),
            };
        };
        let changed = table.take_changes();
        changed.for_each(|_, key, row| apply(&mut stored.rows, key, row));
        changed.for_each_version(|_, key, version| {
            let is_new = version.is_some() != stored.versions.contains_key(key);
            assert!(is_new, "a version is stored once, and goes once");
            apply(&mut stored.versions, key, version);
        });
    }
}

/// Returns a table restored from its snapshots only.
fn recovered(table: &Table, stored: &Stored, seq: Seq, seed: u64) -> Table {
    let mut recovered = Table::new(table.spec().clone(), seed);
    recovered.track();
    let mut loading = recovered.loading(stored.rows.len());
    stored.rows.iter().for_each(|(key, row)| loading.row(key, row).unwrap());
    stored.versions.iter().for_each(|(key, version)| loading.version(key, version).unwrap());
    loading.finish().unwrap();
    recovered.frontier(table.frontier_us());
    recovered.commit(seq);
    recovered
}

/// An executor of epochs.
pub trait Execute {
    fn execute(&mut self, tables: &mut [Table], epoch: &Epoch) -> execute::Outcome;
}

impl<F: FnMut(&mut [Table], &Epoch) -> execute::Outcome> Execute for F {
    fn execute(&mut self, tables: &mut [Table], epoch: &Epoch) -> execute::Outcome {
        self(tables, epoch)
    }
}

/// The input of a sequencer from the sources, cut after cut.
struct Feed<'a> {
    program: &'a Program,
    sources: &'a [Vec<InputRow>],
    taken: Vec<usize>,
    newest: Vec<Newest>,
}

impl<'a> Feed<'a> {
    fn new(program: &'a Program, sources: &'a [Vec<InputRow>]) -> Feed<'a> {
        let newest = program.sources.iter().map(|of| Newest::after(None, of.out_of_orderness_us));
        Feed { program, sources, taken: vec![0; sources.len()], newest: newest.collect() }
    }

    fn cut(&mut self, cut: &CutAt, dice: &mut Dice) -> CutInput {
        let (mut runs, mut late) = (Vec::new(), Vec::new());
        let mut times_max = Vec::new();
        for (index, rows) in self.sources.iter().enumerate() {
            let spec = &self.program.sources[index];
            let stream = &self.program.streams[spec.stream.index()].spec;
            let time = |row: &InputRow| match stream.time {
                StreamTime::Arrival => 0,
                StreamTime::Event { column } => match row.values[column] {
                    Value::Timestamp(t) => t,
                    _ => unreachable!(),
                },
            };
            let seen = rows.iter().take_while(|r| r.offset < cut.offsets[index]);
            times_max.push(seen.clone().map(time).max());
            let fresh: Vec<&InputRow> = seen.skip(self.taken[index]).collect();
            self.taken[index] += fresh.len();
            // Sources deliver batches of any size.
            let mut fresh = &fresh[..];
            while !fresh.is_empty() {
                let (some, rest) = fresh.split_at(1 + dice.below(fresh.len() as u64) as usize);
                fresh = rest;
                if stream.time != StreamTime::Arrival {
                    let offsets: Vec<u64> = some.iter().map(|row| row.offset).collect();
                    let times: Vec<i64> = some.iter().map(|row| time(row)).collect();
                    let own = self.newest[index].take_all(&offsets, &times).into_iter();
                    late.extend(own.map(|row| (SourceId(index as u32), row)));
                }
                runs.extend(views(self.program, spec.stream, some, index as u32, &time));
            }
        }
        CutInput {
            runs,
            offsets: cut.offsets.clone(),
            times_max,
            late,
            clock_us: cut.clock_us,
            idle: cut.idle.clone(),
            ended: cut.ended.clone(),
            watermarks_max: cut.watermarks_max.clone(),
        }
    }
}

/// Returns the cuts of a sequencer for these cuts, with a bound on the slides of an epoch.
#[allow(dead_code)] // Not all tests hold event time back.
pub fn held_back(
    program: &Arc<Program>,
    sources: &[Vec<InputRow>],
    cuts: &[CutAt],
    dice: &mut Dice,
    slides_max: i64,
) -> Vec<CutAt> {
    let mut sequencer = Sequencer::new(program.clone()).unwrap().with_slides_max(slides_max);
    let mut feed = Feed::new(program, sources);
    let mut held = Vec::new();
    for (index, cut) in cuts.iter().enumerate() {
        loop {
            let sequenced = sequencer.cut(&SingleThread, feed.cut(cut, dice)).unwrap();
            let watermarks_max = Some(sequenced.cut.watermarks);
            held.push(CutAt { watermarks_max, ..cut.clone() });
            // At the end, everything is executed.
            if !sequenced.is_held || index + 1 < cuts.len() {
                break;
            }
        }
    }
    held
}

/// Runs the sequencer and an executor, and returns their results in the form of the reference.
/// `after` makes an executor that continues after a transaction.
pub fn run<E: Execute>(
    program: &Arc<Program>,
    sources: &[Vec<InputRow>],
    cuts: &[CutAt],
    dice: &mut Dice,
    after: impl Fn(Seq) -> E,
) -> Outcome {
    let groups = Groups::of(program).unwrap();
    let mut sequencer = Sequencer::new(program.clone()).unwrap();
    let mut executor = after(0);
    let mut tables = execute::tables(program, dice.next());
    tables.iter_mut().for_each(Table::track);
    let mut stored = vec![Stored::default(); tables.len()];
    let mut outcome = Outcome::default();
    let mut feed = Feed::new(program, sources);
    for cut in cuts {
        let sequenced = sequencer.cut(&SingleThread, feed.cut(cut, dice)).unwrap();
        for run in sequenced.late {
            outcome.late.entry(run.stream).or_default().extend(run.batch.rows());
        }
        outcome.watermarks.push(sequenced.cut.watermarks.clone());
        let epoch = sequenced.epoch;
        let done = executor.execute(&mut tables, &epoch);
        assert!(done.unstable.is_empty(), "these functions are deterministic");
        for counts in done.counts {
            outcome.transactions += counts.committed + counts.aborted;
            outcome.aborts += counts.aborted;
        }
        for output in done.outputs {
            let rows = output
                .batch
                .rows()
                .enumerate()
                .map(|(i, row)| (output.origins.stamp(i, &epoch, &done.derived), row));
            outcome.outputs.entry(output.stream).or_default().extend(rows);
        }
        let frontiers = groups.frontiers_us(&sequenced.cut.watermarks, sequenced.cut.clock_us);
        for (table, frontier_us) in tables.iter_mut().zip(frontiers) {
            table.frontier(frontier_us);
            table.commit(done.seq);
        }
        if dice.chance(50) {
            snapshot(&mut tables, &mut stored);
            if dice.chance(50) {
                for (table, stored) in tables.iter_mut().zip(&stored) {
                    let again = recovered(table, stored, done.seq, dice.next());
                    assert_eq!(again.state_hash(), table.state_hash(), "the state hash");
                    *table = again;
                }
                executor = after(done.seq);
            }
        }
    }
    assert!(sequencer.is_drained());
    tables.iter().for_each(|table| assert_eq!(table.len(), table.rows().len(), "rows counted"));
    outcome.tables = tables.iter().map(by_key).collect();
    outcome.histories = tables.iter().map(|table| table.newest().histories().collect()).collect();
    outcome
}

fn by_key(table: &Table) -> BTreeMap<Key, Row> {
    let key = |row: &Row| Key::of(table.spec().key.iter().map(|c| &row[*c]));
    table.rows().into_iter().map(|row| (key(&row), row)).collect()
}

/// Returns the runs of an input stream and of the filtered streams derived from it.
fn views(
    program: &Program,
    root: StreamId,
    rows: &[&InputRow],
    source: u32,
    time: &dyn Fn(&InputRow) -> i64,
) -> Vec<Run> {
    let mut runs = Vec::new();
    for index in 0..program.streams.len() as u16 {
        let stream = StreamId(index);
        let kept: Vec<&&InputRow> = match &program.streams[stream.index()].origin {
            Origin::Input if stream == root => rows.iter().collect(),
            Origin::Derived { from, stage: Stage::Filter { exprs, keep } } if *from == root => rows
                .iter()
                .filter(|r| evaluate(exprs, *keep, &r.values[..]) == Ok(Value::Bool(true)))
                .collect(),
            _ => continue,
        };
        let schema = program.streams[stream.index()].spec.schema.clone();
        runs.push(Run {
            stream,
            source: SourceId(source),
            batch: Batch::from_rows(schema, kept.iter().map(|r| &r.values[..])),
            offsets: kept.iter().map(|r| r.offset).collect(),
            times: kept.iter().map(|r| time(r)).collect(),
            admitted: None,
        });
    }
    runs
}

/// Asserts that both outcomes are equal.
pub fn same(wanted: &Outcome, got: &Outcome) {
    assert_eq!(wanted.watermarks, got.watermarks, "watermarks");
    assert_eq!(wanted.late, got.late, "late events");
    for (stream, wanted) in &wanted.outputs {
        let got = got.outputs.get(stream).map_or(&[][..], |g| g);
        for (i, wanted) in wanted.iter().enumerate() {
            assert_eq!(Some(wanted), got.get(i), "output {i} of stream {stream:?}");
        }
    }
    assert_eq!(wanted.outputs, got.outputs, "outputs");
    assert_eq!(wanted.tables, got.tables, "tables");
    assert_eq!(wanted.histories, got.histories, "histories");
    assert_eq!(
        (wanted.transactions, wanted.aborts),
        (got.transactions, got.aborts),
        "transactions and aborts"
    );
}

/// Returns the configuration for a share of the seeds. `make soak` runs more.
pub fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(default))
}
