//! The answers of a running engine.

use std::io::{self, Write as _};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tidemill_core::{Error, Key, Result, Row};
use tidemill_env::Connection;

use super::query::{Plan, Rows};
use super::{
    backup, dlq, status, tail, Answer, AnswerRequest, Fields, Lines, LiveRings, Ls, Query, Reply,
    Stop,
};
use crate::past::{Basis, Moment};
use crate::view::View;

/// The largest request, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// The longest silence of a connection, in microseconds.
const IDLE_US: u64 = 300_000_000;

/// At most one query of an earlier state at a time, because it needs memory. At most one scan at a
/// time, because it locks the tables.
static ONE_PAST: Mutex<()> = Mutex::new(());
static ONE_SCAN: Mutex<()> = Mutex::new(());

/// Answers all requests of a connection.
pub(super) fn serve(
    answer: &AnswerRequest,
    connection: Box<dyn Connection>,
    stopping: &AtomicBool,
) {
    let Ok(mut out) = connection.try_clone() else { return };
    if connection.set_read_timeout(Some(IDLE_US)).is_err() {
        return;
    }
    let mut lines = Lines::new(connection, REQUEST_BYTES_MAX);
    let mut put = |bytes: &[u8]| out.write_all(bytes);
    let mut reply = Reply::new(&mut put, "running");
    loop {
        let request = match lines.next() {
            Ok(Some(request)) => request,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                let what = format!("a request has at most {REQUEST_BYTES_MAX} bytes");
                // The client may have gone, and then the refusal is lost.
                let _ = reply.close(Err(Error::input(what).into()));
                return;
            }
            Ok(None) | Err(_) => return,
        };
        let answer = catch_unwind(AssertUnwindSafe(|| answer(&request, stopping, &mut reply)));
        let answer = answer.unwrap_or_else(|_| {
            Err(Error::internal("answering the request failed; the engine keeps running").into())
        });
        if matches!(answer, Err(Stop::Failed(..)))
            && stopping.load(Ordering::Acquire)
            && !reply.has_begun
        {
            // A client without an answer asks again, and then reads the files of the stopped
            // engine.
            return;
        }
        reply.has_begun = false;
        if reply.close(answer).is_err() || stopping.load(Ordering::Acquire) {
            return;
        }
    }
}

/// Answers a request to an engine in one process.
pub(super) fn answer(
    view: &View,
    stopping: &AtomicBool,
    request: &[u8],
    reply: &mut Reply<'_>,
) -> Answer {
    let mut fields = Fields::parse(request)?;
    let stops = || {
        if stopping.load(Ordering::Acquire) {
            return Err(Error::resource("the engine is stopping")
                .help("ask again: the answer then comes from its files"));
        }
        Ok(())
    };
    match fields.verb() {
        "status" => {
            fields.done()?;
            reply.end(json!({"status": status::running(view)}))
        }
        "summary" => {
            fields.done()?;
            reply.end(json!({"summary": view.summary()?}))
        }
        "inspect" => {
            fields.done()?;
            reply.end(json!({"inspect": status::inspect(view)?}))
        }
        "query" => {
            let query = Query::take(&mut fields)?;
            fields.done()?;
            let plan = query.plan(&view.program)?;
            let rows = rows(view, &plan, query.as_of, &stops)?;
            plan.head(reply)?;
            plan.rows(&rows, reply)
        }
        "tail" => {
            let tail = tail::Tail::take(&mut fields)?;
            fields.done()?;
            let shared = &view.shared;
            let rings = LiveRings {
                program: &view.program,
                rings: &shared.rings,
                changed: &shared.rings_changed,
                is_recovering: shared.out.lock().is_recovering,
                is_over: &|| stopping.load(Ordering::Acquire) || shared.is_over(),
                is_several: false,
            };
            tail.answer(&rings, reply)
        }
        "dlq_ls" => {
            let ls = Ls::take(&mut fields)?;
            fields.done()?;
            let rings = view.shared.rings.lock();
            let found = ls.find(&rings)?;
            drop(rings);
            let as_of = view.shared.out.lock().epoch;
            ls.rows(&found, as_of, reply)
        }
        "dlq_replay" => {
            let replay = dlq::Replay::take(&mut fields)?;
            fields.done()?;
            let sent = replay.send(view)?;
            reply.end(json!({"sent": sent}))
        }
        "backup" => {
            let to: std::path::PathBuf = fields.need("to")?;
            fields.done()?;
            let report = backup::running(view, &to, &stops)?;
            reply.end(json!({"backup": report}))
        }
        "restore" | "verify" => {
            let what =
                format!("'{}' needs a stopped engine, and this one is running", fields.verb());
            Err(Error::resource(what).help("stop it first").into())
        }
        other => Err(unknown(other)),
    }
}

