//! The events of an engine's life, one JSON object a line.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{json, Value};
use tidemill_core::value::format_timestamp;
use tidemill_core::{Error, Result};
use tidemill_env::{Clock, Env};

use crate::recover::Recovered;

/// Receives the events of an engine's life.
pub trait LifeSink: Send + Sync {
    /// Receives an event, as JSON without a newline. The engine's threads wait for this call.
    fn line(&self, line: &str);
}

/// Writes events to a file or to standard error. Failed writes are ignored, because an engine does
/// not stop for its log.
struct ToFile(Mutex<Box<dyn Write + Send>>);

impl LifeSink for ToFile {
    fn line(&self, line: &str) {
        // A failed write is ignored, as above.
        let _ = self.0.lock().write_all(format!("{line}\n").as_bytes());
    }
}

/// Opens the sink of a path: a file that is appended to, or `-` for standard error.
///
/// # Errors
/// When the file can't be opened.
pub(crate) fn sink(env: &Env, path: &Path) -> Result<Arc<dyn LifeSink>> {
    if path == Path::new("-") {
        return Ok(Arc::new(ToFile(Mutex::new(Box::new(std::io::stderr())))));
    }
    let file = env.disk.open_append(path).map_err(|e| {
        Error::io(format!("opening the log {}", path.display()), &e)
            .help("log_to must be a file in an existing folder, or - for standard error")
    })?;
    Ok(Arc::new(ToFile(Mutex::new(Box::new(file)))))
}

/// Reports events. It is cheap to clone.
#[derive(Clone)]
pub(crate) struct Life {
    sink: Option<Arc<dyn LifeSink>>,
    clock: Arc<dyn Clock>,
    /// The begin of the recovery, and the number of epochs to replay.
    recovery: Arc<(AtomicU64, AtomicU64)>,
}

impl Life {
    pub(crate) fn new(env: &Env, sink: Option<Arc<dyn LifeSink>>) -> Life {
        let recovery = Arc::new((AtomicU64::new(env.clock.monotonic_ns()), AtomicU64::new(0)));
        Life { sink, clock: env.clock.clone(), recovery }
    }

    /// Reports an event; `fields` is an object.
    pub(crate) fn tell(&self, event: &str, fields: Value) {
        let Some(sink) = &self.sink else { return };
        let mut line = json!({"at": format_timestamp(self.clock.now_us()), "event": event});
        if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), fields) {
            line.extend(fields);
        }
        sink.line(&line.to_string());
    }

    pub(crate) fn error(&self, error: &Error) {
        let Error { kind, what, help, .. } = error;
        self.tell("error", json!({"kind": kind.name(), "what": what, "help": help}));
    }

    /// Reports the contents of the data directory.
    pub(crate) fn recovering(&self, recovered: &Recovered) {
        let logs = [&recovered.input, &recovered.cut_log];
        for damage in logs.iter().flat_map(|log| log.damaged()) {
            self.tell("damage", json!({"what": damage.to_string()}));
        }
        let epochs = recovered.cuts.len() as u64;
        let snapshot = recovered.manifest.as_ref().map(|m| m.head.epoch);
        if epochs > 0 {
            self.recovery.1.store(epochs, Ordering::Relaxed);
            self.tell("recovery begun", json!({"snapshot_epoch": snapshot, "epochs": epochs}));
        }
    }

    /// Reports that all recorded epochs have been replayed.
    pub(crate) fn recovered(&self) {
        let (since, epochs) =
            (self.recovery.0.load(Ordering::Relaxed), self.recovery.1.load(Ordering::Relaxed));
        let seconds = self.clock.monotonic_ns().saturating_sub(since) as f64 / 1e9;
        self.tell("recovery ended", json!({"epochs": epochs, "seconds": seconds}));
    }

    /// Reports the end of the run.
    pub(crate) fn stopped(&self, error: &Option<Error>) {
        self.tell("stop", json!({"failed": error.is_some()}));
    }
}
