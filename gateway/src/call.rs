//! Calls of procedures.
//!
//! A call that has entered the engine is executed, whatever happens to the client or its
//! connection. Its place among the waiting calls is free again when it is answered.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{to_bytes, Body};
use axum::extract::{Path, State};
use axum::http::{header, HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;
use tidemill_connect::values;
use tidemill_core::{Batch, Error, Kind, Row, Schema};
use tidemill_engine::{Procedure, Reply, Request};
use tokio::sync::oneshot;
use tokio::time::{timeout, timeout_at, Instant};

use crate::access::Client;
use crate::arguments::arguments;
use crate::refusal::{json_response, Refusal};
use crate::shared::{Counted, Shared};

/// The headers of a call: the id of a request that may be repeated, and how long its client waits.
pub(crate) const REQUEST_ID: &str = "idempotency-key";
pub(crate) const DEADLINE: &str = "tidemill-deadline-ms";
/// The largest length of a request's id, in bytes.
pub(crate) const ID_BYTES_MAX: usize = 128;
/// The name of a reply's only column, where the column is the whole reply.
const REPLY: &str = "reply";

pub(crate) async fn call(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let client = shared.access.client(&headers)?;
    let procedure = shared.app.procedure(&name).map_err(Refusal::missing)?;
    shared.access.permit(&client, &name)?;
    check_json(&headers)?;
    let waits = deadline(&headers)?.unwrap_or(shared.limits.deadline).min(shared.limits.deadline);
    let until = Instant::now() + waits;
    let id = request_id(&headers)?;
    let body = read(&shared, &headers, body).await?;
    let caller = procedure.caller.map(|column| (column, client.as_caller()));
    let arguments = arguments(&body, &procedure.parameters, caller)?;
    let arguments = Batch::from_rows(procedure.parameters.clone(), [&arguments[..]]);
    let told = send(&shared, &client, procedure, arguments, id)?;
    Counted::add(&shared.counted.calls);
    let reply = match timeout_at(until, told).await {
        Ok(Ok(reply)) => reply.map_err(|error| unanswered(error, id)),
        Ok(Err(_)) => Err(unanswered(Error::resource("the engine has ended"), id)),
        Err(_) => {
            Counted::add(&shared.counted.overdue);
            let what = format!("the call had no reply within {} ms", waits.as_millis());
            let error = Error::resource(what).help(again(id));
            Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, error).field("executed", "unknown"))
        }
    }?;
    match reply {
        Reply::Returned(row) => Ok(returned(procedure, row)),
        Reply::Aborted(reason) => {
            Counted::add(&shared.counted.aborted);
            let body = json!({"aborted": without_place(&reason)}).to_string().into_bytes();
            Ok(json_response(StatusCode::CONFLICT, body))
        }
        Reply::Faulted { what, .. } => {
            Counted::add(&shared.counted.faults);
            let body = json!({"fault": what}).to_string().into_bytes();
            Ok(json_response(StatusCode::INTERNAL_SERVER_ERROR, body))
        }
        Reply::OtherRequest => {
            let error = Error::input("the request id is that of another call").help(
                "repeat a call with the same procedure and parameters, and give a new call a new \
                 id",
            );
            Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error))
        }
    }
}

/// Removes the line of the program that raised it from a reason. The line is for the program's
/// author only.
fn without_place(reason: &str) -> &str {
    let is_place = |place: &str| {
        let (file, line) = place.rsplit_once(':').unwrap_or_default();
        file.ends_with(".py") && !line.is_empty() && line.bytes().all(|b| b.is_ascii_digit())
    };
    match reason.strip_suffix(')').and_then(|reason| reason.rsplit_once(" (")) {
        Some((what, place)) if is_place(place) => what,
        _ => reason,
    }
}

/// Sends a call into the engine.
fn send(
    shared: &Shared,
    client: &Client,
    procedure: &Procedure,
    arguments: Batch,
    id: Option<&str>,
) -> Result<oneshot::Receiver<tidemill_core::Result<Reply>>, Refusal> {
    shared.open()?;
    let Ok(place) = shared.room.clone().try_acquire_owned() else {
        Counted::add(&shared.counted.full);
        let error = Error::resource("too many calls wait for their replies")
            .help("call again when some have been answered");
        return Err(Refusal::later(error));
    };
    let (tell, told) = oneshot::channel();
    let then = move |reply| {
        drop(place);
        // The client may have stopped waiting; then the reply is dropped.
        let _ = tell.send(reply);
    };
    // Each client has ids of its own, so no client receives the reply to another's call.
    let request = id.map(|id| Request {
        id: format!("{}/{id}", client.name),
        kept_us: shared.limits.requests_kept_us,
    });
    let sent = shared.app.call_then(&procedure.name, arguments, request, Box::new(then));
    sent.map(|()| told).map_err(Refusal::of)
}

