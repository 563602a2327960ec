//! An app on several processes as its clients see it, at any of its processes.
//!
//! Each process appends its clients' calls to the log. The coordinator finds the replies there, and
//! sends workers those to theirs. It alone knows the status and the retained rows of streams
//! ([`Home`]).

use std::collections::BTreeMap;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;

use tidemill_core::{Batch, Error, Key, Result, Row, Schema, TableId, Value};
use tidemill_env::{Clock, Env};
use tidemill_function::{output_bytes, Bounds, Call, Functions as _, Target};
use tidemill_host::{Answer, RequestServer};
use tidemill_place::{partition_in, Partition};
use tidemill_txn::program::{Abort, Program, Take};

use super::ClusterSettings;
use crate::calls::{self, Procedure, Then};
use crate::clients::{App, Declared, Health, RetainedRows, StreamProgress};
use crate::followed::Changes;
use crate::functions::AppFunctions;
use crate::requests::Request;
use crate::rings::Rings;
use crate::serve;
use crate::settings::Settings;
use crate::spec::AppSpec;

/// The longest wait for a row, that for a generation which reads it, and the pause between looks,
/// in microseconds.
const ROW_WAIT_US: u64 = 10_000_000;
const GENERATION_WAIT_US: u64 = 1_000_000;
const LOOK_US: u64 = 20_000;

/// The knowledge of the coordinator, at its own process or asked from a worker's.
pub(super) trait Home: Send + Sync {
    /// As [`App::is_remote`].
    fn is_remote(&self) -> bool;

    /// Whether a generation runs.
    fn has_generation(&self) -> bool;

    /// As [`App::retained`], for a stream that has retained rows.
    fn retained(&self, stream: &str, from: u64, rows_max: usize) -> Result<RetainedRows>;

    /// As [`App::changes`]. At first there are no changes; the news tell when there may be some.
    fn changes(&self, table: TableId, epoch: u64) -> Result<Changes>;

    /// As [`App::is_recovering`].
    fn is_recovering(&self) -> bool;

    /// As [`App::news`].
    fn news(&self, seen: StreamProgress, timeout_us: u64) -> StreamProgress;

    /// As [`App::health`].
    fn health(&self) -> Health;

    /// As [`App::metrics`].
    fn metrics(&self) -> String;

    /// As [`App::answers_at`].
    fn answers_at(&self, address: &str);
}

/// A process of an app as its clients see it.
#[derive(Clone)]
pub struct Clients {
    requests: Requests,
    home: Arc<dyn Home>,
}

/// The part of [`Clients`] that every process has by itself.
#[derive(Clone)]
pub(super) struct Requests {
    pub server: Arc<RequestServer>,
    pub functions: Arc<AppFunctions>,
    /// The program as the user has declared it.
    program: Arc<Program>,
    procedures: Arc<BTreeMap<String, Procedure>>,
    version: Option<String>,
    settings: Arc<Settings>,
    /// The streams with retained rows, without these.
    empty: Arc<Rings>,
    message_bytes_max: usize,
    clock: Arc<dyn Clock>,
}

impl Requests {
    /// Takes requests with a request server.
    pub fn new(
        spec: &AppSpec,
        functions: &Arc<AppFunctions>,
        settings: &ClusterSettings,
        server: RequestServer,
        env: &Env,
    ) -> Requests {
        let written = spec.sinks.iter().map(|decl| decl.stream.clone()).collect();
        Requests {
            server: Arc::new(server),
            functions: functions.clone(),
            procedures: Arc::new(procedures(&spec.program, spec)),
            program: Arc::new(spec.program.clone()),
            version: spec.version.clone(),
            settings: Arc::new(spec.settings.clone()),
            empty: Rings::on_several(functions.program(), &spec.settings, &written, &[]).into(),
            message_bytes_max: settings.message_bytes_max,
            clock: env.clock.clone(),
        }
    }

    /// Whether clients may see the rows of a stream.
    pub fn is_shown(&self, stream: &str) -> bool {
        !calls::is_of_private(&self.program, &self.procedures, stream)
    }

