//! Rows of topics and files that can't be read, and events that a `map` or `filter` can't compute.
//! They become events of `STREAM.dead`, in their places in the order.

use std::collections::BTreeMap;

use tidemill_connect::BadRow;
use tidemill_core::rules::Fault;
use tidemill_core::{Late, Row, StreamId, StreamSpec, StreamTime, Value};
use tidemill_function::{Call, EventPlace, Target};
use tidemill_txn::program::{Abort, Origin, Program, Stream};

use crate::outlets::dead_schema;
use crate::spec::SourceDecl;

/// The streams of dead letters.
pub(super) struct Letters {
    /// Those of streams that are read from topics or files, by stream.
    rows: BTreeMap<StreamId, StreamId>,
    /// Those of derived streams, by stream.
    stages: BTreeMap<StreamId, StreamId>,
}

/// Adds to a program a stream of dead letters for a stream.
fn add(program: &mut Program, of: StreamId, at: &str) -> StreamId {
    let spec = StreamSpec {
        name: format!("{}.dead", program.streams[of.index()].spec.name).into(),
        schema: dead_schema(),
        time: StreamTime::Arrival,
        late: Late::default(),
        at: at.to_owned(),
    };
    program.streams.push(Stream { spec, origin: Origin::Emitted, batch: None });
    program.forget();
    StreamId(program.streams.len() as u16 - 1)
}

impl Letters {
    /// The target of a dead letter's call.
    pub const TARGET: Target = Target::Function(u32::MAX - 2);

    /// Adds to a program a stream of dead letters for each stream that is read from topics or
    /// files.
    pub fn add(program: &mut Program, sources: &[SourceDecl]) -> Letters {
        let mut letters = BTreeMap::new();
        for decl in sources.iter().filter(|decl| !decl.is_pushed()) {
            let is_it = |stream: &Stream| *stream.spec.name == *decl.stream;
            let Some(of) = program.streams.iter().position(is_it) else { continue };
            let of = StreamId(of as u16);
            // A stream may have several sources.
            letters.entry(of).or_insert_with(|| add(program, of, &decl.at));
        }
        Letters { rows: letters, stages: BTreeMap::new() }
    }

    /// Adds a stream of dead letters for each derived stream. A sole owner does not know them: the
    /// node that has received an event emits its letters.
    pub fn add_stages(&mut self, program: &mut Program) {
        for of in (0..program.streams.len() as u16).map(StreamId) {
            if matches!(program.streams[of.index()].origin, Origin::Derived { .. }) {
                let at = program.streams[of.index()].spec.at.clone();
                self.stages.insert(of, add(program, of, &at));
            }
        }
    }

    /// Whether there are no derived streams.
    pub fn is_without_stages(&self) -> bool {
        self.stages.is_empty()
    }

    /// Whether streams are derived from this one.
    pub fn has_stages_of(&self, program: &Program, root: StreamId) -> bool {
        self.stages.keys().any(|stream| program.root_stream(*stream) == root)
    }

    /// Returns the dead letters of an event from this place, which a `map` or `filter` can't
    /// compute.
    pub fn of_stages(
        &self,
        program: &Program,
        (root, event): (StreamId, &[Value]),
        EventPlace { name, row }: &EventPlace,
    ) -> Vec<(StreamId, Row)> {
        let source = format!("{}/{name}", program.streams[root.index()].spec.name);
        let letter = |(stream, before, fault): (StreamId, Vec<Value>, Fault)| {
            let before: Vec<String> = before.iter().map(ToString::to_string).collect();
            let row = [
                Value::str(&source),
                Value::Int(i64::try_from(*row).unwrap_or(i64::MAX)),
                Value::str("stage"),
                Value::Int(0),
                Value::str(&fault.to_string()),
                Value::str(&before.join(", ")),
            ];
            Some((*self.stages.get(&stream)?, row.into()))
        };
        program.views(root, event).failed.into_iter().filter_map(letter).collect()
    }

    /// Whether events of a stream have dead letters.
    pub fn has(&self, stream: StreamId) -> bool {
        self.rows.contains_key(&stream)
    }

    /// Returns the arguments of a dead letter's call for a row from the source of this name.
    /// Returns `None` where the stream has no dead letters.
    pub fn call(&self, stream: StreamId, source: &str, bad: &BadRow) -> Option<Vec<Value>> {
        let dead = self.rows.get(&stream)?;
        let number = |n: u64| Value::Int(i64::try_from(n).unwrap_or(i64::MAX));
        Some(vec![
            Value::Int(dead.0.into()),
            Value::str(source),
            number(bad.offset),
            Value::str(&bad.origin),
            number(bad.line),
            Value::str(&bad.reason),
            Value::str(&bad.raw),
        ])
    }

    /// Returns the event of a dead letter's call. Any client may have written it into the log.
    ///
    /// # Errors
    /// If it is none.
    pub fn event(&self, program: &Program, call: &Call) -> Result<(StreamId, Row), Abort> {
        let dead = match call.args.first() {
            Some(Value::Int(dead)) => self.rows.values().find(|id| i64::from(id.0) == *dead),
            _ => None,
        };
        let dead = *dead.ok_or_else(|| Abort::refused("there is no such function"))?;
        Ok((dead, program.stored_output(dead, &call.args[1..])?.into()))
    }
}
