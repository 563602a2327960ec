//! How an epoch is executed: the strategies by name, and how one is chosen.

mod strategy;

pub use strategy::{Aborts, Explore, Strategy, Unit};
