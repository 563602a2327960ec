//! Huge pages for memory with random access.
//!
//! With pages of 4 KiB, the addresses of a table of gigabytes do not fit into the processor's TLB.
//! So nearly every slot costs an additional walk through the page tables, and a prefetch has to
//! wait for it, too. With pages of 2 MiB, there are few addresses.

/// The size of a huge page, in bytes.
const HUGE: usize = 2 << 20;

/// Creates a vector with room for `items` items, in huge pages if it is large enough and the system
/// has some.
///
/// The memory has not been touched: a page gets its size when it is first touched.
pub(crate) fn with_capacity<T>(items: usize) -> Vec<T> {
    let memory: Vec<T> = Vec::with_capacity(items);
    let bytes = memory.capacity().saturating_mul(size_of::<T>());
    if bytes >= 2 * HUGE {
        ask(memory.as_ptr().addr(), bytes);
    }
    memory
}

/// Asks the system for huge pages within this memory.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask(address: usize, bytes: usize) {
    use std::ffi::{c_int, c_void};
    extern "C" {
        fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    }
    const MADV_HUGEPAGE: c_int = 14;
    let from = address.next_multiple_of(HUGE);
    let to = (address + bytes) / HUGE * HUGE;
    if from < to {
        // SAFETY: the whole pages between are the caller's. The advice changes neither their
        // contents nor their permissions. A system that can't follow it returns an error, which is
        // harmless.
        unsafe { madvise(from as *mut c_void, to - from, MADV_HUGEPAGE) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn ask(_: usize, _: usize) {}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_what_it_was_asked_to_be() {
        for items in [0, 1, super::HUGE, super::HUGE + 4097] {
            let mut memory = super::with_capacity::<u64>(items);
            assert!(memory.is_empty() && memory.capacity() >= items);
            memory.resize(items, 7);
            assert!(memory.iter().all(|word| *word == 7));
        }
    }
}
