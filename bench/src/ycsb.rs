//! YCSB-T (Styx 9.1): transfers between accounts, one function call of another.
//!
//! There are accounts 0 to `--keys` less 1 (Styx has 10,000), each with 1,000,000. A transfer is a call of the function
//! `transfer` of the debtor's account, drawn alike; it checks what is there, takes the amount away, and calls `add` of
//! the creditor's, drawn with the skew that is asked for, another one than the debtor. One that asks for more
//! than there is aborts; `--abort` says how many do.
//!
//! An account that nobody has used is no row yet: it has what accounts begin with.
//!
//! With `--durable none` the executor gets decoded epochs. With `--durable log`, the default, calls are pushed into
//! the whole engine, and count when they are acknowledged: logged, synced, executed.
//!
//! What must hold: every balance and every verdict is the one of the baseline, which executes the same transfers one at
//! a time.
//!
//! | file | what it is |
//! | --- | --- |
//! | `events` | the generator |
//! | `program` | the transfer as a closure, as a declared transaction, as functions of an entity |
//! | `run` | all of it as the harness takes it, and the baseline |
//! | `load` | the same for several processes |

mod events;
mod load;
mod program;
mod run;

#[cfg(test)]
mod tests;

pub(crate) use load::load;
pub(crate) use run::Transfers;

/// What an account begins with.
const OPENING: i64 = 1_000_000;

/// Why a transfer aborts.
const POOR: &str = "insufficient funds";
