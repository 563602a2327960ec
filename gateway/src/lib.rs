//! Clients of a running app over HTTP/1.1 with JSON: calls of procedures, events of streams and
//! changes of tables as they become durable, health and metrics.
//!
//! | file | what it does |
//! | --- | --- |
//! | `plan` | what the settings ask for, refused where it would be open to strangers |
//! | `access`, `tls` | who is let in, with which roles; certificates |
//! | `gateway` | the threads: starting and ending |
//! | `server`, `patience` | connections, bounded in number and in how long they may keep silent |
//! | `seats` | who has a connection, and who gives one up |
//! | `manners` | what a request must have, and who may stay |
//! | `routes` | which path is whose |
//! | `rest` | what an answer has left unread of its request |
//! | `call`, `arguments` | a call, its parameters from JSON |
//! | `follow`, `changes`, `sent` | events and changes as server-sent events |
//! | `rows` | a row of a table |
//! | `openapi` | what there is, for programs that write clients |
//! | `health` | health and metrics |
//! | `news` | when there is something new to be sent |
//! | `face`, `refusal` | what all of them share; how they say no |
//!
//! It knows the engine by its [`Mill`](tidemill_engine::Mill), and must not know transactions or
//! Python. It is the only crate that knows axum and tokio, whose sockets, threads and timers it uses in
//! place of those of `env`: nothing that an app comes to depends on them.
//!
//! `docs/running.md` is the protocol.

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
