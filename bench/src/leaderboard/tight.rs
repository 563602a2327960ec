//! The baseline: the loop that one would write for this show only.
//!
//! It uses one thread. Phones and candidates are places in arrays, a candidate's phones are a list,
//! and the last votes are a ring. Candidates are sorted in three orders, and a vote moves one or
//! two of them by few places. The leaderboards are the beginnings of the orders. There are no
//! versions, and no outputs but verdicts.

use super::votes::Votes;
use super::{Show, TREND};
use crate::execute::Verdicts;

/// An order of the candidates.
#[derive(Clone, Debug)]
struct Order {
    order: Vec<u8>,
    /// The place of each candidate in the order.
    at: Vec<u8>,
}

impl Order {
    fn new(candidates: usize) -> Order {
        let order: Vec<u8> = (1..=candidates as u8).collect();
        Order { order, at: (0..=candidates as u8).map(|c| c.saturating_sub(1)).collect() }
    }

    /// Moves a candidate to its place by a rank. All others must be in order.
    #[inline(always)]
    fn settle(&mut self, candidate: u8, rank: impl Fn(u8) -> (i64, u8)) {
        let (own, mut at) = (rank(candidate), self.at[candidate as usize] as usize);
        while at > 0 && own < rank(self.order[at - 1]) {
            self.put(at, self.order[at - 1]);
            at -= 1;
        }
        while at + 1 < self.order.len() && rank(self.order[at + 1]) < own {
            self.put(at, self.order[at + 1]);
            at += 1;
        }
        self.put(at, candidate);
    }

    #[inline(always)]
    fn put(&mut self, at: usize, candidate: u8) {
        self.order[at] = candidate;
        self.at[candidate as usize] = at as u8;
    }

    fn remove(&mut self, candidate: u8) {
        self.order.remove(self.at[candidate as usize] as usize);
        for (at, candidate) in self.order.iter().enumerate() {
            self.at[*candidate as usize] = at as u8;
        }
    }
}

/// The baseline's state.
#[derive(Clone, Debug)]
pub(crate) struct Tight {
    /// The candidate of each phone's standing vote; 0 for none.
    pub(super) stands: Vec<u8>,
    /// The phones of each candidate's standing votes; `None` if it is not running.
    pub(super) phones: Vec<Option<Vec<u32>>>,
    pub(super) votes: Vec<i64>,
    pub(super) recent: Vec<i64>,
    pub(super) ring: [u8; TREND],
    pub(super) accepted: u64,
    pub(super) removed: Vec<[i64; 3]>,
    /// The orders by most votes, fewest votes, and most of the last ones.
    orders: [Order; 3],
}

impl Tight {
    pub(super) fn new(show: &Show) -> Tight {
        let of_each = show.candidates + 1;
        let mut phones = vec![Some(Vec::new()); of_each];
        phones[0] = None;
        Tight {
            stands: vec![0; show.phones],
            phones,
            votes: vec![0; of_each],
            recent: vec![0; of_each],
            ring: [0; TREND],
            accepted: 0,
            removed: Vec::new(),
            orders: [(); 3].map(|()| Order::new(show.candidates)),
        }
    }

    /// Executes all votes in order.
    #[inline(never)]
    pub(super) fn run(&mut self, votes: &Votes, every: u64) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for vote in &votes.votes {
            let stands = &mut self.stands[vote.phone as usize];
            let phones = self.phones.get_mut(vote.candidate as usize).and_then(Option::as_mut);
            let (Some(phones), 0) = (phones, *stands) else {
                // The first column, the phone, identifies the aborted vote.
                verdicts.abort(vote.phone as usize);
                continue;
            };
            *stands = vote.candidate as u8;
            phones.push(vote.phone);
            self.count(vote.candidate as u8);
            if self.accepted.is_multiple_of(every) {
                self.remove();
            }
        }
        verdicts
    }

    #[inline(always)]
    fn count(&mut self, candidate: u8) {
        let place = (self.accepted % TREND as u64) as usize;
        let leaves = std::mem::replace(&mut self.ring[place], candidate);
        self.accepted += 1;
        self.votes[candidate as usize] += 1;
        self.recent[candidate as usize] += 1;
        self.recent[leaves as usize] -= 1;
        let (votes, recent) = (&self.votes, &self.recent);
        let [most, fewest, trend] = &mut self.orders;
        most.settle(candidate, |c| (-votes[c as usize], c));
        fewest.settle(candidate, |c| (votes[c as usize], c));
        trend.settle(candidate, |c| (-recent[c as usize], c));
        if self.phones[leaves as usize].is_some() {
            trend.settle(leaves, |c| (-recent[c as usize], c));
        }
    }

    /// Removes the candidate with the fewest votes.
    #[cold]
    fn remove(&mut self) {
        let [_, fewest, _] = &self.orders;
        if fewest.order.len() == 1 {
            return;
        }
        let gone = fewest.order[0];
        for phone in self.phones[gone as usize].take().into_iter().flatten() {
            self.stands[phone as usize] = 0;
        }
        self.orders.iter_mut().for_each(|order| order.remove(gone));
        self.removed.push([gone.into(), self.votes[gone as usize], self.accepted as i64]);
    }

    /// Returns the leaderboards.
    pub(super) fn boards(&self) -> [[i64; 6]; 3] {
        let [most, fewest, trend] = &self.orders;
        [(most, &self.votes), (fewest, &self.votes), (trend, &self.recent)].map(|(order, votes)| {
            let mut board = [0; 6];
            for (place, candidate) in board.as_chunks_mut::<2>().0.iter_mut().zip(&order.order) {
                *place = [i64::from(*candidate), votes[usize::from(*candidate)]];
            }
            board
        })
    }
}
