//! Settings: data, from file < environment < flag. Unknown ones are errors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidemill_core::Error;
use tidemill_txn::schedule::Strategy;

/// What is kept in a data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durable {
    /// Nothing: as if there were none.
    None,
    /// Inputs and cuts. A start repeats everything.
    Log,
    /// Inputs, cuts and snapshots. A start repeats what came behind the last snapshot.
    #[default]
    #[serde(rename = "log+snapshots")]
    LogAndSnapshots,
}

/// The fewest bytes of a segment of the input log.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 1 << 16;
/// Ten years in microseconds, a pebibyte, and a billion rows: more is a slip of the pen, and sums of
/// them would not fit.
const LONG_US: u64 = 315_576_000_000_000;
const BYTES_MAX: u64 = 1 << 50;
const ROWS_MAX: u64 = 1_000_000_000;

/// Whether a start takes over what another version of the program has left. In JSON `false`, `true`
/// or `"lossy"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value", into = "serde_json::Value")]
pub enum Upgrade {
    /// It is refused.
    #[default]
    Off,
    /// It does, when nothing is lost.
    Lossless,
    /// It does, and drops what the new version has no place for.
    Lossy,
}

impl TryFrom<serde_json::Value> for Upgrade {
    type Error = String;

    fn try_from(value: serde_json::Value) -> Result<Upgrade, String> {
        match &value {
            serde_json::Value::Bool(false) => Ok(Upgrade::Off),
            serde_json::Value::Bool(true) => Ok(Upgrade::Lossless),
            serde_json::Value::String(text) if text == "lossy" => Ok(Upgrade::Lossy),
            other => Err(format!("upgrade is true, false or \"lossy\", not {other}")),
        }
    }
}

impl From<Upgrade> for serde_json::Value {
    fn from(upgrade: Upgrade) -> serde_json::Value {
        match upgrade {
            Upgrade::Off => false.into(),
            Upgrade::Lossless => true.into(),
            Upgrade::Lossy => "lossy".into(),
        }
    }
}

/// How what a crash has interrupted is executed again (S-Store 3.2.5). Both come to the same state, as
/// long as functions do the same again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Inputs and cuts are logged, and what they set off is set off again.
    #[default]
    Weak,
    /// Each transaction is logged too, with what it was given and a hash of what it came to. None sets
    /// off another when they are executed again, and one that comes to something else ends the run.
    Strong,
}

/// What becomes of a run when a function fails on an event: it raises what it did not mean to. A call is
/// answered, and the run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFault {
    /// The transaction aborts and is counted, and the run goes on.
    #[default]
    Abort,
    /// The run ends with an error, before anything of the event is committed.
    Stop,
}

