//! The serial executor equals the reference, bit for bit. Random cases cover programs, sources,
//! events out of order, equal times, idle sources, late events and cuts. They cover words, values,
//! and both mixed, with tables restored from snapshots at some cuts.

mod drive;
mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use drive::{cases, same};
use proptest::prelude::*;
use random::{Dice, Shape};
use tidemill_core::{Column, DataType, Key, Late, Row, SourceId, Stamp, StreamId, TableId, Value};
use tidemill_reference::{CutAt, InputRow, Outcome, Version};
use tidemill_table::Table;
use tidemill_txn::execute::{Path, Serial};
use tidemill_txn::order::Epoch;
use tidemill_txn::program::{Abort, Builder, Opaque, Program, Tx};

/// The execution of declared transactions and closures over words.
#[derive(Clone, Copy, Debug)]
enum How {
    Fast,
    /// Declared transactions run without machine code.
    Interpreted,
    General,
}

/// Runs the serial executor, on its fast paths or without them.
fn run_serial(
    program: &Arc<Program>,
    sources: &[Vec<InputRow>],
    cuts: &[CutAt],
    how: How,
    dice: &mut Dice,
) -> Outcome {
    drive::run(program, sources, cuts, dice, |seq| {
        let serial = Serial::new(program.clone(), 3).after(seq);
        let mut serial = match how {
            How::Fast => serial,
            How::Interpreted => serial.interpreted(),
            How::General => serial.general_only(),
        };
        move |tables: &mut [Table], epoch: &Epoch| serial.run(tables, epoch).unwrap()
    })
}

/// Tables by key, versions of their rows, outputs with their stamps, and late events.
type Effects = (
    Vec<BTreeMap<Key, Row>>,
    Vec<BTreeMap<Key, Vec<Version>>>,
    BTreeMap<StreamId, Vec<(Stamp, Row)>>,
    BTreeMap<StreamId, Vec<Row>>,
);

/// Returns the part of an outcome that must not depend on the places of cuts. Stamps of events in
/// event time do not, except that a stamp at the end of a stream holds its epoch. Late events of
/// several sources are in order of arrival.
fn without_cuts(outcome: &Outcome) -> Effects {
    let mut outputs = outcome.outputs.clone();
    for (stamp, _) in outputs.values_mut().flatten() {
        stamp.admitted.iter_mut().for_each(|admitted| admitted.epoch = 0);
    }
    let mut late = outcome.late.clone();
    late.values_mut().for_each(|rows| rows.sort_by_key(|row| Key::of(row.iter())));
    late.retain(|_, rows| !rows.is_empty());
    (outcome.tables.clone(), outcome.histories.clone(), outputs, late)
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn any_program_any_cuts(seed: u64) {
        let mut dice = Dice(seed);
        let shape = Shape { plain: dice.chance(50), orderly: false, histories: true, words: false };
        let program = Arc::new(random::program(&mut dice, shape));
        let sources = random::sources(&mut dice, &program, shape);
        let mut cuts = random::cuts(&mut dice, &sources, shape);
        if dice.chance(50) {
            let slides_max = 1 + dice.below(4) as i64;
            cuts = drive::held_back(&program, &sources, &cuts, &mut dice, slides_max);
        }
        let wanted = tidemill_reference::run(&program, &sources, &cuts);
        for how in [How::Fast, How::Interpreted, How::General] {
            same(&wanted, &run_serial(&program, &sources, &cuts, how, &mut dice));
        }
    }

    #[test]
    fn cutting_elsewhere_changes_nothing_but_when(seed: u64) {
        let mut dice = Dice(seed);
        let shape = Shape { plain: dice.chance(50), orderly: true, histories: true, words: false };
        let program = Arc::new(random::program(&mut dice, shape));
        let sources = random::sources(&mut dice, &program, shape);
        let cuts = random::cuts(&mut dice, &sources, shape);
        let others = random::cuts(&mut dice, &sources, shape);
        let slides_max = 1 + dice.below(4) as i64;
        let others = drive::held_back(&program, &sources, &others, &mut dice, slides_max);
        let wanted = tidemill_reference::run(&program, &sources, &cuts);
        let other = tidemill_reference::run(&program, &sources, &others);
        prop_assert_eq!(without_cuts(&wanted), without_cuts(&other));
        let serial = run_serial(&program, &sources, &others, How::Fast, &mut dice);
        prop_assert_eq!(without_cuts(&wanted), without_cuts(&serial));
    }
}

