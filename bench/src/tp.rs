//! Toll Processing: vehicles report their speed on a segment of a road.
//!
//! Two tables have a row for each segment that was ever reported. *Speeds* has the mean speed so
//! far: the first speed, and then half of the sum of the old mean and the new speed. *Vehicles* has
//! the set of vehicles seen there, of the numbers 1 to 100: a bit for each, 50 in each of two
//! words, and their count. An event updates both in one transaction, and outputs the mean and the
//! count. It aborts when its speed is 200 or more; the others are 60 to 180.
//!
//! An event contains the bit of its vehicle: expressions have no shifts, and set a bit by
//! arithmetic.
//!
//! The invariant: every mean, bit for bit, every set and every verdict equals that of the baseline,
//! which executes the same events one at a time. A count is the size of its set, and there are rows
//! only of reported segments.
//!
//! | file | contents |
//! | --- | --- |
//! | `events` | the generator |
//! | `program` | the transaction as a closure, as a declared one, as given by Python |
//! | `tight` | the baseline |
//! | `run` | the workload for the harness |

mod events;
mod program;
mod run;
mod tight;

#[cfg(test)]
mod tests;

pub(crate) use run::Toll;

/// The lowest speed that is refused.
const SPEED_END: i64 = 200;
/// The number of vehicles in a word of a set.
const WORD_VEHICLES: i64 = 50;

/// Returns the bit of a vehicle, 1 to 100, in its word.
#[inline(always)]
fn bit(vehicle: i64) -> i64 {
    1 << ((vehicle - 1) % WORD_VEHICLES)
}

/// Returns the mean after another speed. A mean of 0 means that there was no speed yet, since no
/// speed is 0.
#[inline(always)]
fn mean(old: f64, speed: i64) -> f64 {
    if old == 0.0 {
        speed as f64
    } else {
        (old + speed as f64) / 2.0
    }
}
