//! The HTTP/1.1 interface of a running app, with JSON. It serves calls of procedures, events of
//! streams and changes of tables as they become durable, health, and metrics.
//!
//! | file | content |
//! | --- | --- |
//! | `plan` | the settings, refused where strangers would have access |
//! | `access`, `tls` | authentication, roles and certificates |
//! | `gateway` | the threads: start and end |
//! | `server`, `write_timeout` | connections, with limits on their number and on silence |
//! | `seats` | places for connections, and which connection loses its place |
//! | `checks` | requirements of every request |
//! | `routes` | the handlers by path |
//! | `unread_body` | the unread rest of a request's body |
//! | `call`, `arguments` | a call, its parameters from JSON |
//! | `follow`, `changes`, `sent` | events and changes as server-sent events |
//! | `rows` | a row of a table |
//! | `openapi` | the OpenAPI document, from which clients can be generated |
//! | `health` | health and metrics |
//! | `notifier` | notification of new events and changes |
//! | `shared`, `refusal` | the shared state; refusals |
//!
//! This crate knows the engine by its [`App`](tidemill_engine::App) trait, and must not know
//! transactions or Python. It is the only crate that knows axum and tokio. It uses their sockets,
//! threads and timers instead of those of `env`, because no result of an app depends on them.
//!
//! `docs/reference/http.md` describes the protocol.

mod access;
mod arguments;
mod call;
mod changes;
mod checks;
mod follow;
mod gateway;
mod health;
mod notifier;
mod openapi;
mod plan;
mod refusal;
mod routes;
mod rows;
mod seats;
mod sent;
mod server;
mod shared;
mod tls;
mod unread_body;
mod write_timeout;

pub use access::digest;
pub use gateway::Gateway;
pub use plan::Plan;
