//! Leaderboard Maintenance (S-Store 4.1.1): viewers of a show vote by phone, and every so often the
//! least popular candidate goes.
//!
//! There are 25 candidates (`--candidates`), numbered from 1, who stand before the first vote comes, and
//! 1,000,000 phones (`--phones`). A vote is a phone and a candidate. Three procedures run in sequence
//! for each vote, as one nested transaction:
//!
//! | procedure | takes | what it does |
//! | --- | --- | --- |
//! | `validate` | `cast`, a vote | refuses a vote for nobody who is running, then one of a phone that has voted; or else inserts it |
//! | `count` | `valid`, a vote | counts it for its candidate, among all votes that were ever accepted, and among the last 100 of these; writes the three leaderboards |
//! | `remove` | `counted`, how many were accepted | after every 20,000 (`--every`) removes the candidate with the fewest votes and all votes for it, so that their phones may vote again, and writes the leaderboards; not the last one |
//!
//! A vote that is refused aborts, and all three with it. Of candidates with the same number of votes the
//! one with the lowest number comes first, on each leaderboard and where one has to go. The
//! leaderboards: the three with the most votes, the three with the fewest, and the three with the most
//! of the last 100. They name those who are running; where fewer than three are, the rest is zeros. The
//! last 100 are what they are when votes are taken back: who has gone is on no leaderboard any more.
//!
//! Of the votes 1 % are for a candidate that there never was, 1 % for one that has gone (once one has),
//! and 5 % from a phone whose vote stands. The others come from phones whose votes do not stand, drawn
//! alike, for candidates who are running, drawn with the skew that is asked for. There are as many
//! votes as it takes for one candidate to be left, unless `--events` says otherwise.
//!
//! With `--durable none` the executor gets decoded epochs. With `--durable log`, the default, votes are
//! pushed into the whole engine, and count when they are acknowledged: logged, synced, executed.
//!
//! What must hold: tables and outputs are those of a straight loop, which knows nothing of the others,
//! bit for bit.
//!
//! | file | what it is |
//! | --- | --- |
//! | `votes` | the generator: an audience that knows who is running |
//! | `program` | tables, streams, and how procedures hang together |
//! | `functions` | the procedures in Rust |
//! | `tight` | the baseline |
//! | `straight` | the invariant: the straight loop, and what tables and outputs must be |
//! | `run` | all of it as the harness takes it |
//! | `files` | votes in a file, and what they come to, for other systems |

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

/// Why a vote is refused: for whom it is.
const NOBODY: &str = "no such candidate is running";
/// Why a vote is refused: who sends it.
const AGAIN: &str = "this phone has voted";

/// So many of the last votes make a trend.
const TREND: usize = 100;
/// The percentages of votes for nobody, for one who has gone, and of phones that have voted.
const SHARE_NOBODY: u64 = 1;
const SHARE_GONE: u64 = 1;
const SHARE_AGAIN: u64 = 5;
/// Candidates, at most: the baseline has a byte for each.
const CANDIDATES_MAX: usize = 200;

/// The show.
#[derive(Clone, Copy, Debug)]
struct Show {
    candidates: usize,
    phones: usize,
    /// After so many accepted votes one has to go.
    every: u64,
    /// Votes that are cast.
    votes: usize,
}

impl Show {
    fn of(args: &Args) -> Result<Show> {
        let (candidates, phones) =
            (args.candidates.unwrap_or(25), args.phones.unwrap_or(1_000_000));
        let every = args.every.unwrap_or(20_000);
        if !(2..=CANDIDATES_MAX).contains(&candidates) {
            let what = format!("--candidates {candidates}: there are 2 to {CANDIDATES_MAX}");
            return Err(Error::setting(what));
        }
        if phones == 0 || u32::try_from(phones).is_err() || every == 0 {
            let what = format!("--phones {phones}, --every {every}: each is at least 1");
            return Err(Error::setting(what).help("a phone's number has 32 bits"));
        }
        // A little more than it takes.
        let refused = SHARE_NOBODY + SHARE_GONE + SHARE_AGAIN + 2;
        let enough = every * (candidates as u64 - 1) * 100 / (100 - refused);
        let votes = args.events.unwrap_or(enough as usize);
        Ok(Show { candidates, phones, every, votes })
    }
}
