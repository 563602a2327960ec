//! The handlers by path.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::Router;
use tidemill_core::error::nearest;
use tidemill_core::Error;

use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::{call, changes, checks, follow, health, openapi, rows, unread_body};

/// The path of the health check, which load balancers ask for.
pub(crate) const HEALTH: &str = "/health";

const PATHS: [&str; 7] = [
    "/call/{procedure}",
    "/streams/{stream}",
    "/tables/{table}/changes",
    "/tables/{table}/rows",
    "/openapi.json",
    HEALTH,
    "/metrics",
];

/// The routes for clients that are known, and for all others. A client that sends many requests is
/// known after its first answer, so later requests skip those checks.
#[derive(Clone)]
pub(crate) struct Routes {
    pub(crate) known: Router,
    pub(crate) others: Router,
}

/// Creates the routes.
pub(crate) fn of(shared: &Arc<Shared>) -> Routes {
    let admitted = all().layer(from_fn_with_state(shared.clone(), checks::admit));
    let with = |routes: Router<Arc<Shared>>| {
        routes
            .layer(from_fn_with_state(shared.clone(), unread_body::pass))
            .with_state(shared.clone())
    };
    Routes { known: with(all()), others: with(admitted) }
}

fn all() -> Router<Arc<Shared>> {
    let [call, stream, changes, rows, openapi, health, metrics] = PATHS;
    Router::new()
        .route(call, post(call::call))
        .route(stream, get(follow::follow))
        .route(changes, get(changes::changes))
        .route(rows, get(rows::rows))
        .route(openapi, get(openapi::openapi))
        .route(health, get(health::health))
        .route(metrics, get(health::metrics))
        .method_not_allowed_fallback(other_method)
        .fallback(nothing)
}

async fn nothing(State(shared): State<Arc<Shared>>, request: Request) -> Result<(), Refusal> {
    shared.access.client(request.headers())?;
    let path = request.uri().path();
    let error = Error::input(format!("there is no path {path}"));
    Err(Refusal::missing(match nearest(path, PATHS) {
        Some(near) => error.help(format!("did you mean {near}?")),
        None => error.help(format!("the paths are {}", PATHS.join(", "))),
    }))
}

async fn other_method(method: Method) -> Refusal {
    let error = Error::input(format!("this path does not take {method}"))
        .help("call procedures with POST, and use GET for all else");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, error)
}
