//! Incomplete batches. Between epochs their events are rows. So crashes, replays, snapshots and moves
//! to another owner need no rules for them.

use std::collections::BTreeMap;

use tidemill_core::{Column, DataType, Key, Row, Schema, StreamId, TableId, TableSpec, Value};
use tidemill_table::{Seq, Table};

use crate::program::{Extent, OwnedWindow, Program};

/// Prefixes of stream names in keys that count ended sources: for the stream's batches, and for the
/// windows that end then.
const ENDED: &str = "\u{1}ended/";
const ENDED_WINDOWS: &str = "\u{1}ended windows/";

/// The tables of buffered events, for each stream in batches.
#[derive(Debug, Default)]
pub struct OpenBatches {
    /// By stream: the number of buffered events, and since when. If it has several sources, also
    /// the number of ended ones.
    marks: TableId,
    /// The tables of these events, in the order of arrival.
    waiting: BTreeMap<StreamId, TableId>,
}

impl OpenBatches {
    /// Adds these tables to a program that has streams in batches or windows by time.
    pub fn add(program: &mut Program) -> OpenBatches {
        let batched: Vec<usize> =
            (0..program.streams.len()).filter(|at| program.streams[*at].batch.is_some()).collect();
        let is_timed = |window: &OwnedWindow| matches!(window.extent, Extent::Time { .. });
        if batched.is_empty() && !program.windows.iter().any(is_timed) {
            return OpenBatches::default();
        }
        let int = |name: &str| Column::new(name, DataType::Int);
        // Keyed by name, because numbers differ in other versions of the program. The buffered
        // events of a stream and of its derived streams are in one partition.
        let text = |name: &str| Column::new(name, DataType::Str);
        let since = Column::new("since", DataType::Timestamp);
        let columns = vec![text("root"), text("stream"), int("n"), since];
        let marks = TableId(program.tables.len() as u16);
        let mut spec = TableSpec::new("tidemill.open", vec![0, 1], Schema::new(columns).into());
        spec.partition_prefix = Some(1);
        program.tables.push(spec);
        let mut waiting = BTreeMap::new();
        for stream in batched {
            let spec = &program.streams[stream].spec;
            let (name, columns) = (format!("tidemill.open.{}", spec.name), &spec.schema.columns);
            let own = [text("root"), int("n")].into_iter().chain(columns.iter().cloned());
            let mut spec = TableSpec::new(&name, vec![0, 1], numbered(own).into());
            (spec.ordered, spec.partition_prefix) = (true, Some(1));
            waiting.insert(StreamId(stream as u16), TableId(program.tables.len() as u16));
            program.tables.push(spec);
        }
        program.forget();
        OpenBatches { marks, waiting }
    }

    /// Whether a stream comes in batches.
    pub(super) fn has(&self, stream: StreamId) -> bool {
        self.waiting.contains_key(&stream)
    }

    /// Returns the number of buffered events of a stream, and the time of the first, in tables that
    /// have all rows.
    pub(super) fn count_in(
        &self,
        program: &Program,
        stream: StreamId,
        tables: &[Table],
    ) -> Option<(i64, i64)> {
        let key = Key::of(&key(program, stream));
        mark_of(tables[self.marks.index()].get_by_key::<Row>(&key).as_deref())
    }

    /// Returns the first `count` buffered events of a stream in such tables.
    pub(super) fn events_in(
        &self,
        program: &Program,
        stream: StreamId,
        count: i64,
        tables: &[Table],
    ) -> Vec<Row> {
        let (table, root) = (&tables[self.waiting[&stream].index()], root(program, stream));
        let row = |nth: i64| {
            let row = table.get_by_key::<Row>(&Key::of(&[root.clone(), Value::Int(nth)]));
            row.expect("as many events are buffered")[2..].into()
        };
        (0..count).map(row).collect()
    }

    /// Removes the first `removed` buffered events of a stream from such tables, and then buffers
    /// more from the number `from` on, since a time. `seq` is the number of the new versions.
    pub(super) fn change_in(
        &self,
        program: &Program,
        stream: StreamId,
        (removed, from): (i64, i64),
        (events, since_us): (&[Row], i64),
        (tables, seq): (&mut [Table], Seq),
    ) {
        let waiting = &mut tables[self.waiting[&stream].index()];
        let root = root(program, stream);
        let end = from + events.len() as i64;
        for nth in (0..removed).filter(|nth| !(from..end).contains(nth)) {
            waiting.put_by_key(&Key::of(&[root.clone(), Value::Int(nth)]), None, seq);
        }
        for (nth, event) in (from..).zip(events) {
            let row = event_row(&root, nth, event);
            waiting.put_by_key(&Key::of(&row[..2]), Some(&row), seq);
        }
        let mark = mark(program, stream, (end, since_us));
        let row = (end > 0).then_some(&mark[..]);
        tables[self.marks.index()].put_by_key(&Key::of(&mark[..2]), row, seq);
    }

