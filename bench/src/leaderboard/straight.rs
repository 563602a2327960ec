//! The invariant: a straight loop over the votes, and the expected tables and outputs. It follows
//! the wording of the rules and shares no code with the others: it counts everything from scratch
//! on demand.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::{Batch, Value};
use tidemill_txn::Program;

use super::program::{BY_CANDIDATE, COUNTED, REFUSED, REMOVED, VALID};
use super::votes::{Vote, Votes};
use super::{AGAIN, NOBODY, TREND};

/// The rows of a table or stream.
type Rows = Vec<Vec<Value>>;

/// The state after all votes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Straight {
    running: BTreeSet<i64>,
    /// The candidate of each phone's standing vote.
    votes: BTreeMap<i64, i64>,
    /// Candidate and phone of all accepted votes.
    accepted: Vec<[i64; 2]>,
    refused: Vec<(Vote, &'static str)>,
    /// The removed candidates: candidate, votes, and accepted votes until then.
    pub(super) removed: Vec<[i64; 3]>,
}

impl Straight {
    pub(super) fn run(votes: &Votes, every: u64) -> Straight {
        let mut show = Straight::default();
        show.running.extend(1..=votes.candidates as i64);
        for vote in &votes.votes {
            show.cast(vote, every as usize);
        }
        show
    }

    fn cast(&mut self, vote: &Vote, every: usize) {
        let (phone, candidate) = (i64::from(vote.phone), i64::from(vote.candidate));
        if !self.running.contains(&candidate) {
            return self.refused.push((*vote, NOBODY));
        }
        if self.votes.contains_key(&phone) {
            return self.refused.push((*vote, AGAIN));
        }
        self.votes.insert(phone, candidate);
        self.accepted.push([candidate, phone]);
        if self.accepted.len().is_multiple_of(every) && self.running.len() > 1 {
            let counts = self.counts();
            let (candidate, votes) =
                counts.iter().min_by_key(|(c, votes)| (**votes, **c)).expect("two are running");
            self.removed.push([*candidate, *votes, self.accepted.len() as i64]);
            self.running.remove(candidate);
            self.votes.retain(|_, of| of != candidate);
        }
    }

    /// Returns the votes of each running candidate.
    fn counts(&self) -> BTreeMap<i64, i64> {
        let mut counts: BTreeMap<i64, i64> = self.running.iter().map(|c| (*c, 0)).collect();
        self.votes.values().for_each(|candidate| *counts.entry(*candidate).or_default() += 1);
        counts
    }

    /// Returns the last votes, the oldest first.
    fn last(&self) -> &[[i64; 2]] {
        &self.accepted[self.accepted.len().saturating_sub(TREND)..]
    }

    /// Returns the last votes of each running candidate.
    fn recent(&self) -> BTreeMap<i64, i64> {
        let of = |c: &i64| self.last().iter().filter(|[of, _]| of == c).count();
        self.running.iter().map(|c| (*c, of(c) as i64)).collect()
    }

    /// Returns the leaderboards: most votes, fewest votes, most of the last ones.
    pub(super) fn boards(&self) -> [[i64; 6]; 3] {
        let (counts, recent) = (self.counts(), self.recent());
        [(&counts, -1), (&counts, 1), (&recent, -1)].map(|(votes, sign)| {
            let mut order: Vec<(i64, i64)> = votes.iter().map(|(c, votes)| (*votes, *c)).collect();
            order.sort_by_key(|(votes, c)| (sign * votes, *c));
            order.resize(3.max(order.len()), (0, 0));
            [order[0].1, order[0].0, order[1].1, order[1].0, order[2].1, order[2].0]
        })
    }

    /// Returns the rows of all tables, in the order of their declaration, each by key.
    pub(super) fn tables(&self) -> [(&'static str, Rows); 6] {
        let row = |ints: &[i64]| ints.iter().copied().map(Value::Int).collect::<Vec<_>>();
        let recent = self.recent();
        let candidates = self.counts().into_iter().map(|(c, votes)| row(&[c, votes, recent[&c]]));
        let votes = self.votes.iter().map(|(phone, c)| row(&[*phone, *c]));
        let by_candidate: BTreeSet<_> = self.votes.iter().map(|(phone, c)| [*c, *phone]).collect();
        let total = self.accepted.len();
        let first = total.saturating_sub(TREND);
        let ring: BTreeMap<usize, i64> =
            (first..total).map(|nth| (nth % TREND, self.accepted[nth][0])).collect();
        let boards = (0i64..).zip(self.boards()).filter(|_| total > 0);
        let tally = (total > 0).then(|| row(&[0, total as i64]));
        [
            ("candidates", candidates.collect()),
            ("votes", votes.collect()),
            (BY_CANDIDATE, by_candidate.iter().map(|pair| row(pair)).collect()),
            ("tally", tally.into_iter().collect()),
            ("recent", ring.iter().map(|(place, c)| row(&[*place as i64, *c])).collect()),
            ("boards", boards.map(|(n, b)| [row(&[n]), row(&b)].concat()).collect()),
        ]
    }

    /// Returns the events of all output streams.
    fn outputs(&self) -> [(&'static str, Rows); 4] {
        let row = |ints: &[i64]| ints.iter().copied().map(Value::Int).collect::<Vec<_>>();
        let refused = self.refused.iter().map(|(vote, reason)| {
            let mut row = row(&[vote.phone.into(), vote.candidate.into()]);
            row.push(Value::str(reason));
            row
        });
        let valid = self.accepted.iter().map(|[candidate, phone]| row(&[*phone, *candidate]));
        let counted = (1..=self.accepted.len()).map(|accepted| row(&[accepted as i64]));
        [
            (VALID, valid.collect()),
            (COUNTED, counted.collect()),
            (REMOVED, self.removed.iter().map(|removed| row(removed)).collect()),
            (REFUSED, refused.collect()),
        ]
    }

    /// Returns the hash of all outputs of a program.
    pub(super) fn output_hash(&self, program: &Program) -> String {
        let mut hashes = Vec::new();
        for (name, rows) in self.outputs().iter().filter(|(_, rows)| !rows.is_empty()) {
            let stream = program.streams.iter().find(|stream| *stream.spec.name == **name);
            let Some(stream) = stream else { continue };
            let mut hash = RowsHash::default();
            let schema = stream.spec.schema.clone();
            hash.take(&Batch::from_rows(schema, rows.iter().map(Vec::as_slice)));
            hashes.push((*name, hash));
        }
        format!("{:032x}", streams_hash(hashes))
    }

    /// Returns the numbers of accepted, refused and standing votes, and of running candidates.
    pub(super) fn numbers(&self) -> [(&'static str, usize); 4] {
        [
            ("accepted", self.accepted.len()),
            ("refused", self.refused.len()),
            ("standing", self.votes.len()),
            ("running", self.running.len()),
        ]
    }
}
