//! The rows that a recovery waits for: a recorded cut has them, and a source has not given them
//! again yet.
//!
//! A source that has looked again and found nothing will not give them, because its file was cut
//! off while no process ran. It is refused with its name. Until then the status says what the
//! recovery waits for.

use tidemill_connect::Troubles;
use tidemill_core::{Error, Result};

/// The wait without a report, in nanoseconds. Rows may just be under way.
const QUIET_NS: u64 = 1_000_000_000;
/// How long a followed file must have nothing more, in nanoseconds, and how many checks must have
/// found nothing.
const SURE_OF_FILES_NS: u64 = 200_000_000;
const LOOKS: u64 = 3;
/// The same time for a topic. Brokers that restart may report a lower end for a moment.
const SURE_OF_TOPICS_NS: u64 = 10_000_000_000;

/// The value of `reached` when all rows have arrived.
const ALL_ARRIVED: u64 = u64::MAX;

/// The present wait.
#[derive(Default)]
pub(crate) struct Awaited(Option<Wait>);

struct Wait {
    source: String,
    /// The number of rows that have arrived.
    reached: u64,
    since_ns: u64,
    /// The number of checks of the source by then.
    looks: u64,
    is_reported: bool,
}

/// A source that has not given all wanted rows.
pub(crate) struct Missing<'a> {
    pub(crate) source: &'a str,
    pub(crate) reached: u64,
    pub(crate) wanted: u64,
    /// The number of checks that have found nothing.
    pub(crate) looks: u64,
    pub(crate) is_topic: bool,
    pub(crate) is_followed: bool,
}

impl Awaited {
    /// Notes that the recovery waits for a source.
    ///
    /// # Errors
    /// When the rows will not arrive.
    pub(crate) fn wait(
        &mut self,
        of: &Missing<'_>,
        now_ns: u64,
        troubles: &Troubles,
    ) -> Result<()> {
        let Missing { source, reached, wanted, looks, .. } = *of;
        let is_same = |wait: &&mut Wait| wait.source == source && wait.reached == reached;
        let Some(wait) = self.0.as_mut().filter(is_same) else {
            self.over(troubles);
            let source = source.to_owned();
            self.0 = Some(Wait { source, reached, since_ns: now_ns, looks, is_reported: false });
            return Ok(());
        };
        let waited_ns = now_ns.saturating_sub(wait.since_ns);
        let sure_ns = if of.is_topic { SURE_OF_TOPICS_NS } else { SURE_OF_FILES_NS };
        if of.is_followed && looks >= wait.looks + LOOKS && waited_ns >= sure_ns {
            self.over(troubles);
            return Err(ended(source, reached, wanted));
        }
        if waited_ns >= QUIET_NS && !wait.is_reported {
            wait.is_reported = true;
            let what = format!(
                "recovering: waiting for rows {reached} to {wanted}, which were read before"
            );
            troubles.report(source, &what);
        }
        Ok(())
    }

    /// Notes that a read does not return, for example on a disk that does not answer. All rows of
    /// the recorded cut have arrived.
    pub(crate) fn read_blocked(&mut self, source: &str, now_ns: u64, troubles: &Troubles) {
        let is_same = |wait: &&mut Wait| wait.source == source && wait.reached == ALL_ARRIVED;
        let Some(wait) = self.0.as_mut().filter(is_same) else {
            self.over(troubles);
            let source = source.to_owned();
            self.0 = Some(Wait {
                source,
                reached: ALL_ARRIVED,
                since_ns: now_ns,
                looks: 0,
                is_reported: false,
            });
            return;
        };
        if now_ns.saturating_sub(wait.since_ns) >= QUIET_NS && !wait.is_reported {
            wait.is_reported = true;
            troubles.report(source, "recovering: waiting for a read that does not return");
        }
    }

    /// Notes that the wait is over.
    pub(crate) fn over(&mut self, troubles: &Troubles) {
        if let Some(Wait { source, is_reported: true, .. }) = self.0.take() {
            troubles.clear(&source);
        }
    }

    /// Whether the wait is so long that it has been reported.
    pub(crate) fn is_long(&self) -> bool {
        self.0.as_ref().is_some_and(|wait| wait.is_reported)
    }
}

/// The error of a source that has fewer rows than before.
pub(crate) fn ended(source: &str, reached: u64, wanted: u64) -> Error {
    Error::input(format!(
        "source {source} ends at row {reached}, and rows up to {wanted} were read before"
    ))
    .help("its input was cut off: restore it; --fresh (fresh=True) starts from scratch")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(reached: u64, looks: u64, is_topic: bool, is_followed: bool) -> Missing<'static> {
        Missing { source: "s/f", reached, wanted: 9, looks, is_topic, is_followed }
    }

    #[test]
    fn what_does_not_come_is_said_and_then_refused() {
        for (is_topic, sure_ns) in [(false, SURE_OF_FILES_NS), (true, SURE_OF_TOPICS_NS)] {
            let (troubles, mut awaited) = (Troubles::default(), Awaited::default());
            let mut wait = |reached, looks, at_ns| {
                awaited.wait(&missing(reached, looks, is_topic, true), at_ns, &troubles)
            };
            wait(3, 10, 0).unwrap();
            let then_ns = 2 * sure_ns.max(QUIET_NS);
            wait(3, 10 + LOOKS - 1, then_ns).unwrap();
            assert!(troubles.all()["s/f"].contains("waiting for rows 3 to 9"));
            // The source continues.
            wait(4, 20, then_ns).unwrap();
            assert!(troubles.all().is_empty());
            wait(4, 30, then_ns + sure_ns - 1).unwrap();
            let error = wait(4, 30, then_ns + sure_ns).unwrap_err();
            assert!(error.what.contains("s/f ends at row 4"), "{error}");
            assert!(troubles.all().is_empty());
        }
    }

    #[test]
    fn what_may_come_is_waited_for() {
        let (troubles, mut awaited) = (Troubles::default(), Awaited::default());
        for second in 0..100 {
            let of = missing(3, second, false, false);
            awaited.wait(&of, second * QUIET_NS, &troubles).unwrap();
            assert_eq!(awaited.is_long(), second > 0);
        }
        awaited.over(&troubles);
        assert!(troubles.all().is_empty() && !awaited.is_long());
        // A read that does not return.
        for second in 0..3 {
            awaited.read_blocked("s/f", second * QUIET_NS, &troubles);
            assert_eq!(awaited.is_long(), second > 0);
        }
        assert!(troubles.all()["s/f"].contains("does not return"));
        awaited.over(&troubles);
        assert!(troubles.all().is_empty());
    }
}