/// Returns an object with the reply.
fn returned(procedure: &Procedure, row: Option<Row>) -> Response {
    let mut body = b"{\"reply\":".to_vec();
    match (&row, &procedure.reply) {
        (Some(row), Some(schema)) if is_whole_reply(schema) => values::write(&row[0], &mut body),
        (Some(row), Some(schema)) => values::write_row(schema, row, &mut body),
        _ => body.extend_from_slice(b"null"),
    }
    body.push(b'}');
    json_response(StatusCode::OK, body)
}

/// Whether the only column is the whole reply.
pub(crate) fn is_whole_reply(reply: &Schema) -> bool {
    reply.len() == 1 && &*reply.columns[0].name == REPLY
}

/// Returns the help for a call that may have been executed.
fn again(id: Option<&str>) -> String {
    match id {
        Some(_) => {
            "the call may still be executed: repeat it with the same Idempotency-Key and body, \
                    and it runs only once"
                .into()
        }
        None => {
            "the call may still be executed: send an Idempotency-Key, so that you can repeat it"
                .into()
        }
    }
}

fn unanswered(error: Error, id: Option<&str>) -> Refusal {
    let Error { kind, what, .. } = error;
    let refusal = match kind {
        Kind::Internal => Refusal::of(Error::internal(what)),
        kind => Refusal::later(Error::new(kind, what).help(again(id))),
    };
    refusal.field("executed", "unknown")
}

/// Pages of other sites may send any other content type without a preflight request.
fn check_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mut parts = kind.unwrap_or_default().split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let other = |what: String, help: &str| {
        Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Error::input(what).help(help)))
    };
    if !kind.eq_ignore_ascii_case("application/json") {
        let help = "send JSON, with the header Content-Type: application/json";
        return other(format!("the content type of the body is '{kind}'"), help);
    }
    let charset = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    });
    if let Some(charset) = charset.filter(|charset| !charset.eq_ignore_ascii_case("utf-8")) {
        return other(format!("the body is in the charset '{charset}'"), "send JSON in UTF-8");
    }
    let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes());
    match encoding.filter(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        None => Ok(()),
        Some(encoding) => {
            let encoding = String::from_utf8_lossy(encoding);
            other(format!("the body is encoded as '{encoding}'"), "send it without an encoding")
        }
    }
}

fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
    let Some(value) = headers.get(DEADLINE) else { return Ok(None) };
    let ms = value.to_str().ok().and_then(|text| text.parse::<u64>().ok()).filter(|ms| *ms > 0);
    match ms {
        Some(ms) => Ok(Some(Duration::from_millis(ms))),
        None => Err(Refusal::wrong(
            "Tidemill-Deadline-Ms is not a positive number",
            "give the time to wait for the reply, in milliseconds",
        )),
    }
}

fn request_id(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(value) = headers.get(REQUEST_ID) else { return Ok(None) };
    let is_id = |id: &&str| !id.is_empty() && id.len() <= ID_BYTES_MAX;
    let is_alone = headers.get_all(REQUEST_ID).iter().count() == 1;
    match value.to_str().ok().filter(is_id).filter(|_| is_alone) {
        Some(id) => Ok(Some(id)),
        None => Err(Refusal::wrong(
            format!("Idempotency-Key is not one text of 1 to {ID_BYTES_MAX} ASCII characters"),
            "give each call a random one, and repeat a call with the same one",
        )),
    }
}

/// Returns the whole body, if it arrives in time and is not too large.
async fn read(
    shared: &Shared,
    headers: &HeaderMap,
    body: Body,
) -> Result<axum::body::Bytes, Refusal> {
    let max = shared.limits.body_bytes;
    let too_large = || {
        let error = Error::input(format!("the body has more than {max} bytes"))
            .help("send less, or raise http_body_bytes_max");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error)
    };
    let said = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if said.and_then(|length| length.parse::<u64>().ok()).is_some_and(|said| said > max as u64) {
        return Err(too_large());
    }
    match timeout(shared.limits.idle, to_bytes(body, max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            // The body is too long, or it has broken off. In the latter case no client reads the
            // answer.
            let error = error.into_inner();
            match error.is::<http_body_util::LengthLimitError>() {
                true => Err(too_large()),
                false => Err(Refusal::wrong("the body is incomplete", "send all of it")),
            }
        }
        Err(_) => {
            let error = Error::input("the body did not arrive in time").help("send it at once");
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_not_told_where_a_program_failed() {
        assert_eq!(without_place("KeyError: 7 (bank.py:12)"), "KeyError: 7");
        for same in ["no rooms (left)", "(bank.py:12)", "see (bank.py)", "at (bank.py:x)", "", ")"]
        {
            assert_eq!(without_place(same), same);
        }
    }
}
