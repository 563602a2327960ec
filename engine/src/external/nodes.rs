//! The outboxes of a worker. The owner of an outbox's row does its work, and the answer is a
//! request.
//!
//! After any crash a worker has the row and does the work again, with the same key.

use std::sync::mpsc::channel;
use std::sync::Arc;

use tidemill_cluster::{Events, Log, Record, Topic};
use tidemill_core::{Batch, Error, Key, Result, StreamId, TableId, Value};
use tidemill_env::Env;
use tidemill_function::{Functions as _, Stored};
use tidemill_host::Outboxes;

use super::outbox::{Answers, Outbox, Passed};
use crate::cluster::partition_of;
use crate::functions::AppFunctions;
use crate::spec::AppSpec;

/// The outboxes of an app on a worker.
pub(crate) struct OutboxesOnNode {
    env: Env,
    functions: Arc<AppFunctions>,
    /// The number of the log's sources for requests of clients.
    sources: u32,
    /// Each outbox, with its table and the stream of its answers.
    all: Vec<(TableId, StreamId, Arc<Outbox>)>,
}

impl OutboxesOnNode {
    /// Prepares the work outside of an app, if it has any.
    ///
    /// # Errors
    /// When a table or stream is missing or has wrong columns.
    pub fn of(
        spec: &AppSpec,
        functions: &Arc<AppFunctions>,
        sources: u32,
        env: &Env,
    ) -> Result<Option<Arc<dyn Outboxes>>> {
        let mut all = Vec::new();
        for decl in &spec.externals {
            let refuse = |what: String| Error::program(what).at(decl.at.clone());
            let program = functions.program();
            let table = program.tables.iter().position(|spec| *spec.name == *decl.outbox);
            let table =
                table.ok_or_else(|| refuse(format!("there is no table {}", decl.outbox)))?;
            let answers = functions.taken(&decl.answers).map_err(|e| e.at(decl.at.clone()))?;
            let columns = functions.columns(&decl.answers)?;
            let outbox = Outbox::new(decl, &program.tables[table], columns)?;
            all.push((TableId(table as u16), answers, outbox));
        }
        let (env, functions) = (env.clone(), functions.clone());
        let outboxes = OutboxesOnNode { env, functions, sources, all };
        Ok((!outboxes.all.is_empty()).then(|| Arc::new(outboxes) as Arc<dyn Outboxes>))
    }
}

impl Outboxes for OutboxesOnNode {
    fn begin(&self, log: Arc<dyn Log>) -> Result<()> {
        for (_, stream, outbox) in &self.all {
            let answers: Arc<dyn Answers> = Arc::new(Logged {
                log: log.clone(),
                functions: self.functions.clone(),
                sources: self.sources,
                stream: *stream,
                outbox: outbox.clone(),
            });
            outbox.start(&self.env, &answers).inspect_err(|_| self.end())?;
        }
        Ok(())
    }

    fn changed(&self, all: bool, rows: Vec<(TableId, Key, Stored)>) {
        for (table, _, outbox) in &self.all {
            let own = rows.iter().filter(|(of, ..)| of == table);
            outbox.changed(all, own.map(|(_, key, row)| (key.clone(), row.clone())));
        }
    }

    fn end(&self) {
        self.all.iter().for_each(|(_, _, outbox)| outbox.end());
    }
}

/// A stream of answers in the log.
struct Logged {
    log: Arc<dyn Log>,
    functions: Arc<AppFunctions>,
    sources: u32,
    stream: StreamId,
    outbox: Arc<Outbox>,
}

impl Logged {
    /// Returns an answer as an event, and its source.
    fn event(&self, answer: &[Value]) -> Option<(u32, Events)> {
        let calls = self.functions.event(self.stream, answer).ok()?;
        let partition = partition_of(self.functions.program(), calls.first()?).ok()?;
        let source = tidemill_host::source_of(partition, self.sources);
        let batch = Batch::from_rows(self.outbox.columns().clone(), [answer]);
        Some((source, Events { stream: self.stream, from: None, is_run: false, batch }))
    }
}

impl Answers for Logged {
    fn pass(&self, answer: &[Value]) -> Passed {
        let Some((source, event)) = self.event(answer) else { return Passed::Refused };
        let (tell, told) = channel();
        let then = move |result: std::result::Result<u64, _>| {
            // The receiver still exists.
            let _ = tell.send(result.is_ok());
        };
        self.log.append(Topic::Input(source), 0, Record::Events(event), Box::new(then));
        match told.recv() {
            Ok(true) => Passed::Recorded,
            Ok(false) | Err(_) => Passed::NotYet,
        }
    }
}
