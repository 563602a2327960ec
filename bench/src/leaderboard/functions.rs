//! The procedures in Rust. They find rows at run time, and each sees the writes of those before it.

use tidemill_core::Value;
use tidemill_txn::program::{Abort, Opaque, Take, Tx};

use super::program::Frame;
use super::{AGAIN, NOBODY, TREND};
use crate::events::int;

/// The key of the one row of `tally`.
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
        // The last votes are in a ring.
        let place = accepted % TREND as i64;
        let leaves = tx.ints(recent, place)?.map(|[_, candidate]| candidate);
        let is_same = leaves == Some(candidate);
        if !is_same {
            tx.put_ints(recent, &[place, candidate])?;
        }
        let left = leaves.filter(|_| !is_same).map(|leaves| self.add(leaves, 0, -1, tx));
        let left = left.transpose()?.flatten();
        if let Some(won) = self.add(candidate, 1, i64::from(!is_same), tx)? {
            raise_boards(self.frame, won, left, tx)?;
        }
        tx.emit_ints(counted, &[accepted + 1])
    }
}

impl Count {
    /// Adds to a column of a running candidate; returns the new value.
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
        for vote in tx.find(by_candidate, &[Value::Int(gone)], Take::ALL)? {
            tx.delete(votes, &vote[1..])?;
        }
        tx.delete(candidates, &[Value::Int(gone)])?;
        write_boards(self.frame, tx)?;
        tx.emit_ints(removed, &[gone, count, accepted])
    }
}

/// Returns the running candidates by number: candidate, votes, and votes among the last ones.
fn running(frame: Frame, tx: &mut dyn Tx) -> Result<Vec<[i64; 3]>, Abort> {
    let rows = tx.scan(frame.candidates, &[], &[], Take::ALL)?;
    Ok(rows.iter().map(|row| std::array::from_fn(|column| int(&row[column]))).collect())
}

/// The number of the leaderboard of the last votes. The others are those of the most and of the
/// fewest votes.
const TRENDING: i64 = 2;

/// Three candidates, each with its votes; 0 is an empty place.
type Places = [[i64; 2]; 3];

/// The order of a leaderboard, by a candidate and its votes: lower ranks come first.
type Rank = fn(&[i64; 2]) -> (i64, i64);

/// Ranks the most votes first, and lower numbers first among equals. Empty places come last.
fn most_first([candidate, votes]: &[i64; 2]) -> (i64, i64) {
    match candidate {
        0 => (i64::MAX, 0),
        _ => (-votes, *candidate),
    }
}

/// Ranks the fewest votes first, and lower numbers first among equals. Empty places come last.
fn fewest_first([candidate, votes]: &[i64; 2]) -> (i64, i64) {
    match candidate {
        0 => (i64::MAX, 0),
        _ => (*votes, *candidate),
    }
}

/// The order of each leaderboard, and the column of `candidates` that it counts.
const ORDERS: [(Rank, usize); 3] = [(most_first, 1), (fewest_first, 1), (most_first, 2)];

/// Writes the leaderboards that change when one candidate wins a vote and another loses one of the
/// last votes. It reads all candidates only where one from outside a board may enter it.
fn raise_boards(
    frame: Frame,
    won: [i64; 3],
    left: Option<[i64; 3]>,
    tx: &mut dyn Tx,
) -> Result<(), Abort> {
    let mut running: Option<Vec<[i64; 3]>> = None;
    for (number, (rank, counted)) in (0..).zip(ORDERS) {
        let Some([_, first, a, second, b, third, c]) = tx.ints(frame.boards, number)? else {
            return write_boards(frame, tx);
        };
        let held = [[first, a], [second, b], [third, c]];
        let mut now = Some(held);
        for row in [left.filter(|_| number == TRENDING), Some(won)].into_iter().flatten() {
            now = now.and_then(|board| settled(board, [row[0], row[counted]], rank));
        }
        let now = match now {
            Some(now) => now,
            None => {
                let running = match &mut running {
                    Some(running) => running,
                    none => none.insert(self::running(frame, tx)?),
                };
                board(running, counted, rank)
            }
        };
        if now != held {
            write(frame, number, now, tx)?;
        }
    }
    Ok(())
}

/// Updates a board for a candidate with a new number of votes. Returns `None` if the last place
/// must be searched among all candidates. All candidates outside the board rank after its last
/// place.
fn settled(mut board: Places, own: [i64; 2], rank: Rank) -> Option<Places> {
    let last = board.len() - 1;
    let is_behind = rank(&own) > rank(&board[last]);
    match board.iter().position(|place| place[0] == own[0]) {
        Some(_) if is_behind => return None,
        None if is_behind => return Some(board),
        place => board[place.unwrap_or(last)] = own,
    }
    board.sort_unstable_by_key(rank);
    Some(board)
}

/// Writes the leaderboards that have changed, computed from all candidates.
fn write_boards(frame: Frame, tx: &mut dyn Tx) -> Result<(), Abort> {
    let running = running(frame, tx)?;
    for (number, (rank, counted)) in (0..).zip(ORDERS) {
        write(frame, number, board(&running, counted, rank), tx)?;
    }
    Ok(())
}

/// Writes a leaderboard if it has changed.
fn write(frame: Frame, number: i64, places: Places, tx: &mut dyn Tx) -> Result<(), Abort> {
    let [[first, a], [second, b], [third, c]] = places;
    let row = [number, first, a, second, b, third, c];
    match tx.ints(frame.boards, number)? == Some(row) {
        true => Ok(()),
        false => tx.put_ints(frame.boards, &row),
    }
}

/// Returns the first three candidates.
fn board(running: &[[i64; 3]], counted: usize, rank: Rank) -> Places {
    let mut first = [[0, 0]; 3];
    for row in running {
        let mut next = [row[0], row[counted]];
        for place in &mut first {
            if rank(&next) < rank(place) {
                std::mem::swap(place, &mut next);
            }
        }
    }
    first
}
