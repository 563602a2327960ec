//! The procedures in Rust. Rows are found by running; each sees what those before it have written.

use tidemill_core::Value;
use tidemill_txn::program::{Abort, Opaque, Tx};

use super::program::Frame;
use super::{AGAIN, NOBODY, TREND};
use crate::events::int;

/// The one row of `tally`.
const TALLY: i64 = 0;

/// Refuses a vote, or inserts it.
pub(super) struct Validate {
    pub(super) frame: Frame,
}

impl Opaque for Validate {
    fn call(&self, vote: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        if tx.ints::<3>(self.frame.candidates, int(&vote[1]))?.is_none() {
            return Err(Abort::refused(NOBODY));
        }
        if tx.ints::<2>(self.frame.votes, int(&vote[0]))?.is_some() {
            return Err(Abort::refused(AGAIN));
        }
        tx.put(self.frame.votes, vote)?;
        tx.emit(self.frame.valid, vote)
    }
}

/// Counts a vote, and writes the leaderboards.
pub(super) struct Count {
    pub(super) frame: Frame,
}

impl Opaque for Count {
    fn call(&self, vote: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let Frame { tally, recent, counted, .. } = self.frame;
        let candidate = int(&vote[1]);
        let accepted = tx.ints(tally, TALLY)?.map_or(0, |[_, accepted]| accepted);
        tx.put_ints(tally, &[TALLY, accepted + 1])?;
        // The last votes are a ring.
        let place = accepted % TREND as i64;
        let leaves = tx.ints(recent, place)?.map(|[_, candidate]| candidate);
        if leaves != Some(candidate) {
            tx.put_ints(recent, &[place, candidate])?;
        }
        let mut now = self.add(candidate, 1, 1, tx)?;
        if let Some(leaves) = leaves {
            let left = self.add(leaves, 0, -1, tx)?;
            now = if leaves == candidate { left } else { now };
        }
        if let Some(now) = now {
            raise_boards(self.frame, now, leaves, tx)?;
        }
        tx.emit_ints(counted, &[accepted + 1])
    }
}

impl Count {
    /// Adds to what a candidate has, if it is running; gives what that is then.
    fn add(
        &self,
        candidate: i64,
        votes: i64,
        recent: i64,
        tx: &mut dyn Tx,
    ) -> Result<Option<[i64; 3]>, Abort> {
        let Some([_, had, had_recent]) = tx.ints(self.frame.candidates, candidate)? else {
            return Ok(None);
        };
        let row = [candidate, had + votes, had_recent + recent];
        tx.put_ints(self.frame.candidates, &row)?;
        Ok(Some(row))
    }
}

/// Removes the candidate with the fewest votes when it is time, with all votes for it.
pub(super) struct Remove {
    pub(super) frame: Frame,
    pub(super) every: i64,
}

impl Opaque for Remove {
    fn call(&self, counted: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let Frame { candidates, votes, by_candidate, removed, .. } = self.frame;
        let accepted = int(&counted[0]);
        if accepted % self.every != 0 {
            return Ok(());
        }
        let running = running(self.frame, tx)?;
        if running.len() == 1 {
            return Ok(());
        }
        let least = running.iter().min_by_key(|[_, votes, _]| *votes);
        let [gone, count, _] = *least.expect("some are running");
        for vote in tx.find(by_candidate, &[Value::Int(gone)], usize::MAX)? {
            tx.delete(votes, &vote[1..])?;
        }
        tx.delete(candidates, &[Value::Int(gone)])?;
        write_boards(self.frame, tx)?;
        tx.emit_ints(removed, &[gone, count, accepted])
    }
}

/// Who is running, by number: candidate, votes, votes among the last ones.
fn running(frame: Frame, tx: &mut dyn Tx) -> Result<Vec<[i64; 3]>, Abort> {
    let rows = tx.scan(frame.candidates, &[], &[], usize::MAX)?;
    Ok(rows.iter().map(|row| std::array::from_fn(|column| int(&row[column]))).collect())
}

