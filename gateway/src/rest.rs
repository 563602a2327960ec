//! What an answer has left unread of its request.
//!
//! Whoever is refused by the headers alone is answered before the body has been read, and a client
//! may still be sending it. The next request of the connection comes behind that body. Were it left
//! there, the connection would have to be closed without notice, and a client that has kept it for
//! its next request would wait for an answer in vain. So a rest that is short and comes soon is read
//! and thrown away; else the answer says that the connection is closed.

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

use crate::face::Face;

/// Answers a request, and gets past its body.
pub(crate) async fn pass(
    State(face): State<Arc<Face>>,
    request: Request,
    answerer: Next,
) -> Response {
    if request.body().is_end_stream() {
        return answerer.run(request).await;
    }
    // Who waits to be asked for the body has not sent it, and need not.
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
        || !timeout(face.limits.idle, rest.skip(face.limits.body_bytes)).await.unwrap_or(false);
    if close {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// A body that goes on when whoever answers has dropped it.
#[derive(Clone)]
struct Rest(Arc<Mutex<Reading>>);

struct Reading {
    body: Body,
    /// The last of it has been read, or it has broken off.
    ended: bool,
}

impl Rest {
    /// Reads on to the end; whether it was found within this many bytes.
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
