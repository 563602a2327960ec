//! The check that a nested transaction is one (S-Store, section 2.4). No other turn comes between
//! its procedures. All of them commit, or none does. Each sees the appends of those before it, and
//! no appends of others in between. Other transactions see the appends of all of them, or of none.

use crate::history::{number, History, Op, Turn, Who, NESTED, NODES};

/// Checks a history. Returns the fault.
pub fn check(history: &History) -> Result<(), String> {
    adjacent(history)?;
    for transaction in &history.transactions {
        if let (Who::Node(NESTED, round), true) = (transaction.who, transaction.committed) {
            inside(round, &transaction.ops)?;
            for other in
                history.transactions.iter().filter(|t| t.committed && t.who != transaction.who)
            {
                outside(&transaction.ops, &other.ops).map_err(|wrong| {
                    format!("{:?} has seen of round {round} {wrong}", other.who)
                })?;
            }
        }
        if let (Who::Node(NESTED, round), false) = (transaction.who, transaction.committed) {
            let left =
                |list: &Vec<i64>| NODES[NESTED].iter().any(|p| list.contains(&number(*p, round)));
            if history.lists.values().any(left) {
                return Err(format!("round {round} has aborted and left something"));
            }
        }
    }
    Ok(())
}

/// Checks that the turns of its procedures follow one another.
fn adjacent(history: &History) -> Result<(), String> {
    let procedures = NODES[NESTED];
    for (place, turn) in history.schedule.iter().enumerate() {
        let Turn::Procedure { procedure, round } = *turn else { continue };
        let Some(nth) = procedures.iter().position(|own| *own == procedure) else { continue };
        let is_there = |(nth, procedure): (usize, &usize)| {
            let wanted = Turn::Procedure { procedure: *procedure, round };
            history.schedule.get(place + nth) == Some(&wanted)
        };
        if nth == 0 && !procedures.iter().enumerate().all(is_there) {
            return Err(format!("round {round}: its procedures do not follow one another"));
        }
        let first = Turn::Procedure { procedure: procedures[0], round };
        if place < nth || history.schedule[place - nth] != first {
            return Err(format!("round {round}: its first procedure has not committed"));
        }
    }
    Ok(())
}

/// Checks that its view of a list changes only by its own appends.
fn inside(round: i64, ops: &[Op]) -> Result<(), String> {
    for (at, op) in ops.iter().enumerate() {
        let Op::Read { key, list } = op else { continue };
        let own = |op: &Op| matches!(op, Op::Append { key: of, .. } if of == key);
        for (then, later) in ops.iter().enumerate().skip(at + 1) {
            let Op::Read { key: of, list: seen } = later else { continue };
            let appended = ops[at..then].iter().filter(|op| own(op)).count();
            if of == key && (!seen.starts_with(list) || seen.len() != list.len() + appended) {
                return Err(format!("round {round}: {key} has changed: {list:?}, then {seen:?}"));
            }
        }
        let numbers = ops[..at].iter().filter_map(|op| match op {
            Op::Append { key: of, number } if of == key => Some(*number),
            _ => None,
        });
        let numbers: Vec<i64> = numbers.collect();
        if !list.ends_with(&numbers) {
            return Err(format!("round {round}: {list:?} of {key} does not end with {numbers:?}"));
        }
    }
    Ok(())
}

/// Checks that another transaction has seen all of its appends to the lists that it read, or none.
fn outside(own: &[Op], other: &[Op]) -> Result<(), String> {
    let mut seen = None;
    for op in other {
        let Op::Read { key, list } = op else { continue };
        for append in own {
            let Op::Append { key: of, number } = append else { continue };
            if of == key && *seen.get_or_insert(list.contains(number)) != list.contains(number) {
                return Err(format!(
                    "a part: {number} of {key} is there, or another one is, but not both"
                ));
            }
        }
    }
    Ok(())
}
