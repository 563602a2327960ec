//! Health and metrics over HTTP, on the loopback address: two paths, one request a connection.

use std::fmt::Write as _;
use std::io;

use serde_json::json;
use tidemill_env::Connection;

use crate::view::View;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long the head may take, each piece of it, in microseconds; and in how many pieces it may come.
const READ_US: u64 = 5_000_000;
const PIECES_MAX: usize = 64;

/// Answers one request.
pub(super) fn serve(view: &View, mut connection: Box<dyn Connection>) {
    if connection.set_read_timeout(Some(READ_US)).is_err() {
        return;
    }
    let answer = match head(&mut *connection) {
        Ok(Some(head)) => answer(view, &head),
        Ok(None) => response("431 Request Header Fields Too Large", TEXT, "too long\n", true),
        Err(_) => return,
    };
    // Who has gone needs no answer.
    let _ = connection.write_all(answer.as_bytes());
}

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// The head of a request, up to the empty line; `None` when it is too long.
fn head(connection: &mut dyn Connection) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    for _ in 0..PIECES_MAX {
        let mut piece = [0; 1024];
        let read = connection.read(&mut piece)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&piece[..read]);
        if head.windows(4).any(|w| w == b"\r\n\r\n") || head.windows(2).any(|w| w == b"\n\n") {
            return Ok(Some(head));
        }
        if head.len() > HEAD_BYTES_MAX {
            return Ok(None);
        }
    }
    Ok(None)
}

fn answer(view: &View, head: &[u8]) -> String {
    let line = head.split(|b| *b == b'\r' || *b == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default();
    let mut parts = line.split(' ');
    let (method, target, version) = (parts.next(), parts.next(), parts.next());
    if parts.next().is_some() || !version.is_some_and(|v| v.starts_with("HTTP/1.")) {
        return response("400 Bad Request", TEXT, "not HTTP/1.1\n", true);
    }
    let body = match method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return response("405 Method Not Allowed", TEXT, "only GET\n", true),
    };
    let path = target.unwrap_or_default().split('?').next().unwrap_or_default();
    match path {
        "/health" => {
            let (ready, said) = health(view);
            let status = if ready { "200 OK" } else { "503 Service Unavailable" };
            response(status, JSON, &said, body)
        }
        "/metrics" => response("200 OK", METRICS, &metrics(view), body),
        _ => response("404 Not Found", TEXT, "there are /health and /metrics\n", body),
    }
}

fn response(status: &str, kind: &str, text: &str, body: bool) -> String {
    let length = text.len();
    let text = if body { text } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
}

/// Whether it is recovered, not stalled and has not failed; and the same for people.
fn health(view: &View) -> (bool, String) {
    let shared = &view.shared;
    let failed = shared.error().is_some();
    let over = shared.is_over();
    let out = shared.out.lock();
    let (recovering, stalled) = (out.is_recovering, out.stalled.is_some());
    drop(out);
    let ready = !(failed || over || recovering || stalled);
    let said = json!({
        "live": true, "ready": ready, "recovering": recovering, "stalled": stalled,
        "failed": failed,
    });
    (ready, format!("{said}\n"))
}

/// All counters, in the text format of Prometheus.
fn metrics(view: &View) -> String {
    let status = view.status();
    let now = view.env.clock.monotonic_ns();
    let out = view.shared.out.lock();
    let age = out.snapshot_ns.map(|ns| now.saturating_sub(ns) as f64 / 1e9);
    let (durable, stalls, log) = (out.epoch, out.stalls, out.log.unwrap_or_default());
    let stalled = u64::from(out.stalled.is_some());
    drop(out);
    let executed = view.shared.state.lock().epoch();
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &[(&str, f64)]| {
        let _ = writeln!(text, "# HELP tidemill_{name} {help}\n# TYPE tidemill_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "tidemill_{name}{labels} {value}");
        }
    };
    let count = |n: u64| [("", n as f64)];
    let events = "Input events executed or set aside.";
    add("events_total", "counter", events, &count(status.events));
    let transactions = "Transactions, aborted ones included.";
    add("transactions_total", "counter", transactions, &count(status.transactions));
    add("aborts_total", "counter", "Aborted transactions.", &count(status.aborted));
    add("dead_total", "counter", "Rows in dead-letter streams.", &count(status.dead));
    add("late_total", "counter", "Late events.", &count(status.late));
    add("epochs_total", "counter", "Epochs executed.", &count(executed));
    add("durable_epoch", "gauge", "The last durable epoch.", &count(durable));
    add("parked_events", "gauge", "Events that wait for their watermark.", &count(status.parked));
    let lag = "How far the slowest watermark is behind the newest event time.";
    add("lag_seconds", "gauge", lag, &[("", status.lag_us as f64 / 1e6)]);
    let bytes = [("{log=\"input\"}", log[0].bytes as f64), ("{log=\"cuts\"}", log[1].bytes as f64)];
    add("log_bytes", "gauge", "Bytes of the logs' files.", &bytes);
    add("snapshots_total", "counter", "Snapshots of this run.", &count(status.snapshots));
    add("snapshot_epoch", "gauge", "The newest snapshot.", &count(status.snapshot_epoch));
    if let Some(age) = age {
        let help = "Seconds since the last snapshot of this run.";
        add("snapshot_age_seconds", "gauge", help, &[("", age)]);
    }
    add("stalls_total", "counter", "How often writing waited for room.", &count(stalls));
    add("stalled", "gauge", "Whether writing waits for room.", &count(stalled));
    text
}
