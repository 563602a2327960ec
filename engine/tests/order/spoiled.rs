//! Histories that are wrong, each in one way. The checker of the broken property must report it.

use crate::history::{number, History, Op, Turn, Who, NESTED, NODES};
use crate::model;
use crate::{check, nested, rounds, serial};

const SEEDS: std::ops::Range<u64> = 0..20;

/// Spoils a history. Returns whether that was possible.
type Spoil = fn(&mut History) -> bool;

/// Asserts that a checker reports this for spoiled histories, and nothing for the others.
fn found(checker: fn(&History) -> Result<(), String>, spoil: Spoil, says: &str) {
    let mut spoiled = 0;
    for seed in SEEDS {
        let mut history = model::run(seed);
        assert_eq!(check(&history), Ok(()), "seed {seed}");
        if spoil(&mut history) {
            spoiled += 1;
            let wrong = checker(&history).expect_err("it is spoiled");
            assert!(wrong.contains(says), "seed {seed}: {wrong}");
        }
    }
    assert!(spoiled > 10, "{spoiled} histories could be spoiled");
}

/// The reads of calls, the first one of each.
fn read_of_a_call(
    history: &mut History,
    long: usize,
) -> Option<(&mut u64, &mut u64, &mut Vec<i64>)> {
    let calls = history.transactions.iter_mut().filter(|t| t.committed && t.ops.len() == 2);
    let mut reads = calls.filter_map(|call| match &mut call.ops[0] {
        Op::Read { list, .. } if list.len() > long => {
            Some((&mut call.made, &mut call.answered, list))
        }
        _ => None,
    });
    reads.next()
}

#[test]
fn a_call_that_sees_what_has_long_gone() {
    // The state is much older than calls overlap.
    let spoil: Spoil = |history| match read_of_a_call(history, 12) {
        Some((_, _, list)) => {
            list.truncate(1);
            true
        }
        None => false,
    };
    found(serial::check, spoil, "must come before the next one");
}

#[test]
fn a_call_that_sees_another_order() {
    let spoil: Spoil = |history| match read_of_a_call(history, 3) {
        Some((_, _, list)) => {
            list.swap(0, 1);
            true
        }
        None => false,
    };
    found(serial::check, spoil, "as it never was");
}

#[test]
fn a_call_that_sees_what_was_never_committed() {
    let spoil: Spoil = |history| {
        let aborted = history.transactions.iter().find(|t| !t.committed && t.ops.len() == 3);
        let Some(Op::Append { number, .. }) = aborted.map(|t| t.ops[0].clone()) else {
            return false;
        };
        match read_of_a_call(history, 3) {
            Some((_, _, list)) => {
                list.push(number);
                true
            }
            None => false,
        }
    };
    found(serial::check, spoil, "as it never was");
}

#[test]
fn an_append_that_is_lost() {
    let spoil: Spoil = |history| {
        let Some(list) = history.lists.values_mut().find(|list| list.len() > 5) else {
            return false;
        };
        let gone = list.remove(4);
        for op in history.transactions.iter_mut().flat_map(|t| &mut t.ops) {
            if let Op::Read { list, .. } = op {
                list.retain(|number| *number != gone);
            }
        }
        true
    };
    found(serial::check, spoil, "is not there");
}

#[test]
fn a_call_that_is_answered_before_what_it_has_seen_is_made() {
    let spoil: Spoil = |history| match read_of_a_call(history, 12) {
        Some((made, answered, _)) => {
            (*made, *answered) = (0, 1);
            true
        }
        None => false,
    };
    found(serial::check, spoil, "must come before the next one");
}

#[test]
fn a_call_that_comes_long_after_what_it_does_not_see() {
    let spoil: Spoil = |history| {
        let all: usize = history.lists.values().map(Vec::len).min().unwrap_or(0);
        match read_of_a_call(history, 2) {
            Some((made, answered, list)) if list.len() + 12 < all => {
                (*made, *answered) = (1 << 40, 1 << 41);
                true
            }
            _ => false,
        }
    };
    found(serial::check, spoil, "must come before the next one");
}

/// Two transactions do not see each other's appends, although both read the lists.
#[test]
fn two_that_do_not_see_each_other() {
    let spoil: Spoil = |history| {
        let lists = history.lists.clone();
        let made = 1 << 40;
        for (id, key, other) in [(-9001, 0, 1), (-9002, 1, 0)] {
            let read =
                Op::Read { key: other, list: lists.get(&other).cloned().unwrap_or_default() };
            history.lists.entry(key).or_default().push(id);
            history.transactions.push(crate::history::Transaction {
                who: Who::Call(-id),
                made,
                answered: made + 1,
                ops: vec![read, Op::Append { key, number: id }],
                committed: true,
            });
        }
        true
    };
    found(serial::check, spoil, "Call(9002)");
}

/// Exchanges the appends of a procedure in two rounds everywhere, so that nothing else is wrong.
#[test]
fn a_stream_whose_rounds_come_in_another_order() {
    let spoil: Spoil = |history| {
        let (a, b) = (number(1, 3), number(1, 9));
        let exchange = |of: &mut i64| match *of {
            of_a if of_a == a => *of = b,
            of_b if of_b == b => *of = a,
            _ => {}
        };
        history.lists.values_mut().flatten().for_each(exchange);
        for transaction in &mut history.transactions {
            // Real time does not show it either.
            (transaction.made, transaction.answered) = (0, 1 << 40);
            if let Who::Node(1, round @ (3 | 9)) = &mut transaction.who {
                *round = 12 - *round;
            }
            for op in &mut transaction.ops {
                match op {
                    Op::Append { number, .. } => exchange(number),
                    Op::Read { list, .. } => list.iter_mut().for_each(exchange),
                }
            }
        }
        history.rounds[0] > 9
    };
    found(serial::check, spoil, "must come before the next one");
}

