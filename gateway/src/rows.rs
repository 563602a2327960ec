//! Rows of a table, as the last durable cut left them.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use tidemill_connect::values;
use tidemill_core::error::nearest;
use tidemill_core::{Column, DataType, Error, Row, TableSpec, Value};
use tracing::dispatcher::{get_default, with_default};
use tracing::Dispatch;

use crate::refusal::{json_response, Refusal};
use crate::shared::Shared;

/// Returns the table of this name.
pub(crate) fn table<'f>(shared: &'f Shared, name: &str) -> Result<&'f TableSpec, Refusal> {
    shared.app.tables().into_iter().find(|table| *table.name == *name).ok_or_else(|| {
        let error = Error::setting(format!("there is no table {name}"));
        let names: Vec<&str> = shared.app.tables().iter().map(|table| &*table.name).collect();
        Refusal::missing(match nearest(name, names.iter().copied()) {
            Some(near) => error.help(format!("did you mean '{near}'?")),
            None => error.help(format!("the tables are {}", names.join(", "))),
        })
    })
}

/// The rows of a page by default, the most, and the most keys of a request.
pub(crate) const LIMIT: usize = 100;
pub(crate) const LIMIT_MAX: usize = 1000;
const KEYS_MAX: usize = 1000;

/// The wanted rows.
enum Wanted {
    /// The row with a key.
    One(Vec<Value>),
    /// The rows with several keys, in the order of the keys.
    Several(Vec<Vec<Value>>),
    /// The first rows after a key.
    Page { after: Option<Vec<Value>>, limit: usize },
}

pub(crate) async fn rows(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let client = shared.access.client(&headers)?;
    let spec = table(&shared, &name)?.clone();
    shared.access.permit(&client, &format!("tables/{name}"))?;
    let Query(query) = query.map_err(|error| Refusal::wrong(error.body_text(), HELP))?;
    let wanted = wanted(&shared, &spec, &query)?;
    // Tables are locked while an epoch is executed, so no thread of the runtime may wait for them.
    let log = get_default(Dispatch::clone);
    let body = move || with_default(&log, || body(&shared, &spec, &wanted, &query));
    let body = tokio::task::spawn_blocking(body);
    let body = body.await;
    let body = body.map_err(|e| Refusal::of(Error::internal(format!("reading rows: {e}"))))?;
    Ok(json_response(StatusCode::OK, body?))
}

const HELP: &str = "give ?key=VALUE, once for each key column in their order, or ?limit=N and \
                    ?after=VALUE for rows in the order of their keys";

fn wanted(
    shared: &Shared,
    spec: &TableSpec,
    query: &[(String, String)],
) -> Result<Wanted, Refusal> {
    let (mut keys, mut after, mut limit, mut is_json) = (Vec::new(), Vec::new(), None, false);
    for (name, text) in query {
        match &**name {
            "key" => keys.push(text.clone()),
            "after" => after.push(text.clone()),
            "limit" => limit = Some(text),
            "json" if text == "true" => is_json = true,
            "json" => {
                return Err(Refusal::wrong(format!("json is '{text}'"), "give json=true"));
            }
            other => {
                return Err(Refusal::wrong(format!("there is no parameter '{other}'"), HELP));
            }
        }
    }
    let read = if is_json { json_value } else { value };
    let key = |texts: &[String]| shared.app.key_of(spec, texts, read).map_err(Refusal::of);
    if !keys.is_empty() {
        if limit.is_some() || !after.is_empty() {
            return Err(Refusal::wrong("keys and a page of rows are asked for together", HELP));
        }
        let columns = spec.key.len();
        if keys.len() > KEYS_MAX * columns {
            let what = format!("more than {KEYS_MAX} keys are asked for");
            return Err(Refusal::wrong(what, "ask for the others in another request"));
        }
        if keys.len() <= columns || keys.len() % columns != 0 {
            return key(&keys).map(Wanted::One);
        }
        return keys.chunks(columns).map(key).collect::<Result<_, _>>().map(Wanted::Several);
    }
    let after = if after.is_empty() { None } else { Some(key(&after)?) };
    let is_limit = |limit: &usize| (1..=LIMIT_MAX).contains(limit);
    match limit.map(|text| text.parse().ok().filter(is_limit)) {
        None => Ok(Wanted::Page { after, limit: LIMIT }),
        Some(Some(limit)) => Ok(Wanted::Page { after, limit }),
        Some(None) => {
            Err(Refusal::wrong("limit is not a number of rows", &format!("give 1 to {LIMIT_MAX}")))
        }
    }
}