/// What a user may set. Names end in their unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Worker threads; one a core when 0.
    pub workers: usize,
    /// An epoch closes as soon as the engine is idle and input waits. Otherwise only rows, bytes or
    /// time close it.
    pub epoch_idle: bool,
    /// An epoch closes at this many rows (and what its sources read at the same time).
    pub epoch_rows_max: usize,
    /// Rows that have been read and not yet taken into an epoch stay below this many bytes; at
    /// half of them the epoch closes.
    pub epoch_bytes_max: usize,
    /// An epoch closes this long after its first row was seen, in microseconds of the engine's
    /// clock.
    pub epoch_us_max: i64,
    /// Tables, parked events and kept outputs together stay below this many bytes; beyond it
    /// admission stops with an error that names the table.
    pub memory_bytes_max: usize,
    /// Rows that wait for the watermark stay below this many bytes: the source that is ahead in
    /// time is paused.
    pub parked_bytes_max: usize,
    /// How epochs are executed: `adaptive`, or one of the strategies by name. The outcome is the same.
    pub strategy: String,
    /// Every n-th transaction of an opaque handler is run twice and compared; 0 never.
    pub rerun_every: u64,
    /// Starts anew: empties the data directory and replaces existing output files.
    pub fresh: bool,
    /// The directory in which everything that must outlive the process is kept. Without one nothing
    /// does.
    pub data_dir: Option<PathBuf>,
    /// What is kept there.
    pub durable: Durable,
    /// What is logged of an epoch beside its input.
    pub recovery: Recovery,
    /// A snapshot is taken this long after the last one, in microseconds; the next cut makes it.
    pub snapshot_us: i64,
    /// Bytes of a segment of the input log.
    pub log_segment_bytes: u64,
    /// After an input has killed the process so often it is set aside.
    pub poison_after: u32,
    /// What becomes of the run when a function fails on an event.
    pub on_fault: OnFault,
    /// A start goes on where functions come to something else, when what is recorded is executed again, with what they
    /// come to now.
    pub accept_replay: bool,
    /// A clock that is further ahead of the last cut's, in microseconds, is taken for a wrong one, and refused.
    pub clock_jump_us_max: i64,
    /// A call of a function that takes longer than this, in microseconds, aborts; 0 lets it take its
    /// time. Only functions that can be interrupted obey. [`Settings::deadline`] is what holds.
    pub deadline_us: Option<i64>,
    /// Rows of each output stream that are kept for those who follow it, in memory and in each snapshot.
    pub tail_rows: usize,
    /// They take at most this many bytes, per stream.
    pub tail_bytes: usize,
    /// Rows of each dead-letter and late stream that are kept over restarts.
    pub dlq_rows_max: usize,
    /// They take at most this many bytes, per stream.
    pub dlq_bytes_max: usize,
    /// The port at which clients are answered over HTTP; 0 takes a free one. Nobody listens when
    /// absent. The engine itself knows no sockets of clients: whoever starts it starts the gateway.
    pub http_port: Option<u16>,
    /// The address to listen at. One that other machines can reach needs tokens and a certificate.
    pub http_host: String,
    /// A file with the clients that are let in. Without one everybody on this machine is.
    pub http_tokens: Option<PathBuf>,
    /// Certificate chain and private key, as PEM: HTTPS is spoken then.
    pub http_cert: Option<PathBuf>,
    /// See `http_cert`.
    pub http_key: Option<PathBuf>,
    /// The role that a client needs: for a procedure by its name, for others as `streams/NAME` and
    /// `tables/NAME`.
    /// Several are parted by `|`: one of them is enough. `*` is everybody who is let in.
    pub http_roles: BTreeMap<String, String>,
    /// The same where `http_roles` says nothing: of streams and tables that only functions write which
    /// need roles. What is not there is passed over.
    pub http_roles_default: BTreeMap<String, String>,
    /// Connections at a time.
    pub http_connections_max: usize,
    /// Calls that may wait for their replies at a time.
    pub http_calls_max: usize,
    /// Bytes of a request's body.
    pub http_body_bytes_max: usize,
    /// A connection is cut off that says nothing for so long, in microseconds: between two requests, in
    /// the midst of one, or taking nothing of an answer.
    pub http_idle_us: i64,
    /// A call is answered after this long at the latest, in microseconds, and be it that nobody knows yet
    /// what it came to.
    pub http_deadline_us: i64,
    /// What a request came to is remembered this long, in microseconds of the clock.
    pub http_requests_kept_us: i64,
    /// Where the events of the engine's life are written, one JSON object on a line each: a file that
    /// they are appended to, or `-` for the standard error.
    pub log_to: Option<PathBuf>,
    /// Starts from what another version of the program has left, after a clean stop.
    pub upgrade: Upgrade,
    /// For an upgrade: what has another name now, old to new. Tables, and columns as `table.column`.
    pub renames: BTreeMap<String, String>,
    /// Remembers every cut of the run, for tests and for comparing runs.
    pub keep_cuts: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            workers: 0,
            epoch_idle: true,
            epoch_rows_max: 65_536,
            epoch_bytes_max: 8 << 20,
            epoch_us_max: 5_000,
            memory_bytes_max: 8 << 30,
            parked_bytes_max: 256 << 20,
            strategy: Strategy::Adaptive.to_string(),
            rerun_every: 64,
            fresh: false,
            data_dir: None,
            durable: Durable::LogAndSnapshots,
            recovery: Recovery::Weak,
            snapshot_us: 10_000_000,
            log_segment_bytes: 64 << 20,
            poison_after: 3,
            on_fault: OnFault::Abort,
            accept_replay: false,
            clock_jump_us_max: 366 * 24 * 60 * 60 * 1_000_000,
            deadline_us: None,
            tail_rows: 10_000,
            tail_bytes: 4 << 20,
            dlq_rows_max: 10_000,
            dlq_bytes_max: 4 << 20,
            http_port: None,
            http_host: "127.0.0.1".into(),
            http_tokens: None,
            http_cert: None,
            http_key: None,
            http_roles: BTreeMap::new(),
            http_roles_default: BTreeMap::new(),
            http_connections_max: 1024,
            http_calls_max: 4096,
            http_body_bytes_max: 1 << 20,
            http_idle_us: 30_000_000,
            http_deadline_us: 30_000_000,
            http_requests_kept_us: 24 * 60 * 60 * 1_000_000,
            log_to: None,
            upgrade: Upgrade::Off,
            renames: BTreeMap::new(),
            keep_cuts: false,
        }
    }
}

