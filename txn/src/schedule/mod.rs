//! How an epoch is executed: the strategies by name, and how the task precedence graph is walked.
//!
//! | file | what it is |
//! | --- | --- |
//! | `calibrate` | how fast the machine is at planning |
//! | `choose` | chooses one, by what is measured |
//! | `strategy` | the strategies by name |
//! | `units` | what is scheduled at a time: operations or chains; strata |
//! | `explore` | the walks: by strata with barriers, by shares of strata, by what is ready; TStream's |
//! | `ready` | a queue of units that are ready |
//! | `gang` | where threads wait for one another |
//! | `sync` | atomics, or loom's in their place |

mod calibrate;
mod choose;
mod explore;
mod gang;
mod ready;
mod strategy;
pub(crate) mod sync;
mod units;

pub(crate) use calibrate::slower;
pub use choose::{Arm, Choice, Chooser, Expected, Properties, Took};
pub(crate) use explore::{Course, Walk};
pub(crate) use gang::Gang;
pub use strategy::{Aborts, Explore, Strategy, Unit};
pub(crate) use units::Units;
