//! The generator: an audience that sees who is running and whose vote stands.

use crate::args::Args;
use crate::events::Events;
use crate::rng::Rng;
use crate::zipf::Zipf;

use super::{Show, SHARE_AGAIN, SHARE_GONE, SHARE_NOBODY};

/// The number of draws of a phone before any phone is accepted, in case nearly all have voted.
const TRIES: usize = 64;

/// A vote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Vote {
    pub(super) phone: u32,
    pub(super) candidate: u32,
}

/// The candidates, who stand first, and all votes.
#[derive(Clone, Debug)]
pub(crate) struct Votes {
    pub(super) candidates: usize,
    pub(super) votes: Vec<Vote>,
}

impl Events for Votes {
    fn count(&self) -> usize {
        self.candidates + self.votes.len()
    }

    fn stream(&self, at: usize) -> usize {
        usize::from(at >= self.candidates)
    }

    /// Neither stream has event time: order is that of arrival.
    fn words(&self, at: usize) -> impl Iterator<Item = i64> {
        let words = match at.checked_sub(self.candidates) {
            None => [Some(at as i64 + 1), None],
            Some(at) => [self.votes[at].phone, self.votes[at].candidate].map(|w| Some(w.into())),
        };
        words.into_iter().flatten()
    }
}

/// The knowledge of the audience.
struct Audience<'a> {
    show: &'a Show,
    popular: Zipf,
    /// The candidate of each phone's standing vote; 0 for none.
    stands: Vec<u8>,
    /// The phones in the order of their accepted votes. Some of these votes may be removed.
    voted: Vec<u32>,
    /// The votes of each candidate; `None` if it is not running.
    running: Vec<Option<u64>>,
    gone: Vec<u32>,
    accepted: u64,
}

/// Generates all votes of a run.
pub(super) fn generate(show: &Show, args: &Args) -> Votes {
    let mut rng = Rng::new(args.seed);
    let popular = Zipf::new(show.candidates, args.skew, rng.next_u64());
    let mut running = vec![Some(0); show.candidates + 1];
    running[0] = None;
    let stands = vec![0; show.phones];
    let (voted, gone, accepted) = (Vec::new(), Vec::new(), 0);
    let mut audience = Audience { show, popular, stands, voted, running, gone, accepted };
    let votes = (0..show.votes).map(|_| audience.vote(&mut rng)).collect();
    Votes { candidates: show.candidates, votes }
}

impl Audience<'_> {
    fn vote(&mut self, rng: &mut Rng) -> Vote {
        let kind = rng.below(100);
        let nobody = kind < SHARE_NOBODY;
        let gone = !nobody && kind < SHARE_NOBODY + SHARE_GONE && !self.gone.is_empty();
        let again = !nobody && !gone && kind < SHARE_NOBODY + SHARE_GONE + SHARE_AGAIN;
        let mut phone = rng.below(self.show.phones as u64) as u32;
        for _ in 0..TRIES {
            if (self.stands[phone as usize] != 0) == again {
                break;
            }
            phone = match again && !self.voted.is_empty() {
                true => self.voted[rng.below(self.voted.len() as u64) as usize],
                false => rng.below(self.show.phones as u64) as u32,
            };
        }
        let candidate = match (nobody, gone) {
            (true, _) => (self.show.candidates as u64 + 1 + rng.below(100)) as u32,
            (_, true) => self.gone[rng.below(self.gone.len() as u64) as usize],
            _ => loop {
                let drawn = self.popular.draw(rng) + 1;
                if self.running[drawn as usize].is_some() {
                    break drawn;
                }
            },
        };
        if !nobody && !gone && self.stands[phone as usize] == 0 {
            self.accept(phone, candidate);
        }
        Vote { phone, candidate }
    }

    fn accept(&mut self, phone: u32, candidate: u32) {
        self.stands[phone as usize] = candidate as u8;
        self.voted.push(phone);
        *self.running[candidate as usize].get_or_insert(0) += 1;
        self.accepted += 1;
        let running = self.running.iter().zip(0u32..).filter_map(|(votes, c)| Some(((*votes)?, c)));
        if self.accepted.is_multiple_of(self.show.every) && running.clone().count() > 1 {
            let (_, least) = running.min().expect("some are running");
            self.running[least as usize] = None;
            self.gone.push(least);
            for phone in &self.voted {
                let stands = &mut self.stands[*phone as usize];
                *stands = if u32::from(*stands) == least { 0 } else { *stands };
            }
            let stands = &self.stands;
            self.voted.retain(|phone| stands[*phone as usize] != 0);
        }
    }
}
