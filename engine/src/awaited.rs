//! What a recovery waits for: rows that a recorded cut has, and that a source has not given again.
//!
//! A source that has looked again and found nothing will not give them: a file was cut off while nobody
//! ran. It is refused by name. Until that is known, who looks after the run is told what is waited for.

use tidemill_connect::Troubles;
use tidemill_core::{Error, Result};

/// So long nothing is said: rows are read meanwhile.
const QUIET_NS: u64 = 1_000_000_000;
/// So long a file that is followed is looked at, and has nothing more, and so often.
const SURE_OF_FILES_NS: u64 = 200_000_000;
const LOOKS: u64 = 3;
/// The same of a topic: brokers that come back may say for a moment that it ends earlier than it does.
const SURE_OF_TOPICS_NS: u64 = 10_000_000_000;

/// In place of the rows that have come, where all have.
const STANDS: u64 = u64::MAX;

/// What is waited for now.
#[derive(Default)]
pub(crate) struct Awaited(Option<Wait>);

struct Wait {
    source: String,
    /// So far it has come.
    reached: u64,
    since_ns: u64,
    /// How often it had been looked at by then.
    looks: u64,
    is_told: bool,
}

/// A source that has not given what is wanted.
pub(crate) struct Behind<'a> {
    pub(crate) source: &'a str,
    pub(crate) reached: u64,
    pub(crate) wanted: u64,
    /// How often it was looked at, and nothing was there.
    pub(crate) looks: u64,
    pub(crate) is_topic: bool,
    pub(crate) is_followed: bool,
}

impl Awaited {
    /// Somebody is waited for.
    ///
    /// # Errors
    /// When what is waited for will not come.
    pub(crate) fn wait(&mut self, of: &Behind<'_>, now_ns: u64, troubles: &Troubles) -> Result<()> {
        let Behind { source, reached, wanted, looks, .. } = *of;
        let is_same = |wait: &&mut Wait| wait.source == source && wait.reached == reached;
        let Some(wait) = self.0.as_mut().filter(is_same) else {
            self.over(troubles);
            let source = source.to_owned();
            self.0 = Some(Wait { source, reached, since_ns: now_ns, looks, is_told: false });
            return Ok(());
        };
        let waited_ns = now_ns.saturating_sub(wait.since_ns);
        let sure_ns = if of.is_topic { SURE_OF_TOPICS_NS } else { SURE_OF_FILES_NS };
        if of.is_followed && looks >= wait.looks + LOOKS && waited_ns >= sure_ns {
            self.over(troubles);
            return Err(ended(source, reached, wanted));
        }
        if waited_ns >= QUIET_NS && !wait.is_told {
            wait.is_told = true;
            let what = format!(
                "recovering: waiting for rows {reached} to {wanted}, which were read before"
            );
            troubles.tell(source, &what);
        }
        Ok(())
    }

    /// All rows of a recorded cut have come, and whoever reads a source does not come back from the next read,
    /// as on a disk that does not answer.
    pub(crate) fn stands(&mut self, source: &str, now_ns: u64, troubles: &Troubles) {
        let is_same = |wait: &&mut Wait| wait.source == source && wait.reached == STANDS;
        let Some(wait) = self.0.as_mut().filter(is_same) else {
            self.over(troubles);
            let source = source.to_owned();
            self.0 =
                Some(Wait { source, reached: STANDS, since_ns: now_ns, looks: 0, is_told: false });
            return;
        };
        if now_ns.saturating_sub(wait.since_ns) >= QUIET_NS && !wait.is_told {
            wait.is_told = true;
            troubles.tell(source, "recovering: waiting for a read that does not come back");
        }
    }

    /// It has come.
    pub(crate) fn over(&mut self, troubles: &Troubles) {
        if let Some(Wait { source, is_told: true, .. }) = self.0.take() {
            troubles.clear(&source);
        }
    }

    /// Whether somebody has been waited for so long that it is said.
    pub(crate) fn is_long(&self) -> bool {
        self.0.as_ref().is_some_and(|wait| wait.is_told)
    }
}

/// A source that has less than it had.
pub(crate) fn ended(source: &str, reached: u64, wanted: u64) -> Error {
    Error::input(format!(
        "source {source} ends at row {reached}, and rows up to {wanted} were read before"
    ))
    .help("its input was cut off: restore it; --fresh starts anew")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(reached: u64, looks: u64, is_topic: bool, is_followed: bool) -> Behind<'static> {
        Behind { source: "s/f", reached, wanted: 9, looks, is_topic, is_followed }
    }

    #[test]
    fn what_does_not_come_is_said_and_then_refused() {
        for (is_topic, sure_ns) in [(false, SURE_OF_FILES_NS), (true, SURE_OF_TOPICS_NS)] {
            let (troubles, mut awaited) = (Troubles::default(), Awaited::default());
            let mut wait = |reached, looks, at_ns| {
                awaited.wait(&behind(reached, looks, is_topic, true), at_ns, &troubles)
            };
            wait(3, 10, 0).unwrap();
            let then_ns = 2 * sure_ns.max(QUIET_NS);
            wait(3, 10 + LOOKS - 1, then_ns).unwrap();
            assert!(troubles.all()["s/f"].contains("waiting for rows 3 to 9"));
            // It goes on.
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
            let of = behind(3, second, false, false);
            awaited.wait(&of, second * QUIET_NS, &troubles).unwrap();
            assert_eq!(awaited.is_long(), second > 0);
        }
        awaited.over(&troubles);
        assert!(troubles.all().is_empty() && !awaited.is_long());
        // A read that does not come back.
        for second in 0..3 {
            awaited.stands("s/f", second * QUIET_NS, &troubles);
            assert_eq!(awaited.is_long(), second > 0);
        }
        assert!(troubles.all()["s/f"].contains("does not come back"));
        awaited.over(&troubles);
        assert!(troubles.all().is_empty());
    }
}
