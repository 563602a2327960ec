//! Answers on a socket. A thread accepts connections, and each connection has a thread of its own.
//!
//! No client can stop the engine or make it use unbounded memory. Connections, requests and the
//! memory for a reader are bounded, waits have limits, and a panic ends only its own answer.
//! `docs/internals/protocol.md` describes the protocol.

mod answer;
mod backup;
mod dlq;
mod filter;
mod health;
mod lines;
mod query;
mod reply;
mod request;
mod status;
mod tail;

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_core::{Error, Result};
use tidemill_env::{Addr, Connection, Handle, Listener};

use crate::data_dir::Site;
use crate::view::View;

pub(crate) use answer::{rows_after, unknown};
pub(crate) use backup::{copy_several, count, restore, stopped as backup_stopped, verify};
pub(crate) use dlq::{not_pushed, Ls, Replay};
pub(crate) use health::{health, metrics};
pub(crate) use lines::Lines;
pub(crate) use query::Query;
pub(crate) use reply::{Answer, Reply, Stop};
pub(crate) use request::Fields;
pub(crate) use status::{add, streams};
pub(crate) use tail::{no_rows, ring_among, Tail};

/// The most connections at a time.
const CONNECTIONS_MAX: usize = 32;
/// The time for answers under way when the engine ends.
const GRACE: Duration = Duration::from_secs(2);
/// The time after which a client that reads no lines is disconnected, in microseconds.
const WRITE_US: u64 = 10_000_000;

/// Serves one connection. It ends with the connection, or soon after `stopping`.
type Serve = Arc<dyn Fn(Box<dyn Connection>, &AtomicBool) + Send + Sync>;

/// The request server of an engine with a data directory.
pub(crate) struct Server {
    endpoints: Vec<Endpoint>,
}

/// A listener with its connections.
struct Endpoint {
    listener: Arc<dyn Listener>,
    sessions: Arc<Sessions>,
    view: Arc<View>,
    thread: Handle,
}

#[derive(Default)]
struct Sessions {
    stopping: AtomicBool,
    open: Mutex<Open>,
    ended: Condvar,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// Another handle of each connection, to end it.
    connections: BTreeMap<u64, Box<dyn Connection>>,
}

impl Server {
    /// Starts the request server, if there is a data directory.
    ///
    /// # Errors
    /// When the address is not available.
    pub(crate) fn start(view: &Arc<View>) -> Result<Server> {
        let mut endpoints = Vec::new();
        if let Some((site, _)) = &view.site {
            let path = Site::socket(&site.path);
            let of = view.clone();
            let serve: Serve = Arc::new(move |connection, stopping| {
                answer::serve(&of, connection, stopping);
            });
            endpoints.push(Endpoint::open(view, Addr::Unix(path), "tidemill-sock", serve)?);
        }
        Ok(Server { endpoints })
    }

    /// Ends all answers, and waits until they have ended.
    pub(crate) fn stop(self) {
        self.endpoints.into_iter().for_each(Endpoint::close);
    }
}

impl Endpoint {
    fn open(view: &Arc<View>, addr: Addr, name: &str, serve: Serve) -> Result<Endpoint> {
        let listener: Arc<dyn Listener> = view
            .env
            .net
            .listen(&addr)
            .map_err(|e| Error::io(format!("listening on {addr}"), &e))?
            .into();
        let sessions = Arc::new(Sessions::default());
        let accept = {
            let (listener, sessions, view) = (listener.clone(), sessions.clone(), view.clone());
            move || sessions.accept(&*listener, &view, &serve)
        };
        let thread = view
            .env
            .threads
            .spawn(name, Box::new(accept))
            .map_err(|e| Error::io("starting the thread that answers", &e))?;
        Ok(Endpoint { listener, sessions, view: view.clone(), thread })
    }

    fn close(self) {
        self.sessions.stopping.store(true, Ordering::Release);
        self.view.shared.rings_changed.notify_all();
        self.listener.close();
        // The thread's result does not matter.
        let _ = self.thread.join();
        // The address must be free before the next start.
        drop(self.listener);
        let mut open = self.sessions.open.lock();
        // Connections without a request are ended at once.
        open.connections.values().for_each(|c| drop(c.shutdown(Shutdown::Read)));
        while !open.connections.is_empty() {
            if self.sessions.ended.wait_for(&mut open, GRACE).timed_out() {
                open.connections.values().for_each(|c| drop(c.shutdown(Shutdown::Both)));
            }
        }
    }
}

impl Sessions {
    fn accept(self: &Arc<Sessions>, listener: &dyn Listener, view: &Arc<View>, serve: &Serve) {
        loop {
            match listener.accept() {
                Ok((connection, _)) => self.begin(connection, view, serve),
                Err(e) if e.kind() == std::io::ErrorKind::NotConnected => return,
                // No file handle is free. One is likely to become free soon.
                Err(_) => view.env.clock.sleep_us(10_000),
            }
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
        }
    }

    fn begin(
        self: &Arc<Sessions>,
        connection: Box<dyn Connection>,
        view: &Arc<View>,
        serve: &Serve,
    ) {
        let Ok(handle) = connection.try_clone() else { return };
        if connection.set_write_timeout(Some(WRITE_US)).is_err() {
            return;
        }
        let mut open = self.open.lock();
        if open.connections.len() >= CONNECTIONS_MAX {
            // It is closed without a message, because sending one could block.
            return;
        }
        let number = open.next;
        open.next += 1;
        open.connections.insert(number, handle);
        drop(open);
        let (sessions, serve) = (self.clone(), serve.clone());
        let body = move || {
            let answer = || serve(connection, &sessions.stopping);
            // A panic of one answer does not affect the others.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(answer));
            sessions.end(number);
        };
        if view.env.threads.spawn("tidemill-answer", Box::new(body)).is_err() {
            self.end(number);
        }
    }

    fn end(&self, number: u64) {
        let ended = self.open.lock().connections.remove(&number);
        drop(ended);
        self.ended.notify_all();
    }
}
