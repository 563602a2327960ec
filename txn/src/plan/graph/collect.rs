//! The first phase of planning: decomposing transactions into operations (MorphStream, section
//! IV-A).
//!
//! Each thread has a share of the order. It makes the vertices of its transactions. It puts every
//! access into a basket for the thread that owns the row's share. Read share after share, the
//! baskets are in stamp order and need no sorting.

use std::ops::Range;
use std::sync::Mutex;

use super::{Access, Graph, Vertex, ACCESSES_MAX};
use crate::pool::Pool;

/// The number of vertices, of accesses, and of words in versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) vertices: u32,
    pub(crate) accesses: u32,
    pub(crate) words: u32,
}

impl Size {
    fn add(self, other: Size) -> Option<Size> {
        Some(Size {
            vertices: self.vertices.checked_add(other.vertices)?,
            accesses: self.accesses.checked_add(other.accesses)?,
            words: self.words.checked_add(other.words)?,
        })
    }
}

/// The transactions of a graph, as the input of planning.
pub(crate) trait Operations: Sync {
    /// Returns the number of transactions.
    fn txns(&self) -> usize;
    /// Returns the size of a transaction.
    fn size(&self, txn: usize) -> Size;
    /// Puts the operations of a transaction, in order, each with its accesses; then the entries of
    /// these accesses. Entries of reads come first, because operations see the rows from before the
    /// transaction.
    fn decompose(&self, txn: usize, put: &mut Put<'_>);
}

/// An access on its way to its row's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) hash: u64,
    pub(crate) access: u32,
    pub(crate) table: u16,
}

/// The share of one thread: its part of the graph's arrays, and a basket for each thread.
pub(crate) struct Put<'a> {
    txn: u32,
    at: Size,
    made: Size,
    vertices: &'a mut [Vertex],
    accesses: &'a mut [Access],
    first: &'a mut [u32],
    baskets: &'a mut [Vec<Entry>],
}

impl Put<'_> {
    /// Adds the next operation of the transaction.
    pub(crate) fn vertex(&mut self, handler: u16, part: u16) {
        let access = self.at.accesses + self.made.accesses;
        self.vertices[self.made.vertices as usize] =
            Vertex { txn: self.txn, access, handler, part };
        self.made.vertices += 1;
    }

    /// Adds an access of the latest operation and returns its number. `words` is the length of the
    /// version that it writes, 0 for a read.
    pub(crate) fn access(&mut self, words: u32) -> u32 {
        let vertex = self.at.vertices + self.made.vertices - 1;
        let at = self.at.words + self.made.words;
        self.accesses[self.made.accesses as usize] = Access::new(vertex, words > 0, at);
        self.made.accesses += 1;
        self.made.words += words;
        self.at.accesses + self.made.accesses - 1
    }

    /// Puts the access into the basket of its row's share.
    pub(crate) fn entry(&mut self, access: u32, table: u16, key: u64, hash: u64) {
        let basket = share_of(hash, self.baskets.len());
        self.baskets[basket].push(Entry { key, hash, access, table });
    }
}

/// Returns the thread whose share a row is in. The middle bits of the hash decide, because the high
/// bits choose slots.
pub(super) fn share_of(hash: u64, threads: usize) -> usize {
    ((hash >> 20 & 0xFFFF) as usize * threads) >> 16
}

/// Returns a thread's share of `len` parts.
pub(crate) fn share(len: usize, thread: usize, threads: usize) -> Range<usize> {
    len * thread / threads..len * (thread + 1) / threads
}

/// The output of the first phase: baskets by collecting thread, then by the thread of the row's
/// share.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) baskets: Vec<Vec<Vec<Entry>>>,
}

/// One thread's part of the arrays, which is taken once.
type Part<'a> = Mutex<Option<Put<'a>>>;

impl Graph {
    /// Makes vertices and baskets. Returns `None` if the graph would be too large.
    pub(crate) fn collect(
        &mut self,
        operations: &impl Operations,
        pool: &dyn Pool,
        collected: &mut Collected,
    ) -> Option<()> {
        let (txns, threads) = (operations.txns(), pool.threads());
        let mut at = vec![Size::default()];
        for thread in 0..threads {
            let sizes = share(txns, thread, threads).map(|txn| operations.size(txn));
            let size = sizes.into_iter().try_fold(at[thread], Size::add)?;
            at.push(size);
        }
        let all = at[threads];
        if all.accesses as usize >= ACCESSES_MAX {
            return None;
        }
        self.words = all.words as usize;
        self.vertices.clear();
        self.vertices.resize(all.vertices as usize + 1, Vertex::default());
        self.vertices[all.vertices as usize] =
            Vertex { txn: txns as u32, access: all.accesses, ..Vertex::default() };
        self.accesses.clear();
        self.accesses.resize_with(all.accesses as usize, || Access::new(0, false, 0));
        self.first.clear();
        self.first.resize(txns + 1, all.vertices);
        collected.baskets.resize_with(threads, Vec::new);
        let mut parts: Vec<Part<'_>> = Vec::new();
        let (mut vertices, mut accesses, mut first) =
            (&mut self.vertices[..], &mut self.accesses[..], &mut self.first[..]);
        for (thread, baskets) in collected.baskets.iter_mut().enumerate().take(threads) {
            baskets.resize_with(threads, Vec::new);
            baskets.iter_mut().for_each(Vec::clear);
            let (from, to) = (at[thread], at[thread + 1]);
            let (v, a, f);
            (v, vertices) = vertices.split_at_mut((to.vertices - from.vertices) as usize);
            (a, accesses) = accesses.split_at_mut((to.accesses - from.accesses) as usize);
            (f, first) = first.split_at_mut(share(txns, thread, threads).len());
            let (txn, made) = (0, Size::default());
            let put = Put { txn, at: from, made, vertices: v, accesses: a, first: f, baskets };
            parts.push(Mutex::new(Some(put)));
        }
        pool.run(&|thread| {
            let part = parts[thread].lock().expect("no thread has panicked here").take();
            let mut put = part.expect("every thread has one part");
            for (nth, txn) in share(txns, thread, threads).enumerate() {
                put.txn = txn as u32;
                put.first[nth] = put.at.vertices + put.made.vertices;
                operations.decompose(txn, &mut put);
            }
        });
        Some(())
    }
}
