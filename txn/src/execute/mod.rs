//! Executors: they do what [`crate::reference`] says, fast.
//!
//! | file | what it is |
//! | --- | --- |
//! | `executor` | picks a strategy for each epoch |
//! | `codes` | what the handlers of a program are compiled to |
//! | `serial` | walks an epoch in order on one thread; prefetches the slots of the transactions ahead |
//! | `graph` | the task precedence graph of an epoch, executed on several threads |
//! | `closure` | what a Rust closure works on: rows in their slots, or copies |
//! | `lane` | the events of one run for one handler; what is fetched ahead of time |
//! | `segment` | transactions over words that follow one another: declared ones and closures |
//! | `words` | declared transactions over word columns, compiled to a register machine, and that to machine code |
//! | `command` | transactions as strong recovery logs them, and executes them again |
//! | `native` | rows of words handed to a Rust closure |
//! | `alone` | declared transactions one at a time, on rows that others hold |
//! | `general` | every transaction there is, over values; what the fast paths fall back to |
//! | `in_place` | what executing on several threads in place has in common |
//! | `rounds` | several threads, each with a share of every round; what meets is put off |
//! | `blocks` | several threads, which plan together and take block after block of transactions |
//! | `spans` | the outputs of several threads, put into stamp order |
//! | `lists` | several threads, each with a list of transactions that it executes in place |
//! | `sample` | what epochs look like, before anything is planned |
//! | `work` | counted work, and what may be spent of it on what is tried |
//! | `window` | windows over versions, and aggregates |
//! | `tables` | tables that keep of versions what windows ask for |
//! | `output` | output events by column, with their stamps |
//! | `aborts` | aborted events: noted as words, taken from the input in the end |

mod aborts;
mod alone;
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
mod rounds;
mod sample;
mod segment;
mod serial;
mod slide;
mod spans;
mod tables;
mod timing;
mod turn;
mod window;
mod words;
mod work;

pub use alone::{Alone, Came};
pub use closure::NativeTx;
pub(crate) use closure::{on_frames, Did};
pub use codes::Path;
pub use command::{put_commands, take_commands, Command};
pub use executor::{Executor, Ran};
pub(crate) use lane::Lane;
pub(crate) use native::{NativeCode, ROWS_MAX as NATIVE_ROWS_MAX};
pub use output::{Origins, Output};
pub(crate) use segment::{run_native, End, Turns};
pub use serial::{AbortedSlide, Faulted, HandlerCounts, Outcome, Overdue, Serial, Unstable};
pub use tables::tables;
pub use timing::Timing;

#[cfg(test)]
mod tests;
