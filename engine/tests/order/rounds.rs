//! The check of the recorded schedule of turns against the two constraints of S-Store (section
//! 2.3). In each round the procedures come in a topological order of the graph (dataflow order).
//! Each procedure takes the rounds of its stream in their order (stream order). Each takes each
//! round once. Between turns anything else may come.

use std::collections::BTreeMap;

use crate::history::{is_refused, History, Turn, EDGES, NESTED, NODES, PROCEDURES, STREAMS};

/// Checks a history. Returns the fault.
pub fn check(history: &History) -> Result<(), String> {
    let mut at: BTreeMap<(usize, i64), usize> = BTreeMap::new();
    for (place, turn) in history.schedule.iter().enumerate() {
        if let Turn::Procedure { procedure, round } = turn {
            if at.insert((*procedure, *round), place).is_some() {
                return Err(format!("{}, round {round}: it has come twice", name(*procedure)));
            }
        }
    }
    for ((_, nodes), rounds) in STREAMS.iter().zip(history.rounds) {
        for round in 1..=rounds {
            for node in *nodes {
                let wanted = !(*node == NESTED && is_refused(round));
                let come = |procedure: &&usize| at.contains_key(&(**procedure, round)) != wanted;
                if let Some(wrong) = NODES[*node].iter().find(come) {
                    let what = if wanted { "it has not come" } else { "it was refused" };
                    return Err(format!("{}, round {round}: {what}", name(*wrong)));
                }
            }
            for (from, to) in edges(nodes) {
                let places = (at.get(&(from, round)), at.get(&(to, round)));
                if matches!(places, (Some(from), Some(to)) if from > to) {
                    let (from, to) = (name(from), name(to));
                    return Err(format!("dataflow order: {to} before {from} in round {round}"));
                }
            }
        }
    }
    for procedure in 0..PROCEDURES.len() {
        let places: Vec<(i64, usize)> = (at.range((procedure, 0)..(procedure + 1, 0)))
            .map(|((_, round), place)| (*round, *place))
            .collect();
        if let Some(pair) = places.windows(2).find(|pair| pair[0].1 > pair[1].1) {
            let (round, later, name) = (pair[0].0, pair[1].0, name(procedure));
            return Err(format!("stream order: {name} has taken round {later} before {round}"));
        }
    }
    Ok(())
}

fn name(procedure: usize) -> &'static str {
    PROCEDURES[procedure].name
}

/// The order of procedures among these transactions, and within each.
fn edges(nodes: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let inside =
        nodes.iter().flat_map(|node| NODES[*node].windows(2)).map(|pair| (pair[0], pair[1]));
    let between = EDGES.iter().filter(|(from, _)| nodes.contains(from));
    let last = |node: usize| *NODES[node].last().expect("a transaction has a procedure");
    inside.chain(between.map(move |(from, to)| (last(*from), NODES[*to][0])))
}
