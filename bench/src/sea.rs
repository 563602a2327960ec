//! Stock Exchange Analysis: quotes and trades, joined by user over a window.
//!
//! The two streams, quotes and trades, have the same columns: stock, user, amount and price. Each
//! has a table as an index that both handlers share. It has, by user, the tuples of the last
//! `--window` units of event time (10,000 by default) as versions of the user's row; expired ones
//! are dropped. A tuple is inserted into the index of its stream, and joined with its user's tuples
//! in the other index. Where both windows have tuples, the turnover rate of the user is the smaller
//! of their two sums of amount times price, divided by the larger one. The rate is emitted, and
//! stored in a third table with the number of joins so far. A tuple with amount 0 aborts.
//!
//! The invariant: for every user, the last tuples, the number of joins and, bit for bit, the last
//! rate equal those of the baseline, and so does every verdict.
//!
//! | file | contents |
//! | --- | --- |
//! | `events` | the generator |
//! | `program` | the transactions as closures, as declared ones, as opaque functions |
//! | `tight` | the baseline |
//! | `run` | the workload for the harness |

mod events;
mod program;
mod run;
mod tight;

#[cfg(test)]
mod tests;

use tidemill_core::{Error, Result};

use crate::args::Args;

pub(crate) use run::Exchange;

/// The default length of windows, in microseconds.
const WINDOW_US: i64 = 10_000;
/// The longest window: the sum of one is an exact float.
const WINDOW_MAX: i64 = 1_000_000;
/// The places of the streams and their indexes among the parts of the program.
const QUOTES: usize = 0;
const TRADES: usize = 1;
/// The place of the table of turnover rates.
const TURNOVERS: usize = 2;

/// Returns the length of windows, according to the options.
fn window_us(args: &Args) -> Result<i64> {
    let size_us = args.window.unwrap_or(WINDOW_US);
    match (1..=WINDOW_MAX).contains(&size_us) {
        true => Ok(size_us),
        false => Err(Error::setting(format!("--window {size_us}: it must be 1 to {WINDOW_MAX}"))),
    }
}

/// Returns the turnover rate of two sums, if neither is 0.
#[inline(always)]
fn rate(quoted: i64, traded: i64) -> Option<f64> {
    let (less, more) = (quoted.min(traded), quoted.max(traded));
    (less > 0).then(|| less as f64 / more as f64)
}
