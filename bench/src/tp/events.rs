//! The events of Toll Processing.

use crate::args::Args;
use crate::events::Events;
use crate::keys::Keys;
use crate::rng::Rng;

use super::{bit, SPEED_END};

/// A report, packed for the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(super) segment: u32,
    pub(super) vehicle: u16,
    pub(super) speed: u16,
}

/// Generates the events of a run from the options.
pub(super) fn generate(args: &Args) -> Vec<Event> {
    let mut rng = Rng::new(args.seed);
    let mut segments = Keys::new(args, args.skew, rng.next_u64());
    let event = |_| {
        let impossible = rng.unit() < args.abort;
        let segment = segments.draw(&mut rng);
        let (vehicle, speed) = (1 + rng.below(100) as u16, 60 + rng.below(121) as u16);
        let speed = if impossible { speed + SPEED_END as u16 } else { speed };
        Event { segment, vehicle, speed }
    };
    (0..args.events()).map(event).collect()
}

impl Events for Vec<Event> {
    fn count(&self) -> usize {
        self.len()
    }

    fn stream(&self, _: usize) -> usize {
        0
    }

    fn words(&self, at: usize) -> impl Iterator<Item = i64> {
        let Event { segment, vehicle, speed } = self[at];
        let (segment, vehicle, speed) = (segment.into(), vehicle.into(), speed.into());
        [at as i64, segment, vehicle, bit(vehicle), speed].into_iter()
    }
}
