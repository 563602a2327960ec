//! The task precedence graph: a vertex for each operation of an epoch's transactions, and what each
//! needs of those before it (MorphStream IV).
//!
//! | dependency | between | where it is |
//! | --- | --- | --- |
//! | temporal (TD) | a write and the last write of the same row before it | [`Access::from`] of a write |
//! | parametric (PD) | an operation and the last write of a row that it reads | [`Access::from`] of a read |
//! | logical (LD) | the operations of one transaction | [`Graph::operations`] |
//!
//! Operations stand in one list for each row, in stamp order, together with *virtual operations*:
//! the reads of rows that an operation computes with. The lists are linked through their entries, so
//! that the graph needs no other edges: what an operation waits for is a look back, and who waits
//! for it is a walk ahead to the next write ([`Graph::after`]).
//!
//! An operation whose rows are not known before it runs stands in the lists of those that it is
//! expected to use. What it uses besides is settled once the graph has been walked; and where that
//! happens too often, operations of its kind depend on all before them, and all after depend on
//! them, in every list: they cut all lists at once ([`super::super::execute`] plans and runs what lies
//! between two of them).
//!
//! | file | what it is |
//! | --- | --- |
//! | `collect` | the first phase: transactions are decomposed, by shares of the order |
//! | `link` | the second phase: dependencies are identified list by list, by shares of the rows |

mod collect;
#[cfg(test)]
pub(crate) mod fixture;
mod link;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use collect::{share, Collected, Operations, Put, Size};
pub(crate) use link::{List, Lists};

/// An operation: what is executed at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vertex {
    /// Its transaction, counted from the first one in the graph.
    pub(crate) txn: u32,
    /// Its first access; the others follow, up to those of the next vertex.
    pub(crate) access: u32,
    /// Which handler's, and which part of its transactions.
    pub(crate) handler: u16,
    pub(crate) part: u16,
}

/// An entry of a row's list: what one operation has to do with one row.
#[derive(Debug)]
pub(crate) struct Access {
    /// The operation, and in the highest bit whether it writes.
    vertex: u32,
    /// Where the version that it writes has its words.
    pub(crate) at: u32,
    from: AtomicU32,
    next: AtomicU32,
}

/// Where an operation finds a row, when all operations before it have committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// In the version that this access writes.
    Access(u32),
    /// In this slot of the table: nobody before has written it.
    Slot(u32),
    /// It was in no slot, and nobody before has written it.
    Missing,
    /// It is the row of this earlier access of the same operation.
    Same(u32),
}

const WRITES: u32 = 1 << 31;
const NONE: u32 = u32::MAX;
const SLOT: u32 = 1 << 31;
const SAME: u32 = 1 << 30;
/// Accesses of a graph, at most.
pub(crate) const ACCESSES_MAX: usize = SAME as usize;

impl Access {
    fn new(vertex: u32, writes: bool, at: u32) -> Access {
        let vertex = vertex | if writes { WRITES } else { 0 };
        Access { vertex, at, from: AtomicU32::new(NONE), next: AtomicU32::new(NONE) }
    }

    pub(crate) fn vertex(&self) -> u32 {
        self.vertex & !WRITES
    }

    /// Whether it is a write; if not it is a virtual operation.
    pub(crate) fn writes(&self) -> bool {
        self.vertex & WRITES != 0
    }

    pub(crate) fn from(&self) -> From {
        match self.from.load(Ordering::Relaxed) {
            NONE => From::Missing,
            from if from & SLOT != 0 => From::Slot(from & !SLOT),
            from if from & SAME != 0 => From::Same(from & !SAME),
            from => From::Access(from),
        }
    }

    fn set_from(&self, from: From) {
        let word = match from {
            From::Missing => NONE,
            From::Slot(slot) => slot | SLOT,
            From::Same(access) => access | SAME,
            From::Access(access) => access,
        };
        self.from.store(word, Ordering::Relaxed);
    }

