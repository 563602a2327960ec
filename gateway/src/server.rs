//! The connections: accepted, bounded in number, and ended.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{select, Either};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{service_fn, Service as _};
use hyper::Request;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidemill_env::forks::Held;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::debug;
use tracing::instrument::WithSubscriber as _;

use crate::checks;
use crate::routes::Routes;
use crate::seats::{Seat, Seats};
use crate::shared::{Counted, Shared};
use crate::write_timeout::WriteTimeout;

/// The largest size of a request's head, in bytes. As much is read ahead of a body.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long the server waits when no file handle is free. A connection is likely to close soon.
const NO_HANDLE: Duration = Duration::from_millis(10);

/// Accepts connections until the server is closed.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    routes: Routes,
    shared: Arc<Shared>,
    closing: watch::Receiver<bool>,
) {
    // This is dropped before the socket is closed, because the last declared value is dropped
    // first.
    let _held = Held::new(&listener);
    let wants_tokens = shared.access.wants_tokens();
    let seats = Seats::new(shared.limits.connections, shared.limits.idle, wants_tokens);
    let mut closed = closing.clone();
    loop {
        let accepted = {
            let closed = pin!(closed.wait_for(|closing| *closing));
            match select(pin!(listener.accept()), closed).await {
                Either::Left((accepted, _)) => accepted,
                Either::Right(_) => return,
            }
        };
        let Ok((stream, peer)) = accepted else {
            sleep(NO_HANDLE).await;
            continue;
        };
        let (seat, turned_out) = seats.take(peer.ip());
        if turned_out {
            Counted::add(&shared.counted.turned_out);
        }
        let (tls, routes, shared, closing) =
            (tls.clone(), routes.clone(), shared.clone(), closing.clone());
        let serve = async move {
            shared.counted.connections.fetch_add(1, Ordering::Relaxed);
            let talk = connection(stream, tls, routes, &shared, (seat.clone(), closing));
            // A client that must leave gets no message, because sending one could mean waiting.
            select(pin!(talk), pin!(seat.evicted())).await;
            shared.counted.connections.fetch_sub(1, Ordering::Relaxed);
        };
        // Its task logs where this one does.
        tokio::spawn(serve.with_current_subscriber());
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    routes: Routes,
    shared: &Shared,
    (seat, closing): (Arc<Seat>, watch::Receiver<bool>),
) {
    // Replies are small, and a client waits for each.
    let _ = stream.set_nodelay(true);
    let _held = Held::new(&stream);
    match tls {
        None => talk(stream, routes, shared, (seat, closing)).await,
        Some(tls) => match timeout(shared.limits.idle, tls.accept(stream)).await {
            Ok(Ok(stream)) => talk(stream, routes, shared, (seat, closing)).await,
            Ok(Err(error)) => {
                let what = error.to_string();
                debug!(target: "tidemill::http", what, "handshake failed");
            }
            Err(_) => debug!(target: "tidemill::http", what = "no answer", "handshake failed"),
        },
    }
}

async fn talk<S>(
    stream: S,
    routes: Routes,
    shared: &Shared,
    (seat, mut closing): (Arc<Seat>, watch::Receiver<bool>),
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Routes { known, others } = routes;
    let (known, others) = (TowerToHyperService::new(known), TowerToHyperService::new(others));
    let answer = service_fn(move |mut request: Request<Incoming>| {
        if seat.is_known() && checks::check(&request).is_ok() {
            return known.call(request);
        }
        request.extensions_mut().insert(seat.clone());
        others.call(request)
    });
    let io = TokioIo::new(WriteTimeout::new(stream, shared.limits.idle));
    let talking = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.limits.idle)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(io, answer);
    let mut talking = pin!(talking);
    let ended = {
        let closed = pin!(closing.wait_for(|closing| *closing));
        matches!(select(talking.as_mut(), closed).await, Either::Left(_))
    };
    if !ended {
        // An answer in progress is finished. A client that asks for nothing is not waited for.
        talking.as_mut().graceful_shutdown();
        // An error of a client that has gone or has sent garbage needs no answer.
        let _ = talking.await;
    }
}
