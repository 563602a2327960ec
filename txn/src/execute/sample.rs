//! The properties of epochs, from a sample of their transactions.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidemill_core::{Batch, Value};

use crate::order::Epoch;
use crate::program::{Body, Expr, ExprId, Footprint, Program, RowUse};
use crate::schedule::Properties;

/// One in this many transactions is sampled. A sample must cost next to nothing.
const EVERY: usize = 128;
/// The least and the most transactions in a sample of one epoch.
const SAMPLE: (usize, usize) = (8, 96);
/// The number of consecutive transactions in a sample. They share cache lines that have not been
/// read yet.
const TOGETHER: usize = 16;
/// The number of transactions that show how many rows are shared. Short epochs are sampled
/// together: fewer transactions in a sample share fewer rows.
const WHOLE: usize = 64;

/// A sample of epochs.
#[derive(Debug)]
pub(crate) struct Sample {
    /// The rows of transactions whose keys the event gives, by handler.
    rows: Vec<Vec<RowOf>>,
    seen: Seen,
    now: Counts,
    /// The counts of the last complete sample.
    last: Option<Counts>,
}

/// A row of a handler's transactions whose key the event gives.
#[derive(Debug)]
struct RowOf {
    table: usize,
    /// The parts of the key, by key column.
    key: Vec<KeyPart>,
    is_written: bool,
}

#[derive(Debug)]
enum KeyPart {
    /// A column of the event.
    Column(usize),
    /// A constant, as a word that distinguishes it from others.
    Const(u64),
}

/// The counts of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    transactions: usize,
    /// The number of rows that they use, and of those that others in the sample use, too.
    rows: usize,
    shared: usize,
    /// The number of transactions that write the most often written row.
    hottest: usize,
}

impl Sample {
    /// Creates an empty sample of a program's epochs.
    pub(crate) fn new(program: &Program) -> Sample {
        let rows = (0..program.handlers.len()).map(|handler| rows_of(program, handler)).collect();
        Sample { rows, seen: Seen::default(), now: Counts::default(), last: None }
    }

    /// Returns the properties of an epoch, without aborts and what is unknown beforehand. The
    /// caller adds these.
    pub(crate) fn properties(&mut self, epoch: &Epoch) -> Properties {
        self.look_at(epoch);
        if self.now.transactions >= WHOLE {
            self.last = Some(std::mem::take(&mut self.now));
            self.seen = Seen::default();
        }
        let of = self.last.unwrap_or(self.now);
        let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
        Properties {
            transactions: epoch.order.len(),
            rows: share(of.rows, of.transactions),
            shared: share(of.shared, of.rows),
            hottest: share(of.hottest, of.transactions).min(1.0),
            aborts: 0.0,
            unknown: 0.0,
        }
    }

    fn look_at(&mut self, epoch: &Epoch) {
        let len = epoch.order.len();
        let sample = (len / EVERY).clamp(SAMPLE.0, SAMPLE.1);
        let together = sample.min(TOGETHER);
        let every = (len * together).div_ceil(sample).max(1);
        for ranked in epoch.order.chunks(every).flat_map(|of| &of[..together.min(of.len())]) {
            let lane = &epoch.lanes[ranked.lane as usize];
            let batch = &epoch.runs[lane.run as usize].batch;
            self.now.transactions += 1;
            for row in &self.rows[lane.handler as usize] {
                let of_row = self.seen.add(row.hash(batch, ranked.row as usize), row.is_written);
                self.now.rows += 1;
                self.now.shared += usize::from(!of_row.is_new);
                self.now.hottest = self.now.hottest.max(of_row.writers);
            }
        }
    }
}

impl RowOf {
    /// Returns a hash of the row that an event's transaction uses.
    fn hash(&self, batch: &Batch, event: usize) -> u64 {
        let word = |part: &KeyPart| match part {
            KeyPart::Const(word) => *word,
            KeyPart::Column(column) => match batch.ints(*column) {
                Some(ints) => ints[event] as u64,
                None => word_of(&batch.value(*column, event)),
            },
        };
        let mix = |hash: u64, word: u64| (hash.rotate_left(29) ^ word).wrapping_mul(ODD);
        self.key.iter().map(word).fold((self.table as u64) << 56, mix)
    }
}

/// The factor of a multiplication that spreads differences of words over the upper bits.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

fn word_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns the rows of a handler's transactions whose keys the event alone gives.
fn rows_of(program: &Program, handler: usize) -> Vec<RowOf> {
    let exprs = match &program.handlers[handler].body {
        Body::Declared(declared) => &declared.exprs,
        Body::Native(native) => &program.natives[*native].exprs,
        Body::Opaque(_) => return Vec::new(),
    };
    let part = |id: &ExprId| match exprs.expr(*id) {
        Expr::Column(column) => Some(KeyPart::Column(usize::from(*column))),
        Expr::Const(Value::Int(int)) => Some(KeyPart::Const(*int as u64)),
        Expr::Const(value) => Some(KeyPart::Const(word_of(value))),
        _ => None,
    };
    let row = |row: RowUse| {
        let key = row.key.iter().map(part).collect::<Option<_>>()?;
        Some(RowOf { table: row.table.index(), key, is_written: row.access.writes })
    };
    Footprint::of(program, handler).rows.into_iter().filter_map(row).collect()
}

