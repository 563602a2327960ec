//! Workloads of calls over several processes. A client offers requests to a running cluster, waits
//! for every reply, and compares all rows with those of the baseline.
//!
//! Replies have the place of their requests in the one order. The baseline executes the same
//! requests in that order, so they need not commute. Also the numbers of orders, and who gets the
//! last room, must be right.
//!
//! | file | contents |
//! | --- | --- |
//! | `load` | the interface of a workload |
//! | `endpoint` | the two ways in: the coordinator's request server, and topics of Kafka |
//! | `by_column` | events in batches, without replies |
//! | `offer` | requests at a rate, or up to a number in flight, and their replies |

mod by_column;
mod endpoint;
mod load;
mod offer;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_connect::values;
use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::wire::columns_bytes;
use tidemill_core::{Batch, BatchBuilder, Error, Key, Result, Row, StreamId, TableId, Value};
use tidemill_engine::{AppFunctions, Cluster};
use tidemill_env::Env;
use tidemill_function::{Call, Functions, Target};
use tidemill_kafka::KafkaSettings;
use tidemill_place::{partition_in, PARTITIONS};
use tidemill_txn::Program;

pub(crate) use load::{Ended, Load, Wanted};

use self::by_column::SentEvents;
use self::endpoint::{Endpoint, RequestServer, Topics};
use self::offer::{offer, Pace, Planned, Replied};
use crate::args::Args;
use crate::push::latency;
use crate::report::Latency;

/// The largest number in flight of the requests that fill tables or read the final rows.
const UNDER_WAY: usize = 20_000;
/// The number of consecutive requests to one source.
const STICKY: usize = 64;
/// The number of events in a batch without replies, unless `together` says another.
const BATCH: usize = 2048;
/// The prefix of the streams that fill tables; the table's name follows.
const FILLING: &str = "filling.";
/// The suffix of the streams of calls, after the function's name.
const CALLS: &str = ".calls";

/// The way of a client into a cluster.
pub enum Way {
    /// The request server in the coordinator's process.
    RequestServer(Arc<Cluster>),
    /// The topics of a cluster of this name.
    Kafka {
        /// Addresses `host:port`, separated by commas.
        brokers: String,
        /// The name of the cluster.
        cluster: String,
        /// Further properties of librdkafka.
        properties: BTreeMap<String, String>,
    },
}

/// The way of offering requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offered {
    /// The number of the cluster's sources.
    pub sources: u32,
    /// The number of its processes, for `multi`.
    pub processes: usize,
    /// The longest time in which requests are offered, in seconds.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Without a rate, the largest number of requests in flight.
    pub under_way: usize,
    /// The longest time without a reply before the run is given up, in seconds.
    pub patience_s: f64,
    /// The number of requests before the measured ones: a broker is slow at first.
    #[serde(default)]
    pub warm_up: usize,
    /// The largest number of requests in a message of Kafka, or of events in a batch.
    #[serde(default)]
    pub together: usize,
    /// The percentage of transfers between accounts of different processes.
    #[serde(default)]
    pub multi: Option<f64>,
}

/// The report of a run.
#[derive(Serialize)]
struct Report {
    workload: String,
    program: &'static str,
    /// The place of the client.
    client: &'static str,
    events: usize,
    seconds: f64,
    events_per_s: f64,
    offered_per_s: Option<f64>,
    latency_ms: Latency,
    aborted: u64,
    /// The reason of the first abort.
    why_aborted: Option<String>,
    unanswered: usize,
    /// The number of replies. Nobody waits for those of events that are sent in batches.
    replies: usize,
    /// The bytes in the log for each byte of the events' columns, where they are sent in batches.
    log_bytes_per_input_byte: Option<f64>,
    /// Repeated replies, which occur where two generations have appended them.
    seen_again: u64,
    rows_compared: usize,
    rows_wrong: usize,
    fill_seconds: f64,
    state_hash: String,
    valid: bool,
}

