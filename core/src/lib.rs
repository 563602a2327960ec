//! The vocabulary that every part of Tidemill shares: ids, stamps, cuts, values, rows, schemas,
//! columnar batches and kinds of error.
//!
//! `core` must not know any other part. It has data and pure functions: no IO, no clocks, no
//! threads. The rules of values (nulls, NaN, overflow, rounding, order) are in
//! `docs/reference/values.md`. They are implemented once, in [`rules`].

pub mod batch;
pub mod cut;
pub mod digest;
pub mod encode;
pub mod error;
pub mod ids;
pub mod msgpack;
pub mod rules;
pub mod schema;
pub mod stamp;
pub mod types;
pub mod value;
pub mod wire;

pub use batch::{Batch, BatchBuilder};
pub use cut::{Cut, LateRow};
pub use error::{Error, Kind, Result};
pub use ids::{HandlerId, SourceId, StreamId, TableId};
pub use schema::{
    Column, EngineUse, History, Late, Schema, SourceSpec, StreamSpec, StreamTime, TableSpec,
};
pub use stamp::{Path, Position, Stamp};
pub use types::DataType;
pub use value::{Key, Row, Value};
