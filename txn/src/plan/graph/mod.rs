//! The task precedence graph: a vertex for each operation of an epoch's transactions, with its
//! dependencies on earlier operations (MorphStream, section IV).
//!
//! | dependency | between | stored in |
//! | --- | --- | --- |
//! | temporal (TD) | a write and the last write of its row before it | [`Access::from`] of a write |
//! | parametric (PD) | an operation and the last write of a row it reads | [`Access::from`] of a read |
//! | logical (LD) | the operations of one transaction | [`Graph::operations`] |
//!
//! Each row has a list of operations in stamp order. It includes *virtual operations*: the reads of
//! rows that an operation computes with. Links between the entries of a list are the only edges of
//! the graph. Looking back finds what an operation waits for. Walking ahead to the next write finds
//! the operations that wait for it ([`Graph::after`]).
//!
//! An operation whose rows are unknown before it runs stands in the lists of the rows that it is
//! expected to use. After the walk, the executor settles its other accesses. If there are often
//! such accesses, operations of this kind depend on all earlier ones, and all later ones depend on
//! them. They then split all lists, and [`super::super::execute`] plans and runs each part between
//! two of them.
//!
//! | file | content |
//! | --- | --- |
//! | `collect` | the first phase: decomposes transactions, by shares of the order |
//! | `link` | the second phase: finds dependencies list by list, by shares of the rows |

mod collect;
#[cfg(test)]
pub(crate) mod fixture;
mod link;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use collect::{share, Collected, Operations, Put, Size};
pub(crate) use link::{List, Lists};

/// An operation, the unit of execution.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vertex {
    /// Its transaction, counted from the first one in the graph.
    pub(crate) txn: u32,
    /// Its first access. The others follow, up to those of the next vertex.
    pub(crate) access: u32,
    /// The number of its handler, and of its part in the handler's transactions.
    pub(crate) handler: u16,
    pub(crate) part: u16,
}

/// An entry of a row's list: one operation's access to one row.
#[derive(Debug)]
pub(crate) struct Access {
    /// The operation. The highest bit tells whether it writes.
    vertex: u32,
    /// The place of the words of the version that it writes.
    pub(crate) at: u32,
    from: AtomicU32,
    next: AtomicU32,
}

/// The place where an operation finds a row, if all operations before it have committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowPlace {
    /// In the version that this access writes.
    Access(u32),
    /// In this slot of the table: no earlier operation has written it.
    Slot(u32),
    /// The row was in no slot, and no earlier operation has written it.
    Missing,
    /// It is the row of this earlier access of the same operation.
    Same(u32),
}

const WRITES: u32 = 1 << 31;
const NONE: u32 = u32::MAX;
const SLOT: u32 = 1 << 31;
const SAME: u32 = 1 << 30;
/// The most accesses of a graph.
pub(crate) const ACCESSES_MAX: usize = SAME as usize;

impl Access {
    fn new(vertex: u32, writes: bool, at: u32) -> Access {
        let vertex = vertex | if writes { WRITES } else { 0 };
        Access { vertex, at, from: AtomicU32::new(NONE), next: AtomicU32::new(NONE) }
    }

    pub(crate) fn vertex(&self) -> u32 {
        self.vertex & !WRITES
    }

    /// Whether it is a write; otherwise it is a virtual operation.
    pub(crate) fn writes(&self) -> bool {
        self.vertex & WRITES != 0
    }

    pub(crate) fn from(&self) -> RowPlace {
        match self.from.load(Ordering::Relaxed) {
            NONE => RowPlace::Missing,
            from if from & SLOT != 0 => RowPlace::Slot(from & !SLOT),
            from if from & SAME != 0 => RowPlace::Same(from & !SAME),
            from => RowPlace::Access(from),
        }
    }

    fn set_from(&self, from: RowPlace) {
        let word = match from {
            RowPlace::Missing => NONE,
            RowPlace::Slot(slot) => slot | SLOT,
            RowPlace::Same(access) => access | SAME,
            RowPlace::Access(access) => access,
        };
        self.from.store(word, Ordering::Relaxed);
    }

    /// Returns the next entry of the row's list.
    fn next(&self) -> Option<u32> {
        let next = self.next.load(Ordering::Relaxed);
        (next != NONE).then_some(next)
    }
}

/// The graph of some consecutive transactions.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// In stamp order. One more vertex at the end only marks the end of the last accesses.
    vertices: Vec<Vertex>,
    accesses: Vec<Access>,
    /// Per transaction: its first vertex. The number of all vertices follows.
    first: Vec<u32>,
    /// The number of words of all versions.
    pub(crate) words: usize,
}

impl Graph {
    /// Returns the number of vertices.
    pub(crate) fn len(&self) -> usize {
        self.vertices.len().saturating_sub(1)
    }

    /// Returns the number of transactions.
    pub(crate) fn txns(&self) -> usize {
        self.first.len().saturating_sub(1)
    }

    pub(crate) fn vertex(&self, vertex: u32) -> Vertex {
        self.vertices[vertex as usize]
    }

    pub(crate) fn access(&self, access: u32) -> &Access {
        &self.accesses[access as usize]
    }

    /// Returns the accesses of an operation, writes first.
    pub(crate) fn accesses_of(&self, vertex: u32) -> Range<u32> {
        self.vertices[vertex as usize].access..self.vertices[vertex as usize + 1].access
    }

    /// Returns the operations of a transaction. They depend on one another logically.
    pub(crate) fn operations(&self, txn: u32) -> Range<u32> {
        self.first[txn as usize]..self.first[txn as usize + 1]
    }

    /// Returns the operations that an operation depends on, temporally and parametrically. Some may
    /// occur more than once.
    pub(crate) fn before(&self, vertex: u32) -> impl Iterator<Item = u32> + '_ {
        self.accesses_of(vertex).filter_map(|access| match self.access(access).from() {
            RowPlace::Access(from) => Some(self.access(from).vertex()),
            _ => None,
        })
    }

    /// Returns the writes of a row that are visible from a place, the newest first. A window reads
    /// each of them.
    pub(crate) fn writes(&self, from: RowPlace) -> impl Iterator<Item = u32> + '_ {
        let write = |mut from: RowPlace| loop {
            match from {
                RowPlace::Access(write) => return Some(write),
                RowPlace::Same(other) => from = self.access(other).from(),
                RowPlace::Slot(_) | RowPlace::Missing => return None,
            }
        };
        std::iter::successors(write(from), move |last| write(self.access(*last).from()))
    }

    /// Visits the accesses that may see the version that `access` writes: those after it in the
    /// row's list, up to the first write that `stands`. Without aborts, every write stands.
    pub(crate) fn after(
        &self,
        access: u32,
        stands: impl Fn(&Access) -> bool,
        mut each: impl FnMut(u32),
    ) {
        self.onward(self.access(access).next(), stands, &mut each);
    }

    /// Like [`Graph::after`], for the accesses after those of an operation, which may have none in
    /// this list.
    pub(crate) fn after_in_list(
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

    /// Visits the operations that depend on this one, once for each dependency.
    pub(crate) fn dependents(&self, vertex: u32, mut each: impl FnMut(u32)) {
        for access in self.accesses_of(vertex) {
            if !self.access(access).writes() {
                return;
            }
            self.after(access, |_| true, |next| each(self.access(next).vertex()));
        }
    }
}
