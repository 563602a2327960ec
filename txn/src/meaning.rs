//! The parts of the meaning of transactions that executors and the reference share.
//!
//! The reference, a crate for tests, computes all else by itself. So it finds errors everywhere but
//! here; these parts have tests of their own.
//!
//! | part | meaning |
//! | --- | --- |
//! | [`Moment`] | a transaction's time, random numbers and answers from outside |
//! | [`Inside`], [`Transaction`], [`WindowStore`] | what functions do beside rows: events, triggers, their own windows |
//! | [`Turns`], [`Agenda`], [`Given`] | the order of procedures in a round |
//! | [`firing`], [`slides`] | windows that slide as time passes |
//! | [`on_frames`], [`Did`] | the call of a closure on copies of its rows |

pub use crate::execute::{on_frames, Did};
pub use crate::order::slides;
pub use crate::program::firing;
pub use crate::program::inside::{Inside, Transaction};
pub use crate::program::owned::WindowStore;
pub use crate::program::rounds::{Agenda, Emitted, Given, Turn, Turns};
pub use crate::program::Moment;
