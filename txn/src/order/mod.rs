//! The one order: from events as they come to epochs in stamp order.
//!
//! [`Sequencer`] is the one place where cuts are made. It is pure: told what has come and what the
//! clock says, it decides what is ready, what waits and what is late. [`Epoch`] is what it gives to
//! the executors.

mod batches;
mod epoch;
mod groups;
mod merge;
mod sequencer;
pub(crate) mod slides;
#[cfg(test)]
mod tests;
mod watermark;

pub use batches::Closing;
pub use epoch::{Epoch, Lane, Ranked, Run};
pub(crate) use epoch::{Section, ADMITTED};
pub use groups::Groups;
pub use sequencer::{ends_of, CutInput, Sequenced, Sequencer, SequencerState};
pub use watermark::{come_to, common, Come, Holds, Newest};
