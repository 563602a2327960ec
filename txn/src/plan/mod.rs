//! Who has to wait for whom: plans of an epoch, made before it is executed.
//!
//! | file | what it plans |
//! | --- | --- |
//! | `lists` | a list of transactions for each thread, and for which ones of other lists each waits |

pub(crate) mod lists;
