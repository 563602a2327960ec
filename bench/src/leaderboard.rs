//! Leaderboard Maintenance (S-Store, section 4.1.1): viewers of a show vote by phone, and from time
//! to time the least popular candidate is removed.
//!
//! There are 25 candidates (`--candidates`), numbered from 1, who stand before the first vote.
//! There are 1,000,000 phones (`--phones`). A vote is a phone and a candidate. Three procedures run
//! in sequence for each vote, as one nested transaction:
//!
//! | procedure | takes | what it does |
//! | --- | --- | --- |
//! | `validate` | `cast`, a vote | refuses a vote for a candidate who is not running, then one of a phone that has voted; otherwise inserts the vote |
//! | `count` | `valid`, a vote | counts it for its candidate, among all accepted votes and among the last 100 of them; writes the three leaderboards |
//! | `remove` | `counted`, the number of accepted votes | after every 20,000 (`--every`), removes the candidate with the fewest votes and all votes for it, so that their phones may vote again, and writes the leaderboards; never removes the last candidate |
//!
//! A refused vote aborts all three. Of candidates with the same number of votes, the one with the
//! lowest number comes first, on each leaderboard and in removals. The leaderboards are the three
//! candidates with the most votes, the three with the fewest, and the three with the most of the
//! last 100. They list running candidates only; if there are fewer than three, the rest is zeros.
//! Removals do not change the last 100 votes, but removed candidates leave all leaderboards.
//!
//! Of the votes, 1 % are for a candidate that never existed, 1 % for a removed one (after the first
//! removal), and 5 % from a phone whose vote stands. The others come from phones without a standing
//! vote, drawn uniformly. Their candidates are running ones, drawn with the given skew. By default,
//! there are as many votes as it takes to leave one candidate; `--events` changes that.
//!
//! With `--durable none`, the executor gets decoded epochs. With `--durable log`, the default,
//! votes are pushed into the whole engine. They count when they are acknowledged, that is logged,
//! synced and executed.
//!
//! The invariant: tables and outputs are bit for bit those of a straight loop that shares no code
//! with the others.
//!
//! | file | contents |
//! | --- | --- |
//! | `votes` | the generator: an audience that knows who is running |
//! | `program` | tables, streams, and the connections of procedures |
//! | `functions` | the procedures in Rust |
//! | `tight` | the baseline |
//! | `straight` | the invariant: the straight loop, and the expected tables and outputs |
//! | `run` | the workload for the harness |
//! | `files` | votes in a file, and their results, for other systems |

mod files;
mod functions;
mod program;
mod run;
mod straight;
mod tight;
mod votes;

#[cfg(test)]
mod tests;

use tidemill_core::{Error, Result};

use crate::args::Args;

pub(crate) use run::run;

/// The reason of refusing a vote: its candidate is not running.
const NOBODY: &str = "no such candidate is running";
/// The reason of refusing a vote: its phone has voted.
const AGAIN: &str = "this phone has voted";

/// The number of last votes that the trend counts.
const TREND: usize = 100;
/// The percentages of votes for unknown candidates, for removed ones, and of phones that have
/// voted.
const SHARE_NOBODY: u64 = 1;
const SHARE_GONE: u64 = 1;
const SHARE_AGAIN: u64 = 5;
/// The largest number of candidates: the baseline has a byte for each.
const CANDIDATES_MAX: usize = 200;

/// The show.
#[derive(Clone, Copy, Debug)]
struct Show {
    candidates: usize,
    phones: usize,
    /// A candidate is removed after every this many accepted votes.
    every: u64,
    /// The number of votes.
    votes: usize,
}

impl Show {
    fn of(args: &Args) -> Result<Show> {
        let (candidates, phones) =
            (args.candidates.unwrap_or(25), args.phones.unwrap_or(1_000_000));
        let every = args.every.unwrap_or(20_000);
        if !(2..=CANDIDATES_MAX).contains(&candidates) {
            let what = format!("--candidates {candidates}: it must be 2 to {CANDIDATES_MAX}");
            return Err(Error::setting(what));
        }
        if phones == 0 || u32::try_from(phones).is_err() || every == 0 {
            let what = format!("--phones {phones}, --every {every}: each must be at least 1");
            return Err(Error::setting(what).help("a phone's number has 32 bits"));
        }
        // A little more than necessary.
        let refused = SHARE_NOBODY + SHARE_GONE + SHARE_AGAIN + 2;
        let enough = every * (candidates as u64 - 1) * 100 / (100 - refused);
        let votes = args.events.unwrap_or(enough as usize);
        Ok(Show { candidates, phones, every, votes })
    }
}