    /// Returns the clients of this process.
    pub fn with(&self, home: Arc<dyn Home>) -> Clients {
        Clients { requests: self.clone(), home }
    }

    fn partition(&self, table: TableId, key: &[Value]) -> Partition {
        partition_in(&self.functions.program().tables[table.index()], &Key::of(key))
    }

    /// Finds a table.
    fn table(&self, name: &str) -> Result<TableId> {
        let number = self.program.tables.iter().position(|spec| *spec.name == *name);
        let missing = || Error::program(format!("there is no table {name}"));
        number.map(|number| TableId(number as u16)).ok_or_else(missing)
    }
}

/// Returns the partition of a call's entity.
pub(crate) fn partition_of(program: &Program, call: &Call) -> Result<Partition> {
    let key = program.stored_key(call.table, &call.key);
    let key = Key::of(&key.map_err(|abort| Error::input(abort.reason))?);
    Ok(partition_in(&program.tables[call.table.index()], &key))
}

/// The procedures that clients can call, all of them with request ids.
fn procedures(program: &Program, spec: &AppSpec) -> BTreeMap<String, Procedure> {
    let mut procedures = calls::procedures(program, &spec.procedures);
    procedures.values_mut().for_each(|procedure| procedure.takes_requests = true);
    procedures
}

