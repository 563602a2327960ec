//! The units of scheduling: operations, or chains of them (MorphStream, section V-B), and their
//! strata (MorphStream, section V-A).

use super::strategy::Unit;
use crate::plan::graph::Graph;

/// The operations of a graph, in units.
#[derive(Debug, Default)]
pub(crate) struct Units {
    /// The unit of each operation. Empty if every operation is a unit.
    of: Vec<u32>,
    /// The operations of each unit, in stamp order.
    members: Groups,
    count: usize,
}

/// Numbers in groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Groups {
    /// Groups the numbers below `of.len()`, in order.
    fn new(of: impl Iterator<Item = u32> + Clone, groups: usize) -> Groups {
        let mut start = vec![0u32; groups + 1];
        of.clone().for_each(|group| start[group as usize + 1] += 1);
        (1..=groups).for_each(|group| start[group] += start[group - 1]);
        let mut items = vec![0; start[groups] as usize];
        let mut at = start.clone();
        for (item, group) in of.enumerate() {
            let at = &mut at[group as usize];
            items[*at as usize] = item as u32;
            *at += 1;
        }
        Groups { start, items }
    }

    pub(crate) fn len(&self) -> usize {
        self.start.len().saturating_sub(1)
    }

    pub(crate) fn get(&self, group: usize) -> &[u32] {
        &self.items[self.start[group] as usize..self.start[group + 1] as usize]
    }
}

impl Units {
    /// Makes a unit of each operation, or of all operations that begin with the same row: `chains`
    /// has its number, below `rows`. Chains that form a cycle are one unit.
    pub(crate) fn new(graph: &Graph, unit: Unit, chains: &[u32], rows: usize) -> Units {
        if unit == Unit::Op {
            return Units { of: Vec::new(), members: Groups::default(), count: graph.len() };
        }
        let members = Groups::new(chains.iter().copied(), rows);
        let (unit_of, count) = merge_circles(graph, chains, &members);
        let of: Vec<u32> = chains.iter().map(|chain| unit_of[*chain as usize]).collect();
        Units { members: Groups::new(of.iter().copied(), count), of, count }
    }

    /// Makes units of chains, including those that form cycles.
    pub(crate) fn chains(chains: Vec<u32>, rows: usize) -> Units {
        Units { members: Groups::new(chains.iter().copied(), rows), of: chains, count: rows }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub(crate) fn of(&self, vertex: u32) -> u32 {
        match self.of.is_empty() {
            true => vertex,
            false => self.of[vertex as usize],
        }
    }

    /// Visits the operations of a unit.
    #[inline(always)]
    pub(crate) fn each(&self, unit: u32, mut each: impl FnMut(u32)) {
        match self.of.is_empty() {
            true => each(unit),
            false => self.members.get(unit as usize).iter().for_each(|vertex| each(*vertex)),
        }
    }

    /// Returns the first operation of a unit.
    #[inline(always)]
    pub(crate) fn first(&self, unit: u32) -> Option<u32> {
        match self.of.is_empty() {
            true => Some(unit),
            false => self.get(unit).first().copied(),
        }
    }

    pub(crate) fn get(&self, unit: u32) -> &[u32] {
        self.members.get(unit as usize)
    }

    /// Returns the units by stratum. The stratum of a unit is one above the highest that it depends
    /// on.
    pub(crate) fn strata(&self, graph: &Graph) -> Groups {
        let mut level = vec![0u32; self.count];
        let mut count = 1;
        // The dependencies of a unit come before it: operations are in stamp order, and merging
        // numbers units in the order of their dependencies.
        for unit in 0..self.count as u32 {
            let mut stratum = 0;
            self.each(unit, |vertex| {
                for before in graph.before(vertex).map(|before| self.of(before)) {
                    if before != unit {
                        stratum = stratum.max(level[before as usize] + 1);
                    }
                }
            });
            level[unit as usize] = stratum;
            count = count.max(stratum + 1);
        }
        Groups::new(level.iter().copied(), count as usize)
    }
}

/// Merges strongly connected chains into one unit, by Tarjan's algorithm. It has a stack of its
/// own, because chains can wait for one another a million deep. Returns the unit of each chain. A
/// unit's number is greater than those of its dependencies.
fn merge_circles(graph: &Graph, chains: &[u32], members: &Groups) -> (Vec<u32>, usize) {
    const NEW: u32 = u32::MAX;
    let rows = members.len();
    let mut unit_of = vec![NEW; rows];
    let (mut index, mut low) = (vec![NEW; rows], vec![0u32; rows]);
    let (mut next, mut units) = (0u32, 0u32);
    let mut open: Vec<u32> = Vec::new();
    // A chain, and how many of its dependencies have been visited.
    let mut path: Vec<(u32, usize)> = Vec::new();
    let needs = |chain: u32| -> Vec<u32> {
        let of = |vertex: &u32| graph.before(*vertex).map(|before| chains[before as usize]);
        let mut needs: Vec<u32> = members.get(chain as usize).iter().flat_map(of).collect();
        needs.retain(|need| *need != chain);
        needs.sort_unstable();
        needs.dedup();
        needs
    };
    let mut needed: Vec<Vec<u32>> = vec![Vec::new(); rows];
    for root in 0..rows as u32 {
        if index[root as usize] != NEW {
            continue;
        }
        path.push((root, 0));
        while let Some((chain, at)) = path.last_mut() {
            let (chain, c) = (*chain, *chain as usize);
            if *at == 0 && index[c] == NEW {
                (index[c], low[c]) = (next, next);
                next += 1;
                open.push(chain);
                needed[c] = needs(chain);
            }
            if let Some(&need) = needed[c].get(*at) {
                *at += 1;
                if index[need as usize] == NEW {
                    path.push((need, 0));
                } else if unit_of[need as usize] == NEW {
                    low[c] = low[c].min(index[need as usize]);
                }
                continue;
            }
            path.pop();
            if let Some((parent, _)) = path.last() {
                low[*parent as usize] = low[*parent as usize].min(low[c]);
            }
            if low[c] == index[c] {
                loop {
                    let member = open.pop().expect("the chain itself is there");
                    unit_of[member as usize] = units;
                    if member == chain {
                        break;
                    }
                }
                units += 1;
            }
        }
    }
    (unit_of, units as usize)
}
