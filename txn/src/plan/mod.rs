//! Planning: what the transactions of an epoch need of one another, as pure data.
//!
//! | file | what it plans |
//! | --- | --- |
//! | `graph` | the task precedence graph |
//! | `lists` | a list of transactions for each thread, and for which ones of other lists each waits |

pub(crate) mod graph;
pub(crate) mod lists;
