//! GrepSum: a table of large records; each transaction reads some and writes what they come to into
//! the first.
//!
//! A record is 16 words, 128 bytes: its id, value, and 14 that nobody reads but whoever moves the
//! record. A transaction of length l reads the values of l records and writes their sum, or with
//! `--average` their integer average, to the first. Sums are taken modulo 2^20, so values stay
//! from 0 to below that and nothing overflows. A transaction aborts when the sum is less than what
//! its event asks for, which is nothing, or, in events made to abort, more than any sum.
//!
//! With `--computed`, a share of the transactions have a key that only their reading tells: the
//! value of the record that the event names, modulo the number of keys, is the key of the record
//! that is read and written next. These are a stream of their own, with a handler of its own.
//!
//! With `--window N`, every `--window-every`th transaction (100 when it is not said) reads the windows
//! of the last N units of event time of 100 records, and sums up all values that were written to
//! them in that time. These are a stream of their own, too. A unit of event time is an event.
//!
//! With `--acyclic`, keys have levels from 0 to 255, and a record is written from records of lower
//! levels only.
//!
//! What must hold: every record, and every verdict, is the one of the baseline, which executes the
//! same events one at a time.
//!
//! | file | what it is |
//! | --- | --- |
//! | `events` | the generator |
//! | `program` | the transactions as closures, as declared ones, as Python gave them |
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

pub(crate) use run::GrepSum;

/// Values are less than this.
const MODULUS: i64 = 1 << 20;
/// What no sum comes to.
const IMPOSSIBLE: i64 = 1 << 40;
/// Words of a record.
const WORDS: usize = 16;
/// Records of a transaction when the options do not say.
const LENGTH: usize = 2;
/// Records of a transaction, at most.
const LENGTH_MAX: usize = 10;

/// Records whose windows a transaction reads.
const WINDOW_KEYS: usize = 100;
/// Of so many transactions one reads windows when the options do not say.
const WINDOW_EVERY: usize = 100;
/// The longest windows: their values are less than what no sum comes to.
const WINDOW_MAX: i64 = 1_000_000;

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    /// How many records it reads.
    length: usize,
    /// It writes their average and not their sum.
    average: bool,
    keys: usize,
    /// Whether there are transactions with a computed key.
    computed: bool,
    windows: Option<Windows>,
}

/// Transactions that read windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Windows {
    /// How far they go back in event time.
    size_us: i64,
    /// So many transactions have one among them.
    every: usize,
}

impl Windows {
    fn of(args: &Args) -> Result<Option<Windows>> {
        let every = args.window_every.unwrap_or(WINDOW_EVERY);
        let Some(size_us) = args.window else {
            return match args.window_every {
                None => Ok(None),
                Some(_) => Err(Error::setting("--window-every: without --window there are none")
                    .help("say how far windows go back, for example --window 1000")),
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
            let what = format!("--keys {}: windows are of {WINDOW_KEYS} different ones", args.keys);
            return Err(Error::setting(what).help("give more keys, or leave out --window"));
        }
        Ok(Some(Windows { size_us, every }))
    }

    /// Of the transaction on the event at this place its number among those that read windows.
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
            let what = format!("--keys {}: a transaction has {length} different ones", args.keys);
            return Err(Error::setting(what).help("give more keys, or a smaller --length"));
        }
        let (average, keys, computed) = (args.average, args.keys, args.computed > 0.0);
        let windows = Windows::of(args)?;
        Ok(Form { length, average, keys, computed, windows })
    }

    /// What is written, given the sum of `count` values.
    #[inline(always)]
    fn written(self, sum: i64, count: usize) -> i64 {
        match self.average {
            true => sum / count as i64,
            false => sum & (MODULUS - 1),
        }
    }
}

/// The words of a record before the first event.
fn record(key: u64) -> [i64; WORDS] {
    std::array::from_fn(|word| match word {
        0 => key as i64,
        1 => key as i64 % MODULUS,
        _ => (key as i64) << 8 | word as i64,
    })
}

/// Calls with the number of records as a constant, for which the loop is compiled.
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
