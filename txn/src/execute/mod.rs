//! Executors: fast implementations of the meaning that the crate `reference` defines.
//!
//! | file | content |
//! | --- | --- |
//! | `executor` | the choice of a strategy for each epoch |
//! | `codes` | the compiled handlers of a program |
//! | `serial` | the walk through an epoch in order on one thread, which prefetches slots |
//! | `graph` | the task precedence graph of an epoch, executed on several threads |
//! | `closure` | the data of a Rust closure: rows in their slots, or copies |
//! | `lane` | the events of one run for one handler, and their prefetching |
//! | `segment` | consecutive transactions over words: declared ones and closures |
//! | `words` | declared transactions over word columns, compiled to machine code |
//! | `command` | the log of transactions for strong recovery, and its replay |
//! | `native` | rows of words for Rust closures |
//! | `remote` | transactions on rows that other owners hold |
//! | `general` | any transaction, over values: the fallback of the fast paths |
//! | `in_place` | the common part of execution in place on several threads |
//! | `rounds` | several threads, each with a share of every round; conflicts are deferred |
//! | `blocks` | several threads, which plan together and take block after block of transactions |
//! | `spans` | the outputs of several threads, concatenated in stamp order |
//! | `lists` | several threads, each with a list of transactions that it executes in place |
//! | `sample` | properties of epochs, before anything is planned |
//! | `work` | counted work, and the budget of trials |
//! | `window` | windows over versions, and aggregates |
//! | `tables` | tables that store the aggregates of versions that windows use |
//! | `output` | output events by column, with their stamps |
//! | `aborts` | aborted events: noted as words, taken from the input at the end |

mod aborts;
mod blocks;
mod closure;
mod codes;
mod command;
mod executor;
mod general;
mod graph;
mod in_place;
mod lane;
mod lists;
mod native;
mod output;
mod questions;
mod remote;
mod rounds;
mod sample;
mod segment;
mod serial;
mod sink;
mod slide;
mod spans;
mod tables;
mod timing;
mod turn;
mod window;
mod words;
mod work;

pub use closure::NativeTx;
pub use closure::{on_frames, Did, RowBits, Windows};
pub use codes::Path;
pub use command::{put_commands, take_commands, Command};
pub use executor::{Executor, Ran};
pub(crate) use lane::Lane;
pub(crate) use native::{NativeCode, ROWS_MAX as NATIVE_ROWS_MAX};
pub use output::{Origins, Output};
pub use questions::{questions, Question};
pub use remote::{
    transact, ColumnHandler, ColumnOutput, ColumnProgram, ColumnRow, ColumnStream, ColumnTable,
    Mentioned, OpenBatches, RemoteOutcome, RemoteRows, RemoteStore, SoleAhead, SoleEvents,
    SoleOutcome, SoleOwner, SoleProgram, SoleTakers, SoleTerms, SoleWork, ABORTED,
};
pub(crate) use segment::{run_native, End, Turns};
pub use serial::{AbortedSlide, Faulted, HandlerCounts, Outcome, Overdue, Serial, Unstable};
pub use tables::tables;
pub use timing::Timing;

#[cfg(test)]
mod tests;
