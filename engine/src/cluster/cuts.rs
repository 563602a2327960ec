//! Whether the cuts that are found belong to the log.

use tidemill_cluster::Topic;
use tidemill_core::{Error, Result};
use tidemill_durable::Log;

use super::ask::read;

/// Refuses a log in which something was executed and whose cuts are somewhere else: in what order, only they say.
///
/// # Errors
/// When it is so, or the log can't be read.
pub(super) fn check(log: &dyn Log, sources: u32) -> Result<()> {
    if read(log, Topic::Cuts, u64::MAX)?.upto > 0 {
        return Ok(());
    }
    for source in 0..sources {
        if read(log, Topic::Output(source), u64::MAX)?.upto > 0 {
            return Err(Error::setting("the log has outputs, and there are no cuts, which say how they came about")
                .help(
                    "start it with the setting cluster_cuts and the data directory that it had before; or begin \
                     anew with a cluster of another name",
                ));
        }
    }
    Ok(())
}
