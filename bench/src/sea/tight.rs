//! The baseline of Stock Exchange Analysis: the loop that one would write for this workload only.
//!
//! It uses one thread and one table, since all tables have the same key; all users exist from the
//! beginning. It prefetches the user of the event 16 ahead. For each stream it has a ring of the
//! values of the tuples in the window, and their sum. There are no outputs and no reports of
//! aborts.

use super::events::Tuple;
use super::{rate, QUOTES, TRADES};
use crate::execute::Verdicts;
use crate::ring::Ring;
use crate::slots::{Slot, Slots, AHEAD, FREE};
use crate::work::Work;

/// The state of a user without the windows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct User {
    key: u64,
    /// The last quote and the last trade.
    pub(super) last: [Option<Tuple>; 2],
    /// The last turnover rate.
    pub(super) rate: f64,
    /// The number of turnover rates so far.
    pub(super) joins: i64,
}

impl Slot for User {
    const FREE: User = User { key: FREE, last: [None; 2], rate: 0.0, joins: 0 };

    #[inline(always)]
    fn key(&self) -> u64 {
        self.key
    }
}

/// The baseline's table.
#[derive(Clone, Debug)]
pub(crate) struct Tight {
    users: Slots<User>,
    windows: Vec<[Ring; 2]>,
    /// The number of tuples in the windows of all joins.
    joined: u64,
    joins: u64,
}

impl Tight {
    pub(super) fn new(keys: usize) -> Tight {
        let users = Slots::new(keys, |key| User { key, ..User::FREE });
        Tight { users, windows: vec![Default::default(); keys], joined: 0, joins: 0 }
    }

    pub(super) fn get(&self, user: u32) -> &User {
        self.users.get(user)
    }

    /// Returns the mean number of tuples in the two windows of a join, or `None` without joins.
    pub(super) fn joined(&self) -> Option<f64> {
        (self.joins > 0).then(|| self.joined as f64 / self.joins as f64)
    }

    /// Executes all events in order.
    #[inline(never)]
    pub(super) fn run(&mut self, events: &[Tuple], size_us: i64, work: Work) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for (at, event) in events.iter().enumerate() {
            if let Some(ahead) = events.get(at + AHEAD) {
                self.users.prefetch(ahead.user);
            }
            if event.amount == 0 {
                verdicts.abort(at);
                continue;
            }
            let (user, side) = (self.users.at(event.user), usize::from(event.side));
            user.last[side] = Some(*event);
            let (windows, time_us) = (&mut self.windows[event.user as usize], at as i64);
            windows[side].push(size_us, time_us, event.value());
            let [quoted, traded] = [QUOTES, TRADES].map(|side| windows[side].sum(size_us, time_us));
            work.run(traded, work.run(quoted, 0));
            if let Some(rate) = rate(quoted, traded) {
                (user.rate, user.joins) = (rate, user.joins + 1);
                self.joins += 1;
                self.joined += windows.iter().map(Ring::len).sum::<usize>() as u64;
            }
        }
        verdicts
    }
}
