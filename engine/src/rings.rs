//! The last rows of streams: of outputs for their followers, and of dead-letter and late streams
//! for later queries. They are added at delivery only, so that nothing is visible before its cut is
//! durable. They are bounded in rows and bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tidemill_core::{Batch, Schema};
use tidemill_txn::program::{Origin, Program};
use tracing::warn;

use crate::clients::RetainedRows;
use crate::internal::{Internal, RingFacts};
use crate::outlets::dead_schema;
use crate::requests::is_hidden;
use crate::settings::Settings;

/// The largest number of rows in a batch of joined ones, and of bytes in one that is joined: what
/// is too much is dropped by the batch.
const JOINED_ROWS_MAX: usize = 1_024;
const JOINED_BYTES_MAX: usize = 64 << 10;

/// The last rows of a stream. They are numbered from 0, from the first start of the app on.
#[derive(Clone)]
pub(crate) struct Ring {
    pub(crate) schema: Arc<Schema>,
    /// Whether it is of a dead-letter or late stream.
    is_dlq: bool,
    rows_max: usize,
    bytes_max: usize,
    /// The number after the last row.
    next: u64,
    batches: VecDeque<(Batch, usize)>,
    rows: usize,
    bytes: usize,
}

/// The last rows of all streams, by name.
#[derive(Clone, Default)]
pub(crate) struct Rings {
    pub(crate) by_name: BTreeMap<String, Ring>,
}

impl Ring {
    /// The number of the first retained row.
    pub(crate) fn first(&self) -> u64 {
        self.next - self.rows as u64
    }

    /// The number after the last row.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    fn push(&mut self, mut batch: Batch) {
        self.next += batch.len() as u64;
        // The rest is copied, because a slice would hold the whole batch in memory.
        let last = |batch: &Batch, rows: usize| {
            let from = batch.len() - rows;
            batch.take(&(from as u32..batch.len() as u32).collect::<Vec<u32>>())
        };
        if batch.len() > self.rows_max {
            batch = last(&batch, self.rows_max);
        }
        while batch.bytes() > self.bytes_max && batch.len() > 1 {
            batch = last(&batch, batch.len() / 2);
        }
        self.rows += batch.len();
        self.add(batch);
        while self.bytes > self.bytes_max && self.batches.len() > 1 {
            self.drop_front();
        }
        while self.rows > self.rows_max {
            let over = self.rows - self.rows_max;
            match self.batches.front_mut() {
                Some((front, _)) if front.len() > over => {
                    *front = front.slice(over, front.len() - over);
                    self.rows -= over;
                }
                _ => self.drop_front(),
            }
        }
    }

    /// Adds a batch. Small ones are joined with those before them, each row a few times at most:
    /// the columns of a batch of one row take many times the memory of the row.
    fn add(&mut self, mut batch: Batch) {
        while let Some((last, bytes)) = self.batches.back() {
            let is_large = (*bytes).max(batch.bytes()) > JOINED_BYTES_MAX
                || last.len() + batch.len() > JOINED_ROWS_MAX;
            if is_large || last.len() > batch.len() {
                break;
            }
            self.bytes -= bytes;
            let (last, _) = self.batches.pop_back().expect("there is one");
            batch = last.joined_with(&batch);
        }
        let bytes = batch.bytes();
        self.bytes += bytes;
        self.batches.push_back((batch, bytes));
    }

    /// Drops all rows. The number `next` comes after them.
    fn restart(&mut self, next: u64) {
        self.batches.clear();
        (self.next, self.rows, self.bytes) = (next, 0, 0);
    }

    fn drop_front(&mut self) {
        if let Some((batch, bytes)) = self.batches.pop_front() {
            self.rows -= batch.len();
            self.bytes -= bytes;
        }
    }

    /// Returns at most `rows_max` rows from number `from` on; none if that row is not there.
    pub(crate) fn retained(&self, from: u64, rows_max: usize) -> RetainedRows {
        let (first, next) = (self.first(), self.next());
        let rows = match (first..next).contains(&from) {
            true => self.rows(from, rows_max),
            false => Vec::new(),
        };
        RetainedRows { first, next, rows }
    }

    /// Returns at most `rows_max` rows from number `from` on, each batch with its number. The row
    /// `from` must be there.
    pub(crate) fn rows(&self, from: u64, rows_max: usize) -> Vec<(u64, Batch)> {
        let (mut at, mut left, mut found) = (self.first(), rows_max, Vec::new());
        for (batch, _) in &self.batches {
            let behind = at + batch.len() as u64;
            if behind > from && left > 0 {
                let skip = from.saturating_sub(at) as usize;
                let taken = left.min(batch.len() - skip);
                found.push((at + skip as u64, batch.slice(skip, taken)));
                left -= taken;
            }
            at = behind;
        }
        found
    }
}