/// Reads the rows, and returns the body of the answer.
fn body(
    shared: &Shared,
    spec: &TableSpec,
    wanted: &Wanted,
    query: &[(String, String)],
) -> Result<Vec<u8>, Refusal> {
    let row = |key: &[Value]| shared.app.row(&spec.name, key).map_err(Refusal::of);
    let mut body = Vec::new();
    match wanted {
        Wanted::One(key) => {
            let row = row(key)?;
            if row.is_none() {
                refuse_quoted(spec, query)?;
            }
            body.extend_from_slice(b"{\"row\":");
            write(spec, row.as_ref(), &mut body);
        }
        Wanted::Several(keys) => {
            body.extend_from_slice(b"{\"rows\":[");
            for (nth, key) in keys.iter().enumerate() {
                body.extend_from_slice(if nth > 0 { b"," } else { b"" });
                write(spec, row(key)?.as_ref(), &mut body);
            }
            body.push(b']');
        }
        Wanted::Page { after, limit } => {
            let found = shared.app.rows_after(&spec.name, after.as_deref(), *limit);
            let (rows, has_more) = found.map_err(Refusal::of)?;
            body.extend_from_slice(b"{\"rows\":[");
            for (nth, row) in rows.iter().enumerate() {
                body.extend_from_slice(if nth > 0 { b"," } else { b"" });
                write(spec, Some(row), &mut body);
            }
            body.extend_from_slice(format!("],\"more\":{has_more}").as_bytes());
        }
    }
    body.push(b'}');
    Ok(body)
}

fn write(spec: &TableSpec, row: Option<&Row>, body: &mut Vec<u8>) {
    match row {
        Some(row) => values::write_row(&spec.schema, row, body),
        None => body.extend_from_slice(b"null"),
    }
}

/// Refuses the key of a missing row if it has the quotes of JSON around a text.
fn refuse_quoted(spec: &TableSpec, query: &[(String, String)]) -> Result<(), Refusal> {
    if query.iter().any(|(name, _)| name == "json") {
        return Ok(());
    }
    let is_quoted = |text: &str| text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    let columns = spec.key.iter().map(|column| &spec.schema.columns[*column]);
    let mut texts = columns.zip(query).filter(|(column, _)| column.ty == DataType::Str);
    let Some((column, (_, text))) = texts.find(|(_, (_, text))| is_quoted(text)) else {
        return Ok(());
    };
    let what = format!("there is no row whose '{}' is {text}, quotes included", column.name);
    let bare = text.trim_matches('"');
    Err(Refusal::wrong(what, &format!("texts have no quotes here: give ?key={bare}")))
}

/// Parses a key column's value from an address as JSON, so that its type counts.
fn json_value(text: &str, column: &Column) -> Result<Value, String> {
    values::read(text, column).map_err(|why| values::with_kind(&why))
}

/// Parses a key column's value from an address: as in JSON, but without quotes.
fn value(text: &str, column: &Column) -> Result<Value, String> {
    let is_quoted = matches!(column.ty, DataType::Str | DataType::Bytes)
        || column.ty == DataType::Timestamp && text.parse::<i64>().is_err();
    match is_quoted {
        true => values::read(&serde_json::Value::from(text).to_string(), column),
        false => values::read(text, column),
    }
}
