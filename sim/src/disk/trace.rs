//! All states that a crash may leave, at any moment of a run.
//!
//! A trace replays the changes of a disk and stops before each. It does not group the changes: the
//! test checks which of them belong together.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tidemill_env::Random;

use super::state::{Change, Event, State};
use super::SimDisk;
use crate::{SimClock, SimRandom};

/// The unsynced changes that survive a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// No unsynced changes.
    Synced,
    /// All unsynced changes.
    Written,
    /// Some unsynced changes, at random from this seed. Of the changes of names, a random number of
    /// the first ones survives. Writes survive independently: in whole, cut short, or with sectors
    /// missing.
    Chance(u64),
}

/// The changes of a disk from a moment on: see [`SimDisk::record`].
pub struct Trace {
    pub(super) base: State,
    pub(super) clock: Arc<SimClock>,
    pub(super) steps: Vec<Step>,
}

/// A change, with its time and path.
pub(super) struct Step {
    pub(super) now_us: i64,
    pub(super) path: PathBuf,
    pub(super) event: Event,
}

/// A disk in a state that a crash may leave.
pub struct Image {
    /// The disk after the crash. It has its own faults and log of calls, and the clock of the
    /// recorded disk.
    pub disk: Arc<SimDisk>,
    /// The number of steps of the trace before the crash.
    pub at: usize,
    /// The last mark before the crash.
    pub mark: Option<u64>,
    /// The unsynced changes that survived.
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
    /// Returns the number of steps: writes, changes of length, syncs, changes of names, syncs of
    /// directories, marks. There is one more moment for a crash than steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the disks that a crash may leave, for each moment in order.
    ///
    /// Each moment has one disk without unsynced changes, one with all, and `by_chance` disks with
    /// some, chosen by the seed. The disks share their bytes until they are changed, so that ten
    /// thousand are cheap.
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
