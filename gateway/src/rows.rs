//! A row of a table, as the last durable cut left it.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use tidemill_connect::values;
use tidemill_core::error::nearest;
use tidemill_core::{Column, DataType, Error, TableSpec, Value};

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

pub(crate) async fn row(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let client = shared.access.client(&headers)?;
    let spec = table(&shared, &name)?.clone();
    shared.access.permit(&client, &format!("tables/{name}"))?;
    let help = "give ?key=VALUE, once for each key column in their order";
    let Query(query) = query.map_err(|error| Refusal::wrong(error.body_text(), help))?;
    if let Some((other, _)) = query.iter().find(|(name, _)| name != "key") {
        return Err(Refusal::wrong(format!("there is no parameter '{other}'"), help));
    }
    let key: Vec<String> = query.into_iter().map(|(_, value)| value).collect();
    // Tables are locked while an epoch is executed, so no thread of the runtime may wait for them.
    let found =
        tokio::task::spawn_blocking(move || (shared.app.row_by(&spec, &key, value), spec.schema))
            .await;
    let found = found.map_err(|e| Refusal::of(Error::internal(format!("reading a row: {e}"))));
    let (row, schema) = found?;
    let row = row.map_err(Refusal::of)?;
    let mut body = b"{\"row\":".to_vec();
    match &row {
        Some(row) => values::write_row(&schema, row, &mut body),
        None => body.extend_from_slice(b"null"),
    }
    body.push(b'}');
    Ok(json_response(StatusCode::OK, body))
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