fn place(history: &History, procedure: usize, round: i64) -> Option<usize> {
    history.schedule.iter().position(|turn| *turn == Turn::Procedure { procedure, round })
}

/// Exchanges two turns of the schedule.
fn exchange(history: &mut History, one: (usize, i64), other: (usize, i64)) -> bool {
    let (one, other) = (place(history, one.0, one.1), place(history, other.0, other.1));
    if let (Some(one), Some(other)) = (one, other) {
        history.schedule.swap(one, other);
    }
    one.is_some() && other.is_some()
}

#[test]
fn a_schedule_in_another_order() {
    found(rounds::check, |h| exchange(h, (0, 4), (1, 4)), "dataflow order: pass before enter");
    found(rounds::check, |h| exchange(h, (1, 4), (2, 4)), "dataflow order: give before pass");
    found(rounds::check, |h| exchange(h, (2, 4), (3, 4)), "dataflow order: take before give");
    let rounds: Spoil = |h| exchange(h, (4, 2), (4, 3)) && exchange(h, (5, 2), (5, 3));
    found(rounds::check, rounds, "stream order: begin has taken round 3 before 2");
    let late: Spoil = |history| match (place(history, 5, 2), place(history, 5, 3)) {
        (Some(second), Some(third)) => {
            let turn = history.schedule.remove(second);
            history.schedule.insert(third, turn);
            true
        }
        _ => false,
    };
    found(rounds::check, late, "stream order: end has taken round 3 before 2");
}

#[test]
fn a_schedule_with_a_turn_too_many_or_too_few() {
    let gone: Spoil = |history| {
        let at = place(history, 1, 5);
        at.map(|at| history.schedule.remove(at)).is_some()
    };
    found(rounds::check, gone, "pass, round 5: it has not come");
    let again: Spoil = |history| {
        let at = place(history, 4, 5);
        at.map(|at| history.schedule.push(history.schedule[at])).is_some()
    };
    found(rounds::check, again, "begin, round 5: it has come twice");
    let refused: Spoil = |history| {
        let turns = [2, 3].map(|procedure| Turn::Procedure { procedure, round: 7 });
        history.schedule.extend(turns);
        history.rounds[0] > 7
    };
    found(rounds::check, refused, "give, round 7: it was refused");
}

#[test]
fn a_nested_transaction_with_somebody_in_between() {
    let spoil: Spoil = |history| {
        let at = place(history, 3, 4);
        at.map(|at| history.schedule.insert(at, Turn::Call(9001))).is_some()
    };
    found(nested::check, spoil, "round 4: its procedures do not follow one another");
    let half: Spoil = |history| {
        let at = place(history, 2, 4);
        at.map(|at| history.schedule.remove(at)).is_some()
    };
    found(nested::check, half, "round 4: its first procedure has not committed");
}

/// The nested transaction of a round.
fn nested_ops(history: &mut History, round: i64) -> Option<&mut Vec<Op>> {
    let is_it = |who: Who| who == Who::Node(NESTED, round);
    history.transactions.iter_mut().find(|t| is_it(t.who)).map(|t| &mut t.ops)
}

#[test]
fn a_nested_transaction_that_sees_others_or_not_itself() {
    // The view of its second procedure of the key that its first one has appended to.
    fn last_seen(history: &mut History) -> Option<&mut Vec<i64>> {
        match nested_ops(history, 5)?.get_mut(2)? {
            Op::Read { list, .. } => Some(list),
            Op::Append { .. } => None,
        }
    }
    let not_itself: Spoil = |history| last_seen(history).and_then(Vec::pop).is_some();
    found(nested::check, not_itself, "does not end with");
    found(serial::check, not_itself, "has not seen in");
    let others: Spoil = |history| last_seen(history).map(|list| list.push(-9001)).is_some();
    found(nested::check, others, "does not end with");
}

#[test]
fn a_nested_transaction_that_is_seen_in_part() {
    let spoil: Spoil = |history| {
        let Some(ops) = nested_ops(history, 5) else { return false };
        let appends = ops.iter().filter_map(|op| match op {
            Op::Append { key, number } => Some((*key, *number)),
            Op::Read { .. } => None,
        });
        let appends: Vec<(i64, i64)> = appends.collect();
        let upto = |history: &History, (key, number): (i64, i64), more: usize| {
            let list = &history.lists[&key];
            let at = list.iter().position(|of| *of == number).expect("it has committed");
            Op::Read { key, list: list[..at + more].to_vec() }
        };
        // Its first append, and not its second.
        let ops = vec![upto(history, appends[0], 1), upto(history, appends[1], 0)];
        let who = Who::Call(9001);
        let (made, answered, committed) = (0, 1 << 40, true);
        history.transactions.push(crate::history::Transaction {
            who,
            made,
            answered,
            ops,
            committed,
        });
        true
    };
    found(nested::check, spoil, "Call(9001) has seen of round 5 a part");
    found(serial::check, spoil, "must come before the next one");
}

#[test]
fn a_nested_transaction_that_aborts_and_leaves_something() {
    let spoil: Spoil = |history| {
        history.lists.entry(0).or_default().push(number(NODES[NESTED][0], 7));
        history.rounds[0] > 7
    };
    found(nested::check, spoil, "round 7 has aborted and left something");
    found(serial::check, spoil, "nobody has appended it");
}
