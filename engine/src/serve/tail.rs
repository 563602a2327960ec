//! The events of a stream, as they become durable.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::json;
use tidemill_connect::values;
use tidemill_core::error::nearest;
use tidemill_core::{Batch, Error, Result};
use tidemill_txn::program::Program;

use super::query::columns;
use super::{Answer, Fields, Reply, Stop};
use crate::requests::is_hidden;
use crate::rings::{retained_rows, Ring, Rings};

/// The rows that are taken at a time.
const ROWS: usize = 256;
/// The time without an event after which a heartbeat is sent.
const LIFE: Duration = Duration::from_secs(1);

/// The rings of a running app.
pub(crate) struct LiveRings<'a> {
    pub(crate) program: &'a Program,
    pub(crate) rings: &'a Mutex<Rings>,
    /// Notified when `rings` has changed, or nothing more comes.
    pub(crate) changed: &'a Condvar,
    /// Whether rows of an earlier run, which followers may have seen, are still to come.
    pub(crate) is_recovering: bool,
    /// Whether nothing more comes.
    pub(crate) is_over: &'a dyn Fn() -> bool,
    /// Whether the app runs on several processes.
    pub(crate) is_several: bool,
}

pub(crate) struct Tail {
    stream: String,
    from: Option<u64>,
    follow: bool,
}

/// Finds the retained rows of a stream.
pub(crate) fn ring<'a>(rings: &'a Rings, stream: &str) -> Result<&'a Ring> {
    ring_among(rings, stream, |_| true)
}

/// Finds the retained rows of a stream, among those that `is_shown` is true of.
pub(crate) fn ring_among<'a>(
    rings: &'a Rings,
    stream: &str,
    is_shown: impl Fn(&str) -> bool,
) -> Result<&'a Ring> {
    rings.by_name.get(stream).filter(|_| is_shown(stream)).ok_or_else(|| {
        let names = || rings.by_name.keys().map(String::as_str).filter(|name| is_shown(name));
        let error = Error::setting(format!("no events of stream {stream} are retained"));
        match nearest(stream, names()) {
            Some(near) => error.help(format!("did you mean '{near}'?")),
            None if names().next().is_none() => error.help("no stream of the app retains events"),
            None => {
                error.help(format!("such streams are {}", names().collect::<Vec<_>>().join(", ")))
            }
        }
    })
}

/// Says about a stream without retained rows why there are none, by the program's declarations.
pub(crate) fn no_rows(error: Error, program: &Program, stream: &str, is_several: bool) -> Error {
    let is_table = program.tables.iter().any(|table| *table.name == *stream);
    if is_table && !is_hidden(stream) {
        return Error::setting(format!("{stream} is a table, not a stream")).help(format!(
            "read its rows: tidemill query {stream}, client.row, or GET /tables/{stream}/rows"
        ));
    }
    let base = stream.strip_suffix(".aborted").unwrap_or(stream);
    if is_several && program.handlers.iter().any(|of| *of.name == *base) {
        let what = format!("results and aborts of {base} are not retained on several processes");
        return Error::setting(what).help(
            "write them to a sink, which retains them, too; or emit events from the function, and follow their stream",
        );
    }
    match program.streams.iter().any(|of| *of.spec.name == *stream) {
        true => error,
        false => Error { what: format!("there is no stream {stream}"), ..error },
    }
}

impl Tail {
    pub(crate) fn take(fields: &mut Fields) -> Result<Tail> {
        Ok(Tail {
            stream: fields.need("stream")?,
            from: fields.take("from")?,
            follow: fields.take("follow")?.unwrap_or(true),
        })
    }

    /// Answers from the rows of a running app, and follows them.
    pub(crate) fn answer(&self, of: &LiveRings<'_>, reply: &mut Reply<'_>) -> Answer {
        let (schema, mut at) = {
            let rings = of.rings.lock();
            let ring = ring(&rings, &self.stream)
                .map_err(|error| no_rows(error, of.program, &self.stream, of.is_several))?;
            let (first, next) = (ring.first(), ring.next());
            let from = self.from.unwrap_or(next);
            if of.is_recovering && from >= next {
                let error = Error::resource(
                    "the engine is recovering, and does not know its last rows yet",
                );
                let error = error.help("try again when it has recovered: see 'tidemill status'");
                return Err(Stop::Failed(error, json!({"first": first, "next": next})));
            }
            self.check(from, ring)?;
            (ring.schema.clone(), from)
        };
        let head = json!({"stream": self.stream, "columns": columns(&schema), "from": at});
        reply.line(&head)?;
        loop {
            // This is read first, so all rows before the end are visible below.
            let is_over = (of.is_over)();
            let mut rings = of.rings.lock();
            let ring = ring(&rings, &self.stream)?;
            if at < ring.first() {
                let what = format!("rows from {at} on were dropped before they were read");
                let error = Error::resource(what)
                    .help("read faster, follow fewer events, or raise tail_rows and tail_bytes");
                let fields = json!({"next": at, "first": ring.first()});
                return Err(Stop::Failed(error, fields));
            }
            let rows = ring.rows(at, ROWS);
            if rows.is_empty() {
                if !self.follow || is_over {
                    drop(rings);
                    return reply.end(json!({"next": at}));
                }
                let waited = of.changed.wait_for(&mut rings, LIFE);
                drop(rings);
                if waited.timed_out() {
                    reply.line(&json!({"next": at}))?;
                }
                continue;
            }
            drop(rings);
            at = put(&rows, reply)?;
        }
    }

    /// Answers from the retained rows of a stopped engine: those from the requested one on, or all
    /// of them. None follow.
    pub(crate) fn answer_stopped(
        &self,
        (program, rings): (&Program, &Rings),
        is_several: bool,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let ring = ring(rings, &self.stream)
            .map_err(|error| no_rows(error, program, &self.stream, is_several))?;
        let (mut at, next) = (self.from.unwrap_or(ring.first()), ring.next());
        self.check(at, ring)?;
        reply
            .line(&json!({"stream": self.stream, "columns": columns(&ring.schema), "from": at}))?;
        while at < next {
            at = put(&ring.rows(at, ROWS), reply)?;
        }
        reply.end(json!({"next": at}))
    }

    /// Refuses a row that is not there.
    fn check(&self, from: u64, ring: &Ring) -> std::result::Result<(), Stop> {
        let (first, next) = (ring.first(), ring.next());
        if from >= first && from <= next {
            return Ok(());
        }
        let error = match from < first {
            true => Error::input(format!("row {from} of {} is no longer retained", self.stream)),
            false => Error::input(format!("row {from} of {} does not exist yet", self.stream)),
        };
        let help = retained_rows(first, next);
        Err(Stop::Failed(error.help(help), json!({"first": first, "next": next})))
    }
}

/// Writes rows, at least one. Returns the number after them.
fn put(rows: &[(u64, Batch)], reply: &mut Reply<'_>) -> std::result::Result<u64, Stop> {
    let mut next = 0;
    for (first, batch) in rows {
        for row in 0..batch.len() {
            let number = first + row as u64;
            let mut line = format!("{{\"row\":{number},\"value\":").into_bytes();
            values::write_row(batch.schema(), &batch.row(row), &mut line);
            line.push(b'}');
            reply.raw(line)?;
            next = number + 1;
        }
    }
    Ok(next)
}
