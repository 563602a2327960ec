//! Rows of topics and files that can't be read. They become events of `STREAM.dead`, in their
//! places in the order.

use std::collections::BTreeMap;

use tidemill_connect::BadRow;
use tidemill_core::{Late, Row, StreamId, StreamSpec, StreamTime, Value};
use tidemill_function::{Call, Target};
use tidemill_txn::program::{Abort, Origin, Program, Stream};

use crate::outlets::dead_schema;
use crate::spec::SourceDecl;

/// The streams of dead letters, by stream.
pub(super) struct Letters(BTreeMap<StreamId, StreamId>);

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
            // A stream may have several sources.
            if letters.contains_key(&StreamId(of as u16)) {
                continue;
            }
            let spec = StreamSpec {
                name: format!("{}.dead", decl.stream).into(),
                schema: dead_schema(),
                time: StreamTime::Arrival,
                late: Late::default(),
                at: decl.at.clone(),
            };
            let dead = StreamId(program.streams.len() as u16);
            program.streams.push(Stream { spec, origin: Origin::Emitted, batch: None });
            letters.insert(StreamId(of as u16), dead);
        }
        program.forget();
        Letters(letters)
    }

    /// Whether events of a stream have dead letters.
    pub fn has(&self, stream: StreamId) -> bool {
        self.0.contains_key(&stream)
    }

    /// Returns the arguments of a dead letter's call for a row from the source of this name.
    /// Returns `None` where the stream has no dead letters.
    pub fn call(&self, stream: StreamId, source: &str, bad: &BadRow) -> Option<Vec<Value>> {
        let dead = self.0.get(&stream)?;
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
            Some(Value::Int(dead)) => self.0.values().find(|id| i64::from(id.0) == *dead),
            _ => None,
        };
        let dead = *dead.ok_or_else(|| Abort::refused("there is no such function"))?;
        Ok((dead, program.stored_output(dead, &call.args[1..])?.into()))
    }
}