/// The rows that were seen, by a few bits of their hashes. That is good enough for a sample, and
/// takes only a few cache lines.
#[derive(Debug)]
struct Seen {
    /// A bit for each row that was seen.
    rows: [u64; Seen::WORDS],
    /// The number of writers of each row.
    writers: [u8; Seen::WRITTEN],
}

/// The knowledge about a row that was added.
struct OfRow {
    is_new: bool,
    writers: usize,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { rows: [0; Seen::WORDS], writers: [0; Seen::WRITTEN] }
    }
}

impl Seen {
    const WORDS: usize = 512;
    const WRITTEN: usize = 2_048;

    /// Adds a row by its hash. The upper bits matter most.
    fn add(&mut self, hash: u64, is_written: bool) -> OfRow {
        let bit = hash >> (64 - (Seen::WORDS * 64).ilog2());
        let word = &mut self.rows[(bit / 64) as usize];
        let is_new = *word >> (bit % 64) & 1 == 0;
        *word |= 1 << (bit % 64);
        let writers = &mut self.writers[(hash >> (64 - Seen::WRITTEN.ilog2())) as usize];
        *writers = writers.saturating_add(u8::from(is_written));
        OfRow { is_new, writers: usize::from(*writers) }
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Batch, Column, DataType, Row, SourceId, StreamId, TableId, Value};

    use super::*;
    use crate::order::Run;
    use crate::program::{Builder, NativeTx};
    use crate::Program;

    /// Creates a program of transactions on two rows each.
    fn program() -> Program {
        let mut b = Builder::new("t");
        let int = |name: &str| Column::new(name, DataType::Int);
        b.table("t", &["k"], vec![int("k"), int("v").default(Value::Int(0))]);
        let input = b.stream("s", vec![int("a"), int("b")]);
        b.source("source", input, 0);
        let rows: [(TableId, &[&str]); 2] = [(TableId(0), &["a"]), (TableId(0), &["b"])];
        b.native("touch", input, &rows, &[], |_: &mut NativeTx<'_>| Ok(()));
        b.finish().unwrap()
    }

    fn epoch(program: &Program, events: impl Iterator<Item = [i64; 2]>) -> Epoch {
        let rows: Vec<Row> = events.map(|event| event.map(Value::Int).into()).collect();
        let run = Run {
            stream: StreamId(0),
            source: SourceId(0),
            batch: Batch::from_rows(
                program.streams[0].spec.schema.clone(),
                rows.iter().map(|row| &row[..]),
            ),
            offsets: (0..rows.len() as u64).collect(),
            times: (0..rows.len() as i64).collect(),
            admitted: None,
        };
        Epoch::rank(program, vec![run])
    }

    /// Every second row is one of ten, and all others are used once. Samples of epochs of 200 show
    /// as many shared rows as one of 10,000.
    #[test]
    fn short_epochs_look_like_long_ones() {
        let program = program();
        let event = |at: i64| [at % 10, 1_000 + at];
        let long = Sample::new(&program).properties(&epoch(&program, (0..10_000).map(event)));
        let mut sample = Sample::new(&program);
        let mut short = Vec::new();
        for number in 0..20 {
            let events = (number * 200..(number + 1) * 200).map(event);
            short.push(sample.properties(&epoch(&program, events)));
        }
        assert_eq!((long.rows, long.transactions), (2.0, 10_000));
        assert!(short.iter().all(|seen| seen.rows == 2.0 && seen.transactions == 200));
        assert!((0.4..=0.5).contains(&long.shared), "{long:?}");
        assert!(short[0].shared < 0.1, "{:?}", short[0]);
        assert!((short[19].shared - long.shared).abs() < 0.1, "{:?} {long:?}", short[19]);
    }

    /// Returns the share of transactions that write the most often written row.
    fn hottest(program: &Program, event: impl Fn(i64) -> [i64; 2]) -> f64 {
        Sample::new(program).properties(&epoch(program, (0..10_000).map(event))).hottest
    }

    #[test]
    fn the_hottest_row_is_found() {
        let program = program();
        let most =
            hottest(&program, |at| [if at % 4 < 3 { 7 } else { 1_000 + at }, 1_000_000 + at]);
        assert!((most - 0.75).abs() < 0.02, "{most}");
        let even = hottest(&program, |at| [at, 1_000_000 + at]);
        assert!(even < 0.05, "{even}");
    }

    /// A key may have several columns, texts and constants. No transaction waits for a row that is
    /// only read.
    #[test]
    fn the_hottest_row_may_have_any_key() {
        for (writes, expected) in [(true, 1.0), (false, 0.0)] {
            let mut b = Builder::new("t");
            let columns = ["a", "b", "v"].map(|name| match name {
                "a" => Column::new(name, DataType::Str),
                _ => Column::new(name, DataType::Int),
            });
            let table = b.table("t", &["a", "b"], columns.into());
            let input =
                b.stream("s", ["a", "b"].map(|name| Column::new(name, DataType::Int)).into());
            b.source("source", input, 0);
            let mut h = b.handler("touch", input);
            let (text, int, one) = (h.value(Value::Str("x".into())), h.column("a"), h.int(1));
            let row = h.row(table, &[text, int]);
            match writes {
                true => h.upsert(row, &[("v", one)]),
                false => {
                    let exists = h.exists(row);
                    h.require(exists, "it is not there");
                }
            }
            h.done();
            let program = b.finish().unwrap();
            assert_eq!(hottest(&program, |at| [7, at]), expected);
            assert!(hottest(&program, |at| [at, 7]) < 0.05);
        }
    }
}
