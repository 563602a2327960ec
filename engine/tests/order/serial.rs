//! The check that one serial order of all transactions explains what each has seen, and the final
//! lists. It respects three further orders. A call that was answered before another was made comes
//! first. The rounds of a stream come in their order. Transactions come in the order of a round's
//! graph.
//!
//! The final lists show the order of all appends to a key. So edges of a graph follow: from each
//! append to the next one, from an append to a transaction that sees it, and from a transaction to
//! an append that it does not see. A serial order exists exactly if these and the orders above have
//! no cycle.

use std::collections::{BTreeMap, HashMap};

use crate::history::{History, Op, Who, EDGES, NODES};

/// Checks a history. Returns the fault.
pub fn check(history: &History) -> Result<(), String> {
    let appended = appended(history)?;
    let mut graph = Graph::new(history.transactions.len());
    for (number, transaction) in
        history.transactions.iter().enumerate().filter(|(_, t)| t.committed)
    {
        let mut own: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for op in &transaction.ops {
            match op {
                Op::Append { key, number } => own.entry(*key).or_default().push(*number),
                Op::Read { key, list } => {
                    let own = own.get(key).map_or(&[][..], Vec::as_slice);
                    let before = seen(history, *key, list, own)
                        .map_err(|wrong| format!("{:?} {wrong}", transaction.who))?;
                    // The transaction with the last append that it saw comes before it. The one
                    // with the first append that it did not see comes after it.
                    if let Some(last) = before.last() {
                        graph.edge(appended[&(*key, *last)], number);
                    }
                    if let Some(next) = history.lists.get(key).and_then(|all| all.get(list.len())) {
                        graph.edge(number, appended[&(*key, *next)]);
                    }
                }
            }
        }
    }
    for (key, list) in &history.lists {
        for pair in list.windows(2) {
            graph.edge(appended[&(*key, pair[0])], appended[&(*key, pair[1])]);
        }
    }
    in_streams(history, &mut graph);
    in_real_time(history, &mut graph);
    match graph.cycle() {
        None => Ok(()),
        Some(cycle) => {
            let name = |at: &usize| history.transactions.get(*at).map(|t| format!("{:?}", t.who));
            let names: Vec<String> = cycle.iter().filter_map(name).collect();
            Err(format!("each of these must come before the next one: {}", names.join(", ")))
        }
    }
}

/// Finds the transaction of each append, by key and number. Every committed append must be in the
/// lists once, and nothing else.
fn appended(history: &History) -> Result<HashMap<(i64, i64), usize>, String> {
    let mut appended = HashMap::new();
    for (at, transaction) in history.transactions.iter().enumerate().filter(|(_, t)| t.committed) {
        for op in &transaction.ops {
            if let Op::Append { key, number } = op {
                if appended.insert((*key, *number), at).is_some() {
                    return Err(format!("{number} was appended to {key} twice"));
                }
            }
        }
    }
    let mut left: HashMap<(i64, i64), usize> = appended.clone();
    for (key, list) in &history.lists {
        for number in list {
            if left.remove(&(*key, *number)).is_none() {
                return Err(format!("{number} is in {key}: nobody has appended it, or once only"));
            }
        }
    }
    match left.keys().next() {
        Some((key, number)) => Err(format!("{number} was appended to {key}, and is not there")),
        None => Ok(appended),
    }
}

/// Returns the appends of others that a transaction has seen, given its own. Its view is a prefix
/// of the list, and ends with its own appends.
fn seen<'l>(
    history: &History,
    key: i64,
    list: &'l [i64],
    own: &[i64],
) -> Result<&'l [i64], String> {
    let all = history.lists.get(&key).map_or(&[][..], Vec::as_slice);
    if !all.starts_with(list) {
        return Err(format!("has seen {key} as it never was: {list:?} of {all:?}"));
    }
    list.strip_suffix(own)
        .ok_or_else(|| format!("has not seen in {key} what it had appended: {list:?}, {own:?}"))
}

/// Adds the orders of streams, and those of procedures in a round.
fn in_streams(history: &History, graph: &mut Graph) {
    let committed = history.transactions.iter().enumerate().filter(|(_, t)| t.committed);
    let mut nodes: BTreeMap<(usize, i64), usize> = BTreeMap::new();
    for (at, transaction) in committed {
        if let Who::Node(node, round) = transaction.who {
            nodes.insert((node, round), at);
        }
    }
    for node in 0..NODES.len() {
        let rounds: Vec<usize> = nodes.range((node, 0)..(node + 1, 0)).map(|(_, at)| *at).collect();
        rounds.windows(2).for_each(|pair| graph.edge(pair[0], pair[1]));
    }
    for ((node, round), at) in &nodes {
        for (_, next) in EDGES.iter().filter(|(from, _)| from == node) {
            if let Some(next) = nodes.get(&(*next, *round)) {
                graph.edge(*at, *next);
            }
        }
    }
}

/// Adds the order of real time: a transaction that was answered before another was made comes
/// before it. Each moment of an answer is a node of the graph, and comes before the later ones. So
/// there are few edges.
fn in_real_time(history: &History, graph: &mut Graph) {
    let committed = || history.transactions.iter().enumerate().filter(|(_, t)| t.committed);
    let mut moments: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, transaction) in committed() {
        let moment = *moments.entry(transaction.answered).or_insert_with(|| graph.node());
        graph.edge(at, moment);
    }
    let in_order: Vec<usize> = moments.values().copied().collect();
    in_order.windows(2).for_each(|pair| graph.edge(pair[0], pair[1]));
    for (at, transaction) in committed() {
        if let Some((_, moment)) = moments.range(..transaction.made).next_back() {
            graph.edge(*moment, at);
        }
    }
}

/// The edges from transactions to those that must come later.
struct Graph(Vec<Vec<usize>>);

impl Graph {
    fn new(nodes: usize) -> Graph {
        Graph(vec![Vec::new(); nodes])
    }

    fn node(&mut self) -> usize {
        self.0.push(Vec::new());
        self.0.len() - 1
    }

    fn edge(&mut self, from: usize, to: usize) {
        if from != to {
            self.0[from].push(to);
        }
    }

    /// Returns a cycle, if there is one.
    fn cycle(&self) -> Option<Vec<usize>> {
        let mut before = vec![0usize; self.0.len()];
        self.0.iter().flatten().for_each(|to| before[*to] += 1);
        let mut free: Vec<usize> = (0..before.len()).filter(|at| before[*at] == 0).collect();
        while let Some(at) = free.pop() {
            for to in &self.0[at] {
                before[*to] -= 1;
                if before[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        // Each remaining node has a remaining predecessor, so a walk back reaches a cycle.
        let mut back = vec![None; before.len()];
        for (from, tos) in self.0.iter().enumerate().filter(|(from, _)| before[*from] > 0) {
            tos.iter().for_each(|to| back[*to] = Some(from));
        }
        let mut at = (0..before.len()).find(|at| before[*at] > 0)?;
        let mut path: Vec<usize> = Vec::new();
        loop {
            if let Some(begun) = path.iter().position(|seen| *seen == at) {
                path.drain(..begun);
                path.reverse();
                return Some(path);
            }
            path.push(at);
            at = back[at].expect("something is before it");
        }
    }
}
