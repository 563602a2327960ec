//! The Python binding of Tidemill: it converts values, releases the interpreter lock, and maps
//! errors. The typed package around it is `python/tidemill`.
//!
//! This is the only crate that knows PyO3. It holds no algorithms: the rules of values are
//! `tidemill_core::rules`, and everything that runs is in the engine.

mod attached;
mod batches;
mod cluster;
mod deadline;
mod errors;
mod external;
mod mill;
mod msgpack;
mod nodes;
mod opaque;
mod reference;
mod remote;
mod row;
mod rows;
mod rules;
mod running;
mod shapes;
mod suspended;
mod transaction;
mod values;
mod waits;

use mimalloc::MiMalloc;
use pyo3::prelude::*;

#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

/// The compiled half of the package, described in `_native.pyi`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::cluster::{offer, NativeCluster, NativeWorker};
    #[pymodule_export]
    use super::deadline::Watched;
    #[pymodule_export]
    use super::msgpack::{packed, unpacked};
    #[pymodule_export]
    use super::nodes::run_nodes;
    #[pymodule_export]
    use super::opaque::finished;
    #[pymodule_export]
    use super::reference::run_reference;
    #[pymodule_export]
    use super::row::Row;
    #[pymodule_export]
    use super::rules::{binary, binary_type, nearest, unary, unary_type};
    #[pymodule_export]
    use super::transaction::NativeTx;
    #[pymodule_export]
    use super::values::Shape;

    #[pymodule_export]
    use super::mill::{bench, forked, inspect, token_digest, NativeMill};
    #[pymodule_export]
    use super::running::{ask, fresh_deletes, schema_diff, NativeReplies};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))?;
        m.add("RUST_VERSION", env!("TIDEMILL_RUSTC"))
    }
}