/// What a function may take where nobody has said, in microseconds.
const DEADLINE_US: i64 = 10_000_000;

impl Settings {
    /// How long a call of a function may take, in microseconds; nothing lets it take its time.
    pub fn deadline(&self) -> Option<i64> {
        Some(self.deadline_us.unwrap_or(DEADLINE_US)).filter(|us| *us > 0)
    }

    /// Refuses what can't work.
    pub fn check(&self) -> tidemill_core::Result<()> {
        let us = |us: i64| u64::try_from(us).ok();
        let rows = |rows: usize| Some(rows as u64);
        for (name, value, least, most) in [
            ("workers", rows(self.workers), 0, 256),
            ("epoch_rows_max", rows(self.epoch_rows_max), 1, ROWS_MAX),
            ("epoch_bytes_max", rows(self.epoch_bytes_max), 1, BYTES_MAX),
            ("epoch_us_max", us(self.epoch_us_max), 1, LONG_US),
            ("memory_bytes_max", rows(self.memory_bytes_max), 1, BYTES_MAX),
            ("parked_bytes_max", rows(self.parked_bytes_max), 1, BYTES_MAX),
            ("rerun_every", Some(self.rerun_every), 0, 1 << 32),
            ("snapshot_us", us(self.snapshot_us), 1, LONG_US),
            ("log_segment_bytes", Some(self.log_segment_bytes), SEGMENT_BYTES_MIN, 1 << 40),
            // Whoever dies once may have died of something else.
            ("poison_after", Some(self.poison_after.into()), 2, 1_000_000),
            ("clock_jump_us_max", us(self.clock_jump_us_max), 60_000_000, LONG_US),
            ("deadline_us", us(self.deadline_us.unwrap_or(0)), 0, LONG_US),
            ("tail_rows", rows(self.tail_rows), 1, ROWS_MAX),
            ("tail_bytes", rows(self.tail_bytes), 1, BYTES_MAX),
            ("dlq_rows_max", rows(self.dlq_rows_max), 1, ROWS_MAX),
            ("dlq_bytes_max", rows(self.dlq_bytes_max), 1, BYTES_MAX),
            ("http_connections_max", rows(self.http_connections_max), 1, 1_000_000),
            ("http_calls_max", rows(self.http_calls_max), 1, 10_000_000),
            ("http_body_bytes_max", rows(self.http_body_bytes_max), 1, 1 << 40),
            ("http_idle_us", us(self.http_idle_us), 1, LONG_US),
            ("http_deadline_us", us(self.http_deadline_us), 1, LONG_US),
            ("http_requests_kept_us", us(self.http_requests_kept_us), 1, LONG_US),
        ] {
            let shown = value.map_or("negative".into(), |value| value.to_string());
            if value.is_none_or(|value| value < least || value > most) {
                return Err(Error::setting(format!("{name} is {shown}"))
                    .help(format!("give an integer from {least} to {most}")));
            }
        }
        self.strategy.parse::<Strategy>()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_the_deadline_that_the_guide_says() {
        let guide = include_str!("../../docs/guide.md");
        assert!(guide.contains("| `deadline_us` | 10,000,000 |"));
        let said = |deadline_us| Settings { deadline_us, ..Settings::default() }.deadline();
        assert_eq!([None, Some(0), Some(7)].map(said), [Some(10_000_000), None, Some(7)]);
        assert!(Settings { deadline_us: Some(-1), ..Settings::default() }.check().is_err());
    }

    #[test]
    fn absurd_values_are_refused_by_name() {
        assert_eq!(Settings::default().check(), Ok(()));
        let refused = |settings: Settings| settings.check().unwrap_err().to_string();
        let said = refused(Settings { epoch_us_max: -1, ..Settings::default() });
        assert!(said.contains("epoch_us_max is negative") && said.contains("from 1 to"), "{said}");
        let said = refused(Settings { tail_rows: usize::MAX, ..Settings::default() });
        assert!(said.contains("tail_rows is 18446744073709551615"), "{said}");
        let said = refused(Settings { poison_after: 1, ..Settings::default() });
        assert!(said.contains("from 2 to"), "{said}");
    }
}
