//! Planning: what the transactions of an epoch need of one another, as pure data.
//!
//! | file | what it plans |
//! | --- | --- |
//! | `blocks` | who has used a row before, of each use of one |
//! | `graph` | the task precedence graph |
//! | `lists` | a list of transactions for each thread, and for which ones of other lists each waits |

pub(crate) mod blocks;
pub(crate) mod graph;
pub(crate) mod lists;