    /// Returns the rows that an incomplete batch of a stream consists of, each with its table. Its
    /// events are in their order, and the first one came at a time.
    pub fn rows(
        &self,
        program: &Program,
        stream: StreamId,
        (events, since_us): (&[Row], i64),
    ) -> Vec<(TableId, Row)> {
        let (root, table) = (root(program, stream), self.waiting[&stream]);
        let event = |(nth, event): (i64, &Row)| (table, event_row(&root, nth, event));
        let mark = mark(program, stream, (events.len() as i64, since_us));
        (0..).zip(events).map(event).chain([(self.marks, mark.into())]).collect()
    }

    /// The table with the first times of incomplete batches.
    pub fn marks(&self) -> TableId {
        self.marks
    }

    /// Returns the streams in batches, each with the table of its events that wait.
    pub fn tables(&self) -> impl Iterator<Item = (StreamId, TableId)> + '_ {
        self.waiting.iter().map(|(stream, table)| (*stream, *table))
    }

    /// Returns the number of an event in its batch, and the event, from its row.
    pub fn event(row: &[Value]) -> Option<(i64, &[Value])> {
        match row {
            [_, Value::Int(nth), event @ ..] => Some((*nth, event)),
            _ => None,
        }
    }

    /// Returns the time at which the batch of a stream has begun, if a row of the table of such times
    /// says that.
    pub fn since_us(program: &Program, stream: StreamId, row: &[Value]) -> Option<i64> {
        let (_, since_us) = mark_of(Some(row)).filter(|_| row[..2] == key(program, stream))?;
        Some(since_us)
    }

    /// Counts an ended source of a stream's batches. Returns whether all `sources` have ended. `seq` is
    /// the number of the new version.
    pub(super) fn ends(
        &self,
        program: &Program,
        (stream, sources): (StreamId, i64),
        (tables, seq): (&mut [Table], Seq),
    ) -> bool {
        let [root, name] = key(program, stream);
        let Value::Str(name) = name else { unreachable!("it is a name") };
        // No stream has such a name.
        let at = [root, Value::str(&format!("{ENDED}{name}"))];
        self.have_ended(at, sources, (tables, seq))
    }

    /// Counts an ended source of a group of streams, by the stream that stands for the group. Returns
    /// whether all `sources` have ended.
    pub(super) fn ends_windows(
        &self,
        program: &Program,
        (stream, sources): (StreamId, i64),
        (tables, seq): (&mut [Table], Seq),
    ) -> bool {
        let name = &program.streams[stream.index()].spec.name;
        let at = Value::str(&format!("{ENDED_WINDOWS}{name}"));
        self.have_ended([at.clone(), at], sources, (tables, seq))
    }

    fn have_ended(&self, at: [Value; 2], sources: i64, (tables, seq): (&mut [Table], Seq)) -> bool {
        let (marks, place) = (&mut tables[self.marks.index()], Key::of(&at));
        let known = marks.get_by_key::<Row>(&place);
        let ended = 1 + mark_of(known.as_deref()).map_or(0, |(ended, _)| ended);
        if ended < sources {
            let [root, name] = at;
            let row = [root, name, Value::Int(ended), Value::Timestamp(0)];
            marks.put_by_key(&place, Some(&row), seq);
            return false;
        }
        if sources > 1 {
            marks.put_by_key(&place, None, seq);
        }
        true
    }
}

/// Returns the schema of a table that stores events. It makes the columns' names unique and drops
/// their defaults.
fn numbered(columns: impl Iterator<Item = Column>) -> Schema {
    let named = |(nth, column): (usize, Column)| Column {
        name: format!("{nth}.{}", column.name).into(),
        default: None,
        ..column
    };
    Schema::new(columns.enumerate().map(named).collect())
}

/// Returns the number of buffered events and the time of the first from the row that has them.
fn mark_of(row: Option<&[Value]>) -> Option<(i64, i64)> {
    match row {
        Some([_, _, Value::Int(count), Value::Timestamp(since_us)]) => Some((*count, *since_us)),
        _ => None,
    }
}

/// Returns the name of a stream's input stream.
fn root(program: &Program, stream: StreamId) -> Value {
    Value::str(&program.streams[program.root_stream(stream).index()].spec.name)
}

/// Returns the row of an event in a batch.
fn event_row(root: &Value, nth: i64, event: &[Value]) -> Row {
    [root.clone(), Value::Int(nth)].into_iter().chain(event.iter().cloned()).collect()
}

/// Returns the row with the number of a batch's events, and the time of the first.
fn mark(program: &Program, stream: StreamId, (count, since_us): (i64, i64)) -> [Value; 4] {
    let [root, name] = key(program, stream);
    [root, name, Value::Int(count), Value::Timestamp(since_us)]
}

/// Returns the key of a stream's mark.
fn key(program: &Program, stream: StreamId) -> [Value; 2] {
    [root(program, stream), Value::str(&program.streams[stream.index()].spec.name)]
}
