//! Compares a workload with the reference, which has no epochs and executors.

use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::{Batch, DataType, Key, Row, Schema, SourceId, SourceSpec, StreamId, Value};
use tidemill_env::Env;
use tidemill_reference::{CutAt, InputRow};
use tidemill_txn::Program;

use crate::events::{cuts, epochs, Events};
use crate::execute::{execute, Execution};
use crate::run::{Case, Made};

/// The initial rows for the reference, whose tables start empty. It has the workload's program with
/// a stream and a handler that fill the tables, and that stream's rows without the time.
pub(crate) type Opening = ((Program, StreamId), Vec<Vec<Value>>);

/// The time at which the tables of the reference are filled: before the beginning of any window.
const LONG_AGO: i64 = -(1 << 50);

/// Asserts that tables and outputs equal those of the reference; returns the number of aborts.
pub(crate) fn same_as_reference<C: Case>(case: &C, epoch: usize, opening: Option<Opening>) -> u64 {
    let Made { parts, events, .. } = case.made();
    let inputs = &parts.inputs;
    let epochs = epochs(&[events.count()], epoch);
    let cuts = cuts(events, &epochs, inputs);
    let done =
        execute(&Env::real(), &parts.program, cuts, case.tables(), Execution::SERIAL).unwrap();

    let mut sources: Vec<Vec<InputRow>> = vec![Vec::new(); inputs.len()];
    for at in 0..events.count() {
        let rows = &mut sources[events.stream(at)];
        let values = row(&inputs[events.stream(at)].1, events.words(at));
        rows.push(InputRow { offset: rows.len() as u64, values });
    }
    let (mut program, mut transactions) = ((*parts.program).clone(), case.transactions());
    if let Some(((with_opening, stream), rows)) = opening {
        let sources_of = std::mem::take(&mut program.sources);
        program = with_opening;
        program.sources = sources_of;
        let (name, out_of_orderness_us, idle_us) = ("opening".into(), 0, None);
        program.sources.push(SourceSpec { name, stream, out_of_orderness_us, idle_us });
        transactions += rows.len();
        let opened = (0i64..).zip(rows).map(|(at, mut values)| {
            values.insert(0, Value::Timestamp(LONG_AGO + at));
            InputRow { offset: at as u64, values }
        });
        sources.push(opened.collect());
    }
    let cut = CutAt {
        offsets: sources.iter().map(|rows| rows.len() as u64).collect(),
        clock_us: 0,
        idle: Vec::new(),
        ended: (0..sources.len() as u32).map(SourceId).collect(),
        ..CutAt::default()
    };
    let outcome = tidemill_reference::run(&program, &sources, &[cut]);
    assert_eq!(outcome.transactions, transactions as u64);
    assert_eq!(outcome.aborts, done.verdicts.aborted);

    // The versions retained after the last event are a part of the tables' state.
    let kept = program.tables.iter().zip(outcome.tables).zip(outcome.histories);
    for ((spec, rows), versions) in kept {
        let table = done.tables.iter().find(|table| table.spec().name == spec.name).unwrap();
        let key = |row: &Row| Key::of(spec.key.iter().map(|column| &row[*column]));
        let own = table.rows().into_iter().map(|row| (key(&row), row)).collect();
        assert_eq!(rows, own, "{}", spec.name);
        assert_eq!(versions, table.newest().histories().collect(), "{}", spec.name);
    }

    let mut hashes = Vec::new();
    for (stream, rows) in &outcome.outputs {
        let spec = &program.streams[stream.index()].spec;
        let mut hash = RowsHash::default();
        hash.take(&Batch::from_rows(spec.schema.clone(), rows.iter().map(|(_, row)| &row[..])));
        hashes.push((&*spec.name, hash));
    }
    assert_eq!(format!("{:032x}", streams_hash(hashes)), done.output_hash);
    outcome.aborts
}

/// Returns an event as a row of its stream.
fn row(schema: &Schema, words: impl Iterator<Item = i64>) -> Vec<Value> {
    let value = |(column, word): (&tidemill_core::Column, i64)| match column.ty {
        DataType::Timestamp => Value::Timestamp(word),
        _ => Value::Int(word),
    };
    schema.columns.iter().zip(words).map(value).collect()
}