impl Clients {
    /// Waits for the result of a call that reads rows. It waits a moment only for a generation that
    /// executes the call.
    fn read(&self, partition: Partition, call: Call) -> Result<Value> {
        let (tell, told) = channel();
        let mut call = Some((call, tell));
        let Requests { server, clock, .. } = &self.requests;
        let now_us = || clock.monotonic_ns() / 1_000;
        let begun_us = now_us();
        let mut idle_since_us = begun_us;
        while now_us() - begun_us < ROW_WAIT_US {
            let runs = self.home.has_generation();
            if runs {
                idle_since_us = now_us();
            } else if now_us() - idle_since_us >= GENERATION_WAIT_US {
                break;
            }
            if let Some((call, tell)) = call.take_if(|_| runs) {
                let source = server.source_of(partition);
                server.call(source, call, Box::new(move |answer| drop(tell.send(answer))));
            }
            match told.recv_timeout(Duration::from_micros(LOOK_US)) {
                Ok(Answer::Returned(value)) => return Ok(value),
                Ok(Answer::Aborted(abort)) => return Err(Error::input(abort.reason)),
                Ok(Answer::Unknown) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Err(Error::resource("no worker answers now")
            .help("start a worker, or wait until the running ones have recovered"))
    }
}

impl App for Clients {
    fn declared(&self) -> Declared<'_> {
        let Requests { program, settings, procedures, version, .. } = &self.requests;
        Declared { program, settings, procedures, version: version.as_deref() }
    }

    fn streams(&self) -> Vec<(String, Arc<Schema>)> {
        self.requests.empty.streams()
    }

    fn retained(&self, stream: &str, from: u64, rows_max: usize) -> Result<RetainedRows> {
        self.home.retained(stream, from, rows_max)
    }

    fn is_remote(&self) -> bool {
        self.home.is_remote()
    }

    fn is_recovering(&self) -> bool {
        self.home.is_recovering()
    }

    fn changes(&self, table: &str, epoch: u64) -> Result<Changes> {
        self.home.changes(self.requests.table(table)?, epoch)
    }

    fn news(&self, seen: StreamProgress, timeout_us: u64) -> StreamProgress {
        self.home.news(seen, timeout_us)
    }

    fn health(&self) -> Health {
        self.home.health()
    }

    fn metrics(&self) -> String {
        self.home.metrics()
    }

    fn answers_at(&self, address: &str) {
        self.requests.server.begin();
        let scheme = if self.requests.settings.http_cert.is_some() { "https" } else { "http" };
        self.home.answers_at(&format!("{scheme}://{address}"));
    }

    fn row(&self, table: &str, key: &[Value]) -> Result<Option<Row>> {
        let table = self.requests.table(table)?;
        let refused = |abort: Abort| Error::input(abort.reason);
        let key = self.requests.program.stored_key(table, key).map_err(refused)?;
        let partition = self.requests.partition(table, &key);
        let call = Call { target: Target::Get, table, key: key.into(), args: [].into() };
        match self.read(partition, call)? {
            Value::List(row) => Ok(Some(row.to_vec().into())),
            _ => Ok(None),
        }
    }

    fn rows_after(
        &self,
        table: &str,
        after: Option<&[Value]>,
        limit: usize,
    ) -> Result<(Vec<Row>, bool)> {
        let program = &self.requests.program;
        let table = self.requests.table(table)?;
        let spec = &program.tables[table.index()];
        if !spec.ordered {
            let what = format!(
                "table {} is not ordered, and has its rows on several processes",
                spec.name
            );
            return Err(Error::program(what)
                .help("declare it with ordered=True, or read single rows with ?key="));
        }
        let refused = |abort: Abort| Error::input(abort.reason);
        let after = after.map(|key| program.stored_key(table, key)).transpose();
        let after = after.map_err(refused)?;
        // The row after which the page begins may be there, and there may be rows after the page.
        let most = limit.saturating_add(2).min(u32::MAX as usize) as u32;
        let key: Arc<[Value]> = after.as_deref().unwrap_or_default().into();
        let target = Target::Gather(Bounds::Between, Take::First(most));
        let call = Call { target, table, key, args: [].into() };
        let Value::List(found) = self.read(Partition(0), call)? else {
            return Ok(Default::default());
        };
        let rows = found.iter().filter_map(|row| match row {
            Value::List(row) => Some(Row::from(row.to_vec())),
            _ => None,
        });
        let is_after = |row: &Row| {
            let key = || spec.key.iter().map(|column| &row[*column]);
            after.as_ref().is_none_or(|after| !key().eq(after))
        };
        let mut rows: Vec<Row> = rows.filter(is_after).collect();
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, has_more))
    }

    fn call_then(
        &self,
        procedure: &str,
        arguments: Batch,
        request: Option<Request>,
        then: Then,
    ) -> Result<()> {
        let Requests { server, functions, .. } = &self.requests;
        let row = arguments.row(0);
        let call = match &request {
            None => functions.call(procedure, &row)?,
            Some(request) => functions.request(procedure, &row, request)?,
        };
        let partition = partition_of(functions.program(), &call)?;
        let max = self.requests.message_bytes_max;
        let values = [&call.key[..], &call.args].concat();
        if output_bytes(&values) > max {
            let bytes = functions.output_bytes(&values);
            if bytes > max {
                let what = format!("the call takes {bytes} bytes in the log, and may take {max}");
                let help = "send less, or raise cluster_message_bytes_max";
                return Err(Error::input(what).help(help));
            }
        }
        let may_ask_again = request.is_some();
        let (functions, of) = (functions.clone(), call.clone());
        let answered = move |answer| {
            let outcome = match answer {
                Answer::Returned(value) => Ok(value),
                Answer::Aborted(abort) => Err(abort),
                Answer::Unknown => {
                    let error = Error::resource("it is unknown whether the call was recorded");
                    return then(Err(error.help(match may_ask_again {
                        true => "repeat the call with the same id: it is executed once",
                        false => "check whether its changes were made before you repeat the call",
                    })));
                }
            };
            then(Ok(functions.replied(&of, outcome).0));
        };
        server.call(server.source_of(partition), call, Box::new(answered));
        Ok(())
    }
}

/// Returns retained rows of a stream.
///
/// # Errors
/// When clients may not see them, or none are retained.
pub(super) fn retained(
    requests: &Requests,
    rings: &Rings,
    (stream, from, rows_max): (&str, u64, usize),
) -> Result<RetainedRows> {
    serve::ring_among(rings, stream, |stream| requests.is_shown(stream))
        .map(|ring| ring.retained(from, rows_max))
        .map_err(|error| serve::no_rows(error, &requests.program, stream, true))
}
