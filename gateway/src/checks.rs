//! The requirements of every request. A request with two possible readings is refused, because a
//! proxy may have read it the other way.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{header, HeaderName, HeaderValue, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidemill_core::Error;

use crate::call::DEADLINE;
use crate::refusal::Refusal;
use crate::routes::HEALTH;
use crate::seats::Seat;
use crate::shared::{Counted, Shared};

/// The largest port number.
const PORT_MAX: u32 = 65_535;
/// Headers that may occur only once.
const SINGLE: [HeaderName; 5] = [
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    HeaderName::from_static(DEADLINE),
    HeaderName::from_static("last-event-id"),
];

/// Answers valid requests of allowed clients. All other clients lose their connection with the
/// refusal.
pub(crate) async fn admit(
    State(shared): State<Arc<Shared>>,
    request: Request,
    answerer: Next,
) -> Response {
    if let Err(refusal) = check(&request) {
        return closing(refusal);
    }
    let seat = request.extensions().get::<Arc<Seat>>().cloned();
    let Some(seat) = seat.filter(|seat| !seat.is_known()) else {
        return answerer.run(request).await;
    };
    if request.uri().path() == HEALTH {
        let answer = answerer.run(request).await;
        seat.answered();
        return answer;
    }
    if let Err(refusal) = shared.access.client(request.headers()) {
        return closing(refusal);
    }
    if seat.admit().is_err() {
        Counted::add(&shared.counted.refused_connections);
        let error = Error::resource("there are too many connections")
            .help("connect again when some have left, or raise http_connections_max");
        return closing(Refusal::later(error));
    }
    answerer.run(request).await
}

fn closing(refusal: Refusal) -> Response {
    refusal.header(header::CONNECTION, HeaderValue::from_static("close")).into_response()
}

/// Refuses a request with two possible readings.
pub(crate) fn check<B>(request: &Request<B>) -> Result<(), Refusal> {
    host(request)?;
    let headers = request.headers();
    // Usually no header occurs twice.
    let are_single = headers.len() == headers.keys_len();
    for name in SINGLE.iter().filter(|_| !are_single) {
        if headers.get_all(name).iter().nth(1).is_some() {
            let what = format!("there are two headers {name}");
            return Err(Refusal::wrong(what, "send one"));
        }
    }
    let uri = request.uri();
    for (part, text) in [("path", uri.path()), ("query", uri.query().unwrap_or_default())] {
        escapes(text).map_err(|why| {
            let help = "write each byte of UTF-8 that is not a letter or digit as % and two \
                        hexadecimal digits";
            Refusal::wrong(format!("the {part} of the address {why}"), help)
        })?;
    }
    Ok(())
}

/// Checks that there is one host, that it is a name or an address, and that the target agrees with
/// it.
fn host<B>(request: &Request<B>) -> Result<(), Refusal> {
    let help = "send one header Host with the name or address that was connected to";
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    if another.is_some() {
        return Err(Refusal::wrong("there are two headers Host", help));
    }
    let Some(host) = host else {
        // HTTP/1.1 introduced the header.
        return match request.version() {
            Version::HTTP_10 => Ok(()),
            _ => Err(Refusal::wrong("there is no header Host", help)),
        };
    };
    if request.uri().authority().is_none() && is_plain(host.as_bytes()) {
        return Ok(());
    }
    let host = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
    let is_one = |host: &Authority| {
        let port = host.as_str().strip_prefix(host.host());
        !host.host().is_empty()
            && port.is_some_and(|port| port.is_empty() || is_port(port.as_bytes()))
    };
    let Some(host) = host.filter(is_one) else {
        return Err(Refusal::wrong("the header Host is not a name or address", help));
    };
    match request.uri().authority() {
        Some(target) if !target.as_str().eq_ignore_ascii_case(host.as_str()) => {
            let what = format!("the target is at {target}, and the header Host says {host}");
            Err(Refusal::wrong(what, help))
        }
        _ => Ok(()),
    }
}

/// Whether this is a name or an IPv4 address, with or without a port, as it usually is.
fn is_plain(host: &[u8]) -> bool {
    let end = host.iter().position(|byte| *byte == b':').unwrap_or(host.len());
    let (name, port) = host.split_at(end);
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let has_port = port.len() > 1 && is_port(port);
    !name.is_empty() && name.iter().all(is_of_name) && (port.is_empty() || has_port)
}

/// Whether this is a colon, with or without a port number after it.
fn is_port(text: &[u8]) -> bool {
    let Some((b':', digits)) = text.split_first() else { return false };
    let add = |port: u32, digit: &u8| match digit {
        b'0'..=b'9' => Some(port * 10 + u32::from(digit - b'0')).filter(|port| *port <= PORT_MAX),
        _ => None,
    };
    digits.iter().try_fold(0, add).is_some()
}

/// Checks that the escapes are complete and give UTF-8.
fn escapes(text: &str) -> Result<(), &'static str> {
    // A text of an address has no byte 0.
    if !text.contains('%') {
        return Ok(());
    }
    let (mut bytes, mut decoded) = (text.bytes(), Vec::with_capacity(text.len()));
    let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16));
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => (high << 4 | low) as u8,
                _ => return Err("has a % without two hexadecimal digits"),
            },
            other => other,
        });
    }
    match std::str::from_utf8(&decoded) {
        Ok(text) if text.contains('\0') => Err("has a byte 0"),
        Ok(_) => Ok(()),
        Err(_) => Err("is not UTF-8"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plain_is_a_host() {
        for plain in ["localhost", "127.0.0.1:8080", "a.b-c:1", "a:65535", "a:000080"] {
            assert!(is_plain(plain.as_bytes()) && plain.parse::<Authority>().is_ok(), "{plain}");
        }
        for other in ["", ":80", "a:", "a:b", "[::1]:80", "a@b", "a/b", "a:1:2", "a:65536", "é"] {
            assert!(!is_plain(other.as_bytes()), "{other}");
        }
        for none in ["", "80", ":a", ":+1", ":-1", ":65536", ":99999999999999999999", "::1"] {
            assert!(!is_port(none.as_bytes()), "{none}");
        }
        assert!(is_port(b":") && is_port(b":0"));
    }

    #[test]
    fn escapes_are_whole_and_utf8() {
        for good in ["", "/tables/a%2Fb/rows", "key=%C3%A9&key=+", "key=%25zz"] {
            assert_eq!(escapes(good), Ok(()), "{good}");
        }
        for bad in ["key=%ff", "key=%zz", "key=%", "key=%4", "key=%C3", "key=%00", "%ed%a0%80"] {
            assert!(escapes(bad).is_err(), "{bad}");
        }
    }
}
