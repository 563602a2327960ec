//! The HTTP/1.1 interface of a running app, with JSON. It serves calls of procedures, events of
//! streams and changes of tables as they become durable, health, and metrics.
//!
//! | file | content |
//! | --- | --- |
//! | `plan` | the settings, refused where strangers would have access |
//! | `access`, `tls` | authentication, roles and certificates |
//! | `gateway` | the threads: start and end |
//! | `server`, `patience` | connections, with limits on their number and on silence |
//! | `seats` | places for connections, and which connection loses its place |
//! | `manners` | requirements of every request |
//! | `routes` | the handlers by path |
//! | `rest` | the unread rest of a request's body |
//! | `call`, `arguments` | a call, its parameters from JSON |
//! | `follow`, `changes`, `sent` | events and changes as server-sent events |
//! | `rows` | a row of a table |
//! | `openapi` | the OpenAPI document, from which clients can be generated |
//! | `health` | health and metrics |
//! | `news` | notification of new events and changes |
//! | `face`, `refusal` | the shared state; refusals |
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
mod face;
mod follow;
mod gateway;
mod health;
mod manners;
mod news;
mod openapi;
mod patience;
mod plan;
mod refusal;
mod rest;
mod routes;
mod rows;
mod seats;
mod sent;
mod server;
mod tls;

pub use access::digest;
pub use gateway::Gateway;
pub use plan::Plan;
