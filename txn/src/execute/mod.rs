//! Executors: they do what [`crate::reference`] says, fast.
//!
//! | file | what it is |
//! | --- | --- |
//! | `serial` | walks an epoch in order on one thread; prefetches the slots of the transactions ahead |
//! | `words` | declared transactions over word columns, compiled to a register machine |
//! | `native` | rows of words handed to a Rust closure |
//! | `general` | every transaction there is, over values; what the fast paths fall back to |
//! | `output` | output events by column, with their stamps |

mod general;
mod native;
mod output;
mod serial;
mod words;

pub use output::{Origins, Output};
pub use serial::{HandlerCounts, Outcome, Path, Serial, Unstable};
