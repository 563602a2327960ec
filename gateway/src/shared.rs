//! The state that all handlers share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tidemill_core::{Error, Result};
use tidemill_engine::App;
use tokio::sync::Semaphore;

use crate::access::Access;
use crate::notifier::Notifier;
use crate::openapi;
use crate::refusal::Refusal;

/// The app as its clients see it.
pub(crate) struct Shared {
    pub(crate) app: Arc<dyn App>,
    pub(crate) access: Access,
    pub(crate) notifier: Arc<Notifier>,
    /// One permit for each call that may wait for its reply.
    pub(crate) room: Arc<Semaphore>,
    /// The OpenAPI document.
    pub(crate) openapi: Bytes,
    /// A number that identifies this run of the gateway; epoch numbers alone do not.
    pub(crate) run: u64,
    pub(crate) limits: Limits,
    pub(crate) counted: Counted,
    stopping: AtomicBool,
}

/// The limits of all clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) body_bytes: usize,
    pub(crate) calls: usize,
    pub(crate) connections: usize,
    pub(crate) idle: Duration,
    pub(crate) deadline: Duration,
    pub(crate) requests_kept_us: i64,
}

/// The counters for the metrics.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) connections: AtomicU64,
    pub(crate) refused_connections: AtomicU64,
    pub(crate) turned_out: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) aborted: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) overdue: AtomicU64,
    pub(crate) full: AtomicU64,
}

impl Counted {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// Creates the state for a running app.
    ///
    /// # Errors
    /// If roles are needed for something that does not exist.
    pub(crate) fn new(
        app: Arc<dyn App>,
        access: Access,
        notifier: Arc<Notifier>,
        run: u64,
    ) -> Result<Shared> {
        let access = guard(&*app, access)?;
        let settings = app.settings();
        let us = |us: i64| Duration::from_micros(us.unsigned_abs());
        let limits = Limits {
            body_bytes: settings.http_body_bytes_max,
            calls: settings.http_calls_max,
            connections: settings.http_connections_max,
            idle: us(settings.http_idle_us),
            deadline: us(settings.http_deadline_us),
            requests_kept_us: settings.http_requests_kept_us,
        };
        let openapi = openapi::document(&*app, &access, &limits).to_string().into();
        Ok(Shared {
            access,
            notifier,
            room: Arc::new(Semaphore::new(limits.calls)),
            openapi,
            run,
            limits,
            counted: Counted::default(),
            stopping: AtomicBool::new(false),
            app,
        })
    }

    /// Asks the app something at once, or, where that takes a moment, so that the thread's other
    /// work goes on elsewhere.
    pub(crate) fn ask<T>(&self, body: impl FnOnce(&dyn App) -> T) -> T {
        match self.app.is_remote() {
            true => tokio::task::block_in_place(|| body(&*self.app)),
            false => body(&*self.app),
        }
    }

    /// Refuses new requests from now on.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Refuses a new request if the app is stopping.
    pub(crate) fn open(&self) -> Result<(), Refusal> {
        match self.stopping.load(Ordering::Acquire) {
            true => Err(Refusal::later(
                Error::resource("the app is stopping").help("try again when it has restarted"),
            )),
            false => Ok(()),
        }
    }
}

/// Gives the outputs of procedures the roles that the procedures need, where no others are set.
/// Roles for unknown names are refused.
fn guard(app: &dyn App, mut access: Access) -> Result<Access> {
    let streams = app.streams().into_iter().map(|(name, _)| format!("streams/{name}"));
    let tables = app.tables().into_iter().map(|table| format!("tables/{}", table.name));
    let outputs: Vec<String> = streams.chain(tables).collect();
    let known: Vec<&str> = app.procedures().keys().chain(&outputs).map(String::as_str).collect();
    for what in access.guarded() {
        if !known.contains(&what) {
            let error = Error::setting(format!("http_roles: there is no {what}"));
            let near = tidemill_core::error::nearest(what, known.iter().copied());
            return Err(match near {
                Some(near) => error.help(format!("did you mean '{near}'?")),
                None => error.help(
                    "give the name of a procedure, streams/NAME of a stream, tables/NAME of a table",
                ),
            });
        }
    }
    // The stream of its replies and the streams of its calls, aborted calls and rejected calls.
    let own = |procedure: &String| {
        let more = ["", ".aborted", ".calls.late", ".calls.dead"].map(String::from);
        more.map(|more| (format!("streams/{procedure}{more}"), procedure.clone()))
    };
    for (output, procedure) in app.procedures().keys().flat_map(own) {
        if outputs.contains(&output) {
            access.guard_as(output, &procedure);
        }
    }
    for (output, roles) in &app.settings().http_roles_default {
        if outputs.contains(output) {
            access.guard(output, roles);
        }
    }
    Ok(access)
}