/// The leaderboards, by number: those with the most votes, with the fewest, and with the most of the last
/// ones.
const MOST: i64 = 0;
const FEWEST: i64 = 1;
const TRENDING: i64 = 2;

/// Three candidates, each with its votes; 0 is nobody.
type Places = [[i64; 2]; 3];

/// Writes those leaderboards that are not as they were when a candidate has won a vote, and another one
/// (or nobody) one of the last votes fewer. Whoever rises takes a place or does not; only where somebody
/// on a board may have to make room for whoever is not on it are all candidates looked at.
fn raise_boards(
    frame: Frame,
    [candidate, votes, recent]: [i64; 3],
    leaves: Option<i64>,
    tx: &mut dyn Tx,
) -> Result<(), Abort> {
    let mut held = [None; 3];
    for (number, held) in (0..).zip(&mut held) {
        let row = tx.ints(frame.boards, number)?;
        *held = row.map(|[_, first, a, second, b, third, c]| [[first, a], [second, b], [third, c]]);
    }
    let [Some(most), Some(fewest), Some(trending)] = held else { return write_boards(frame, tx) };
    let is_on = |board: &Places, candidate: i64| board.iter().any(|place| place[0] == candidate);
    let falls = leaves.is_some_and(|leaves| leaves != candidate && is_on(&trending, leaves));
    if is_on(&fewest, candidate) || falls {
        return write_boards(frame, tx);
    }
    for (number, held, value) in [(MOST, most, votes), (TRENDING, trending, recent)] {
        let raised = raised(held, [candidate, value]);
        if raised != held {
            write(frame, number, raised, tx)?;
        }
    }
    Ok(())
}

/// A board on which the most come first, when a candidate has no fewer than before.
fn raised(mut board: Places, own: [i64; 2]) -> Places {
    let rank = |place: &[i64; 2]| match place {
        [0, _] => (i64::MAX, 0),
        [candidate, votes] => (-votes, *candidate),
    };
    let last = board.len() - 1;
    let there = board.iter().position(|place| place[0] == own[0]);
    let place = there.unwrap_or(last);
    if there.is_some() || rank(&own) < rank(&board[place]) {
        board[place] = own;
        board.sort_by_key(rank);
    }
    board
}

/// Writes those leaderboards that are not as they were, of all candidates.
fn write_boards(frame: Frame, tx: &mut dyn Tx) -> Result<(), Abort> {
    let running = running(frame, tx)?;
    let boards = [
        (MOST, board(&running, |[_, votes, _]| -votes)),
        (FEWEST, board(&running, |[_, votes, _]| *votes)),
        (TRENDING, board(&running, |[_, _, recent]| -recent)),
    ];
    boards.into_iter().try_for_each(|(number, places)| write(frame, number, places, tx))
}

/// Writes a leaderboard, if it is another one.
fn write(frame: Frame, number: i64, places: Places, tx: &mut dyn Tx) -> Result<(), Abort> {
    let [[first, a], [second, b], [third, c]] = places;
    let row = [number, first, a, second, b, third, c];
    match tx.ints(frame.boards, number)? == Some(row) {
        true => Ok(()),
        false => tx.put_ints(frame.boards, &row),
    }
}

/// The three who come first by a rank, with the votes that it counts: lower ranks before higher ones,
/// and of equals the first.
fn board(running: &[[i64; 3]], rank: impl Fn(&[i64; 3]) -> i64) -> Places {
    // Nobody comes behind everybody.
    let mut first = [(i64::MAX, 0); 3];
    for candidate in running {
        let mut next = (rank(candidate), candidate[0]);
        for place in &mut first {
            if next < *place {
                std::mem::swap(place, &mut next);
            }
        }
    }
    first.map(|(rank, candidate)| if candidate == 0 { [0, 0] } else { [candidate, rank.abs()] })
}