/// Checks that random programs hold event time back.
#[test]
fn event_time_is_held_back_in_random_programs() {
    let mut held = 0;
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let shape = Shape { plain: false, orderly: false, histories: true, words: false };
        let program = Arc::new(random::program(&mut dice, shape));
        let sources = random::sources(&mut dice, &program, shape);
        let cuts = random::cuts(&mut dice, &sources, shape);
        let more = drive::held_back(&program, &sources, &cuts, &mut dice, 1);
        held += usize::from(more.len() > cuts.len());
    }
    assert!(held > 20, "only {held} of 300");
}

/// Checks that random programs take the fast paths.
#[test]
fn random_programs_take_every_path() {
    let (mut words, mut values, mut native, mut opaque) = (0, 0, 0, 0);
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let shape = Shape { plain: dice.chance(50), orderly: false, histories: true, words: false };
        let program = Arc::new(random::program(&mut dice, shape));
        for path in Serial::new(program, 0).paths() {
            match path {
                Path::Words => words += 1,
                Path::Values(_) => values += 1,
                Path::Native => native += 1,
                Path::Opaque => opaque += 1,
                Path::NativeValues(_) => values += 1,
            }
        }
    }
    let least = words.min(values).min(native).min(opaque);
    assert!(least > 20, "{words} words, {values} values, {native} native, {opaque} opaque");
}

/// A function that emits without end, unless it is stopped.
struct Endless;

impl Opaque for Endless {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        while event[1] == Value::Int(3) {
            tx.get(TableId(0), &event[1..])?;
        }
        tx.put(TableId(0), &event[1..])
    }
}

#[test]
fn a_function_without_end_aborts() {
    let mut b = Builder::new("endless");
    let int = |name| Column::new(name, DataType::Int);
    b.table("t", &["k"], vec![int("k")]);
    let input = b.stream("input", vec![Column::new("at", DataType::Timestamp), int("k")]);
    b.event_time(input, "at", Late::Side);
    b.source("rows", input, 0);
    b.opaque("turn", input, Arc::new(Endless));
    let program = Arc::new(b.finish().unwrap());
    let values = |at| vec![Value::Timestamp(at as i64), Value::Int(at as i64)];
    let rows = (0..6).map(|offset| InputRow { offset, values: values(offset) }).collect();
    let cut = tidemill_reference::CutAt {
        offsets: vec![6],
        clock_us: 0,
        idle: Vec::new(),
        ended: vec![SourceId(0)],
        ..Default::default()
    };
    let (sources, cuts) = ([rows], [cut]);
    let wanted = tidemill_reference::run(&program, &sources, &cuts);
    assert_eq!((wanted.aborts, wanted.tables[0].len()), (1, 5));
    let got = drive::run(&program, &sources, &cuts, &mut Dice(1), |seq| {
        let mut serial = Serial::new(program.clone(), 0).after(seq);
        move |tables: &mut [Table], epoch: &Epoch| serial.run(tables, epoch).unwrap()
    });
    same(&wanted, &got);
}

/// Versions are read by their times, so a later transaction must not have an earlier time. In one
/// of these programs the last batch of a stream arrives after the watermark has passed it, because
/// the stream was idle.
#[test]
fn no_version_is_older_than_the_one_before() {
    for seed in (0..200).chain([12_348_786_332_914_754_269]) {
        let mut dice = Dice(seed);
        let shape = Shape { plain: dice.chance(50), orderly: false, histories: true, words: false };
        let program = Arc::new(random::program(&mut dice, shape));
        let sources = random::sources(&mut dice, &program, shape);
        let cuts = random::cuts(&mut dice, &sources, shape);
        let wanted = tidemill_reference::run(&program, &sources, &cuts);
        for versions in wanted.histories.iter().flat_map(BTreeMap::values) {
            assert!(versions.is_sorted_by_key(|(_, time_us, _)| *time_us), "seed {seed}");
        }
        same(&wanted, &run_serial(&program, &sources, &cuts, How::Fast, &mut dice));
    }
}
