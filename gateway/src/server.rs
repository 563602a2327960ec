//! Connections: taken in, bounded, and ended.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::{select, Either};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidemill_env::forks::Held;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{watch, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::face::{Counted, Face};
use crate::patience::Patient;

/// Bytes of a request's head, and what is read ahead of a body.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long it waits when no file handle is free: somebody will have closed one soon.
const NO_HANDLE: Duration = Duration::from_millis(10);

/// Takes connections until it is closed.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    routes: Router,
    face: Arc<Face>,
    closing: watch::Receiver<bool>,
) {
    // Let go before the socket is closed: what is declared last goes first.
    let _held = Held::new(&listener);
    let room = Arc::new(Semaphore::new(face.limits.connections));
    let mut closed = closing.clone();
    loop {
        let accepted = {
            let closed = pin!(closed.wait_for(|closing| *closing));
            match select(pin!(listener.accept()), closed).await {
                Either::Left((accepted, _)) => accepted,
                Either::Right(_) => return,
            }
        };
        let Ok((stream, _)) = accepted else {
            sleep(NO_HANDLE).await;
            continue;
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            // Closed without a word: to say one may mean to wait.
            Counted::add(&face.counted.refused_connections);
            continue;
        };
        let (tls, routes, face, closing) =
            (tls.clone(), routes.clone(), face.clone(), closing.clone());
        tokio::spawn(async move {
            face.counted.connections.fetch_add(1, Ordering::Relaxed);
            connection(stream, tls, routes, &face, closing).await;
            face.counted.connections.fetch_sub(1, Ordering::Relaxed);
            drop(place);
        });
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    routes: Router,
    face: &Face,
    closing: watch::Receiver<bool>,
) {
    // Replies are small, and somebody waits for each.
    let _ = stream.set_nodelay(true);
    let _held = Held::new(&stream);
    match tls {
        None => talk(stream, routes, face, closing).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(face.limits.idle, tls.accept(stream)).await {
                talk(stream, routes, face, closing).await;
            }
        }
    }
}

async fn talk<S>(stream: S, routes: Router, face: &Face, mut closing: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(Patient::new(stream, face.limits.idle));
    let talking = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(face.limits.idle)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(io, TowerToHyperService::new(routes));
    let mut talking = pin!(talking);
    let ended = {
        let closed = pin!(closing.wait_for(|closing| *closing));
        matches!(select(talking.as_mut(), closed).await, Either::Left(_))
    };
    if !ended {
        // What is being answered is answered; whoever asks for nothing need not be waited for.
        talking.as_mut().graceful_shutdown();
        // Who has gone, or sent garbage, is owed nothing.
        let _ = talking.await;
    }
}
