//! The unread rest of a request's body.
//!
//! A client that is refused by the headers alone gets its answer before the body has been read. It
//! may still be sending the body, and the connection's next request comes after it. An unread body
//! would force the gateway to close the connection without notice. A client that uses the
//! connection for its next request would then wait in vain for an answer. So a rest that is short
//! and arrives soon is read and discarded. Otherwise the answer says that the connection is closed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{header, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::shared::Shared;

/// Answers a request, and skips the rest of its body.
pub(crate) async fn pass(
    State(shared): State<Arc<Shared>>,
    request: Request,
    answerer: Next,
) -> Response {
    if request.body().is_end_stream() {
        return answerer.run(request).await;
    }
    // A client that waits to be asked for the body has not sent it, and need not.
    let waits = request.headers().contains_key(header::EXPECT);
    let (head, body) = request.into_parts();
    let mut rest = Rest(Arc::new(Mutex::new(Reading { body, ended: false })));
    let body = Body::new(rest.clone());
    let mut answer = answerer.run(Request::from_parts(head, body)).await;
    if rest.is_end_stream() {
        return answer;
    }
    let late = [StatusCode::REQUEST_TIMEOUT, StatusCode::PAYLOAD_TOO_LARGE];
    let close = waits
        || late.contains(&answer.status())
        || !timeout(shared.limits.idle, rest.skip(shared.limits.body_bytes)).await.unwrap_or(false);
    if close {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// A body that can still be read when the handler has dropped it.
#[derive(Clone)]
struct Rest(Arc<Mutex<Reading>>);

struct Reading {
    body: Body,
    /// Whether all of it has been read, or it has broken off.
    ended: bool,
}

impl Rest {
    /// Reads on to the end. Returns whether the end came within this many bytes.
    async fn skip(&mut self, bytes_max: usize) -> bool {
        let mut left = bytes_max;
        while !self.is_end_stream() {
            if self.size_hint().lower() > left as u64 {
                return false;
            }
            match self.frame().await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => {
                    let read = frame.data_ref().map_or(0, Bytes::len);
                    match left.checked_sub(read) {
                        Some(rest) => left = rest,
                        None => return false,
                    }
                }
            }
        }
        true
    }
}

impl HttpBody for Rest {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut reading = self.0.lock();
        if reading.ended {
            return Poll::Ready(None);
        }
        let frame = Pin::new(&mut reading.body).poll_frame(cx);
        reading.ended = matches!(frame, Poll::Ready(None | Some(Err(_))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        let reading = self.0.lock();
        reading.ended || reading.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().body.size_hint()
    }
}
