//! The queries and subscriptions of an app's clients, through the handle of the running app. The
//! servers that connect clients know sockets, and this module knows none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidemill_core::{Batch, Error, Result, Row, Schema, TableSpec, Value};
use tidemill_txn::program::Program;

use crate::calls::{self, Procedure, Then};
use crate::followed::Changes;
use crate::mill::Mill;
use crate::requests::{is_hidden, Request};
use crate::serve;
use crate::settings::Settings;
use crate::view::View;

/// The help for the text of a key that can't be read.
const KEY_HELP: &str =
    "write values as in JSON, such as 7 or true, but texts, times and bytes without quotes";

/// The health of an app.
#[derive(Clone, Debug)]
pub struct Health {
    /// Whether it is recovered, not stalled, and has not failed or ended.
    pub ready: bool,
    /// The health for people, as JSON.
    pub said: serde_json::Value,
}

/// The retained rows of a stream.
#[derive(Clone, Debug)]
pub struct RetainedRows {
    /// The number of the first retained row.
    pub first: u64,
    /// The number after the last row.
    pub next: u64,
    /// The rows from the requested one on, each batch with the number of its first row.
    pub rows: Vec<(u64, Batch)>,
}

/// The progress of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamProgress {
    /// The last epoch, which is durable if there is a data directory.
    pub epoch: u64,
    /// Whether nothing more will come.
    pub over: bool,
}

/// The declarations of an app, with its settings.
#[derive(Clone, Copy)]
pub struct Declared<'a> {
    pub(crate) program: &'a Program,
    pub(crate) settings: &'a Settings,
    pub(crate) procedures: &'a BTreeMap<String, Procedure>,
    pub(crate) version: Option<&'a str>,
}

/// An app as its clients see it: in one process, or on several.
pub trait App: Send + Sync {
    /// Its declarations.
    fn declared(&self) -> Declared<'_>;

    /// The settings that it was started with.
    fn settings(&self) -> &Settings {
        self.declared().settings
    }

    /// Its name.
    fn name(&self) -> &str {
        &self.declared().program.name
    }

    /// Its own version, if it has one.
    fn version(&self) -> Option<&str> {
        self.declared().version
    }

    /// The procedures that clients can call, by name.
    fn procedures(&self) -> &BTreeMap<String, Procedure> {
        self.declared().procedures
    }

    /// Its tables.
    fn tables(&self) -> Vec<&TableSpec> {
        self.declared().program.tables.iter().filter(|table| !is_hidden(&table.name)).collect()
    }

    /// The streams with retained rows, with their columns.
    fn streams(&self) -> Vec<(String, Arc<Schema>)>;

    /// Whether a stream belongs to the engine's own input, such as calls, or to a private function,
    /// and so says nothing to clients.
    fn is_of_engine(&self, stream: &str) -> bool {
        let Declared { program, procedures, .. } = self.declared();
        calls::is_of_engine(program, procedures, stream)
    }

    /// Returns at most `rows_max` retained rows of a stream, from a number on. They are durable if
    /// there is a data directory. There are none if that number is not there.
    ///
    /// # Errors
    /// When no rows of the stream are retained.
    fn retained(&self, stream: &str, from: u64, rows_max: usize) -> Result<RetainedRows>;

    /// Whether the coordinator of another process answers, so that answers take a moment.
    fn is_remote(&self) -> bool {
        false
    }

    /// Whether it executes again what an earlier run has executed. Until then it does not know how
    /// many rows its streams have.
    fn is_recovering(&self) -> bool {
        false
    }

    /// Returns the changes of a table after an epoch. The table is followed from the first request
    /// on.
    ///
    /// # Errors
    /// When there is no such table.
    fn changes(&self, table: &str, epoch: u64) -> Result<Changes>;

    /// Waits for progress beyond `seen`, at most `timeout_us` microseconds.
    fn news(&self, seen: StreamProgress, timeout_us: u64) -> StreamProgress;

    /// Returns the health of the app.
    fn health(&self) -> Health;

    /// Returns all metrics in the text format of Prometheus.
    fn metrics(&self) -> String;

    /// Sets the address of the HTTP server, which the status shows.
    fn answers_at(&self, address: &str);

    /// Returns the row with this key.
    ///
    /// # Errors
    /// When there is no such table, or it can't be read now.
    fn row(&self, table: &str, key: &[Value]) -> Result<Option<Row>>;