impl Rings {
    /// Creates the rings of all streams whose rows have stable numbers. These exclude inputs, whose
    /// events pass through only where they are needed.
    pub(crate) fn new(program: &Program, settings: &Settings) -> Rings {
        let mut by_name = BTreeMap::new();
        let ring = |schema: &Arc<Schema>, is_dlq: bool| {
            let (rows_max, bytes_max) = match is_dlq {
                true => (settings.dlq_rows_max, settings.dlq_bytes_max),
                false => (settings.tail_rows, settings.tail_bytes),
            };
            Ring {
                schema: schema.clone(),
                is_dlq,
                rows_max,
                bytes_max,
                next: 0,
                batches: VecDeque::new(),
                rows: 0,
                bytes: 0,
            }
        };
        let streams = || program.streams.iter().filter(|s| !is_hidden(&s.spec.name));
        for stream in streams().filter(|stream| stream.is_output()) {
            by_name.insert(stream.spec.name.to_string(), ring(&stream.spec.schema, false));
        }
        // The program of several processes has these streams, too.
        for stream in streams().filter(|stream| !stream.is_output()) {
            let (name, schema) = (&stream.spec.name, &stream.spec.schema);
            by_name.insert(format!("{name}.late"), ring(schema, true));
            by_name.insert(format!("{name}.dead"), ring(&dead_schema(), true));
        }
        Rings { by_name }
    }

    /// Creates the rings of streams whose rows the log of several processes has. It has the results
    /// and aborts of transactions only where they are `written` to sinks. Bad and late rows that one
    /// process has `found` get rings, too.
    pub(crate) fn on_several(
        program: &Program,
        settings: &Settings,
        written: &BTreeSet<String>,
        found: &[RingFacts],
    ) -> Rings {
        let mut rings = Rings::new(program, settings);
        let is_emitted = |name: &str| {
            let mut streams = program.streams.iter();
            streams.any(|s| *s.spec.name == *name && s.origin == Origin::Emitted)
        };
        let is_found = |name: &str| found.iter().any(|facts| facts.stream == *name);
        rings.by_name.retain(|name, ring| match ring.is_dlq {
            true => is_emitted(name) || is_found(name),
            false => is_emitted(name) || written.contains(name),
        });
        rings
    }

    /// The streams with retained rows, with their columns.
    pub(crate) fn streams(&self) -> Vec<(String, Arc<Schema>)> {
        self.by_name.iter().map(|(name, ring)| (name.clone(), ring.schema.clone())).collect()
    }

    /// Continues after a snapshot, which may have no rows of outputs.
    pub(crate) fn resume(&mut self, internal: &Internal) {
        for (name, ring) in &mut self.by_name {
            ring.next = internal.facts.outlets.get(name).map_or(0, |facts| facts.rows);
        }
        self.restore(&internal.rings);
    }

    /// Continues with the retained rows of streams, without those that have other columns. Returns
    /// the streams for which there is no ring.
    pub(crate) fn restore(&mut self, rings: &[RingFacts]) -> Vec<RingFacts> {
        let mut others = Vec::new();
        for facts in rings {
            let Some(ring) = self.by_name.get_mut(&facts.stream) else {
                others.push(facts.clone());
                continue;
            };
            let rows: usize = facts.batches.iter().map(Batch::len).sum();
            if facts.batches.iter().all(|batch| batch.schema() == &ring.schema) {
                ring.restart(facts.next - rows as u64);
                facts.batches.iter().for_each(|batch| ring.push(batch.clone()));
                continue;
            }
            ring.restart(facts.next);
            let what = format!("{rows} retained rows of {} have other columns", facts.stream);
            warn!(target: "tidemill::recovery", what, "dropped");
        }
        others
    }

