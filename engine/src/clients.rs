//! What clients of an app may ask and follow, by the handle of the running one: whoever brings it
//! to them over a network knows sockets, and this knows none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidemill_core::{Batch, Error, Result, Row, Schema, TableSpec, Value};

use crate::calls::{self, Procedure, Then};
use crate::followed::Changes;
use crate::mill::Mill;
use crate::requests::{is_hidden, Request};
use crate::serve;
use crate::settings::Settings;

/// Whether an app is well.
#[derive(Clone, Debug)]
pub struct Health {
    /// It is recovered, not stalled, and has not failed or ended.
    pub ready: bool,
    /// The same for people, as JSON.
    pub said: serde_json::Value,
}

/// Rows of a stream that are kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The number of the first row that is there.
    pub first: u64,
    /// The number behind the last one.
    pub next: u64,
    /// Rows from where they were asked for, each batch with the number of its first one.
    pub rows: Vec<(u64, Batch)>,
}

/// What is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// The last epoch that is durable, where anything is.
    pub epoch: u64,
    /// Nothing more will come.
    pub over: bool,
}

/// An app as its clients see it: in one process, or on several.
pub trait App: Send + Sync {
    /// The settings that it was started with.
    fn settings(&self) -> &Settings;

    /// Its name.
    fn name(&self) -> &str;

    /// The procedures that can be called, by name.
    fn procedures(&self) -> &BTreeMap<String, Procedure>;

    /// Its tables.
    fn tables(&self) -> Vec<&TableSpec>;

    /// The streams whose rows are kept, with their columns.
    fn streams(&self) -> Vec<(String, Arc<Schema>)>;

    /// At most `rows_max` rows of a stream that are durable, where anything is, from a number on; none of
    /// them when that is not there.
    ///
    /// # Errors
    /// When no rows of such a stream are kept.
    fn kept(&self, stream: &str, from: u64, rows_max: usize) -> Result<Kept>;

    /// Whether changes of tables can be followed.
    fn follows_tables(&self) -> bool {
        true
    }

    /// What has changed in a table behind an epoch. The table is followed from the first question on.
    ///
    /// # Errors
    /// When there is no such table, or its changes can't be followed.
    fn changes(&self, table: &str, epoch: u64) -> Result<Changes>;

    /// Waits for something that is not in `seen`, up to so long.
    fn news(&self, seen: News, timeout_us: u64) -> News;

    /// Whether it is well.
    fn health(&self) -> Health;

    /// All counters, in the text format of Prometheus.
    fn metrics(&self) -> String;

    /// Says where it answers clients, for whoever asks for its status.
    fn answers_at(&self, address: &str);

    /// The row with this key.
    ///
    /// # Errors
    /// When there is no such table, or it can't be read now.
    fn row(&self, table: &str, key: &[Value]) -> Result<Option<Row>>;

    /// Calls a procedure; `then` is told what its transaction came to, on a thread that must not be held up.
    /// With a request's id whoever is not told, or told of the engine's end, may call again, and the call is
    /// executed once. An aborted one has left nothing, and is executed again.
    ///
    /// # Errors
    /// When it can't be called so, or too many calls wait: `then` is not told.
    fn call_then(
        &self,
        procedure: &str,
        arguments: Batch,
        request: Option<Request>,
        then: Then,
    ) -> Result<()>;
}

impl dyn App {
    /// A procedure that can be called.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn procedure(&self, name: &str) -> Result<&Procedure> {
        calls::named(self.procedures(), name)
    }

    /// A row by texts, one for each key column, as [`App::row`] gives it: `read` makes values of them.
    ///
    /// # Errors
    /// When there is no such table, or the texts are no key of it.
    pub fn row_by(
        &self,
        spec: &TableSpec,
        key: &[String],
        read: impl Fn(&str, &tidemill_core::Column) -> Result<Value, String>,
    ) -> Result<Option<Row>> {
        let table = &spec.name;
        if key.len() != spec.key.len() {
            let what = format!("a key of table {table} has {} columns", spec.key.len());
            let names = spec.key.iter().map(|c| &*spec.schema.columns[*c].name);
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(Error::input(what).help(format!("give one key= for each of {names}")));
        }
        let columns = spec.key.iter().map(|column| &spec.schema.columns[*column]);
        let value = |(text, column): (&String, &tidemill_core::Column)| {
            read(text, column)
                .map_err(|why| Error::input(format!("key column '{}': {why}", column.name)))
        };
        let values: Vec<Value> = key.iter().zip(columns).map(value).collect::<Result<_>>()?;
        self.row(table, &values)
    }
}

impl App for Mill {
    fn settings(&self) -> &Settings {
        &self.view.settings
    }

    fn name(&self) -> &str {
        &self.view.program.name
    }

    fn procedures(&self) -> &BTreeMap<String, Procedure> {
        &self.view.procedures
    }

    fn tables(&self) -> Vec<&TableSpec> {
        self.view.program.tables.iter().filter(|table| !is_hidden(&table.name)).collect()
    }

    fn streams(&self) -> Vec<(String, Arc<Schema>)> {
        self.view.shared.rings.lock().streams()
    }

    fn kept(&self, stream: &str, from: u64, rows_max: usize) -> Result<Kept> {
        serve::ring(&self.view.shared.rings.lock(), stream).map(|ring| ring.kept(from, rows_max))
    }

    fn changes(&self, table: &str, epoch: u64) -> Result<Changes> {
        let index = self.view.table_index(table)?;
        let mut followed = self.view.shared.followed.lock();
        followed.follow(index, self.view.shared.left());
        Ok(followed.since(index, epoch))
    }

    fn news(&self, seen: News, timeout_us: u64) -> News {
        let shared = &self.view.shared;
        let mut out = shared.out.lock();
        let now = |epoch| News { epoch, over: shared.is_over() };
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
        // Nobody else has set it, or it is the same.
        let _ = self.view.http.set(address.to_owned());
    }

    fn row(&self, table: &str, key: &[Value]) -> Result<Option<Row>> {
        Mill::row(self, table, key)
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
