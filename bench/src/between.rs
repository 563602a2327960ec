//! How far cores are from each other: what several threads come to depends on it, and where cores are lent by others
//! it changes from one second to the next.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};

use tidemill_core::Result;
use tidemill_engine::Workers;
use tidemill_env::Env;
use tidemill_txn::pool::Pool;

use crate::measure::median;

/// Round trips that are timed together, and how often.
const TRIPS: u64 = 500;
const TIMES: usize = 9;

/// After so many looks in vain somebody else is let run.
const LOOKS: u32 = 20_000;

/// Alone in its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Word(AtomicU64);

/// Nanoseconds that a cache line takes from one thread to another and an answer back, as the median of some stretches.
pub(crate) fn round_trip_ns(env: &Env) -> Result<f64> {
    let pool = Workers::start(env, 2)?;
    let (there, back, trips) = (Word::default(), Word::default(), TRIPS * TIMES as u64);
    let ends: Vec<AtomicU64> = (0..=TIMES).map(|_| AtomicU64::new(0)).collect();
    let wait = |word: &Word, trip: u64| {
        let mut looks = 0;
        while word.0.load(Ordering::Acquire) < trip {
            looks += 1;
            // The other one may be without a core.
            match looks % LOOKS {
                0 => pool.pause(),
                _ => spin_loop(),
            }
        }
    };
    pool.run(&|number| match number {
        0 => {
            for trip in 1..=trips {
                if trip % TRIPS == 1 {
                    ends[(trip / TRIPS) as usize].store(pool.now_ns(), Ordering::Relaxed);
                }
                there.0.store(trip, Ordering::Release);
                wait(&back, trip);
            }
            ends[TIMES].store(pool.now_ns(), Ordering::Relaxed);
        }
        _ => {
            for trip in 1..=trips {
                wait(&there, trip);
                back.0.store(trip, Ordering::Release);
            }
        }
    });
    let ends: Vec<u64> = ends.into_iter().map(AtomicU64::into_inner).collect();
    let each = |ends: &[u64]| (ends[1] - ends[0]) as f64 / TRIPS as f64;
    Ok(median(&ends.windows(2).map(each).collect::<Vec<_>>()))
}
