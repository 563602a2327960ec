//! The events of GrepSum.

use crate::args::Args;
use crate::events::Events;
use crate::keys::Keys;
use crate::rng::Rng;

use super::{Form, Windows, IMPOSSIBLE, WINDOW_KEYS};

/// The events of a run, packed for the baseline.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    length: usize,
    /// The keys, `length` for each event. Of an event with a computed key, only the first counts.
    keys: Vec<u32>,
    /// The sum that each event requires.
    least: Vec<i64>,
    /// Whether each event has a computed key; empty when none has.
    computed: Vec<bool>,
    windows: Option<Windows>,
    /// The records of each transaction that reads windows.
    read: Vec<[u32; WINDOW_KEYS]>,
}

impl Made {
    /// Generates the events for the options.
    pub(super) fn new(args: &Args, form: Form) -> Made {
        let mut rng = Rng::new(args.seed);
        let mut keys = Keys::new(args, args.skew, rng.next_u64());
        let Form { length, computed, windows, .. } = form;
        let mut made = Made {
            length,
            keys: Vec::new(),
            least: Vec::new(),
            computed: Vec::new(),
            windows,
            read: Vec::new(),
        };
        let mut chosen = Vec::with_capacity(length);
        for at in 0..args.events() {
            let impossible = rng.unit() < args.abort;
            made.least.push(if impossible { IMPOSSIBLE } else { 0 });
            if computed {
                made.computed.push(rng.unit() < args.computed);
            }
            chosen.clear();
            for _ in 0..length {
                chosen.push(keys.draw_other(&mut rng, &chosen));
            }
            if args.acyclic {
                keys.rise(&mut chosen);
            }
            made.keys.extend_from_slice(&chosen);
            if windows.and_then(|windows| windows.nth(at)).is_some() {
                let mut read = [0; WINDOW_KEYS];
                for nth in 0..WINDOW_KEYS {
                    read[nth] = keys.draw_other(&mut rng, &read[..nth]);
                }
                made.read.push(read);
            }
        }
        made
    }

    /// Returns the keys of an event.
    #[inline(always)]
    pub(super) fn keys(&self, at: usize) -> &[u32] {
        &self.keys[at * self.length..][..self.length]
    }

    /// Returns the keys of all events, `N` each.
    #[inline(always)]
    pub(super) fn all<const N: usize>(&self) -> &[[u32; N]] {
        self.keys.as_chunks().0
    }

    /// Returns the sum that an event requires.
    #[inline(always)]
    pub(super) fn least(&self, at: usize) -> i64 {
        self.least[at]
    }

    /// Whether a key of an event is computed.
    #[inline(always)]
    pub(super) fn is_computed(&self, at: usize) -> bool {
        !self.computed.is_empty() && self.computed[at]
    }

    /// Returns the records whose windows an event reads, if it reads any.
    #[inline(always)]
    pub(super) fn read(&self, at: usize) -> Option<&[u32; WINDOW_KEYS]> {
        Some(&self.read[self.windows?.nth(at)?])
    }
}

impl Events for Made {
    fn count(&self) -> usize {
        self.least.len()
    }

    fn stream(&self, at: usize) -> usize {
        match self.read(at) {
            Some(_) => 1 + usize::from(!self.computed.is_empty()),
            None => usize::from(self.is_computed(at)),
        }
    }

    fn words(&self, at: usize) -> impl Iterator<Item = i64> {
        let keys = match self.read(at) {
            Some(read) => read,
            None if self.is_computed(at) => &self.keys(at)[..1],
            None => self.keys(at),
        };
        let keys = keys.iter().map(|key| i64::from(*key));
        std::iter::once(at as i64).chain(keys).chain([self.least(at)])
    }
}
