//! A running app.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_connect::PushHandle;
use tidemill_core::{Batch, Cut, Error, Kind, Result, Row, Schema, SourceId, Value};
use tidemill_env::{Env, Handle};
use tidemill_flow::{Deposit, Gate, Spec};
use tidemill_table::Table;
use tidemill_txn::execute::{HandlerCounts, Serial};
use tidemill_txn::order::Sequencer;
use tidemill_txn::program::{Origin, Program};

use crate::conduct::{Driver, SnapshotPlan};
use crate::counts::Counts;
use crate::deliver::{self, Delivery, Item, Logs};
use crate::feed::stopped;
use crate::inspect::path_words;
use crate::open::{open, Opened, Opening};
use crate::outlets::Kept;
use crate::records::{put_verdict, Verdict};
use crate::recover::Recorded;
use crate::report::{HandlerReport, Status, Summary, TableReport, UnstableReport};
use crate::settings::Durable;
use crate::snapshots::Keeper;
use crate::spec::AppSpec;
use crate::trial::{Suspect, Trial};

/// Rows that a worker reads of a source at a time.
const ROWS_MAX: usize = 16_384;
/// How long an idle worker parks at most.
const PARK_US: u64 = 1_000;

/// What the engine's threads and the handle share.
pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    pub(crate) out: Mutex<Out>,
    /// There is something new in `out`, or the run has ended.
    pub(crate) delivered: Condvar,
    /// Nothing leaves before its cut is durable.
    pub(crate) is_durable: bool,
    stop: AtomicBool,
    /// A snapshot is being taken.
    snapshot: Mutex<bool>,
    snapshot_done: Condvar,
    drains: Mutex<Drains>,
    drained: Condvar,
    end: Mutex<End>,
    ended: Condvar,
}

/// The tables, as the executor left them.
pub(crate) struct State {
    pub(crate) tables: Vec<Table>,
    /// The last epoch that was executed.
    pub(crate) epoch: u64,
}

/// What has left the engine, all of it durable where anything is.
#[derive(Default)]
pub(crate) struct Out {
    pub(crate) epoch: u64,
    /// Per source: rows before this one are in a cut.
    pub(crate) offsets: Vec<u64>,
    pub(crate) counts: Counts,
    pub(crate) outputs: BTreeMap<String, u64>,
    pub(crate) output_hash: u128,
    pub(crate) kept: Kept,
    pub(crate) cuts: Vec<Cut>,
    /// Nothing more will come, ever.
    pub(crate) is_last: bool,
    /// What is recorded is being executed again.
    pub(crate) is_recovering: bool,
    /// Why writing waits, while it does.
    pub(crate) stalled: Option<Error>,
    /// The epoch of the newest snapshot, and how many were taken.
    pub(crate) snapshot_epoch: u64,
    pub(crate) snapshots: u64,
    /// Records of the logs (inputs, cuts) below these are needed no more.
    pub(crate) trim: Option<(u64, u64)>,
}

#[derive(Default)]
struct Drains {
    /// Number of the last request, and what it waits for: rows of each source.
    wanted: u64,
    targets: Vec<u64>,
    done: u64,
}

#[derive(Default)]
struct End {
    over: bool,
    seconds: f64,
    error: Option<Error>,
}

