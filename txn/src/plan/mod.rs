//! Planning: the dependencies between the transactions of an epoch, as pure data.
//!
//! | file | plan |
//! | --- | --- |
//! | `blocks` | the uses of a row before each use of it |
//! | `graph` | the task precedence graph |
//! | `lists` | a list of transactions for each thread, with its waits for other lists |

pub(crate) mod blocks;
pub(crate) mod graph;
pub(crate) mod lists;
