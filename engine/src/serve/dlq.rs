//! Dead-letter and late streams: their rows, and sending these again.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Map};
use tidemill_connect::push::TrySend;
use tidemill_connect::values;
use tidemill_core::{Batch, Error, Result, Row, Schema, Value};

use super::tail::ring;
use super::{Answer, Fields, Reply};
use crate::rings::{retained_rows, Rings};
use crate::view::View;

/// The rows of each stream by default, and the most.
const LIMIT: usize = 1000;
const LIMIT_MAX: usize = 1_000_000;
/// The most rows that are sent again at a time.
const REPLAY_MAX: usize = 10_000;

/// A request to list rows.
pub(crate) struct Ls {
    stream: Option<String>,
    limit: usize,
}

/// The found rows of a stream.
pub(crate) struct Found {
    stream: String,
    first: u64,
    next: u64,
    rows: Vec<(u64, Batch)>,
}

impl Ls {
    pub(crate) fn take(fields: &mut Fields) -> Result<Ls> {
        let stream = fields.take("stream")?;
        Ok(Ls { stream, limit: fields.limit(LIMIT, LIMIT_MAX)? })
    }

    pub(crate) fn find(&self, rings: &Rings) -> Result<Vec<Found>> {
        if let Some(stream) = &self.stream {
            ring(rings, stream)?;
            if !is_dlq(stream, rings) {
                let what = format!("{stream} is not a dead-letter or late stream");
                return Err(
                    Error::setting(what).help("the names of such streams end with .dead or .late")
                );
            }
        }
        let wanted = |name: &str| self.stream.as_ref().is_none_or(|stream| stream == name);
        let found = rings.dlq().filter(|(name, _)| wanted(name)).map(|(name, ring)| {
            let from = ring.next().saturating_sub(self.limit as u64).max(ring.first());
            let rows = ring.rows(from, self.limit);
            Found { stream: name.to_owned(), first: ring.first(), next: ring.next(), rows }
        });
        Ok(found.collect())
    }

    pub(crate) fn rows(&self, found: &[Found], as_of: u64, reply: &mut Reply<'_>) -> Answer {
        let (mut rows, mut streams) = (0, Map::new());
        for Found { stream, first, next, rows: batches } in found {
            let name = serde_json::Value::from(stream.as_str());
            for (number, batch) in batches {
                for row in 0..batch.len() {
                    let number = number + row as u64;
                    let head = format!("{{\"stream\":{name},\"row\":{number},\"value\":");
                    let mut line = head.into_bytes();
                    values::write_row(batch.schema(), &batch.row(row), &mut line);
                    line.push(b'}');
                    reply.raw(line)?;
                    rows += 1;
                }
            }
            streams.insert(stream.clone(), json!({"rows": next, "dropped": first}));
        }
        reply.end(json!({"rows": rows, "streams": streams, "as_of": as_of}))
    }
}

fn is_dlq(stream: &str, rings: &Rings) -> bool {
    let (Some(base), true) = (stream.rsplit_once('.'), rings.by_name.contains_key(stream)) else {
        return false;
    };
    matches!(base.1, "dead" | "late")
}

/// A row to send again, and its corrected value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Again {
    row: u64,
    #[serde(default)]
    value: Option<Box<RawValue>>,
}

/// A request to send rows again.
pub(crate) struct Replay {
    stream: String,
    rows: Vec<Again>,
}

/// Refuses to send rows again of a stream that takes none from clients.
pub(crate) fn not_pushed(base: &str) -> Error {
    Error::setting(format!("{base} is not a pushed stream")).help(format!(
        "correct the input of {base}: a followed file takes corrected rows at its end"
    ))
}

impl Replay {
    pub(crate) fn take(fields: &mut Fields) -> Result<Replay> {
        let (stream, rows): (String, Vec<Again>) = (fields.need("stream")?, fields.need("rows")?);
        if rows.len() > REPLAY_MAX {
            return Err(Error::input(format!(
                "at most {REPLAY_MAX} rows are sent again at a time"
            )));
        }
        Ok(Replay { stream, rows })
    }

    /// Returns the name of the stream that the rows were for.
    ///
    /// # Errors
    /// When it is not a stream of such rows.
    pub(crate) fn base(&self) -> Result<&str> {
        let base = self.stream.strip_suffix(".dead").or(self.stream.strip_suffix(".late"));
        base.ok_or_else(|| {
            Error::setting(format!("{} is not a dead-letter or late stream", self.stream))
                .help("the names of such streams end with .dead or .late")
        })
    }

    /// Returns the rows as events of the stream that they were for.
    ///
    /// # Errors
    /// When a row is not retained, or is no event as it is.
    pub(crate) fn batch(&self, rings: &Rings, schema: &Arc<Schema>) -> Result<Batch> {
        let is_late = self.stream.ends_with(".late");
        let ring = ring(rings, &self.stream)?;
        let row = |again: &Again| -> Result<Row> {
            let of = |why: String| Error::input(format!("row {}: {why}", again.row));
            if again.row < ring.first() || again.row >= ring.next() {
                return Err(
                    of("it is not retained".into()).help(retained_rows(ring.first(), ring.next()))
                );
            }
            if let Some(value) = &again.value {
                return values::read_row(value.get(), schema)
                    .map_err(|why| of(values::with_kind(&why)));
            }
            let (_, batch) = &ring.rows(again.row, 1)[0];
            let found = batch.row(0);
            if is_late {
                return Ok(found);
            }
            match found.last() {
                Some(Value::Str(raw)) => values::read_row(raw, schema).map_err(|why| {
                    of(format!("its raw text can't be sent as it is: {why}"))
                        .help("give the corrected event as \"value\"")
                }),
                _ => Err(Error::internal("a dead-letter row has no raw text")),
            }
        };
        let rows = self.rows.iter().map(row).collect::<Result<Vec<Row>>>()?;
        Ok(Batch::from_rows(schema.clone(), rows.iter().map(|row| &row[..])))
    }

    /// Sends all rows or none. Returns their number.
    pub(super) fn send(&self, view: &View) -> Result<u64> {
        let base = self.base()?;
        // Rows of a derived stream come from its input, so they can't be sent.
        let pushed = view.pushed(base).map_err(|error| {
            let other = not_pushed(base);
            let help = format!("{}; {}", other.help, error.help);
            other.help(help)
        })?;
        let batch = self.batch(&view.shared.rings.lock(), pushed.handle.schema())?;
        let rows = batch.len() as u64;
        match pushed.handle.try_send(batch)? {
            TrySend::Sent(sent) => pushed.sent.fetch_max(pushed.known + sent, Ordering::AcqRel),
            TrySend::Full(_) => {
                return Err(Error::resource(format!("the queue of {base} is full"))
                    .help("try again when the engine has caught up"));
            }
        };
        view.gate.wake_source(pushed.source);
        Ok(rows)
    }
}
