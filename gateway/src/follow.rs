//! The events of a stream, as they become durable.
//!
//! An event's id is its row's number in the stream. Where there is a data directory, a restart
//! doesn't change the number.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use tidemill_connect::values;
use tidemill_core::{Error, Kind};
use tidemill_engine::retained_rows;

use crate::refusal::Refusal;
use crate::sent::{event, last_id, named_event, sent, Found};
use crate::shared::Shared;

/// The number of rows that are sent at a time.
const ROWS: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct From {
    from: Option<u64>,
}

pub(crate) async fn follow(
    State(shared): State<Arc<Shared>>,
    Path(stream): Path<String>,
    query: Result<Query<From>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let client = shared.access.client(&headers)?;
    let known = shared.ask(|app| app.retained(&stream, 0, 0));
    let known = known.map_err(|error| match error.kind {
        Kind::Resource => Refusal::later(error),
        _ => Refusal::missing(error),
    })?;
    shared.access.permit(&client, &format!("streams/{stream}"))?;
    shared.open()?;
    if shared.app.is_recovering() {
        let error = Error::resource("the app is recovering, and does not know its last rows yet");
        return Err(Refusal::later(error.help("try again when it has recovered: see /health")));
    }
    let from = from(query, &headers)?.unwrap_or(known.next);
    if from > known.next {
        let what = format!("row {from} of {stream} does not exist yet");
        let help = retained_rows(known.first, known.next);
        return Err(Refusal::wrong(what, &help).field("next", known.next));
    }
    if from < known.first {
        return Err(Refusal::new(StatusCode::GONE, missing(&stream, from))
            .field("first", known.first)
            .field("next", known.next));
    }
    let mut at = from;
    // A client that returns before its first event continues from here.
    let begin = format!("id: {}\n\n", at as i64 - 1).into_bytes();
    let of = shared.clone();
    let look = move || {
        let Ok(retained) = of.ask(|app| app.retained(&stream, at, ROWS)) else {
            return Found::Nothing;
        };
        let mut out = Vec::new();
        if at < retained.first {
            let error = missing(&stream, at);
            let data = json!({
                "what": error.what, "help": error.help, "first": retained.first, "next": retained.next,
            });
            named_event(&(at as i64 - 1).to_string(), "gone", &data, &mut out);
            return Found::Last(out);
        }
        for (first, batch) in &retained.rows {
            for (row, values) in batch.rows().enumerate() {
                let mut data = Vec::new();
                values::write_row(batch.schema(), &values, &mut data);
                at = first + row as u64;
                event(&at.to_string(), None, &data, &mut out);
                at += 1;
            }
        }
        match out.is_empty() {
            true => Found::Nothing,
            false => Found::Events(out),
        }
    };
    Ok(sent(&shared, begin, look))
}

fn missing(stream: &str, from: u64) -> Error {
    Error::resource(format!("rows of {stream} from {from} on are no longer retained"))
        .help("go on from the first retained row; read faster, or raise tail_rows and tail_bytes")
}

/// Returns the row to begin at: the one after the client's last event, else the one it asks for.
fn from(
    query: Result<Query<From>, axum::extract::rejection::QueryRejection>,
    headers: &HeaderMap,
) -> Result<Option<u64>, Refusal> {
    let help = "give ?from=ROW, the number of a row, or the header Last-Event-ID";
    let Query(query) = query
        .map_err(|_| Refusal::wrong("the query is not the number of a row".to_owned(), help))?;
    match last_id(headers) {
        None => Ok(query.from),
        Some(id) => match id.parse::<i64>() {
            Ok(row) if (-1..i64::MAX).contains(&row) => Ok(Some((row + 1) as u64)),
            _ => Err(Refusal::wrong(format!("Last-Event-ID '{id}' is not a row's number"), help)),
        },
    }
}
