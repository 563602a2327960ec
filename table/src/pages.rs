//! Huge pages for memory that is looked into at random.
//!
//! In pages of 4 KiB the addresses of a table of gigabytes do not fit into what the processor keeps of
//! them: nearly every slot costs a walk through the page tables besides, and asking for slots ahead of
//! time has to wait for that, too. In pages of 2 MiB they are few.

/// The size of a huge page.
const HUGE: usize = 2 << 20;

/// A vector with room for so many items, in huge pages where there are enough of them and the system
/// has some. None of it has been touched: pages get their size when they are.
pub(crate) fn with_capacity<T>(items: usize) -> Vec<T> {
    let memory: Vec<T> = Vec::with_capacity(items);
    let bytes = memory.capacity().saturating_mul(size_of::<T>());
    if bytes >= 2 * HUGE {
        ask(memory.as_ptr().addr(), bytes);
    }
    memory
}

/// Asks for the huge pages that lie within this memory.
#[cfg(target_os = "linux")]
fn ask(address: usize, bytes: usize) {
    use std::ffi::{c_int, c_void};
    extern "C" {
        fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    }
    const MADV_HUGEPAGE: c_int = 14;
    let from = address.next_multiple_of(HUGE);
    let to = (address + bytes) / HUGE * HUGE;
    if from < to {
        // SAFETY: the whole pages between are the caller's. The advice changes neither what is in them
        // nor what may be done with them, and a system that can't follow it says so, which is as good.
        unsafe { madvise(from as *mut c_void, to - from, MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
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