/// Runs a workload. `args_json` has the options of benchmarks in general, and `offered_json` those
/// of [`Offered`].
///
/// # Errors When an option is wrong, or the cluster can't be reached.
pub fn offer_json(
    args_json: &str,
    offered_json: &str,
    functions: &Arc<AppFunctions>,
    way: Way,
    progress: &mut dyn FnMut(&str),
) -> Result<String> {
    let args = Args::from_json(args_json)?;
    let offered: Offered = serde_json::from_str(offered_json)
        .map_err(|e| Error::setting(format!("how to offer requests: {e}")))?;
    let load = load::of(&args, functions.program().clone(), &offered)?;
    let env = Env::real();
    let Offered { sources, processes, .. } = offered;
    let asked = Cell::new(0);
    let runner = Runner { env, functions, sources, processes, load: &*load, asked };
    let report = runner.run(&args, &offered, way, progress)?;
    serde_json::to_string(&report).map_err(|e| Error::internal(format!("writing the report: {e}")))
}

struct Runner<'a> {
    env: Env,
    functions: &'a Arc<AppFunctions>,
    sources: u32,
    processes: usize,
    load: &'a dyn Load,
    /// The number of requests made so far.
    asked: Cell<usize>,
}

impl Runner<'_> {
    fn run(
        &self,
        args: &Args,
        offered: &Offered,
        way: Way,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Report> {
        let is_text = matches!(way, Way::Kafka { .. });
        let opening = self.opening(is_text)?;
        let cluster = match &way {
            Way::RequestServer(cluster) => Some(cluster.clone()),
            Way::Kafka { .. } => None,
        };
        let events = match cluster {
            Some(_) => self.events(if offered.together > 1 { offered.together } else { BATCH })?,
            None => None,
        };
        let has_replies = events.is_none();
        let calls = if has_replies { self.calls(is_text)? } else { Vec::new() };
        let (mut endpoint, client): (Box<dyn Endpoint>, _) = match way {
            Way::RequestServer(cluster) => {
                (Box::new(RequestServer::new(cluster)), "in the coordinator's process")
            }
            Way::Kafka { brokers, cluster, properties } => {
                let mut settings = KafkaSettings::new(&brokers, &cluster, self.sources);
                settings.properties = properties;
                if offered.together > 1 {
                    // Requests have waited for each other already.
                    settings.linger_ms = 0;
                }
                let topics = Topics::open(&self.env, &settings, offered.together)?;
                (Box::new(topics), "a process of its own")
            }
        };
        let plain = Pace {
            rate: None,
            seconds: None,
            under_way: UNDER_WAY,
            patience_s: offered.patience_s,
            keeps_values: false,
            warm_up: 0,
        };
        let mut first = 0;
        let mut all = |asked: &[Planned], pace: &Pace| -> Result<Replied> {
            let replied = offer(&self.env, &mut *endpoint, first, asked, pace);
            first += asked.len() as u64;
            replied
        };
        progress(&format!("{} rows to begin with", opening.len()));
        let filled = all(&opening, &plain)?;
        if filled.unanswered + filled.aborted as usize > 0 {
            let why = filled.reason.unwrap_or_default();
            let what = format!("{} rows could not be made {why}", filled.unanswered);
            return Err(Error::resource(what).help("see what the workers say"));
        }
        drop(opening);
        let count: usize = events.iter().flatten().map(|events| events.batch.len()).sum();
        progress(&format!("{} requests", calls.len() + count));
        let (rate, seconds, under_way) = (args.rate, offered.seconds, offered.under_way);
        let warm_up = offered.warm_up;
        let pace = Pace { rate, seconds, under_way, warm_up, ..plain.clone() };
        let (mut replied, log_bytes_per_input_byte) = match (cluster, events) {
            (Some(cluster), Some(events)) => {
                let before = cluster.log_bytes();
                let sent = by_column::send(&self.env, &cluster, self.sources, &events, &pace)?;
                let log = cluster.log_bytes().zip(before).map(|(now, before)| now - before);
                let columns = |events: &SentEvents| columns_bytes(&events.batch) as f64;
                let input = events.iter().map(columns).sum::<f64>();
                // A run that ends early has sent a part of the events.
                let share = sent.sent as f64 / count.max(1) as f64;
                (sent, log.map(|log| log as f64 / (input * share).max(1.0)))
            }
            _ => (all(&calls, &pace)?, None),
        };
        drop(calls);
        let ended = self.load.end(&replied.order());
        progress(&format!("{} rows to compare", ended.wanted.len()));
        let gets = self.gets(&ended.wanted)?;
        let found = all(&gets, &Pace { keeps_values: true, ..plain })?;
        let mut tables: Vec<Vec<Row>> = vec![Vec::new(); self.load.parts().tables.len()];
        let mut rows_wrong = 0;
        for (nth, Wanted { table, row, .. }) in ended.wanted.iter().enumerate() {
            let there: Option<Row> = match found.values.get(&nth) {
                Some(Value::List(row)) => Some(row.to_vec().into()),
                _ => None,
            };
            rows_wrong += usize::from(there != *row);
            tables[*table].extend(there);
        }
        let state_hash = self.state_hash(&mut tables);
        let valid = rows_wrong == 0
            && found.unanswered == 0
            && found.aborted == 0
            && replied.unanswered == 0
            && !replied.differs
            && replied.aborted == ended.aborts
            && self.load.holds(&tables);
        let seconds = replied.ns as f64 / 1e9;
        Ok(Report {
            workload: args.workload.clone(),
            program: args.program.name(),
            client,
            events: replied.sent,
            seconds,
            events_per_s: (replied.sent - replied.warm_up).saturating_sub(replied.unanswered)
                as f64
                / seconds,
            offered_per_s: rate,
            latency_ms: latency(&mut replied.waits_ns),
            aborted: replied.aborted,
            why_aborted: replied.reason,
            unanswered: replied.unanswered,
            replies: if has_replies { replied.sent - replied.unanswered } else { 0 },
            log_bytes_per_input_byte,
            seen_again: replied.seen_again,
            rows_compared: ended.wanted.len() - found.unanswered,
            rows_wrong,
            fill_seconds: filled.ns as f64 / 1e9,
            state_hash,
            valid,
        })
    }

    /// Returns the initial rows as events that fill tables.
    fn opening(&self, is_text: bool) -> Result<Vec<Planned>> {
        let parts = self.load.parts();
        let mut asked = Vec::new();
        for (at, id) in parts.tables.iter().enumerate() {
            let stream = format!("{FILLING}{}", parts.program.tables[id.index()].name);
            for row in self.load.opening(at) {
                asked.push(self.event(&stream, &row, is_text)?);
            }
        }
        Ok(asked)
    }

    fn calls(&self, is_text: bool) -> Result<Vec<Planned>> {
        let parts = self.load.parts();
        let of = |(stream, row): (usize, Row)| {
            let id = parts.inputs[stream].0;
            let name = &*parts.program.streams[id.index()].spec.name;
            match parts.program.calls.contains(&id) {
                true => self.call(name.strip_suffix(CALLS).unwrap_or(name), &row, is_text),
                false => self.event(name, &row, is_text),
            }
        };
        self.load.calls().into_iter().map(of).collect()
    }

    /// Returns the requests as events by column, if all of them can be executed so and nobody waits
    /// for their results.
    fn events(&self, together: usize) -> Result<Option<Vec<SentEvents>>> {
        let parts = self.load.parts();
        let program = &parts.program;
        let is_by_column = |(id, _): &(StreamId, _)| {
            let name = &program.streams[id.index()].spec.name;
            let of = || self.functions.taken(name).ok();
            !program.calls.contains(id)
                && of()
                    .is_some_and(|id| self.functions.by_column(id).is_some_and(|of| of.len() == 1))
        };
        if !parts.inputs.iter().all(is_by_column) {
            return Ok(None);
        }
        let (mut all, mut open) = (Vec::new(), BTreeMap::new());
        let close = |(stream, source): (usize, u32), of: (Vec<u32>, BatchBuilder)| {
            let name = &program.streams[parts.inputs[stream].0.index()].spec.name;
            let (numbers, mut rows) = of;
            let stream = self.functions.taken(name)?;
            Ok::<_, Error>(SentEvents { source, stream, numbers, batch: rows.finish() })
        };
        for (number, (stream, row)) in (0..).zip(self.load.calls()) {
            let spec = &program.streams[parts.inputs[stream].0.index()].spec;
            let source = self.event(&spec.name, &row, false)?.source;
            let made = || (Vec::new(), BatchBuilder::new(spec.schema.clone()));
            let (numbers, rows) = open.entry((stream, source)).or_insert_with(made);
            numbers.push(number);
            rows.push(&row);
            if numbers.len() == together {
                let of = open.remove(&(stream, source)).expect("it was made");
                all.push(close((stream, source), of)?);
            }
        }
        for (to, of) in open {
            all.push(close(to, of)?);
        }
        Ok(Some(all))
    }

    fn gets(&self, wanted: &[Wanted]) -> Result<Vec<Planned>> {
        let parts = self.load.parts();
        let of = |Wanted { table, key, .. }: &Wanted| {
            let (table, args) = (parts.tables[*table], [].into());
            let call = Call { target: Target::Get, table, key: key.clone().into(), args };
            self.planned(call, None)
        };
        wanted.iter().map(of).collect()
    }

    fn call(&self, name: &str, row: &[Value], is_text: bool) -> Result<Planned> {
        let text = is_text.then(|| -> Result<Vec<u8>> {
            let schema = self.functions.parameters(name)?;
            let mut text = format!("{{\"call\":\"{name}\",\"args\":").into_bytes();
            values::write_row(&schema, row, &mut text);
            text.push(b'}');
            Ok(text)
        });
        self.planned(self.functions.call(name, row)?, text.transpose()?)
    }

    fn event(&self, name: &str, row: &[Value], is_text: bool) -> Result<Planned> {
        let text = is_text.then(|| -> Result<Vec<u8>> {
            let schema = self.functions.columns(name)?;
            let mut text = format!("{{\"event\":\"{name}\",\"row\":").into_bytes();
            values::write_row(&schema, row, &mut text);
            text.push(b'}');
            Ok(text)
        });
        self.planned(self.functions.only_event(name, row)?, text.transpose()?)
    }

    /// Returns a request at a source whose reader owns its entity, if shares are equal.
    ///
    /// Some consecutive requests go to the same of these sources, as with clients of Kafka: for a
    /// broker, one message costs as much as many.
    fn planned(&self, call: Call, text: Option<Vec<u8>>) -> Result<Planned> {
        let program = self.functions.program();
        let key = program.stored_key(call.table, &call.key);
        let key = key.map_err(|abort| Error::input(abort.reason))?;
        let partition = partition_of(program, call.table, &key);
        let (sources, processes) = (self.sources as usize, self.processes.max(1));
        let owner = usize::from(partition) * processes / usize::from(PARTITIONS);
        let first = (owner * sources).div_ceil(processes).min(sources - 1);
        let behind = ((owner + 1) * sources).div_ceil(processes);
        let own = behind.saturating_sub(first).max(1);
        let nth = self.asked.replace(self.asked.get() + 1);
        Ok(Planned { source: (first + nth / STICKY % own) as u32, call, text })
    }

    fn state_hash(&self, tables: &mut [Vec<Row>]) -> String {
        let parts = self.load.parts();
        let of = |(id, rows): (&TableId, &mut Vec<Row>)| {
            let spec = &parts.program.tables[id.index()];
            let key = |row: &Row| Key::of(spec.key.iter().map(|column| &row[*column]));
            rows.sort_by_cached_key(key);
            let mut hash = RowsHash::default();
            hash.take(&Batch::from_rows(spec.schema.clone(), rows.iter().map(|row| &**row)));
            (&*spec.name, hash)
        };
        format!("{:032x}", streams_hash(parts.tables.iter().zip(tables).map(of)))
    }
}

/// Returns the number of a key's partition.
pub(crate) fn partition_of(program: &Program, table: TableId, key: &[Value]) -> u16 {
    partition_in(&program.tables[table.index()], &Key::of(key)).0
}
