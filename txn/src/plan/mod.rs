//! Planning: what the transactions of an epoch need of one another, as pure data.

pub(crate) mod graph;
