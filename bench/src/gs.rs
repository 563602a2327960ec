//! GrepSum: a table of large records. Each transaction reads some records and writes a result into
//! the first.
//!
//! A record is 16 words, 128 bytes: its id, its value, and 14 words of padding. A transaction of
//! length l reads the values of l records. It writes their sum, or with `--average` their integer
//! average, to the first. Sums are modulo 2^20, so values stay below that and nothing overflows. A
//! transaction aborts when the sum is less than its event requires. Events require nothing, except
//! those made to abort, which require more than any sum.
//!
//! With `--computed`, a share of the transactions have a key that depends on a row. The value of
//! the record that the event names, modulo the number of keys, is the key of the record that is
//! read and written next. These events have their own stream and handler.
//!
//! With `--window N`, one transaction in `--window-every` (100 by default) reads the windows of 100
//! records over the last N units of event time. It sums up all values written to them in that time.
//! These events have their own stream, too. A unit of event time is an event.
//!
//! With `--acyclic`, keys have levels from 0 to 255, and a record is written only from records of
//! lower levels.
//!
//! The invariant: every record and every verdict equals that of the baseline, which executes the
//! same events one at a time.
//!
//! | file | contents |
//! | --- | --- |
//! | `events` | the generator |
//! | `program` | the transactions as closures, as declared ones, as given by Python |
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

pub(crate) use run::GrepSum;

/// The bound of the values.
const MODULUS: i64 = 1 << 20;
/// A required sum that no sum reaches.
const IMPOSSIBLE: i64 = 1 << 40;
/// The words of a record.
const WORDS: usize = 16;
/// The default number of records in a transaction.
const LENGTH: usize = 2;
/// The largest number of records in a transaction.
const LENGTH_MAX: usize = 10;

/// The number of records whose windows a transaction reads.
const WINDOW_KEYS: usize = 100;
/// By default, one transaction in this many reads windows.
const WINDOW_EVERY: usize = 100;
/// The longest window. The sum of its values is less than [`IMPOSSIBLE`].
const WINDOW_MAX: i64 = 1_000_000;

/// The form of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    /// The number of records that it reads.
    length: usize,
    /// Whether it writes the average instead of the sum.
    average: bool,
    keys: usize,
    /// Whether there are transactions with a computed key.
    computed: bool,
    windows: Option<Windows>,
}

/// The transactions that read windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Windows {
    /// The length of the windows in event time, in microseconds.
    size_us: i64,
    /// One transaction in this many reads windows.
    every: usize,
}

impl Windows {
    fn of(args: &Args) -> Result<Option<Windows>> {
        let every = args.window_every.unwrap_or(WINDOW_EVERY);
        let Some(size_us) = args.window else {
            return match args.window_every {
                None => Ok(None),
                Some(_) => Err(Error::setting("--window-every: it needs --window")
                    .help("give the length of windows, for example --window 1000")),
            };
        };
        if !(1..=WINDOW_MAX).contains(&size_us) {
            return Err(Error::setting(format!(
                "--window {size_us}: it must be 1 to {WINDOW_MAX}"
            )));
        }
        if every == 0 {
            return Err(Error::setting("--window-every 0: it must be at least 1"));
        }
        if args.keys < WINDOW_KEYS {
            let what = format!("--keys {}: a transaction reads {WINDOW_KEYS} windows", args.keys);
            return Err(Error::setting(what).help("give more keys, or leave out --window"));
        }
        Ok(Some(Windows { size_us, every }))
    }

    /// Returns the number of the transaction at this place among those that read windows, if it is
    /// one.
    #[inline(always)]
    fn nth(self, at: usize) -> Option<usize> {
        ((at + 1).is_multiple_of(self.every)).then(|| (at + 1) / self.every - 1)
    }
}

impl Form {
    fn of(args: &Args) -> Result<Form> {
        let length = args.length.unwrap_or(LENGTH);
        if !(1..=LENGTH_MAX).contains(&length) {
            return Err(Error::setting(format!("--length {length}: it must be 1 to {LENGTH_MAX}")));
        }
        if args.keys < length {
            let what = format!("--keys {}: a transaction needs {length} different keys", args.keys);
            return Err(Error::setting(what).help("give more keys, or a smaller --length"));
        }
        let (average, keys, computed) = (args.average, args.keys, args.computed > 0.0);
        let windows = Windows::of(args)?;
        Ok(Form { length, average, keys, computed, windows })
    }

    /// Returns the value to write, given the sum of `count` values.
    #[inline(always)]
    fn written(self, sum: i64, count: usize) -> i64 {
        match self.average {
            true => sum / count as i64,
            false => sum & (MODULUS - 1),
        }
    }
}

/// Returns the words of a record before the first event.
fn record(key: u64) -> [i64; WORDS] {
    std::array::from_fn(|word| match word {
        0 => key as i64,
        1 => key as i64 % MODULUS,
        _ => (key as i64) << 8 | word as i64,
    })
}

/// Makes a call with the number of records as a constant, for which the loop is compiled.
macro_rules! with_length {
    ($length:expr, $n:ident => $call:expr) => {
        with_length!(@ $length, $n => $call, 1 2 3 4 5 6 7 8 9 10)
    };
    (@ $length:expr, $n:ident => $call:expr, $($number:literal)*) => {
        match $length {
            $($number => {
                const $n: usize = $number;
                $call
            })*
            other => unreachable!("transactions have 1 to 10 records, not {other}"),
        }
    };
}
use with_length;
