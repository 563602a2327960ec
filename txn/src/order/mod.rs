//! The one order: from arriving events to epochs in stamp order.
//!
//! [`Sequencer`] is the only place that makes cuts. It is pure. From the received events and the
//! clock's value it decides which events are ready, which are buffered and which are late. It hands
//! an [`Epoch`] to the executors.

mod batches;
mod epoch;
mod groups;
mod merge;
mod sequencer;
pub mod slides;
#[cfg(test)]
mod tests;
mod watermark;

pub use batches::BatchEnd;
pub use epoch::{Epoch, Lane, Ranked, Run};
pub(crate) use epoch::{Section, ADMITTED};
pub use groups::Groups;
pub use sequencer::{ends_of, CutInput, Sequenced, Sequencer, SequencerState};
pub use watermark::{common, watermarks, Newest, SourceProgress, WatermarkEffect};
