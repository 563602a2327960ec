//! The Python binding of Tidemill: it converts values, releases the interpreter lock, and maps
//! errors. The typed package around it is `python/tidemill`.
//!
//! Only this crate and the two libraries made of it (`python/extension`, `bench/python`) know PyO3.
//! They hold no algorithms: the rules of values are `tidemill_core::rules`, and everything that
//! runs is in the engine.

mod arrow;
mod attached;
mod batches;
mod cluster;
mod deadline;
mod errors;
mod external;
mod mill;
mod msgpack;
#[cfg(feature = "testing")]
mod nodes;
mod opaque;
#[cfg(feature = "testing")]
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

// The binding of the benchmarks, in `bench/python`, is built on these.
pub use cluster::NativeCluster;
pub use errors::{detached, to_python};
pub use opaque::functions;
pub use remote::app_functions;

use mimalloc::MiMalloc;
use pyo3::prelude::*;

#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

/// The compiled half of the package, described in `_native.pyi`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::cluster::{NativeCluster, NativeWorker};
    #[pymodule_export]
    use super::deadline::Watched;
    #[pymodule_export]
    use super::msgpack::{packed, unpacked};
    #[cfg(feature = "testing")]
    #[pymodule_export]
    use super::nodes::run_nodes;
    #[pymodule_export]
    use super::opaque::finished;
    #[cfg(feature = "testing")]
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
    use super::mill::{forked, inspect, token_digest, NativeMill};
    #[pymodule_export]
    use super::running::{ask, fresh_deletes, log_fault, schema_diff, unfinished, NativeReplies};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))?;
        m.add("RUST_VERSION", env!("TIDEMILL_RUSTC"))
    }
}