/// The refusal of an unknown verb.
pub(crate) fn unknown(verb: &str) -> Stop {
    let verbs = [
        "status",
        "summary",
        "inspect",
        "query",
        "tail",
        "dlq_ls",
        "dlq_replay",
        "backup",
        "restore",
        "verify",
    ];
    let error = Error::input(format!("there is no request '{verb}'"));
    let error = match tidemill_core::error::nearest(verb, verbs) {
        Some(near) => error.help(format!("did you mean '{near}'?")),
        None => error.help(format!("there are {}", verbs.join(", "))),
    };
    error.into()
}

/// Returns the rows as of a moment, or the present rows.
fn rows(
    view: &View,
    plan: &Plan,
    as_of: Option<Moment>,
    stops: &dyn Fn() -> Result<()>,
) -> Result<Rows> {
    view.shared.wait_for_recovery()?;
    if let Some(rows) = present(view, plan, as_of)? {
        return Ok(rows);
    }
    let (Some(moment), Some((site, fingerprint))) = (as_of, &view.site) else {
        return Err(Error::internal("a running engine without a data directory got a request"));
    };
    let _one = loop {
        match ONE_PAST.try_lock_for(Duration::from_millis(100)) {
            Some(one) => break one,
            None => stops()?,
        }
    };
    let basis = Basis {
        env: &view.env,
        site,
        program: &view.program,
        fingerprint: *fingerprint,
        decls: &view.decls,
        settings: &view.settings,
        go_on: stops,
    };
    Ok(plan.past(&basis.at(moment)?))
}

/// Returns the present rows of a table by key, after a key or from the begin: at most `limit`, and
/// whether there are more.
///
/// # Errors
/// When the app recovers, or the contents of the table have been lost.
pub(crate) fn rows_after(
    view: &View,
    table: usize,
    after: Option<&Key>,
    limit: usize,
) -> Result<(Vec<Row>, bool)> {
    view.shared.wait_for_recovery()?;
    scanned(view, || {
        let state = view.shared.state.lock();
        let seq = state.as_of(view.shared.delivered_epoch()).seq;
        Ok(state.tables[table].as_of(seq)?.select_after(after, limit, |_| true))
    })
}

/// Scans a table. The engine waits meanwhile, and then has at least as long for itself before the
/// next scan.
fn scanned<T>(view: &View, scan: impl FnOnce() -> Result<T>) -> Result<T> {
    let _one = ONE_SCAN.lock();
    let before = view.env.clock.monotonic_ns();
    let found = scan()?;
    let us = (view.env.clock.monotonic_ns() - before) / 1000;
    if us > 1000 {
        view.env.clock.sleep_us(us);
    }
    Ok(found)
}

/// Returns the rows as of a moment, if that is the present: the last durable epoch. Later epochs
/// are refused, not awaited.
fn present(view: &View, plan: &Plan, as_of: Option<Moment>) -> Result<Option<Rows>> {
    match plan.is_point() {
        true => present_now(view, plan, as_of),
        false => scanned(view, || present_now(view, plan, as_of)),
    }
}

fn present_now(view: &View, plan: &Plan, as_of: Option<Moment>) -> Result<Option<Rows>> {
    let shared = &view.shared;
    let state = shared.state.lock();
    // The epoch is read under the lock, so its versions are retained until the lock is released.
    let left = shared.delivered_epoch();
    match as_of {
        None | Some(Moment::Newest) => {}
        Some(Moment::Epoch(epoch)) if epoch > left => {
            let what =
                format!("epoch {epoch} is not durable yet; the last durable epoch is {left}");
            return Err(Error::setting(what));
        }
        Some(Moment::Epoch(epoch)) if epoch == left => {}
        // No later cut has changed the state by that time.
        Some(Moment::Time(us)) if us >= state.as_of(left).clock_us => {}
        Some(_) => return Ok(None),
    }
    plan.present(&state, left).map(Some)
}
