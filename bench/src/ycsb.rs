//! YCSB-T (Styx, section 9.1): transfers between accounts, one function call of another.
//!
//! There are accounts 0 to `--keys` less 1 (Styx has 10,000), each with 1,000,000. A transfer is a
//! call of the function `transfer` of the debtor's account, drawn uniformly. It checks the balance,
//! takes the amount away, and calls `add` of the creditor's account, drawn with the given skew and
//! different from the debtor's. A transfer of more than the balance aborts; `--abort` sets their
//! share.
//!
//! An unused account has no row yet: it has the initial balance.
//!
//! With `--durable none`, the executor gets decoded epochs. With `--durable log`, the default,
//! calls are pushed into the whole engine. They count when they are acknowledged, that is logged,
//! synced and executed.
//!
//! The invariant: every balance and every verdict equals that of the baseline, which executes the
//! same transfers one at a time.
//!
//! | file | contents |
//! | --- | --- |
//! | `events` | the generator |
//! | `program` | the transfer as a closure, as a declared transaction, as functions of an entity |
//! | `run` | the workload for the harness, and the baseline |
//! | `load` | the workload for several processes |

mod events;
mod load;
mod program;
mod run;

#[cfg(test)]
mod tests;

pub(crate) use load::load;
pub(crate) use run::Transfers;

/// The initial balance of an account.
const OPENING: i64 = 1_000_000;

/// The reason of an abort.
const POOR: &str = "insufficient funds";
