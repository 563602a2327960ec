//! A refused request: a status, and as JSON what is wrong, why, and how to mend it.

use axum::http::{header, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{json, Value};
use tidemill_core::{Error, Kind};
use tracing::debug;

/// The seconds after which a client that was refused for lack of room may try again.
const RETRY_AFTER: &str = "1";

/// A refusal. The parts are in a box, because almost all answers are not refusals.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Parts>);

#[derive(Debug)]
struct Parts {
    status: StatusCode,
    error: Error,
    /// More fields, as an object.
    more: Value,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    /// Creates a refusal with this status and error.
    pub(crate) fn new(status: StatusCode, error: Error) -> Refusal {
        Refusal(Box::new(Parts { status, error, more: json!({}), headers: Vec::new() }))
    }

    /// Refuses a request that is wrong.
    pub(crate) fn wrong(what: impl Into<String>, help: &str) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, Error::input(what).help(help))
    }

    /// Refuses a request for something that does not exist.
    pub(crate) fn missing(error: Error) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, error)
    }

    /// Refuses a request that may succeed later, when there is room or the app works again.
    pub(crate) fn later(error: Error) -> Refusal {
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error);
        refusal.header(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER))
    }

    /// Refuses a request with an error of the engine.
    pub(crate) fn of(error: Error) -> Refusal {
        match error.kind {
            Kind::Resource | Kind::Io => Refusal::later(error),
            Kind::Internal => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error),
            Kind::Program | Kind::Setting | Kind::Input => {
                Refusal::new(StatusCode::BAD_REQUEST, error)
            }
        }
    }

    /// Adds a field.
    pub(crate) fn field(mut self, name: &str, value: impl Into<Value>) -> Refusal {
        self.0.more[name] = value.into();
        self
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Refusal {
        self.0.headers.push((name, value));
        self
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Parts { status, error, mut more, headers } = *self.0;
        let (code, kind, what) = (status.as_u16(), kind(status, &error, &more), &*error.what);
        debug!(target: "tidemill::http", status = code, kind, what, "refused");
        more["error"] = json!({"kind": kind, "what": error.what, "help": error.help});
        let mut response = json_response(status, more.to_string().into_bytes());
        response.headers_mut().extend(headers);
        response
    }
}

/// Returns the name of the exception that the client raises.
fn kind(status: StatusCode, error: &Error, more: &Value) -> &'static str {
    match status {
        _ if more["executed"] == "unknown" => "DeadlineError",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "AccessError",
        StatusCode::NOT_FOUND => "ProgramError",
        StatusCode::GONE => "GoneError",
        _ => error.kind.name(),
    }
}

/// Returns an answer of JSON.
pub(crate) fn json_response(status: StatusCode, body: Vec<u8>) -> Response {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, JSON)], body).into_response()
}
