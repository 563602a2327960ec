//! Streaming Ledger: accounts and assets, deposits into one of each, transfers from one of each to
//! another of each.
//!
//! Every row begins with 1,000,000. A deposit (25 %) adds 100 to an account and an asset. A
//! transfer takes 100 from a source account and a source asset and adds it to a destination
//! account and asset; it aborts when either source has less. Deposits and transfers are two
//! streams in event time, from a source each, so the sequencer has something to merge.
//!
//! What must hold: totals change by deposits only; and every balance, and every verdict, is the
//! one of the baseline, which executes the same events one at a time.
//!
//! | file | what it is |
//! | --- | --- |
//! | `events` | the generator |
//! | `mix` | what events are made of, in phases where wanted |
//! | `program` | the transactions as closures, as a declared program, as Python gave them |
//! | `tight` | the baseline |
//! | `run` | all of it as the harness takes it |
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

/// What every row has to begin with.
pub(crate) const BALANCE: i64 = 1_000_000;
/// What a deposit or a transfer moves.
pub(crate) const AMOUNT: i64 = 100;
/// What nobody ever has.
pub(crate) const IMPOSSIBLE: i64 = 1_000_000_000_000_000;
