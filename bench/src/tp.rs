//! Toll Processing: vehicles report their speed on a segment of a road.
//!
//! Two tables have a row for each segment that was ever reported. *Speeds* has the mean speed so
//! far: the first speed, then the half of the old mean and the new speed. *Vehicles* has the set of
//! vehicles that were seen there, of the numbers 1 to 100: a bit for each, 50 in each of two words,
//! and their count. An event updates both in one transaction and answers the mean and the count. It
//! aborts when its speed is 200 or more; the others are 60 to 180.
//!
//! An event carries the bit of its vehicle along: expressions have no shifts, and set a bit by
//! arithmetic.
//!
//! What must hold: every mean, bit for bit, every set and every verdict is the one of the baseline,
//! which executes the same events one at a time; a count is the size of its set; and there are rows
//! of those segments only that were reported.
//!
//! | file | what it is |
//! | --- | --- |
//! | `events` | the generator |
//! | `program` | the transactions as a closure, as a declared one, as Python gave it |
//! | `tight` | the baseline |
//! | `run` | all of it as the harness takes it |

mod events;
mod program;
mod run;
mod tight;

#[cfg(test)]
mod tests;

pub(crate) use run::Toll;

/// From this speed on a report is not believed.
const SPEED_END: i64 = 200;
/// Vehicles in a word of a set.
const WORD_VEHICLES: i64 = 50;

/// The bit of a vehicle, 1 to 100, in its word.
#[inline(always)]
fn bit(vehicle: i64) -> i64 {
    1 << ((vehicle - 1) % WORD_VEHICLES)
}

/// The mean so far after a speed; no mean is 0, which no speed is.
#[inline(always)]
fn mean(old: f64, speed: i64) -> f64 {
    if old == 0.0 {
        speed as f64
    } else {
        (old + speed as f64) / 2.0
    }
}
