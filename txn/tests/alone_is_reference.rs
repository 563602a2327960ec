//! A declared transaction on rows from other owners equals the reference, bit for bit, for any
//! handler, event and rows.

mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use random::{Dice, Shape};
use tidemill_core::{Key, TableId, Value};
use tidemill_txn::execute::RemoteRows;
use tidemill_txn::program::{Abort, Program};

type Held = BTreeMap<(TableId, Key), Arc<[Value]>>;
type Written = Vec<((TableId, Key), Option<Vec<Value>>)>;

/// Runs an event's transaction on the given rows, which it changes. Returns whether it is declared
/// with known rows.
fn step(program: &Program, handler: usize, event: &[Value], held: &mut Held) -> bool {
    let Some(alone) = RemoteRows::of(program, handler) else { return false };
    let mentions = alone.mentions(program, event);
    let are: Vec<_> =
        mentions.iter().map(|(table, key, _)| held.get(&(*table, key.clone())).cloned()).collect();
    let keys = mentions.iter().map(|(table, key, _)| (*table, key));
    let came = alone.run(program, event, keys, &are);
    // The reference has all rows. So it finds a row that the transaction uses and does not mention.
    let given = held.iter().map(|((table, key), row)| (*table, key.clone(), Some(&row[..])));
    let wanted = tidemill_reference::run_single(program, handler, event, given);
    // Compares rows in a fixed order, as debug text, because NaN equals no float.
    let shown = |rows: Written| format!("{:?}", rows.into_iter().collect::<BTreeMap<_, _>>());
    let row_of = |n: u32| (mentions[n as usize].0, mentions[n as usize].1.clone());
    match (came, wanted) {
        (Ok((rows, events)), Ok((written, emitted))) => {
            let found = rows.iter().map(|(n, row)| (row_of(*n), row.as_ref().map(|r| r.to_vec())));
            let wanted = written.into_iter().map(|(table, key, row)| ((table, key), row));
            let wanted = wanted.map(|(at, row)| (at, row.map(|row| row.to_vec())));
            assert_eq!(shown(found.collect()), shown(wanted.collect()));
            assert_eq!(format!("{events:?}"), format!("{emitted:?}"));
            for (n, row) in rows {
                match row {
                    Some(row) => held.insert(row_of(n), row),
                    None => held.remove(&row_of(n)),
                };
            }
        }
        (Err(Abort { kind, reason }), Err(wanted)) => {
            assert_eq!((kind, reason), (wanted.kind, wanted.reason));
        }
        (came, wanted) => panic!("{came:?} is not {wanted:?}"),
    }
    true
}

/// Runs events of a handler's stream: some from sources, and some of random values.
fn run(seed: u64, plain: bool) -> usize {
    let mut dice = Dice(seed);
    let shape = Shape { plain, orderly: false, histories: false, words: false };
    let program = random::program(&mut dice, shape);
    let sources = random::sources(&mut dice, &program, shape);
    let rows: Vec<Vec<Value>> = sources.into_iter().flatten().map(|row| row.values).collect();
    let (mut held, mut ran) = (Held::new(), 0);
    for mut event in rows.into_iter().take(40) {
        let handler = dice.below(program.handlers.len() as u64) as usize;
        let columns = program.streams[program.handlers[handler].input.index()].spec.schema.len();
        event.resize(columns, Value::Int(3));
        if dice.chance(5) {
            let at = dice.below(columns as u64) as usize;
            event[at] = dice.pick(&[Value::Null, Value::str("?"), Value::Timestamp(1)]).clone();
        }
        ran += usize::from(step(&program, handler, &event, &mut held));
    }
    ran
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(400))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_handler_any_rows(seed: u64) {
        run(seed, seed % 2 == 0);
    }
}

#[test]
fn most_are_tried() {
    let ran: usize = (0..50).map(|seed| run(seed, seed % 2 == 0)).sum();
    assert!(ran > 300, "{ran}");
}
