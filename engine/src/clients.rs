//! What clients of an app may ask and follow, by the handle of the running one: whoever brings it
//! to them over a network knows sockets, and this knows none.

use std::sync::Arc;
use std::time::Duration;

use tidemill_core::{Batch, Error, Result, Row, Schema, TableSpec, Value};

use crate::calls::Procedure;
use crate::followed::Changes;
use crate::mill::Mill;
use crate::requests::is_hidden;
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

impl Mill {
    /// The settings that it was started with.
    pub fn settings(&self) -> &Settings {
        &self.view.settings
    }

    /// The app's name.
    pub fn app(&self) -> &str {
        &self.view.program.name
    }

    /// The procedures that can be called, by name.
    pub fn procedures(&self) -> impl Iterator<Item = &Procedure> {
        self.view.procedures.values()
    }

    /// A procedure that can be called.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn procedure(&self, name: &str) -> Result<&Procedure> {
        self.view.procedure(name)
    }

    /// The app's tables.
    pub fn tables(&self) -> impl Iterator<Item = &TableSpec> {
        self.view.program.tables.iter().filter(|table| !is_hidden(&table.name))
    }

    /// The streams whose rows are kept, with their columns.
    pub fn streams(&self) -> Vec<(String, Arc<Schema>)> {
        let rings = self.view.shared.rings.lock();
        rings.by_name.iter().map(|(name, ring)| (name.clone(), ring.schema.clone())).collect()
    }

    /// At most `rows_max` rows of a stream that are durable, where anything is, from a number on; none of
    /// them when that is not there.
    ///
    /// # Errors
    /// When no rows of such a stream are kept.
    pub fn kept(&self, stream: &str, from: u64, rows_max: usize) -> Result<Kept> {
        let rings = self.view.shared.rings.lock();
        let ring = serve::ring(&rings, stream)?;
        let (first, next) = (ring.first(), ring.next());
        let rows = match (first..next).contains(&from) {
            true => ring.rows(from, rows_max),
            false => Vec::new(),
        };
        Ok(Kept { first, next, rows })
    }

    /// What has changed in a table behind an epoch. The table is followed from the first question on.
    ///
    /// # Errors
    /// When there is no such table.
    pub fn changes(&self, table: &str, epoch: u64) -> Result<Changes> {
        let index = self.view.table_index(table)?;
        let mut followed = self.view.shared.followed.lock();
        followed.follow(index, self.view.shared.left());
        Ok(followed.since(index, epoch))
    }

    /// Waits for something that is not in `seen`, up to so long.
    pub fn news(&self, seen: News, timeout_us: u64) -> News {
        let shared = &self.view.shared;
        let mut out = shared.out.lock();
        let now = |epoch| News { epoch, over: shared.is_over() };
        if now(out.epoch) == seen {
            shared.delivered.wait_for(&mut out, Duration::from_micros(timeout_us));
        }
        now(out.epoch)
    }

    /// Whether it is well.
    pub fn health(&self) -> Health {
        let (ready, said) = serve::health(&self.view);
        Health { ready, said }
    }

    /// All counters, in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        serve::metrics(&self.view)
    }

    /// Says where it answers clients, for whoever asks for its status.
    pub fn answers_at(&self, address: &str) {
        // Nobody else has set it, or it is the same.
        let _ = self.view.http.set(address.to_owned());
    }

    /// A row by texts, one for each key column, as [`row`](Mill::row) gives it: `read` makes values of them.
    ///
    /// # Errors
    /// When there is no such table, or the texts are no key of it.
    pub fn row_by(
        &self,
        table: &str,
        key: &[String],
        read: impl Fn(&str, &tidemill_core::Column) -> Result<Value, String>,
    ) -> Result<Option<Row>> {
        let spec = &self.view.program.tables[self.view.table_index(table)?];
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
