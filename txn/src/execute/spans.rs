//! What several threads have come to, put into stamp order: spans of rows, each of one thread.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::output::{OutputBuilder, RawRows};
use crate::pool::Pool;

/// Items that threads write, each its own ones.
struct Shared<T>(*mut MaybeUninit<T>);

// SAFETY: a pointer; whoever writes to where it leads sees to it that nobody else does.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn of(items: &mut [MaybeUninit<T>], len: usize) -> Shared<T> {
        assert!(items.len() >= len, "there is room for so many");
        Shared(items.as_mut_ptr())
    }

    /// Writes items from this place on.
    ///
    /// # Safety
    /// There are so many from there on, and nobody else uses them.
    unsafe fn write(&self, at: usize, items: &[T]) {
        // SAFETY: as the caller says; what is written is new memory, and no part of what is read.
        unsafe {
            std::ptr::copy_nonoverlapping(items.as_ptr(), self.0.add(at).cast(), items.len());
        }
    }
}

/// Some outputs of one thread that follow one another, and their place among all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) at: usize,
    pub(super) thread: usize,
    pub(super) rows: Range<usize>,
}

/// Appends `len` rows. `spans` gives those of a piece, of which there is one for each thread: each copies its own. A piece
/// is best all rows from one place to another, because what is written is memory that nobody has used, and threads
/// wait for one another where they use a page of it for the first time together.
///
/// # Safety
/// The spans of all pieces together are each place below `len` once.
pub(super) unsafe fn append<S: Iterator<Item = Span>>(
    pool: &dyn Pool,
    raw: &[RawRows],
    len: usize,
    spans: &(impl Fn(usize) -> S + Sync),
    into: &mut OutputBuilder,
) {
    into.append_words(len, |columns, origins| {
        let to: Vec<Shared<i64>> = (columns.iter_mut())
            .map(|column| Shared::of(column.spare_capacity_mut(), len))
            .collect();
        let origins_to = Shared::of(origins.spare_capacity_mut(), len);
        pool.run(&|piece| {
            for Span { at, thread, rows } in spans(piece) {
                assert!(at + rows.len() <= len, "all rows have their place");
                // SAFETY: there is room for `len` items, and every place is in one span only, says the caller.
                unsafe { origins_to.write(at, &raw[thread].origins[rows]) };
            }
            for (number, to) in to.iter().enumerate() {
                for Span { at, thread, rows } in spans(piece) {
                    assert!(at + rows.len() <= len, "all rows have their place");
                    // SAFETY: as above.
                    unsafe { to.write(at, &raw[thread].columns[number][rows]) };
                }
            }
        });
        // SAFETY: all places below `len` have been written, says the caller: whoever panics meanwhile takes this
        // thread along.
        unsafe {
            columns.iter_mut().for_each(|column| column.set_len(column.len() + len));
            origins.set_len(origins.len() + len);
        }
    });
}
