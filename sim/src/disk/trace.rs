//! All that a crash may leave, wherever in a run it comes.
//!
//! A trace plays the changes of a disk again and stops before each. It does not know which of them
//! belong together: that is what the test is about.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tidemill_env::Random;

use super::state::{Change, Event, State};
use super::SimDisk;
use crate::{SimClock, SimRandom};

/// What a crash leaves of what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Synced,
    /// Everything.
    Written,
    /// Some, by chance, from this seed: of the changes of names a number of the first; of the
    /// writes any, in whole, cut short or with sectors missing.
    Chance(u64),
}

/// The changes of a disk from one moment on: see [`SimDisk::record`].
pub struct Trace {
    pub(super) base: State,
    pub(super) clock: Arc<SimClock>,
    pub(super) steps: Vec<Step>,
}

/// A change, with when and where it happened.
pub(super) struct Step {
    pub(super) now_us: i64,
    pub(super) path: PathBuf,
    pub(super) event: Event,
}

/// A disk as a crash may have left it.
pub struct Image {
    /// The disk after the crash, with faults and a log of calls of its own, and the clock of the
    /// disk that was recorded.
    pub disk: Arc<SimDisk>,
    /// How many steps of the trace came before the crash.
    pub at: usize,
    /// The last mark that was set before the crash.
    pub mark: Option<u64>,
    /// What was left.
    pub left: Left,
    /// The last step before the crash, in words.
    pub after: String,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Image { at, mark, left, after, .. } = self;
        write!(f, "a crash after step {at} ({after}), mark {mark:?}, left: {left:?}")
    }
}

impl Trace {
    /// How many steps there are: writes, changes of length, syncs, changes of names, syncs of
    /// directories, marks. There are one more moments for a crash.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// For each moment in order the disks that a crash may leave then: with nothing that was not
    /// synced, with everything, and `by_chance` ones with some, chosen by the seed. They share
    /// their bytes until they are changed, so that ten thousand are cheap.
    pub fn images(&self, seed: u64, by_chance: usize) -> impl Iterator<Item = Image> + '_ {
        let random = SimRandom::new(seed);
        let mut state = self.base.clone();
        let (mut mark, mut after) = (None, "the start".to_owned());
        (0..=self.steps.len()).flat_map(move |at| {
            if let Some(step) = at.checked_sub(1).map(|last| &self.steps[last]) {
                state.apply(&step.event, step.now_us);
                after = step.to_string();
                if let Event::Mark(number) = step.event {
                    mark = Some(number);
                }
            }
            let chances = (0..by_chance).map(|_| Left::Chance(random.next_u64()));
            let lefts: Vec<Left> =
                [Left::Synced, Left::Written].into_iter().chain(chances).collect();
            let (clock, state, mark, after) =
                (self.clock.clone(), state.clone(), mark, after.clone());
            let seed = random.next_u64();
            lefts.into_iter().map(move |left| {
                let left_over = state.after_crash(left);
                let disk = SimDisk::with_state(clock.clone(), SimRandom::new(seed), left_over);
                Image { disk: Arc::new(disk), at, mark, left, after: after.clone() }
            })
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.event {
            Event::Names(change) => {
                f.write_str("names")?;
                for (path, id) in &change.0 {
                    let sign = if id.is_some() { '+' } else { '-' };
                    write!(f, " {sign}{}", path.display())?;
                }
                Ok(())
            }
            Event::Directories(_) => write!(f, "directory {path}"),
            Event::SyncDir(_) => write!(f, "sync of directory {path}"),
            Event::Bytes(_, Change::Write { at, bytes }) => {
                write!(f, "{} bytes at {at} of {path}", bytes.len())
            }
            Event::Bytes(_, Change::SetLen(len)) => write!(f, "length {len} of {path}"),
            Event::Sync(_) => write!(f, "sync of {path}"),
            Event::SyncFailed(_) => write!(f, "failed sync of {path}"),
            Event::Flip(..) | Event::Cut(..) | Event::Swap(..) => write!(f, "damage of {path}"),
            Event::Mark(number) => write!(f, "mark {number}"),
        }
    }
}
