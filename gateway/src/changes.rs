//! The changes of a table, cut by cut, as they become durable.
//!
//! An event's id is the run of the gateway and an epoch. Changes stay in memory for a while, so a
//! client that returns soon continues where it was. All other clients first receive the event
//! `reset`, which asks them to read the table. A change is a whole row. So the rows that are read
//! after `reset`, with the later changes applied, are the rows of the table.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;
use tidemill_connect::values;
use tidemill_core::Schema;
use tidemill_engine::{Changes, TableChange};

use crate::refusal::Refusal;
use crate::sent::{event, last_id, named_event, sent, Found};
use crate::shared::Shared;

pub(crate) async fn changes(
    State(shared): State<Arc<Shared>>,
    Path(table): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let client = shared.access.client(&headers)?;
    let schema = crate::rows::table(&shared, &table)?.schema.clone();
    shared.access.permit(&client, &format!("tables/{table}"))?;
    shared.open()?;
    let run = format!("{:016x}", shared.run);
    let behind = last_id(&headers).and_then(|id| {
        let (of, epoch) = id.split_once('.')?;
        (of == run).then(|| epoch.parse().ok()).flatten()
    });
    // The changes after an unknown epoch are unknown.
    let mut at: u64 = behind.unwrap_or(u64::MAX);
    // If nobody knows of changes now, the client is refused at once.
    let mut first = Some(shared.ask(|app| app.changes(&table, at)).map_err(Refusal::of)?);
    let of = shared.clone();
    let ask = move |at| of.ask(|app| app.changes(&table, at));
    let look = move || match first.take().map_or_else(|| ask(at), Ok) {
        // A table never disappears. The coordinator may be away for a moment.
        Err(_) => Found::Nothing,
        Ok(Changes::Unknown(epoch)) => {
            at = epoch;
            let mut out = Vec::new();
            let data = json!({"epoch": epoch, "why": "read the table, and go on from here"});
            named_event(&format!("{run}.{epoch}"), "reset", &data, &mut out);
            Found::Events(out)
        }
        Ok(Changes::Are(epochs, upto)) => {
            at = upto;
            let mut out = Vec::new();
            for (epoch, changes) in epochs {
                let data = written(&schema, epoch, &changes);
                event(&format!("{run}.{epoch}"), None, &data, &mut out);
            }
            match out.is_empty() {
                true => Found::Nothing,
                false => Found::Events(out),
            }
        }
    };
    Ok(sent(&shared, b":\n\n".to_vec(), look))
}

/// Writes `{"epoch": 7, "changes": [{"key": [1], "row": {...}}, {"key": [2], "row": null}]}`.
fn written(schema: &Schema, epoch: u64, changes: &[TableChange]) -> Vec<u8> {
    let mut out = format!("{{\"epoch\":{epoch},\"changes\":[").into_bytes();
    for (index, change) in changes.iter().enumerate() {
        let open: &[u8] = if index == 0 { b"{\"key\":[" } else { b",{\"key\":[" };
        out.extend_from_slice(open);
        for (column, value) in change.key.iter().enumerate() {
            if column > 0 {
                out.push(b',');
            }
            values::write(value, &mut out);
        }
        out.extend_from_slice(b"],\"row\":");
        match &change.row {
            Some(row) => values::write_row(schema, row, &mut out),
            None => out.extend_from_slice(b"null"),
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out
}
