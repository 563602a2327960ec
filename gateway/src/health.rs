//! Health and metrics.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{header, HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::refusal::{json_response, Refusal};
use crate::shared::Shared;

const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The fields with texts of functions, for clients only.
const FOR_CLIENTS: [&str; 3] = ["reasons", "fault", "aborted_slide"];

/// Answers a load balancer's check, without a token.
pub(crate) async fn health(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let health = shared.ask(|app| app.health());
    let ready = health.ready && shared.open().is_ok();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut said = health.said;
    said["ready"] = ready.into();
    if let (Err(_), Some(said)) = (shared.access.client(&headers), said.as_object_mut()) {
        said.retain(|name, _| !FOR_CLIENTS.contains(&&**name));
    }
    json_response(status, format!("{said}\n").into_bytes())
}

pub(crate) async fn metrics(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    shared.access.client(&headers)?;
    let of = shared.clone();
    // The engine may hold locks that this needs while it executes.
    let text = tokio::task::spawn_blocking(move || of.app.metrics()).await;
    let mut text = text.unwrap_or_default();
    let counted = &shared.counted;
    let waiting = shared.limits.calls - shared.room.available_permits();
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    for (name, kind, help, value) in [
        ("connections", "gauge", "Connections.", value(&counted.connections)),
        (
            "connections_refused_total",
            "counter",
            "Connections refused because there were too many.",
            value(&counted.refused_connections),
        ),
        (
            "connections_turned_out_total",
            "counter",
            "Unauthenticated connections closed in favour of newer ones.",
            value(&counted.turned_out),
        ),
        ("calls_total", "counter", "Calls.", value(&counted.calls)),
        ("calls_waiting", "gauge", "Calls that are waiting for their replies.", waiting as u64),
        ("calls_aborted_total", "counter", "Calls that aborted.", value(&counted.aborted)),
        ("calls_faults_total", "counter", "Calls whose function failed.", value(&counted.faults)),
        (
            "calls_overdue_total",
            "counter",
            "Calls that had no reply in time.",
            value(&counted.overdue),
        ),
        (
            "calls_refused_total",
            "counter",
            "Calls refused because too many were waiting.",
            value(&counted.full),
        ),
    ] {
        let _ = writeln!(
            text,
            "# HELP tidemill_http_{name} {help}\n# TYPE tidemill_http_{name} {kind}\n\
             tidemill_http_{name} {value}"
        );
    }
    Ok(([(header::CONTENT_TYPE, METRICS)], text).into_response())
}