    /// Adds events of an epoch whose cut is durable.
    pub(crate) fn push(&mut self, stream: &str, batch: &Batch) {
        if let Some(ring) = self.by_name.get_mut(stream).filter(|_| !batch.is_empty()) {
            ring.push(batch.clone());
        }
    }

    /// Whether a stream is one of dead letters or late rows.
    pub(crate) fn is_dlq(&self, stream: &str) -> bool {
        self.by_name.get(stream).is_some_and(|ring| ring.is_dlq)
    }

    /// The dead-letter and late streams that have had rows.
    pub(crate) fn dlq(&self) -> impl Iterator<Item = (&str, &Ring)> {
        let had = self.by_name.iter().filter(|(_, ring)| ring.is_dlq && ring.next > 0);
        had.map(|(name, ring)| (&**name, ring))
    }

    /// Returns the rows for a snapshot: all retained ones, so that a follower can continue after a
    /// restart wherever it could have before.
    pub(crate) fn facts(&self) -> Vec<RingFacts> {
        let had = self.by_name.iter().filter(|(_, ring)| ring.next > 0);
        let facts = |(stream, ring): (&String, &Ring)| RingFacts {
            stream: stream.clone(),
            next: ring.next,
            batches: ring.batches.iter().map(|(batch, _)| batch.clone()).collect(),
        };
        had.map(facts).collect()
    }
}

