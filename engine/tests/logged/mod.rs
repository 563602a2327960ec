//! The log of an engine, for tests.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value as Json;
use tidemill_engine::{log_lines, AppSpec, LogFormat, Mill};
use tidemill_env::Env;
use tracing::dispatcher::with_default;

/// The lines of a log at level `info`.
#[derive(Clone, Default)]
pub struct Logged(Arc<Mutex<Vec<Json>>>);

impl Write for Logged {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().push(serde_json::from_slice(line)?);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Logged {
    /// Starts an app that logs to this.
    pub fn start(&self, spec: AppSpec, env: Env) -> tidemill_core::Result<Mill> {
        let to = Box::new(self.clone());
        let log = log_lines(env.clock.clone(), "info", LogFormat::Json, to)?;
        with_default(&log, || Mill::start(spec, env))
    }

    /// The lines of events with one of these names.
    pub fn all(&self, names: &[&str]) -> Vec<Json> {
        let lines = self.0.lock();
        let is_one =
            |line: &&Json| line["event"].as_str().is_some_and(|name| names.contains(&name));
        lines.iter().filter(is_one).cloned().collect()
    }

    /// The names of these events, in their order.
    #[allow(dead_code)] // Not every test has several.
    pub fn names(&self, names: &[&str]) -> Vec<String> {
        self.all(names).iter().map(|line| line["event"].as_str().unwrap().to_owned()).collect()
    }
}
