//! The log of an app: events of [`tracing`], as lines of JSON or text.
//!
//! All parts report events to the current dispatcher of their thread. [`open`] makes one for each
//! app, and a started thread inherits it (see `env`). So two apps of one process have two logs. The
//! message of an event is its name, which does not change between versions.
//!
//! Only Tidemill's own targets are logged. Libraries may report what is secret.

use std::fmt::{Debug, Write as _};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tidemill_core::error::nearest;
use tidemill_core::value::format_timestamp;
use tidemill_core::{Error, Result};
use tidemill_env::{Clock, Env};
use tracing::dispatcher::get_default;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::NoSubscriber;
use tracing::{info, Dispatch, Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::Registry;

use crate::settings::{LogFormat, Settings};

/// All targets, and the parts that report to each.
pub const LOG_TARGETS: [(&str, &str); 10] = [
    ("tidemill::engine", "start, stop, errors, epochs"),
    ("tidemill::log", "the log of inputs and cuts, and its disk"),
    ("tidemill::recovery", "replays and upgrades"),
    ("tidemill::snapshot", "snapshots"),
    ("tidemill::source", "sources, and events that could not be read"),
    ("tidemill::sink", "sinks"),
    ("tidemill::function", "functions that failed, and external work"),
    ("tidemill::kafka", "librdkafka"),
    ("tidemill::cluster", "generations, workers and their connections"),
    ("tidemill::http", "the HTTP server"),
];

/// The target of all targets.
const ALL: &str = "tidemill";
/// The level with `log_to` and without `log`.
const DEFAULT: &str = "info";
/// The fields whose texts are JSON.
const STRUCTURED: [&str; 2] = ["changes", "settings"];

/// Opens the log that the settings describe. Without such settings, it is the thread's present one.
/// Lines of one of several processes bear its number, `process`.
///
/// # Errors
/// When the file can't be opened.
pub(crate) fn open(settings: &Settings, env: &Env, process: Option<u32>) -> Result<Dispatch> {
    register_two();
    let Settings { log, log_format, log_to, .. } = settings;
    if log.is_none() && log_to.is_none() {
        return Ok(get_default(Dispatch::clone));
    }
    let filter = log.as_deref().unwrap_or(DEFAULT);
    let own = if log_to.is_some() { LogFormat::Json } else { LogFormat::Text };
    let format = log_format.unwrap_or(own);
    let to: Box<dyn Write + Send> = match log_to.as_deref().filter(|path| *path != Path::new("-")) {
        None => Box::new(std::io::stderr()),
        Some(path) => Box::new(env.disk.open_shared(path).map_err(|e| {
            Error::io(format!("opening the log {}", path.display()), &e)
                .help("log_to must be a file in an existing folder, or - for standard error")
        })?),
    };
    let lines = Lines { clock: env.clock.clone(), format, process, to: Mutex::new(to) };
    lines.filtered(filter)
}

/// Registers two logs that take nothing, once in a process.
///
/// `tracing` remembers for each place in the code whether any log wants its events. While it knows
/// of one log at most, it asks that of the present thread instead. Then a thread without a log,
/// such as one of another app, would silence that place for all. Two more logs rule this out.
fn register_two() {
    static TWO: OnceLock<[Dispatch; 2]> = OnceLock::new();
    TWO.get_or_init(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::new())));
}

/// Returns a log whose lines go to a writer. Each line is one write.
///
/// # Errors
/// When the filter is wrong.
pub fn log_lines(
    clock: Arc<dyn Clock>,
    filter: &str,
    format: LogFormat,
    to: Box<dyn Write + Send>,
) -> Result<Dispatch> {
    Lines { clock, format, process: None, to: Mutex::new(to) }.filtered(filter)
}

/// Parses directives: levels, or targets with levels, between commas.
///
/// # Errors
/// When a level or a target is unknown, with its name.
pub fn log_filter(text: &str) -> Result<Targets> {
    let mut targets = Targets::new();
    for directive in text.split(',').map(str::trim) {
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (target.trim(), Some(level.trim())),
            None => (directive, None),
        };
        let level = match (level, directive.parse::<LevelFilter>()) {
            (None, Ok(level)) if !directive.is_empty() => {
                targets = targets.with_target(ALL, level);
                continue;
            }
            (None, _) => LevelFilter::TRACE,
            (Some(level), _) => {
                let parsed = level.parse().ok().filter(|_| !level.is_empty());
                parsed.ok_or_else(|| refused(format!("'{level}' is not a level")))?
            }
        };
        let mut known = LOG_TARGETS.iter().map(|(name, _)| *name).chain([ALL]);
        if !known.any(|name| name == target) {
            let what = match directive.contains('=') {
                true => format!("'{target}' is not a target"),
                false => format!("'{target}' is neither a level nor a target"),
            };
            return Err(refused(what + &meant(target)));
        }
        targets = targets.with_target(target, level);
    }
    Ok(targets)
}

fn refused(what: String) -> Error {
    let targets: Vec<&str> = LOG_TARGETS.iter().map(|(name, _)| *name).collect();
    Error::setting(what).help(format!(
        "write a level (off, error, warn, info, debug or trace), or levels by target, such as \
         info,tidemill::sink=debug; the targets are {}",
        targets.join(", ")
    ))
}

/// Asks whether a similar word was meant.
fn meant(word: &str) -> String {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let last = |name: &'static str| name.rsplit("::").next().unwrap_or(name);
    let by_last = LOG_TARGETS.iter().map(|(name, _)| *name).find(|name| last(name) == word);
    let targets = LOG_TARGETS.iter().map(|(name, _)| *name);
    let near = by_last.or_else(|| nearest(word, levels.into_iter().chain(targets)));
    near.map_or(String::new(), |near| format!(": did you mean '{near}'?"))
}