/// Names the retained rows of a stream, from the `first` one on. The number `next` is not there
/// yet.
pub fn retained_rows(first: u64, next: u64) -> String {
    match next.saturating_sub(first) {
        0 => format!("no rows are retained; the next one is row {next}"),
        1 => format!("only row {first} is retained"),
        _ => format!("rows from {first} to {} are retained", next - 1),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tidemill_core::{Column, DataType, Value};
    use tidemill_txn::program::Builder;

    /// Rows of one column with numbers in order.
    pub(crate) fn batch(from: i64, rows: i64) -> Batch {
        let schema = Arc::new(Schema::new(vec![Column::new("x", DataType::Int)]));
        let rows: Vec<[Value; 1]> = (from..from + rows).map(|x| [Value::Int(x)]).collect();
        Batch::from_rows(schema, rows.iter().map(|r| &r[..]))
    }

    #[test]
    fn the_last_rows_are_there_with_their_numbers() {
        let mut b = Builder::new("app");
        b.stream("s", vec![Column::new("x", DataType::Int)]);
        let program = b.finish().unwrap();
        let settings = Settings { dlq_rows_max: 10, ..Settings::default() };
        let mut rings = Rings::new(&program, &settings);
        let mut next = 0;
        for rows in [0, 3, 1, 4, 4, 7, 25, 2] {
            rings.push("s.late", &batch(next, rows));
            next += rows;
            let ring = &rings.by_name["s.late"];
            assert_eq!((ring.first(), ring.next()), ((next - 10).max(0) as u64, next as u64));
            for from in ring.first()..ring.next() {
                let mut at = from;
                for (number, batch) in ring.rows(from, 4) {
                    for row in 0..batch.len() {
                        assert_eq!(
                            (number + row as u64, batch.value(0, row)),
                            (at, Value::Int(at as i64))
                        );
                        at += 1;
                    }
                }
                assert_eq!(at, ring.next().min(from + 4));
            }
        }
        rings.push("s.late", &batch(next, 1 << 20));
        assert!(rings.by_name["s.late"].bytes < 4096, "no large batch is held by its end");
    }

    #[test]
    fn several_processes_have_the_rings_of_one_where_the_log_has_the_rows() {
        let mut b = Builder::new("app");
        let x = || vec![Column::new("x", DataType::Int)];
        let input = b.stream("s", x());
        b.emitted("out", x());
        for name in ["pay", "buy"] {
            let mut h = b.handler(name, input);
            let value = h.column("x");
            h.output(&[("y", value)]);
            h.done();
        }
        let program = b.finish().unwrap();
        let settings = Settings { dlq_rows_max: 3, tail_rows: 5, ..Settings::default() };
        let one = Rings::new(&program, &settings);
        let written = ["pay".to_owned()].into();
        let names = |rings: &Rings| rings.by_name.keys().cloned().collect::<Vec<_>>();
        let several = Rings::on_several(&program, &settings, &written, &[]);
        assert_eq!(names(&several), ["out", "pay"]);
        let late = RingFacts { stream: "s.late".into(), next: 1, batches: Vec::new() };
        let mut several = Rings::on_several(&program, &settings, &written, &[late]);
        assert_eq!(names(&several), ["out", "pay", "s.late"]);
        for (name, ring) in &several.by_name {
            let of = &one.by_name[name];
            assert_eq!((of.is_dlq, of.rows_max), (ring.is_dlq, ring.rows_max), "{name}");
            assert_eq!(ring.schema, of.schema, "{name}");
        }
        // Rows with other columns are left out, and their numbers are not used again.
        let other = Schema::new(vec![Column::new("y", DataType::Int)]);
        let rows = Batch::from_rows(other.into(), [&[Value::Int(1)][..]]);
        let facts = |stream: &str, batch: Batch| RingFacts {
            stream: stream.into(),
            next: 7,
            batches: vec![batch],
        };
        let found = [facts("out", rows), facts("s.late", batch(0, 4)), facts("buy", batch(0, 1))];
        let others = several.restore(&found);
        assert_eq!(others.len(), 1);
        let of = |name: &str| (several.by_name[name].first(), several.by_name[name].next());
        assert_eq!((of("out"), of("s.late")), ((7, 7), (4, 7)));
    }

    /// A batch of one row takes kilobytes, and so would thousands of them.
    #[test]
    fn small_batches_take_the_memory_of_their_rows() {
        let schema = vec![Column::new("n", DataType::Int), Column::new("who", DataType::Str)];
        let schema = Schema::new(schema);
        let mut ring = Ring {
            schema: schema.clone().into(),
            is_dlq: false,
            rows_max: 10_000,
            bytes_max: 1 << 20,
            next: 0,
            batches: VecDeque::new(),
            rows: 0,
            bytes: 0,
        };
        for n in 0..12_000 {
            let row = [Value::Int(n), Value::Str("ann".into())];
            ring.push(Batch::from_rows(schema.clone().into(), [&row[..]]));
        }
        assert_eq!((ring.first(), ring.next()), (2_000, 12_000));
        assert!(ring.bytes < 500_000, "{}", ring.bytes);
        for (first, batch) in ring.rows(2_000, 10_000) {
            for row in 0..batch.len() {
                assert_eq!(batch.value(0, row), Value::Int((first + row as u64) as i64));
            }
        }
    }

    #[test]
    fn a_snapshot_has_what_is_there_and_nothing_else() {
        use crate::internal::Facts;
        let mut b = Builder::new("app");
        let x = || vec![Column::new("x", DataType::Int)];
        b.stream("s", x());
        // The name is like that of a late stream.
        b.emitted("out.late", x());
        b.emitted("none", x());
        let program = b.finish().unwrap();
        let limits = Settings { tail_rows: 10, dlq_rows_max: 5, ..Settings::default() };
        let mut rings = Rings::new(&program, &limits);
        let mut facts = Facts::default();
        for (from, rows) in [(0, 7), (7, 1), (8, 6)] {
            rings.push("out.late", &batch(from, rows));
            rings.push("s.late", &batch(from, rows));
        }
        let rows = |rings: &Rings, stream: &str| -> (u64, u64, Vec<Value>) {
            let RetainedRows { first, next, rows } =
                rings.by_name[stream].retained(rings.by_name[stream].first(), 100);
            let rows =
                rows.iter().flat_map(|(_, batch)| (0..batch.len()).map(|n| batch.value(0, n)));
            (first, next, rows.collect())
        };
        assert_eq!(rows(&rings, "out.late").0, 4);
        facts.outlets.entry("out.late".into()).or_default().rows = 14;
        let internal = Internal { facts, buffered: Vec::new(), rings: rings.facts() };
        let bytes = internal.encode();
        let internal = Internal::decode(&program, &bytes).unwrap();
        let mut again = Rings::new(&program, &limits);
        again.resume(&internal);
        for stream in ["out.late", "s.late", "none"] {
            assert_eq!(rows(&again, stream), rows(&rings, stream), "{stream}");
        }
        // A smaller ring has the last rows.
        let mut fewer = Rings::new(&program, &Settings { tail_rows: 3, ..limits });
        fewer.resume(&internal);
        assert_eq!(rows(&fewer, "out.late"), (11, 14, [11, 12, 13].map(Value::Int).to_vec()));
        assert!((0..bytes.len()).all(|n| Internal::decode(&program, &bytes[..n]).is_err()));
    }
}
