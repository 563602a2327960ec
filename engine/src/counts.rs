//! What has been counted so far.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidemill_txn::execute::HandlerCounts;

/// Counts up to a cut.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    pub(crate) epochs: u64,
    pub(crate) dead: u64,
    pub(crate) late: u64,
    pub(crate) parked: u64,
    pub(crate) lag_us: i64,
    pub(crate) handlers: Vec<HandlerCounts>,
    /// By handler: the first event that showed hidden non-determinism, and how often it showed.
    pub(crate) unstable: BTreeMap<usize, (String, u64)>,
}
