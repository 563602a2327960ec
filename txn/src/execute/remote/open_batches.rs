//! Incomplete batches on several processes. Each event is stored as a row by the event's own
//! transaction, in its place in the order. So crashes, replays, snapshots and moves to another
//! owner need no rules for it.

use std::collections::BTreeMap;

use tidemill_core::{Column, DataType, Key, Row, Schema, StreamId, TableId, TableSpec, Value};
use tidemill_table::{Seq, Table};

use super::{numbered, RemoteStore};
use crate::program::{Abort, Batching, Extent, OwnedWindow, Program, Take};

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

    /// Returns the place of a stream's buffered events: their table, and a key in it.
    pub fn place(&self, program: &Program, stream: StreamId) -> Option<(TableId, [Value; 2])> {
        Some((*self.waiting.get(&stream)?, [root(program, stream), Value::Int(0)]))
    }

    /// Returns the tables of buffered events.
    pub(super) fn tables(&self) -> impl Iterator<Item = TableId> + '_ {
        self.waiting.values().copied()
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
            let row = [root.clone(), Value::Int(nth)].into_iter().chain(event.iter().cloned());
            let row: Row = row.collect();
            waiting.put_by_key(&Key::of(&row[..2]), Some(&row), seq);
        }
        let [root, name] = key(program, stream);
        let mark = [root, name, Value::Int(end), Value::Timestamp(since_us)];
        let row = (end > 0).then_some(&mark[..]);
        tables[self.marks.index()].put_by_key(&Key::of(&mark[..2]), row, seq);
    }

    /// Buffers an event. Returns the whole batch if the event ends one, or ends its interval.
    pub(super) fn buffer(
        &self,
        program: &Program,
        stream: StreamId,
        event: &[Value],
        now_us: i64,
        ends_interval: bool,
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<Row>, Abort> {
        let (mut count, since_us) = self.mark(&key(program, stream), rows)?.unwrap_or((0, now_us));
        let root = root(program, stream);
        let row: Row = [root, Value::Int(count)].into_iter().chain(event.iter().cloned()).collect();
        rows.write(self.waiting[&stream], &row[..2], Some(&row))?;
        count += 1;
        let is_whole = match program.streams[stream.index()].batch {
            Some(Batching::Count(of)) => count >= i64::try_from(of).unwrap_or(i64::MAX),
            Some(Batching::TimeUs(us)) if program.batch_by_arrival(stream).is_some() => {
                now_us.saturating_sub(since_us) >= us
            }
            Some(Batching::TimeUs(_)) => ends_interval,
            None => true,
        };
        if is_whole {
            return self.take(program, stream, rows);
        }
        let [root, name] = key(program, stream);
        let mark = [root, name, Value::Int(count), Value::Timestamp(since_us)];
        rows.write(self.marks, &mark[..2], Some(&mark))?;
        Ok(Vec::new())
    }

    /// Removes and returns the buffered events of a stream in arrival time, if they are due.
    pub(super) fn due(
        &self,
        program: &Program,
        stream: StreamId,
        now_us: i64,
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<Row>, Abort> {
        let is_due = |since_us: i64| {
            program.batch_by_arrival(stream).is_some_and(|us| now_us.saturating_sub(since_us) >= us)
        };
        if !self.has(stream) {
            return Ok(Vec::new());
        }
        match self.mark(&key(program, stream), rows)? {
            Some((_, since_us)) if is_due(since_us) => self.take(program, stream, rows),
            _ => Ok(Vec::new()),
        }
    }

    /// Counts an ended source of a stream. Removes and returns the buffered events if all `sources`
    /// have ended.
    pub(super) fn end(
        &self,
        program: &Program,
        stream: StreamId,
        sources: i64,
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<Row>, Abort> {
        if !self.has(stream) {
            return Ok(Vec::new());
        }
        let [root, name] = key(program, stream);
        let Value::Str(name) = name else { unreachable!("it is a name") };
        // No stream has such a name.
        let at = [root, Value::str(&format!("{ENDED}{name}"))];
        if !self.have_ended(at, sources, rows)? {
            return Ok(Vec::new());
        }
        match self.mark(&key(program, stream), rows)? {
            Some(_) => self.take(program, stream, rows),
            None => Ok(Vec::new()),
        }
    }

    /// Counts an ended source of a stream's group. Returns whether all `sources` of the group have
    /// ended.
    pub(super) fn ends_windows(
        &self,
        program: &Program,
        stream: StreamId,
        sources: i64,
        rows: &mut impl RemoteStore,
    ) -> Result<bool, Abort> {
        let name = &program.streams[stream.index()].spec.name;
        let at = Value::str(&format!("{ENDED_WINDOWS}{name}"));
        self.have_ended([at.clone(), at], sources, rows)
    }

    /// Counts an ended source. Returns whether all `sources` have ended.
    fn have_ended(
        &self,
        at: [Value; 2],
        sources: i64,
        rows: &mut impl RemoteStore,
    ) -> Result<bool, Abort> {
        let ended = 1 + self.mark(&at, rows)?.map_or(0, |(ended, _)| ended);
        if ended < sources {
            let [root, name] = at.clone();
            let row = [root, name, Value::Int(ended), Value::Timestamp(0)];
            rows.write(self.marks, &at, Some(&row))?;
            return Ok(false);
        }
        if sources > 1 {
            rows.write(self.marks, &at, None)?;
        }
        Ok(true)
    }

    /// Returns the number of buffered events and the time of the first; `None` without any.
    fn mark(
        &self,
        key: &[Value; 2],
        rows: &mut impl RemoteStore,
    ) -> Result<Option<(i64, i64)>, Abort> {
        Ok(mark_of(rows.row(self.marks, key)?.as_deref()))
    }

    /// Removes and returns all buffered events of a stream.
    fn take(
        &self,
        program: &Program,
        stream: StreamId,
        rows: &mut impl RemoteStore,
    ) -> Result<Vec<Row>, Abort> {
        let waiting = self.waiting[&stream];
        let events = rows.leading(waiting, &[root(program, stream)], Take::ALL)?;
        for event in &events {
            rows.write(waiting, &event[..2], None)?;
        }
        rows.write(self.marks, &key(program, stream), None)?;
        Ok(events.into_iter().map(|event| event[2..].into()).collect())
    }
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

/// Returns the key of a stream's mark.
fn key(program: &Program, stream: StreamId) -> [Value; 2] {
    [root(program, stream), Value::str(&program.streams[stream.index()].spec.name)]
}
