//! Stock Exchange Analysis: quotes and trades, joined by user over a window.
//!
//! Two streams, quotes and trades, have the same columns: stock, user, amount and price. Each has a
//! table as an index that both handlers share: by user the tuples of the last `--window` units of
//! event time (10,000 when it is not said), as versions of the user's row; those that have expired go.
//! A tuple is put into the index of its stream, and joined with what the other's index has of its user:
//! where both windows have tuples, the turnover rate of the user is the smaller of their two sums of
//! amount times price, divided by the larger one. It is emitted, and kept in a third table with the
//! number of joins so far. A tuple of no amount aborts.
//!
//! What must hold: of every user the last tuples, the last rate, bit for bit, and the number of joins
//! are those of the baseline, and so is every verdict.
//!
//! | file | what it is |
//! | --- | --- |
//! | `events` | the generator |
//! | `program` | the transactions as closures, as declared ones, as opaque functions |
//! | `tight` | the baseline |
//! | `run` | all of it as the harness takes it |

mod events;
mod program;
mod run;
mod tight;

#[cfg(test)]
mod tests;

use tidemill_core::{Error, Result};

use crate::args::Args;

pub(crate) use run::Exchange;

/// How far windows go back when the options do not say.
const WINDOW_US: i64 = 10_000;
/// The longest windows: the sum of one is an exact float.
const WINDOW_MAX: i64 = 1_000_000;
/// Where the streams and their indexes are among the parts of the program.
const QUOTES: usize = 0;
const TRADES: usize = 1;
/// Where the turnover rates are.
const TURNOVERS: usize = 2;

/// How far the options want windows to go back.
fn window_us(args: &Args) -> Result<i64> {
    let size_us = args.window.unwrap_or(WINDOW_US);
    match (1..=WINDOW_MAX).contains(&size_us) {
        true => Ok(size_us),
        false => Err(Error::setting(format!("--window {size_us}: it must be 1 to {WINDOW_MAX}"))),
    }
}

/// The turnover rate of two sums, where both are of something.
#[inline(always)]
fn rate(quoted: i64, traded: i64) -> Option<f64> {
    let (less, more) = (quoted.min(traded), quoted.max(traded));
    (less > 0).then(|| less as f64 / more as f64)
}