    /// The next entry of the row's list.
    fn next(&self) -> Option<u32> {
        let next = self.next.load(Ordering::Relaxed);
        (next != NONE).then_some(next)
    }
}

/// The graph of some consecutive transactions.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// In stamp order; behind the last one there is one that only ends its accesses.
    vertices: Vec<Vertex>,
    accesses: Vec<Access>,
    /// Per transaction its first vertex, and behind the last one the number of all.
    first: Vec<u32>,
    /// Words of all versions.
    pub(crate) words: usize,
}

impl Graph {
    /// Number of vertices.
    pub(crate) fn len(&self) -> usize {
        self.vertices.len().saturating_sub(1)
    }

    /// Number of transactions.
    pub(crate) fn txns(&self) -> usize {
        self.first.len().saturating_sub(1)
    }

    pub(crate) fn vertex(&self, vertex: u32) -> Vertex {
        self.vertices[vertex as usize]
    }

    pub(crate) fn access(&self, access: u32) -> &Access {
        &self.accesses[access as usize]
    }

    /// The accesses of an operation, those that write first.
    pub(crate) fn accesses_of(&self, vertex: u32) -> Range<u32> {
        self.vertices[vertex as usize].access..self.vertices[vertex as usize + 1].access
    }

    /// The operations of a transaction: they depend on one another logically.
    pub(crate) fn operations(&self, txn: u32) -> Range<u32> {
        self.first[txn as usize]..self.first[txn as usize + 1]
    }

    /// The operations that an operation depends on, temporally and parametrically; some may come
    /// more than once.
    pub(crate) fn before(&self, vertex: u32) -> impl Iterator<Item = u32> + '_ {
        self.accesses_of(vertex).filter_map(|access| match self.access(access).from() {
            From::Access(from) => Some(self.access(from).vertex()),
            _ => None,
        })
    }

    /// The writes of a row that are found from somewhere, the newest first: of a window each one is
    /// read.
    pub(crate) fn writes(&self, from: From) -> impl Iterator<Item = u32> + '_ {
        let write = |mut from: From| loop {
            match from {
                From::Access(write) => return Some(write),
                From::Same(other) => from = self.access(other).from(),
                From::Slot(_) | From::Missing => return None,
            }
        };
        std::iter::successors(write(from), move |last| write(self.access(*last).from()))
    }

    /// The accesses that look at the version that `access` writes: those behind it in the row's
    /// list, up to the first write that `stands`. When nobody aborts, every write stands.
    pub(crate) fn after(
        &self,
        access: u32,
        stands: impl Fn(&Access) -> bool,
        mut each: impl FnMut(u32),
    ) {
        self.onward(self.access(access).next(), stands, &mut each);
    }

    /// The same of the accesses of a row behind those of an operation, which may have none there.
    pub(crate) fn behind(
        &self,
        list: &List,
        vertex: u32,
        stands: impl Fn(&Access) -> bool,
        mut each: impl FnMut(u32),
    ) {
        let mut at = Some(list.first);
        while let Some(access) = at.filter(|access| self.access(*access).vertex() <= vertex) {
            at = self.access(access).next();
        }
        self.onward(at, stands, &mut each);
    }

    #[inline(always)]
    fn onward(
        &self,
        mut at: Option<u32>,
        stands: impl Fn(&Access) -> bool,
        each: &mut impl FnMut(u32),
    ) {
        while let Some(next) = at {
            let entry = self.access(next);
            each(next);
            if entry.writes() && stands(entry) {
                return;
            }
            at = entry.next();
        }
    }

    /// The operations that depend on this one, as often as they do.
    pub(crate) fn dependents(&self, vertex: u32, mut each: impl FnMut(u32)) {
        for access in self.accesses_of(vertex) {
            if !self.access(access).writes() {
                return;
            }
            self.after(access, |_| true, |next| each(self.access(next).vertex()));
        }
    }
}
