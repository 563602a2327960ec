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
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_core::{Error, Result};
use tidemill_env::{Addr, Clock, Connection, Env, Handle, Listener, Threads};

use crate::data_dir::Site;
use crate::view::View;

pub(crate) use answer::{rows_after, unknown};
pub(crate) use backup::{
    copy_files, copy_object, copy_several, count, restore, stopped as backup_stopped, verify,
};
pub(crate) use dlq::{not_pushed, Ls, Replay};
pub(crate) use health::{health, metrics};
pub(crate) use lines::Lines;
pub(crate) use query::Query;
pub(crate) use reply::{Answer, Reply, Stop};
pub(crate) use request::Fields;
pub(crate) use status::{add, streams};
pub(crate) use tail::{no_rows, ring_among, LiveRings, Tail};

/// The most connections at a time.
const CONNECTIONS_MAX: usize = 32;
/// The time for answers under way when the engine ends.
const GRACE: Duration = Duration::from_secs(2);
/// The time after which a client that reads no lines is disconnected, in microseconds.
const WRITE_US: u64 = 10_000_000;

/// Answers a request. Its waits end soon after `stopping`.
pub(crate) type AnswerRequest =
    Arc<dyn Fn(&[u8], &AtomicBool, &mut Reply<'_>) -> Answer + Send + Sync>;

/// The request server of an engine with a data directory.
pub(crate) struct Server {
    endpoints: Vec<Endpoint>,
}

/// A listener at the socket of a data directory, with its connections.
pub(crate) struct Endpoint {
    listener: Arc<dyn Listener>,
    sessions: Arc<Sessions>,
    /// Ends the waits of answers, which then look at `stopping`.
    wake: Box<dyn Fn() + Send + Sync>,
    thread: Handle,
}

struct Sessions {
    clock: Arc<dyn Clock>,
    threads: Arc<dyn Threads>,
    answer: AnswerRequest,
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
            let (of, waits) = (view.clone(), view.shared.clone());
            let answer: AnswerRequest = Arc::new(move |request, stopping, reply| {
                answer::answer(&of, stopping, request, reply)
            });
            let wake = Box::new(move || {
                waits.rings_changed.notify_all();
            });
            endpoints.push(Endpoint::open(&view.env, &site.path, answer, wake)?);
        }
        Ok(Server { endpoints })
    }

    /// Ends all answers, and waits until they have ended.
    pub(crate) fn stop(self) {
        self.endpoints.into_iter().for_each(Endpoint::close);
    }
}

impl Endpoint {
    /// Listens at the socket of a directory.
    ///
    /// # Errors
    /// When the address is not available, or no thread can be started.
    pub(crate) fn open(
        env: &Env,
        dir: &Path,
        answer: AnswerRequest,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Endpoint> {
        let addr = Addr::Unix(Site::socket(dir));
        let listener: Arc<dyn Listener> = env
            .net
            .listen(&addr)
            .map_err(|e| Error::io(format!("listening on {addr}"), &e))?
            .into();
        let (clock, threads) = (env.clock.clone(), env.threads.clone());
        let (stopping, open, ended) = Default::default();
        let sessions = Arc::new(Sessions { clock, threads, answer, stopping, open, ended });
        let accept = {
            let (listener, sessions) = (listener.clone(), sessions.clone());
            move || sessions.accept(&*listener)
        };
        let thread = env
            .threads
            .spawn("tidemill-sock", Box::new(accept))
            .map_err(|e| Error::io("starting the thread that answers", &e))?;
        Ok(Endpoint { listener, sessions, wake, thread })
    }

    /// Ends all answers, and waits until they have ended.
    pub(crate) fn close(self) {
        self.sessions.stopping.store(true, Ordering::Release);
        (self.wake)();
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
    fn accept(self: &Arc<Sessions>, listener: &dyn Listener) {
        loop {
            match listener.accept() {
                Ok((connection, _)) => self.begin(connection),
                Err(e) if e.kind() == std::io::ErrorKind::NotConnected => return,
                // No file handle is free. One is likely to become free soon.
                Err(_) => self.clock.sleep_us(10_000),
            }
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
        }
    }

    fn begin(self: &Arc<Sessions>, connection: Box<dyn Connection>) {
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
        let sessions = self.clone();
        let body = move || {
            let answer = || answer::serve(&sessions.answer, connection, &sessions.stopping);
            // A panic of one answer does not affect the others.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(answer));
            sessions.end(number);
        };
        if self.threads.spawn("tidemill-answer", Box::new(body)).is_err() {
            self.end(number);
        }
    }

    fn end(&self, number: u64) {
        let ended = self.open.lock().connections.remove(&number);
        drop(ended);
        self.ended.notify_all();
    }
}
