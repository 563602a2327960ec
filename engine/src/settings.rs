//! Settings as data, from file < environment < flag. Unknown settings are errors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidemill_core::Error;
use tidemill_txn::schedule::Strategy;

use crate::logging::log_filter;

/// The contents of a data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durable {
    /// Nothing, as without a data directory.
    None,
    /// Inputs and cuts. A start replays everything.
    Log,
    /// Inputs, cuts and snapshots. A start replays everything after the last snapshot.
    #[default]
    #[serde(rename = "log+snapshots")]
    LogAndSnapshots,
}

/// The smallest size of a segment of the input log, in bytes.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 1 << 16;
/// Ten years in microseconds, a pebibyte, and a billion rows. Larger values are typing errors, and
/// their sums would overflow.
const LONG_US: u64 = 315_576_000_000_000;
const BYTES_MAX: u64 = 1 << 50;
const ROWS_MAX: u64 = 1_000_000_000;

/// Whether a start takes over the data of another version of the program. In JSON `false`, `true`
/// or `"lossy"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value", into = "serde_json::Value")]
pub enum Upgrade {
    /// A start refuses such data.
    #[default]
    Off,
    /// A start takes over such data if nothing is lost.
    Lossless,
    /// A start takes over such data, and drops state that has no place in the new version.
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

/// How a restart executes interrupted work again (S-Store, section 3.2.5). Both ways result in the
/// same state if functions are deterministic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Inputs and cuts are logged. A replay executes all that they trigger.
    #[default]
    Weak,
    /// Each transaction is logged too, with its input and a hash of its result. A replay triggers
    /// no transaction from another one. It ends the run when a result differs.
    Strong,
}

/// The reaction to a fault: an exception that a function did not mean to raise. A fault in a call
/// is returned to its client, and the run continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFault {
    /// The transaction aborts and is counted, and the run continues.
    #[default]
    Abort,
    /// The run ends with an error, before any effect of the event is committed.
    Stop,
}

/// The form of the lines of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// The settings of users. A name ends with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Worker threads; 0 for one per core.
    pub workers: usize,
    /// Whether an epoch closes as soon as the engine is idle and input waits. Otherwise only rows,
    /// bytes or time close it.
    pub epoch_idle: bool,
    /// The rows at which an epoch closes. It also has the rows that its sources read at that
    /// moment.
    pub epoch_rows_max: usize,
    /// The bound of rows that are read and in no epoch yet, in bytes. The epoch closes at half of
    /// it.
    pub epoch_bytes_max: usize,
    /// The time from an epoch's first row to its end, in microseconds of the engine's clock.
    pub epoch_us_max: i64,
    /// The bound of tables, buffered events and retained outputs together, in bytes. Beyond it
    /// admission stops with an error that names the table.
    pub memory_bytes_max: usize,
    /// The bound of rows that wait for the watermark, in bytes. The source that is ahead in time
    /// pauses at it.
    pub buffered_bytes_max: usize,
    /// The strategy of execution: `adaptive`, or one by name. The results are the same.
    pub strategy: String,
    /// Every n-th transaction of an opaque handler is run twice and compared; 0 for none.
    pub rerun_every: u64,
    /// Whether a start empties the data directory and replaces existing output files.
    pub fresh: bool,
    /// The directory of all data that outlives the process. Without it no data does.
    pub data_dir: Option<PathBuf>,
    /// The contents of the data directory.
    pub durable: Durable,
    /// The records of an epoch beside its input.
    pub recovery: Recovery,
    /// The time from one snapshot to the next, in microseconds. The next cut takes it.
    pub snapshot_us: i64,
    /// The size of a segment of the input log, in bytes.
    pub log_segment_bytes: u64,
    /// The number of deaths by one input after which the input is quarantined.
    pub poison_after: u32,
    /// The reaction to a fault in a function.
    pub on_fault: OnFault,
    /// Whether a start accepts functions that give other results in a replay than recorded. Their
    /// present results count then.
    pub accept_replay: bool,
    /// The largest difference of a clock from the last cut's, in microseconds. A clock that is
    /// further ahead counts as wrong, and the start is refused.
    pub clock_jump_us_max: i64,
    /// The time after which a call of a function aborts, in microseconds; 0 for no limit. Only
    /// interruptible functions obey. The effective value is [`Settings::deadline`].
    pub deadline_us: Option<i64>,
    /// The rows of each output stream that are retained for followers, in memory and in each
    /// snapshot.
    pub tail_rows: usize,
    /// The most bytes of these rows, per stream.
    pub tail_bytes: usize,
    /// The rows of each dead-letter and late stream that are retained over restarts.
    pub dlq_rows_max: usize,
    /// The most bytes of these rows, per stream.
    pub dlq_bytes_max: usize,
    /// The port for clients over HTTP; 0 for a free one. Without it there is no server. The engine
    /// has no sockets for clients: the process that starts the engine starts the gateway.
    pub http_port: Option<u16>,
    /// The address of the HTTP server. An address that other machines can reach needs tokens and a
    /// certificate.
    pub http_host: String,
    /// The file with the allowed clients. Without it every client on this machine is allowed.
    pub http_tokens: Option<PathBuf>,
    /// The certificate chain and private key, as PEM. The server uses HTTPS then.
    pub http_cert: Option<PathBuf>,
    /// See `http_cert`.
    pub http_key: Option<PathBuf>,
    /// The role that a client needs, by procedure name, or by `streams/NAME` and `tables/NAME`. Any
    /// one of several roles, separated by `|`, is enough. `*` stands for every authenticated
    /// client.
    pub http_roles: BTreeMap<String, String>,
    /// The roles where `http_roles` has none: those of streams and tables that only functions with
    /// roles write. Unknown names are ignored.
    pub http_roles_default: BTreeMap<String, String>,
    /// The most connections at a time.
    pub http_connections_max: usize,
    /// The most calls that wait for their replies at a time.
    pub http_calls_max: usize,
    /// The largest body of a request, in bytes.
    pub http_body_bytes_max: usize,
    /// The time after which a silent connection is closed, in microseconds. It counts between
    /// requests, within a request, and while the client reads nothing of an answer.
    pub http_idle_us: i64,
    /// The time after which a call is answered, in microseconds, even if its result is not known
    /// yet.
    pub http_deadline_us: i64,
    /// The time for which the result of a request is retained, in microseconds of the clock.
    pub http_requests_kept_us: i64,
    /// The levels of events that are logged, by target. Without it and `log_to` nothing is logged.
    pub log: Option<String>,
    /// The form of the lines. Without it they are JSON with `log_to`, and otherwise text.
    pub log_format: Option<LogFormat>,
    /// The file to which the log is appended, or `-` for standard error, which is the default.
    pub log_to: Option<PathBuf>,
    /// Whether a start takes over the data of another version of the program, after a clean stop.
    pub upgrade: Upgrade,
    /// The new names for an upgrade, by old name. Names are of tables, and of columns as
    /// `table.column`.
    pub renames: BTreeMap<String, String>,
    /// Whether every cut of the run is retained, for tests and to compare runs.
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
            buffered_bytes_max: 256 << 20,
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
            log: None,
            log_format: None,
            log_to: None,
            upgrade: Upgrade::Off,
            renames: BTreeMap::new(),
            keep_cuts: false,
        }
    }
}

