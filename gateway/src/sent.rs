//! Server-sent events.
//!
//! Nothing queues up for a follower. The next events are looked up when its connection has room for
//! them. A follower that is too slow for the retained events receives an error and is cut off.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{header, HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::{json, Value};
use tokio::time::timeout;

use crate::shared::Shared;

/// The time without an event after which a sign of life is sent. It is shorter than the timeouts of
/// usual proxies.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The events that a follower finds when it looks.
pub(crate) enum Found {
    /// Some events.
    Events(Vec<u8>),
    /// No event yet.
    Nothing,
    /// The last events.
    Last(Vec<u8>),
}

/// Returns the id of the last event that a returning client has received.
pub(crate) fn last_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("last-event-id").and_then(|value| value.to_str().ok()).filter(|id| !id.is_empty())
}

/// Appends an event of JSON. An event without a name is one of those that are followed.
pub(crate) fn event(id: &str, name: Option<&str>, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(id.as_bytes());
    if let Some(name) = name {
        out.extend_from_slice(b"\nevent: ");
        out.extend_from_slice(name.as_bytes());
    }
    // The JSON that we write has no line breaks.
    out.extend_from_slice(b"\ndata: ");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\n\n");
}

/// Appends an event of a JSON value.
pub(crate) fn named_event(id: &str, name: &str, data: &Value, out: &mut Vec<u8>) {
    event(id, Some(name), data.to_string().as_bytes(), out);
}

/// Sends `begin` and then the events that `look` finds, until there can be no more.
pub(crate) fn sent(
    shared: &Shared,
    begin: Vec<u8>,
    look: impl FnMut() -> Found + Send + 'static,
) -> Response {
    let heard = shared.notifier.subscribe();
    let events = unfold(Some((heard, look, begin)), |state| async {
        let (mut heard, mut look, begin) = state?;
        let some = |bytes: Vec<u8>| Ok::<Bytes, Infallible>(bytes.into());
        if !begin.is_empty() {
            return Some((some(begin), Some((heard, look, Vec::new()))));
        }
        loop {
            // This is read before the look, so that the look finds every event before the end.
            let over = heard.borrow_and_update().over;
            match look() {
                Found::Events(bytes) => {
                    return Some((some(bytes), Some((heard, look, Vec::new()))));
                }
                Found::Last(bytes) => return Some((some(bytes), None)),
                Found::Nothing if over => return Some((some(end()), None)),
                Found::Nothing => {}
            }
            match timeout(HEARTBEAT, heard.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Some((some(end()), None)),
                Err(_) => {
                    return Some((some(b":\n\n".to_vec()), Some((heard, look, Vec::new()))));
                }
            }
        }
    });
    const KIND: HeaderValue = HeaderValue::from_static("text/event-stream");
    const FRESH: HeaderValue = HeaderValue::from_static("no-store");
    let headers = [(header::CONTENT_TYPE, KIND), (header::CACHE_CONTROL, FRESH)];
    (headers, Body::from_stream(events)).into_response()
}

/// Returns the event that says that the app has stopped. It has no id, so a returning client
/// continues where it was.
fn end() -> Vec<u8> {
    format!("event: end\ndata: {}\n\n", json!({"why": "the app has stopped"})).into_bytes()
}