    /// Returns the first rows of a table by key, after a key or from the begin: at most `limit`,
    /// and whether there are more.
    ///
    /// # Errors
    /// When there is no such table, or it can't be read in the order of its keys now.
    fn rows_after(
        &self,
        table: &str,
        after: Option<&[Value]>,
        limit: usize,
    ) -> Result<(Vec<Row>, bool)>;

    /// Calls a procedure. `then` receives the result, on a thread that it must not block.
    ///
    /// A caller with a request id may repeat a call that got no reply, or only the end of the
    /// engine. The call is executed once. An aborted call has left nothing, and is executed again.
    ///
    /// # Errors
    /// When the call is wrong, or too many calls wait. `then` is not called in these cases.
    fn call_then(
        &self,
        procedure: &str,
        arguments: Batch,
        request: Option<Request>,
        then: Then,
    ) -> Result<()>;
}

impl dyn App {
    /// Finds a procedure that clients can call.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn procedure(&self, name: &str) -> Result<&Procedure> {
        calls::named(self.procedures(), name)
    }

    /// Parses a key of a table from a text for each key column. `read` parses a text.
    ///
    /// # Errors
    /// When the texts are no key of the table.
    pub fn key_of(
        &self,
        spec: &TableSpec,
        key: &[String],
        read: impl Fn(&str, &tidemill_core::Column) -> Result<Value, String>,
    ) -> Result<Vec<Value>> {
        let table = &spec.name;
        if key.len() != spec.key.len() {
            let (wanted, given) = (spec.key.len(), key.len());
            let what = format!("a key of table {table} has {wanted} columns, not {given}");
            let names = spec.key.iter().map(|c| &*spec.schema.columns[*c].name);
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(Error::input(what).help(format!("give one value for each of {names}")));
        }
        let columns = spec.key.iter().map(|column| &spec.schema.columns[*column]);
        let value = |(text, column): (&String, &tidemill_core::Column)| {
            read(text, column)
                .map_err(|why| Error::input(format!("key column '{}': {why}", column.name)))
                .map_err(|error| error.help(KEY_HELP))
        };
        key.iter().zip(columns).map(value).collect()
    }
}

impl App for Mill {
    fn declared(&self) -> Declared<'_> {
        let View { program, settings, procedures, version, .. } = &*self.view;
        Declared { program, settings, procedures, version: version.as_deref() }
    }

    fn streams(&self) -> Vec<(String, Arc<Schema>)> {
        self.view.shared.rings.lock().streams()
    }

    fn retained(&self, stream: &str, from: u64, rows_max: usize) -> Result<RetainedRows> {
        let (program, procedures) = (&self.view.program, &self.view.procedures);
        let is_shown = |stream: &str| !calls::is_of_private(program, procedures, stream);
        serve::ring_among(&self.view.shared.rings.lock(), stream, is_shown)
            .map(|ring| ring.retained(from, rows_max))
            .map_err(|error| serve::no_rows(error, &self.view.program, stream, false))
    }

    fn is_recovering(&self) -> bool {
        self.view.shared.out.lock().is_recovering
    }

    fn changes(&self, table: &str, epoch: u64) -> Result<Changes> {
        let index = self.view.table_index(table)?;
        let mut followed = self.view.shared.followed.lock();
        followed.follow(index, self.view.shared.delivered_epoch());
        Ok(followed.since(index, epoch))
    }

    fn news(&self, seen: StreamProgress, timeout_us: u64) -> StreamProgress {
        let shared = &self.view.shared;
        let mut out = shared.out.lock();
        let now = |epoch| StreamProgress { epoch, over: shared.is_over() };
        if now(out.epoch) == seen {
            shared.delivered.wait_for(&mut out, Duration::from_micros(timeout_us));
        }
        now(out.epoch)
    }

    fn health(&self) -> Health {
        let (ready, said) = serve::health(&self.view);
        Health { ready, said }
    }

    fn metrics(&self) -> String {
        serve::metrics(&self.view)
    }

    fn answers_at(&self, address: &str) {
        // A repeated call sets the same address.
        let _ = self.view.http.set(address.to_owned());
    }

    fn row(&self, table: &str, key: &[Value]) -> Result<Option<Row>> {
        Mill::row(self, table, key)
    }

    fn rows_after(
        &self,
        table: &str,
        after: Option<&[Value]>,
        limit: usize,
    ) -> Result<(Vec<Row>, bool)> {
        Mill::rows_after(self, table, after, limit)
    }

    fn call_then(
        &self,
        procedure: &str,
        arguments: Batch,
        request: Option<Request>,
        then: Then,
    ) -> Result<()> {
        Mill::call_then(self, procedure, arguments, request, then)
    }
}