/// The default deadline of a function, in microseconds.
const DEADLINE_US: i64 = 10_000_000;

impl Settings {
    /// The deadline of a function's call, in microseconds; `None` for no limit.
    pub fn deadline(&self) -> Option<i64> {
        Some(self.deadline_us.unwrap_or(DEADLINE_US)).filter(|us| *us > 0)
    }

    /// Settings with which retained rows are read, however many there are.
    pub(crate) fn all_rows() -> Settings {
        let [tail_rows, tail_bytes, dlq_rows_max, dlq_bytes_max] = [usize::MAX; 4];
        Settings { tail_rows, tail_bytes, dlq_rows_max, dlq_bytes_max, ..Settings::default() }
    }

    /// Refuses directives for the log that can't be followed.
    pub(crate) fn check_log(&self) -> tidemill_core::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let wrong = |e: Error| Error::setting(format!("log is '{log}': {}", e.what)).help(e.help);
        log_filter(log).map(drop).map_err(wrong)
    }

    /// Refuses settings that can't work.
    pub fn check(&self) -> tidemill_core::Result<()> {
        let us = |us: i64| u64::try_from(us).ok();
        let rows = |rows: usize| Some(rows as u64);
        for (name, value, least, most) in [
            ("workers", rows(self.workers), 0, 256),
            ("epoch_rows_max", rows(self.epoch_rows_max), 1, ROWS_MAX),
            ("epoch_bytes_max", rows(self.epoch_bytes_max), 1, BYTES_MAX),
            ("epoch_us_max", us(self.epoch_us_max), 1, LONG_US),
            ("memory_bytes_max", rows(self.memory_bytes_max), 1, BYTES_MAX),
            ("buffered_bytes_max", rows(self.buffered_bytes_max), 1, BYTES_MAX),
            ("rerun_every", Some(self.rerun_every), 0, 1 << 32),
            ("snapshot_us", us(self.snapshot_us), 1, LONG_US),
            ("log_segment_bytes", Some(self.log_segment_bytes), SEGMENT_BYTES_MIN, 1 << 40),
            // A process that dies once may have died of something else.
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
        self.check_log()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_the_deadline_of_the_reference() {
        let page = include_str!("../../docs/reference/settings.md");
        assert!(page.contains("| `deadline_us` | 10,000,000 |"));
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
        let said = refused(Settings { log: Some("inof".into()), ..Settings::default() });
        assert!(said.contains("log is 'inof'") && said.contains("'info'"), "{said}");
    }
}
