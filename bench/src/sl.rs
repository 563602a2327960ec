//! Streaming Ledger: accounts and assets, deposits into one of each, transfers from one of each to
//! another of each.
//!
//! Every row begins with 1,000,000. A deposit (25 %) adds 100 to an account and an asset. A
//! transfer takes 100 from a source account and a source asset, and adds it to a destination
//! account and asset. It aborts when either source has less. Deposits and transfers are two streams
//! in event time with a source each, so the sequencer has streams to merge.
//!
//! The invariant: totals change by deposits only. Every balance and every verdict equals that of
//! the baseline, which executes the same events one at a time.
//!
//! | file | contents |
//! | --- | --- |
//! | `events` | the generator |
//! | `mix` | the mix of events, optionally in phases |
//! | `program` | the transactions as closures, as a declared program, as given by Python |
//! | `tight` | the baseline |
//! | `run` | the workload for the harness |
//! | `whole` | events in files, and the whole engine from files to files |

mod events;
mod mix;
mod program;
mod run;
mod tight;
mod whole;

#[cfg(test)]
mod tests;

pub(crate) use run::run;

/// The initial balance of every row.
pub(crate) const BALANCE: i64 = 1_000_000;
/// The amount of a deposit or a transfer.
pub(crate) const AMOUNT: i64 = 100;
/// An amount that no row ever has.
pub(crate) const IMPOSSIBLE: i64 = 1_000_000_000_000_000;
