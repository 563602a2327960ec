//! The check that the cuts belong to the log.

use tidemill_cluster::{Log, Topic};
use tidemill_core::{Error, Result};

use super::ask::read;

/// Refuses a log with outputs but without cuts, which must then be elsewhere. Only the cuts have
/// the order of the outputs.
///
/// # Errors
/// When the cuts are missing, or the log can't be read.
pub(super) fn check(log: &dyn Log, sources: u32) -> Result<()> {
    if read(log, Topic::Cuts, u64::MAX)?.upto > 0 {
        return Ok(());
    }
    for source in 0..sources {
        if read(log, Topic::Output(source), u64::MAX)?.upto > 0 {
            return Err(Error::setting("the log has outputs, but no cuts, which record their order")
                .help(
                    "use the setting cluster_cuts and the data directory of the earlier runs; or start \
                     from scratch with another cluster_name",
                ));
        }
    }
    Ok(())
}