/// Reports the start of an app or a process, with the settings that are not the defaults. They name
/// files with secrets, and have no secrets.
pub(crate) fn started(app: &str, data_dir: Option<&Path>, settings: &Settings) {
    let values = |settings: &Settings| serde_json::to_value(settings).unwrap_or_default();
    let (chosen, defaults) = (values(settings), values(&Settings::default()));
    let chosen = chosen.as_object().into_iter().flatten();
    let chosen: Map<_, _> = chosen
        .filter(|(name, value)| defaults.get(name) != Some(value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let data_dir = data_dir.map(|path| path.display().to_string());
    let settings = Value::from(chosen).to_string();
    let version = env!("CARGO_PKG_VERSION");
    info!(target: "tidemill::engine", app, data_dir, version, settings, "start");
}

/// Reports an error that ends a run.
pub(crate) fn failed(error: &Error) {
    let Error { kind, what, help, at } = error;
    let (kind, what, help, line) = (kind.name(), what.as_str(), help.as_str(), at.as_deref());
    tracing::error!(target: "tidemill::engine", kind, what, help, line, "error");
}

/// Writes events as lines.
struct Lines {
    clock: Arc<dyn Clock>,
    format: LogFormat,
    process: Option<u32>,
    to: Mutex<Box<dyn Write + Send>>,
}

impl Lines {
    fn filtered(self, filter: &str) -> Result<Dispatch> {
        let targets = log_filter(filter)?;
        register_two();
        Ok(Dispatch::new(Registry::default().with(targets).with(self)))
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        if let Some(process) = self.process {
            fields.others.push(("process", process.into()));
        }
        event.record(&mut fields);
        let at = format_timestamp(self.clock.now_us());
        let (level, target) = (event.metadata().level(), event.metadata().target());
        let line = match self.format {
            LogFormat::Json => fields.json(&at, &level.as_str().to_lowercase(), target),
            LogFormat::Text => fields.text(&at, level.as_str(), target),
        };
        // A failed write is ignored, because an app does not stop for its log.
        let _ = self.to.lock().write_all(line.as_bytes());
    }
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    /// The name of the event, which is its message.
    event: String,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn json(&self, at: &str, level: &str, target: &str) -> String {
        let head = [("at", at), ("level", level), ("target", target), ("event", &self.event)];
        let mut line = String::from("{");
        let head = head.into_iter().map(|(name, text)| (name, Value::from(text)));
        for (name, value) in head.chain(self.others.iter().cloned()) {
            let comma = if line.len() > 1 { "," } else { "" };
            // A write to a string does not fail.
            let _ = write!(line, "{comma}{}:{value}", Value::from(name));
        }
        line + "}\n"
    }

    fn text(&self, at: &str, level: &str, target: &str) -> String {
        let mut line = format!("{at} {level:>5} {target}: {}", self.event);
        for (name, value) in &self.others {
            let plain = value.as_str().filter(|text| is_plain(text));
            let shown = plain.map_or_else(|| value.to_string(), str::to_owned);
            // As above.
            let _ = write!(line, " {name}={shown}");
        }
        line + "\n"
    }
}

/// Whether a text needs no quotes in a line of text.
fn is_plain(text: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "\"\\=".contains(c);
    !text.is_empty() && !text.contains(is_odd)
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.event);
            return;
        }
        let structured = STRUCTURED.contains(&field.name()).then(|| serde_json::from_str(value));
        let value = structured.and_then(Result::ok).unwrap_or_else(|| value.into());
        self.others.push((field.name(), value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.push((field.name(), value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.others.push((field.name(), value.into()));
    }
}

/// The shortest time between two reports of a count, in nanoseconds.
const PACE_NS: u64 = 10_000_000_000;

/// A count of things that may happen often. It is reported at once when the first happens, and then
/// after ten seconds at the earliest.
#[derive(Default)]
pub(crate) struct Paced {
    reported: u64,
    next_ns: u64,
}

impl Paced {
    /// Begins with a count that has been reported.
    pub(crate) fn after(reported: u64) -> Paced {
        Paced { reported, next_ns: 0 }
    }

    /// Returns how many are new, if a report is due. Without a clock it is due.
    pub(crate) fn due(&mut self, count: u64, clock: Option<&dyn Clock>) -> Option<u64> {
        if count <= self.reported {
            return None;
        }
        let now_ns = clock.map_or(self.next_ns, Clock::monotonic_ns);
        if now_ns < self.next_ns {
            return None;
        }
        self.next_ns = now_ns + PACE_NS;
        Some(count - std::mem::replace(&mut self.reported, count))
    }
}

#[cfg(test)]
mod tests {
    use tidemill_sim::SimEnv;

    use super::*;

    #[test]
    fn a_count_is_reported_at_a_pace() {
        let clock = SimEnv::new(1).env().clock;
        let mut paced = Paced::after(5);
        assert_eq!(paced.due(5, Some(&*clock)), None);
        assert_eq!(paced.due(7, Some(&*clock)), Some(2));
        assert_eq!(paced.due(9, Some(&*clock)), None);
        clock.sleep_us(10_000_000);
        assert_eq!(paced.due(9, Some(&*clock)), Some(2));
        assert_eq!(paced.due(9, Some(&*clock)), None);
        assert_eq!(paced.due(10, Some(&*clock)), None);
        assert_eq!(paced.due(10, None), Some(1));
    }
}
