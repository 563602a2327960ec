//! The outputs of several threads in stamp order: spans of rows, each from one thread.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::output::{OutputBuilder, RawRows};
use crate::pool::Pool;

/// Items that threads write. Each thread writes its own.
struct Shared<T>(*mut MaybeUninit<T>);

// SAFETY: this is a pointer. A writer makes sure that no other thread writes to the same place.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn of(items: &mut [MaybeUninit<T>], len: usize) -> Shared<T> {
        assert!(items.len() >= len, "there is room for so many");
        Shared(items.as_mut_ptr())
    }

    /// Writes items from this place on.
    ///
    /// # Safety
    /// There are as many items from there on, and no other thread uses them.
    unsafe fn write(&self, at: usize, items: &[T]) {
        // SAFETY: as the caller guarantees; the written memory is new, and no part of the read
        // memory.
        unsafe {
            std::ptr::copy_nonoverlapping(items.as_ptr(), self.0.add(at).cast(), items.len());
        }
    }
}

/// Consecutive outputs of one thread, and their place among all outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) at: usize,
    pub(super) thread: usize,
    pub(super) rows: Range<usize>,
}

/// Appends `len` rows.
///
/// `spans` returns the spans of a piece. There is a piece for each thread, which copies it. A piece
/// should be all rows from one place to another. The destination is memory that was never used, and
/// threads that first touch a page of it at the same time wait for each other.
///
/// # Safety
/// The spans of all pieces together cover each place below `len` exactly once.
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
                // SAFETY: there is room for `len` items, and the caller guarantees that every place
                // is in one span only.
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
        // SAFETY: the caller guarantees that all places below `len` have been written. A panic in
        // between ends this thread, too.
        unsafe {
            columns.iter_mut().for_each(|column| column.set_len(column.len() + len));
            origins.set_len(origins.len() + len);
        }
    });
}