impl Shared {
    pub(crate) fn stop_wanted(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn drain_wanted(&self) -> Option<(u64, Vec<u64>)> {
        let drains = self.drains.lock();
        (drains.wanted > drains.done).then(|| (drains.wanted, drains.targets.clone()))
    }

    pub(crate) fn drained(&self, number: u64) {
        let mut drains = self.drains.lock();
        drains.done = drains.done.max(number);
        self.drained.notify_all();
    }

    pub(crate) fn fail(&self, error: Error) {
        self.end.lock().error.get_or_insert(error);
        self.delivered.notify_all();
        // Whoever waits for a snapshot must not wait for one that will never be.
        *self.snapshot.lock() = false;
        self.snapshot_done.notify_all();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.end.lock().error.is_some()
    }

    /// Whether what can't be done now is not to be tried any more.
    pub(crate) fn gives_up(&self) -> bool {
        self.stop_wanted() || self.has_failed()
    }

    /// Whether a snapshot may begin; it has then.
    pub(crate) fn begin_snapshot(&self) -> bool {
        !std::mem::replace(&mut *self.snapshot.lock(), true)
    }

    pub(crate) fn snapshot_done(&self) {
        *self.snapshot.lock() = false;
        self.snapshot_done.notify_all();
    }

    /// Waits until none is being taken.
    pub(crate) fn wait_for_snapshot(&self) {
        let mut taking = self.snapshot.lock();
        while *taking {
            self.snapshot_done.wait(&mut taking);
        }
    }

    /// Waits until a recovery is over and an epoch has left the engine; not beyond the end of the
    /// run.
    fn wait_for(&self, epoch: u64) -> Result<()> {
        let mut out = self.out.lock();
        while out.epoch < epoch || out.is_recovering {
            let end = self.end.lock();
            if let Some(error) = &end.error {
                return Err(error.clone());
            }
            if end.over {
                return Ok(());
            }
            drop(end);
            // The time-out guards against an end between the two locks.
            self.delivered.wait_for(&mut out, Duration::from_millis(10));
        }
        Ok(())
    }
}

/// The verdict on an input that has killed the process too often.
///
/// # Errors
/// When it was executed before and answered for: leaving it out would change that.
fn judge(suspect: &Suspect, last_epoch: u64, sources: &[String]) -> Result<Verdict> {
    let Suspect { source, offset, deaths, epoch } = *suspect;
    let name = sources.get(source.index()).map_or("", String::as_str);
    if epoch <= last_epoch {
        return Err(Error::internal(format!(
            "row {offset} of source {name} ends the process when it is executed again ({deaths} \
             times now); it was executed in epoch {epoch} before, and answered for"
        ))
        .help(
            "look for what differs now: memory, versions of libraries, the machine; then start \
             again, or restore a backup",
        ));
    }
    let reason = format!("it ended the process {deaths} times");
    Ok(Verdict { source, offset, from_epoch: last_epoch + 1, reason })
}

/// A running app. All methods may be called from any thread.
pub struct Mill {
    program: Arc<Program>,
    env: Env,
    gate: Arc<Gate>,
    shared: Arc<Shared>,
    pushed: BTreeMap<String, Pushed>,
    sources: usize,
    has_followed: bool,
    paths: Vec<String>,
    started_ns: u64,
    /// What was done before the start.
    before: Before,
    thread: Mutex<Option<Handle>>,
}

/// What is known of the runs before.
struct Before {
    /// The last recorded epoch, and the rows of all sources up to it.
    epoch: u64,
    rows: u64,
    /// Events that are not executed again.
    events: u64,
}

struct Pushed {
    source: SourceId,
    handle: PushHandle,
    /// An earlier run has recorded its end.
    is_over: bool,
    /// Rows known when the engine started, and all that are known by now.
    known: u64,
    sent: AtomicU64,
}

impl Mill {
    /// Opens an app and starts it.
    ///
    /// # Errors
    /// When the program, a setting, a source or a sink is wrong; nothing runs then.
    pub fn start(spec: AppSpec, env: Env) -> Result<Mill> {
        let settings = spec.settings.clone();
        settings.check()?;
        let (items, receiver) = deliver::channel();
        let Opened { program, inputs, workers, pushed, sources, tables, outlets, failed, durable } =
            open(spec, &env, &items)?;
        let started_ns = env.clock.monotonic_ns();
        let internal = durable.as_ref().and_then(|d| d.recovered.internal.clone());
        let counts = match &internal {
            Some(internal) => internal.facts.counts.clone(),
            None => {
                let handlers = vec![HandlerCounts::default(); program.handlers.len()];
                Counts { handlers, ..Counts::default() }
            }
        };
        let epoch = internal.as_ref().map_or(0, |i| i.facts.epoch);
        let last = durable.as_ref().and_then(|d| d.recovered.cuts.back());
        let was_over =
            internal.is_some() && last.is_none() && sources.iter().all(|source| source.ended);
        let over: Vec<SourceId> = match last {
            Some(last) => last.record.cut.ended.clone(),
            None => {
                let ids = (0..sources.len() as u32).map(SourceId);
                ids.filter(|s| sources[s.index()].ended).collect()
            }
        };
        let before = Before {
            epoch: last.map_or(epoch, |last| last.record.cut.epoch),
            rows: match last {
                Some(last) => last.record.cut.offsets.iter().sum(),
                None => sources.iter().map(|s| s.next_offset).sum(),
            },
            events: counts.events,
        };
        let out = Out {
            epoch,
            offsets: sources.iter().map(|s| s.next_offset).collect(),
            counts: counts.clone(),
            outputs: outlets.rows(),
            output_hash: outlets.hash(),
            is_recovering: durable.as_ref().is_some_and(|d| !d.recovered.cuts.is_empty()),
            snapshot_epoch: epoch,
            // Whoever ended it may not have come to completing the sinks.
            is_last: was_over,
            ..Out::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State { tables, epoch }),
            out: Mutex::new(out),
            delivered: Condvar::new(),
            is_durable: durable.is_some(),
            snapshot: Mutex::new(false),
            snapshot_done: Condvar::new(),
            stop: AtomicBool::new(false),
            drains: Mutex::default(),
            drained: Condvar::new(),
            end: Mutex::default(),
            ended: Condvar::new(),
        });
        let gate = Gate::new(settings.epoch_bytes_max as u64);
        let mut serial = Serial::new(program.clone(), settings.rerun_every);
        let paths = serial.paths().iter().map(|p| path_words(p).0.to_string()).collect();
        let source_count = sources.len();
        let has_followed = sources.iter().any(|source| source.is_followed);
        let sequencer = match &internal {
            Some(internal) => {
                serial = serial.after(internal.facts.seq);
                Sequencer::restore(program.clone(), internal.sequencer())?
            }
            None => Sequencer::new(program.clone())?,
        };
        let wanted = outlets.by_name.iter().filter(|(name, outlet)| {
            let of = program.streams.iter().find(|s| *s.spec.name == ***name);
            let passes =
                of.is_some_and(|s| matches!(s.origin, Origin::Input | Origin::Derived { .. }));
            passes && outlet.is_wanted()
        });
        let wanted = wanted.map(|(name, _)| name.clone()).collect();
        let mut delivery = Delivery {
            env: env.clone(),
            shared: shared.clone(),
            items: receiver,
            outlets,
            logs: None,
            keeper: None,
            keep_cuts: settings.keep_cuts,
        };
        let (mut replay, mut verdicts, mut snapshots, mut dir) = Default::default();
        let mut trial = None;
        let program_names: Vec<String> =
            program.sources.iter().map(|source| source.name.to_string()).collect();
        if let Some(Opening { dir: held, recovered, fingerprint, program }) = durable {
            if settings.durable == Durable::LogAndSnapshots {
                let keeper = Keeper::start(
                    &env,
                    shared.clone(),
                    recovered.store,
                    held.app,
                    fingerprint,
                    program,
                )?;
                delivery.keeper = Some(keeper);
                snapshots = Some(SnapshotPlan {
                    every_ns: settings.snapshot_us as u64 * 1000,
                    last_ns: started_ns,
                    is_due: false,
                });
            }
            delivery.logs = Some(Logs {
                input: recovered.input,
                cuts: recovered.cut_log,
                fingerprint,
                logged: recovered.logged,
            });
            (replay, verdicts) = (recovered.cuts, recovered.verdicts);
            let (tried, suspect) = Trial::open(&env.disk, &held.path)?;
            trial = Some(tried);
            let last = replay.back().map_or(epoch, |r: &Recorded| r.record.cut.epoch);
            let limit = settings.poison_after.max(2);
            if let Some(suspect) = suspect.filter(|suspect| suspect.deaths >= limit) {
                let verdict = judge(&suspect, last, &program_names)?;
                // It comes before every cut that obeys it.
                let record = put_verdict(&verdict);
                items.send(Item::Verdict(record)).map_err(|_| stopped())?;
                verdicts.push(verdict);
            }
            dir = Some(held);
        }
        // Epochs of the flow are numbered from 1.
        match replay.front() {
            Some(first) => gate.open_to(1, &first.record.cut.offsets),
            None => gate.open(1),
        }
        let driver = Driver {
            env: env.clone(),
            sequencer,
            program: program.clone(),
            settings,
            counts,
            gate: gate.clone(),
            shared: shared.clone(),
            serial,
            items,
            wanted,
            failed,
            sources,
            replay,
            was_over,
            gathered: Deposit::default(),
            verdicts,
            trial,
            on_their_way: VecDeque::new(),
            snapshots,
            open: 1,
            closing: false,
            first_row_ns: None,
            draining: None,
            drain_cut: 0,
        };
        let rows_max = ROWS_MAX.min(driver.settings.epoch_rows_max);
        let flow =
            Spec { env: env.clone(), workers, mesh: None, inputs, rows_max, park_us: PARK_US };
        let delivering = env
            .threads
            .spawn("tidemill-out", Box::new(move || delivery.run()))
            .map_err(|e| Error::io("starting the engine's delivery", &e))?;
        let thread = {
            let (gate, shared, env) = (gate.clone(), shared.clone(), env.clone());
            let body = move || {
                let result = tidemill_flow::run(flow, gate, Box::new(driver));
                // Whoever sends to the delivery has gone with the flow, so that it ends.
                let delivered = delivering.join();
                let mut end = shared.end.lock();
                // What the delivery says is the cause; that it is gone is what others find.
                if let Err(error) = result {
                    end.error.get_or_insert(error);
                }
                if let Err(panic) = delivered {
                    let what = format!("the engine's delivery: {panic}");
                    end.error.get_or_insert(Error::internal(what));
                }
                end.seconds = (env.clock.monotonic_ns() - started_ns) as f64 / 1e9;
                drop(end);
                // Held until nothing is written any more. A panic is as good as a death.
                let panicked =
                    shared.end.lock().error.as_ref().map(|e| e.kind) == Some(Kind::Internal);
                if let Some(dir) = dir.filter(|_| !panicked) {
                    Trial::close(&*env.disk, &dir.path);
                }
                shared.end.lock().over = true;
                shared.ended.notify_all();
                shared.drained.notify_all();
                shared.delivered.notify_all();
            };
            env.threads
                .spawn("tidemill-engine", Box::new(body))
                .map_err(|e| Error::io("starting the engine's thread", &e))?
        };
        let pushed = pushed
            .into_iter()
            .map(|(name, (source, handle, known))| {
                let is_over = over.contains(&source);
                (name, Pushed { source, handle, is_over, known, sent: AtomicU64::new(known) })
            })
            .collect();
        Ok(Mill {
            program,
            env,
            gate,
            shared,
            pushed,
            sources: source_count,
            has_followed,
            paths,
            started_ns,
            before,
            thread: Mutex::new(Some(thread)),
        })
    }

    fn pushed(&self, stream: &str) -> Result<&Pushed> {
        self.pushed.get(stream).ok_or_else(|| {
            let names: Vec<&str> = self.pushed.keys().map(String::as_str).collect();
            Error::program(format!("stream {stream} is not open for sending")).help(format!(
                "streams without a source are; here: {}",
                if names.is_empty() { "none".into() } else { names.join(", ") }
            ))
        })
    }

    /// Sends events into a pushed stream; waits while its queue is full. Gives the row behind
    /// them, for [`acknowledge`](Mill::acknowledge): several threads may send.
    ///
    /// # Errors
    /// When the stream is not pushed, the batch is not of its schema, or the run has ended.
    pub fn send(&self, stream: &str, batch: Batch) -> Result<u64> {
        let pushed = self.pushed(stream)?;
        if pushed.is_over {
            return Err(Error::program(format!("stream {stream} was ended for good by an earlier run"))
                .help("its end is recorded in the data directory: stop instead of finishing when more will come; a fresh start forgets everything"));
        }
        // A batch larger than a worker's reading would only be cut again.
        let sent = pushed.handle.send(batch).map_err(|e| self.error().unwrap_or(e))?;
        let sent = pushed.known + sent;
        pushed.sent.fetch_max(sent, Ordering::AcqRel);
        self.gate.wake_source(pushed.source);
        Ok(sent)
    }

    /// Rows of a pushed stream that are known to the engine, from whatever run: whoever sends goes
    /// on behind them after a restart.
    ///
    /// # Errors
    /// When the stream is not pushed.
    pub fn sent(&self, stream: &str) -> Result<u64> {
        Ok(self.pushed(stream)?.sent.load(Ordering::Acquire))
    }

    /// Waits until so many rows of a pushed stream are in a cut that is durable (where anything
    /// is): their transactions have been executed, or they wait for their watermark.
    ///
    /// # Errors
    /// When the stream is not pushed, and what ended the run, if it has ended before.
    pub fn acknowledge(&self, stream: &str, rows: u64) -> Result<()> {
        let source = self.pushed(stream)?.source.index();
        let mut out = self.shared.out.lock();
        while out.offsets[source] < rows {
            let end = self.shared.end.lock();
            if let Some(error) = &end.error {
                return Err(error.clone());
            }
            if end.over {
                return Err(Error::resource("the engine has stopped before these rows were taken")
                    .help("send them again after the next start: sent() says from which on"));
            }
            drop(end);
            self.shared.delivered.wait_for(&mut out, Duration::from_millis(10));
        }
        Ok(())
    }

    fn error(&self) -> Option<Error> {
        self.shared.end.lock().error.clone()
    }

    /// Waits until everything sent so far is committed (durably, where anything is) and every file is
    /// read to its end, one that is followed to its present one. Pushed and followed streams in
    /// event time are flushed: the cut holds them idle.
    ///
    /// # Errors
    /// What ended the run, if it has ended by an error.
    pub fn drain(&self) -> Result<()> {
        let mut drains = self.shared.drains.lock();
        let mut targets = vec![0; self.sources];
        for pushed in self.pushed.values() {
            targets[pushed.source.index()] = pushed.sent.load(Ordering::Acquire);
        }
        drains.wanted += 1;
        // Later requests wait for more, so they answer the earlier ones, too.
        drains.targets = targets;
        let number = drains.wanted;
        self.gate.wake();
        loop {
            let end = self.shared.end.lock();
            if let Some(error) = &end.error {
                return Err(error.clone());
            }
            if drains.done >= number || end.over {
                return Ok(());
            }
            drop(end);
            // Woken at the latest when the run ends; the time-out only guards against a wake-up
            // that came between the two locks.
            self.shared.drained.wait_for(&mut drains, Duration::from_millis(10));
        }
    }

    /// Ends all input, runs everything to the end and closes the sinks. Files that are followed
    /// never end: with one of them this is a [`drain`](Mill::drain) and a [`stop`](Mill::stop).
    ///
    /// # Errors
    /// What ended the run, if it was an error.
    pub fn finish(&self) -> Result<Summary> {
        if self.has_followed {
            // What is followed never ends by itself.
            self.drain()?;
            return self.stop();
        }
        for pushed in self.pushed.values() {
            pushed.handle.close();
        }
        self.gate.wake();
        self.join()?;
        self.summary()
    }

    /// Ends after what is in work: makes a cut, executes it, closes the sinks. Events that wait
    /// for their watermark stay unexecuted.
    ///
    /// # Errors
    /// What ended the run, if it was an error.
    pub fn stop(&self) -> Result<Summary> {
        // Pushed streams are not closed first: their end would let the watermark go to the end.
        self.shared.stop.store(true, Ordering::Release);
        self.gate.wake();
        let ended = self.join();
        for pushed in self.pushed.values() {
            pushed.handle.close();
        }
        ended?;
        self.summary()
    }

    fn join(&self) -> Result<()> {
        // Held while joining: a second caller waits here for the same end.
        let mut thread = self.thread.lock();
        if let Some(handle) = thread.take() {
            handle.join().map_err(|panic| Error::internal(format!("the engine: {panic}")))?;
        }
        self.error().map_or(Ok(()), Err)
    }

    /// Waits up to so long for the end of the run; whether it has come.
    ///
    /// # Errors
    /// What ended the run, if it was an error.
    pub fn wait(&self, timeout_us: u64) -> Result<bool> {
        let mut end = self.shared.end.lock();
        if !end.over {
            self.shared.ended.wait_for(&mut end, Duration::from_micros(timeout_us));
        }
        match &end.error {
            Some(error) => Err(error.clone()),
            None => Ok(end.over),
        }
    }

    fn seconds(&self) -> f64 {
        let end = self.shared.end.lock();
        if end.over {
            return end.seconds;
        }
        (self.env.clock.monotonic_ns() - self.started_ns) as f64 / 1e9
    }

    /// Events a second since the start; what was executed before it does not count.
    fn events_per_s(&self, counts: &Counts, seconds: f64) -> f64 {
        (counts.events - self.before.events) as f64 / seconds.max(1e-9)
    }

    /// Where the run is.
    pub fn status(&self) -> Status {
        let seconds = self.seconds();
        let ended = self.shared.end.lock().over;
        let out = self.shared.out.lock();
        let counts = &out.counts;
        let sum = |of: fn(&HandlerCounts) -> u64| counts.handlers.iter().map(of).sum::<u64>();
        let aborted = sum(|h| h.aborted);
        Status {
            epoch: counts.epochs,
            events: counts.events,
            transactions: sum(|h| h.committed) + aborted,
            aborted,
            dead: counts.dead,
            late: counts.late,
            parked: counts.parked,
            lag_us: counts.lag_us,
            seconds,
            events_per_s: self.events_per_s(counts, seconds),
            ended,
            recovering: out.is_recovering,
            stalled: out.stalled.as_ref().map(|error| error.what.clone()),
            snapshot_epoch: out.snapshot_epoch,
            snapshots: out.snapshots,
            known_epoch: self.before.epoch,
            known_rows: self.before.rows,
        }
    }

    /// A table's rows by key, as the last cut left them.
    ///
    /// # Errors
    /// When there is no such table.
    pub fn table(&self, name: &str) -> Result<Batch> {
        let index = self.table_index(name)?;
        self.shared.wait_for(0)?;
        let state = self.shared.state.lock();
        let (batch, epoch) = (state.tables[index].to_batch(), state.epoch);
        drop(state);
        self.shared.wait_for(epoch)?;
        Ok(batch)
    }

    /// One row of a table, as the last cut left it, by a value for each key column.
    ///
    /// # Errors
    /// When there is no such table, or the values are not a key of it.
    pub fn row(&self, table: &str, key: &[Value]) -> Result<Option<Row>> {
        let index = self.table_index(table)?;
        self.shared.wait_for(0)?;
        let state = self.shared.state.lock();
        let spec = state.tables[index].spec().clone();
        let columns = spec.key.iter().map(|c| &spec.schema.columns[*c]);
        if key.len() != spec.key.len() {
            return Err(Error::input(format!(
                "a key of table {table} has {} columns, not {}",
                spec.key.len(),
                key.len()
            )));
        }
        let key: Vec<Value> = key
            .iter()
            .zip(columns)
            .map(|(value, column)| {
                tidemill_core::rules::store(value, column)
                    .map_err(|fault| Error::input(format!("table {table}: {fault}")))
            })
            .collect::<Result<_>>()?;
        let (row, epoch) = (state.tables[index].get(&key), state.epoch);
        drop(state);
        self.shared.wait_for(epoch)?;
        Ok(row)
    }

    /// The columns of a table.
    ///
    /// # Errors
    /// When there is no such table.
    pub fn schema(&self, table: &str) -> Result<Arc<Schema>> {
        Ok(self.program.tables[self.table_index(table)?].schema.clone())
    }

    fn table_index(&self, name: &str) -> Result<usize> {
        let found = self.program.tables.iter().position(|t| &*t.name == name);
        found.ok_or_else(|| Error::program(format!("there is no table {name}")))
    }

    /// The kept events of a stream, from batch number `from` on.
    ///
    /// # Errors
    /// When there is no such stream.
    pub fn output(&self, stream: &str, from: usize) -> Result<Vec<Batch>> {
        let out = self.shared.out.lock();
        let batches = out.kept.batches.get(stream);
        Ok(batches.map_or(Vec::new(), |b| b[from.min(b.len())..].to_vec()))
    }

    /// The cuts so far, when the setting `keep_cuts` is on.
    pub fn cuts(&self) -> Vec<Cut> {
        self.shared.out.lock().cuts.clone()
    }

    /// What has been done so far.
    ///
    /// # Errors
    /// What ended the run in the midst of a recovery.
    pub fn summary(&self) -> Result<Summary> {
        self.shared.wait_for(0)?;
        let seconds = self.seconds();
        let state = self.shared.state.lock();
        let out = self.shared.out.lock();
        let counts = &out.counts;
        let state_hash = state.tables.iter().fold(0u128, |sum, t| sum.wrapping_add(t.state_hash()));
        let handlers: Vec<HandlerReport> = (self.program.handlers.iter().zip(&counts.handlers))
            .zip(&self.paths)
            .map(|((handler, counts), path)| HandlerReport {
                name: handler.name.to_string(),
                path: path.clone(),
                committed: counts.committed,
                aborted: counts.aborted,
            })
            .collect();
        let committed: u64 = handlers.iter().map(|h| h.committed).sum();
        let refused: u64 = handlers.iter().map(|h| h.aborted).sum();
        let tables = state.tables.iter().map(|t| TableReport {
            name: t.spec().name.to_string(),
            rows: t.len() as u64,
            bytes: t.bytes() as u64,
        });
        let unstable = counts.unstable.iter().map(|(handler, (event, times))| UnstableReport {
            handler: self.program.handlers[*handler].name.to_string(),
            at: self.program.handlers[*handler].at.clone(),
            event: event.clone(),
            times: *times,
        });
        Ok(Summary {
            app: self.program.name.to_string(),
            events: counts.events,
            transactions: committed + refused,
            committed,
            refused,
            dead: counts.dead,
            late: counts.late,
            epochs: counts.epochs,
            seconds,
            events_per_s: self.events_per_s(counts, seconds),
            handlers,
            tables: tables.collect(),
            outputs: out.outputs.clone(),
            unstable: unstable.collect(),
            state_hash: format!("{state_hash:032x}"),
            output_hash: format!("{:032x}", out.output_hash),
        })
    }

    /// What an app is and how it will run: tables, streams, handlers with their paths and why.
    ///
    /// # Errors
    /// When the program is wrong.
    pub fn inspect(spec: &AppSpec) -> Result<serde_json::Value> {
        crate::inspect::inspect(spec)
    }
}

impl Drop for Mill {
    fn drop(&mut self) {
        // A handle that is dropped without an end must not leave threads behind.
        let _ = self.stop();
    }
}
