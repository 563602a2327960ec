//! The execution of an epoch: the strategies by name, and the walks of the task precedence graph.
//!
//! | file | content |
//! | --- | --- |
//! | `calibrate` | measures how fast the machine plans |
//! | `choose` | chooses a strategy from measurements |
//! | `strategy` | the strategies by name |
//! | `units` | the units of scheduling, operations or chains, and their strata |
//! | `explore` | the walks: by strata with barriers, by shares of strata, by readiness; TStream's |
//! | `ready` | a queue of units that are ready |
//! | `gang` | the waits of threads for one another |
//! | `sync` | atomics, or loom's replacements |

mod calibrate;
mod choose;
mod explore;
mod gang;
mod ready;
mod strategy;
pub(crate) mod sync;
mod units;

pub(crate) use calibrate::slower;
pub use choose::{Choice, Chooser, EpochTimes, ExecutionMode, Expected, Properties};
pub(crate) use explore::{Course, Walk};
pub(crate) use gang::Gang;
pub use strategy::{Aborts, Explore, Strategy, Unit};
pub(crate) use units::Units;
