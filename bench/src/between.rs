//! The latency between cores. The throughput of several threads depends on it. Where a host shares
//! cores among machines, it changes from second to second.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};

use tidemill_core::Result;
use tidemill_engine::Workers;
use tidemill_env::Env;
use tidemill_txn::pool::Pool;

use crate::measure::median;

/// The number of round trips timed together, and the number of such measurements.
const TRIPS: u64 = 500;
const TIMES: usize = 9;

/// The number of failed looks after which a thread yields its core.
const LOOKS: u32 = 20_000;

/// A word that has its cache lines for itself.
#[derive(Default)]
#[repr(align(128))]
struct Word(AtomicU64);

/// Returns the nanoseconds that a cache line takes to another thread and back: the median of
/// several measurements.
pub(crate) fn round_trip_ns(env: &Env) -> Result<f64> {
    let pool = Workers::start(env, 2)?;
    let (there, back, trips) = (Word::default(), Word::default(), TRIPS * TIMES as u64);
    let ends: Vec<AtomicU64> = (0..=TIMES).map(|_| AtomicU64::new(0)).collect();
    let wait = |word: &Word, trip: u64| {
        let mut looks = 0;
        while word.0.load(Ordering::Acquire) < trip {
            looks += 1;
            // The other thread may have no core.
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
