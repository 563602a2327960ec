//! What threads meet through: the standard library's, or in its place loom's, which tries all orders
//! in which things may happen:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tidemill-txn --lib --target-dir target/loom loom_tests`.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU8, AtomicUsize, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU8, AtomicUsize, Ordering},
};
