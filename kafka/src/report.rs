//! librdkafka's own lines, as events of the log.

use rdkafka::config::RDKafkaLogLevel as Level;
use tracing::dispatcher::with_default;
use tracing::{debug, info, trace, warn, Dispatch};

/// Reports a line to a log. Some lines arrive on threads of the library, which have no log of their
/// own. The engine reports what it waits for itself, so no line is more than a warning.
pub(crate) fn report(log: &Dispatch, level: Level, facility: &str, line: &str) {
    with_default(log, || match level {
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
            warn!(target: "tidemill::kafka", facility, line, "librdkafka");
        }
        Level::Warning | Level::Notice => {
            info!(target: "tidemill::kafka", facility, line, "librdkafka");
        }
        Level::Info => debug!(target: "tidemill::kafka", facility, line, "librdkafka"),
        Level::Debug => trace!(target: "tidemill::kafka", facility, line, "librdkafka"),
    });
}
