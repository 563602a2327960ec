//! The handle of a running app.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_connect::push::TrySend;
use tidemill_core::{Batch, Cut, Error, Key, Kind, Result, Row, Schema, SourceId, StreamId, Value};
use tidemill_env::{Env, Handle};
use tidemill_flow::{Deposit, Gate, Spec};
use tidemill_txn::execute::Executor;
use tidemill_txn::order::{Groups, Sequencer};
use tidemill_txn::program::{slide_of, Program};
use tidemill_txn::reasons::Reasons;
use tracing::dispatcher::{get_default, with_default};
use tracing::{info, warn, Dispatch};

use crate::awaited::Awaited;
use crate::calls::{self, Calls, Reply, Then};
use crate::clocks;
use crate::counts::Counts;
use crate::crash_guard::{self, CrashGuard, Suspect};
use crate::deliver::{self, Delivery, Item, Logs, Progress};
use crate::driver::{present_input, Driver, SnapshotPlan};
use crate::external;
use crate::feed::stopped;
use crate::file_conflicts;
use crate::full_disk::SpaceWaiter;
use crate::inspect::path_words;
use crate::logging::{self, Paced};
use crate::lookups::Lookups;
use crate::open::{open, Opened, Opening};
use crate::reasons;
use crate::recent::Recent;
use crate::records::{put_verdict, Verdict};
use crate::recover::Recorded;
use crate::report::{ReasonReport, Status, Summary};
use crate::requests::{self, Request};
use crate::rings::Rings;
use crate::serve::{self, Server};
use crate::settings::{Durable, Recovery};
use crate::shared::{Delivered, Shared, State};
use crate::snapshots::Keeper;
use crate::spec::AppSpec;
use crate::timers;
use crate::upgrade;
use crate::view::{Before, Pushed, View};
use crate::workers::Workers;

/// The most rows that a worker reads from a source at once.
const ROWS_MAX: usize = 16_384;
/// The time that a waiting caller sleeps between two checks, in microseconds.
const LOOK_US: u64 = 1_000_000;
/// The longest sleep of an idle worker, in microseconds.
const PARK_US: u64 = 1_000;

/// Returns the verdict on an input, or a slide of a window, that has killed the process too often.
///
/// # Errors
/// When an earlier run executed the input and acknowledged it. Quarantining it would change results
/// that have been delivered.
fn judge(suspect: &Suspect, last_epoch: u64, program: &Program) -> Result<Verdict> {
    let Suspect { event: (source, offset), deaths, epoch } = *suspect;
    if epoch <= last_epoch {
        let what = program.event_named((source, offset));
        return Err(Error::internal(format!(
            "{what} ends the process when it is executed again ({deaths} times so far), although epoch {epoch} \
             executed it before and acknowledged it"
        ))
        .help(
            "find what has changed, such as memory, versions of libraries or the machine; then start \
             again, or restore a backup",
        ));
    }
    let reason = match slide_of((source, offset)) {
        Some(_) => {
            format!(
                "it ended the process {deaths} times, each time while nothing else was executed"
            )
        }
        None => format!(
            "it ended the process {deaths} times, each time while nothing else was executed; \
             'tidemill dlq replay' sends it again, if its stream is pushed"
        ),
    };
    Ok(Verdict { source, offset, from_epoch: last_epoch + 1, reason })
}

/// A running app. All methods may be called from any thread.
pub struct Mill {
    pub(crate) view: Arc<View>,
    thread: Mutex<Option<Handle>>,
    log: Dispatch,
}

impl Mill {
    /// Opens an app and starts it. Without settings for its log, it logs to the present dispatcher of
    /// `tracing`.
    ///
    /// # Errors
    /// When the program, a setting, a source or a sink is wrong. Nothing runs then.
    pub fn start(spec: AppSpec, env: Env) -> Result<Mill> {
        spec.settings.check_log()?;
        if spec.settings.log_to.is_some() {
            // The check comes first, because the log is written from its first line on.
            file_conflicts::check(&spec, &[], &env)?;
        }
        let log = logging::open(&spec.settings, &env, None)?;
        with_default(&log, || Mill::begin(spec, env).inspect_err(logging::failed))
    }

    /// Runs something that logs to the app's log.
    pub fn logged<T>(&self, body: impl FnOnce() -> T) -> T {
        with_default(&self.log, body)
    }

    fn begin(spec: AppSpec, env: Env) -> Result<Mill> {
        let settings = spec.settings.clone();
        settings.check()?;
        let begun_ns = env.clock.monotonic_ns();
        logging::started(&spec.program.name, settings.data_dir.as_deref(), &settings);
        let (decls, externals) = (spec.sources.clone(), spec.externals.clone());
        let (said, version) = (spec.procedures.clone(), spec.version.clone());
        let (items, receiver) = deliver::channel();
        let Opened {
            program,
            inputs,
            workers,
            pushed,
            sources,
            tables,
            outlets,
            waits,
            failed,
            troubles,
            durable,
            has_request_clock,
            asks_outside,
        } = open(spec, &env, &items)?;
        let started_ns = env.clock.monotonic_ns();
        let internal = durable.as_ref().and_then(|d| d.recovered.internal.clone());
        let counts = match &internal {
            Some(internal) => internal.facts.counts.clone(),
            None => Counts::none(&program),
        };
        let epoch = internal.as_ref().map_or(0, |i| i.facts.epoch);
        let last = durable.as_ref().and_then(|d| d.recovered.cuts.back());
        let sequencer = match &internal {
            Some(internal) => Sequencer::restore(program.clone(), internal.sequencer())?,
            None => Sequencer::new(program.clone())?,
        };
        let is_held =
            internal.is_some() && last.is_none() && sequencer.is_held(&present_input(&sources));
        let has_ended = internal.is_some() && sources.iter().all(|source| source.ended);
        let was_over = has_ended && last.is_none() && !is_held;
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
        let (clock_us, seq) = internal.as_ref().map_or((0, 0), |i| (i.facts.clock_us, i.facts.seq));
        let mut rings = match &durable {
            Some(_) => Rings::new(&program, &settings),
            // Without a data directory, only clients over HTTP follow streams.
            None if settings.http_port.is_some() => Rings::new(&program, &settings),
            None => Rings::default(),
        };
        if let Some(internal) = &internal {
            rings.resume(internal);
        }
        if let Some(opening) = &durable {
            let (closed, shown) = (opening.dir.closed, opening.dir.path.display());
            if closed.closed > 0 {
                let (data_dir, files) = (shown.to_string(), closed.closed);
                warn!(target: "tidemill::engine", data_dir, files, "closed");
            }
            if closed.open > 0 {
                let what = format!(
                    "{} files are readable by other users, and this process can't change that: another user owns them",
                    closed.open
                );
                troubles.report(&format!("data directory {shown}"), &what);
            }
            if let Some(upgraded) = &opening.upgraded {
                upgrade::report(upgraded);
            }
            opening.recovered.report();
        }
        let is_recovering = last.is_some();
        let recorded = durable.as_ref().map_or(0, |d| d.recovered.cuts.len() as u64);
        let out = Delivered {
            epoch,
            offsets: sources.iter().map(|s| s.next_offset).collect(),
            counts: counts.clone(),
            outputs: outlets.rows(),
            output_hash: outlets.hash(),
            is_recovering,
            snapshot_epoch: epoch,
            // The process that ended the run may have stopped before it completed the sinks.
            is_last: was_over,
            ..Delivered::default()
        };
        let groups = Groups::of(&program)?;
        let at = (epoch, clock_us, seq);
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(tables, groups, durable.is_some(), at)),
            out: Mutex::new(out),
            delivered: Condvar::new(),
            delivered_epoch: AtomicU64::new(epoch),
            is_full: AtomicBool::new(false),
            troubles,
            calls: Calls::default(),
            reasons: Mutex::new(
                internal.as_ref().map_or_else(Reasons::default, |i| i.facts.reasons.clone()),
            ),
            rings: Mutex::new(rings),
            rings_changed: Condvar::new(),
            followed: Mutex::default(),
            recent: Recent::default(),
            copying: Mutex::new(()),
            force: AtomicBool::new(false),
            is_durable: durable.is_some(),
            snapshot: Mutex::new(false),
            snapshot_done: Condvar::new(),
            stop: AtomicBool::new(false),
            stops_now: AtomicBool::new(false),
            others_ended: AtomicBool::new(false),
            asked_all: AtomicU64::new(0),
            drains: Mutex::default(),
            drained: Condvar::new(),
            end: Mutex::default(),
            ended: Condvar::new(),
        });
        let waiting: Arc<dyn SpaceWaiter> = shared.clone();
        // This can't fail: it is set only here.
        let _ = waits.set(Arc::downgrade(&waiting));
        let gate = Gate::new(settings.epoch_bytes_max as u64);
        let strategy = settings.strategy.parse()?;
        let mut executor = Executor::new(program.clone(), strategy, settings.rerun_every);
        if settings.recovery == Recovery::Strong && durable.is_some() {
            executor = executor.logging();
        }
        if internal.is_some() {
            executor = executor.after(seq);
        }
        let pool = Workers::start(&env, workers)?;
        let paths = executor.paths().iter().map(|p| path_words(p).0.to_string()).collect();
        let has_followed = sources.iter().any(|source| source.is_followed);
        let wanted = outlets.by_name.iter().filter(|(name, outlet)| {
            let of = program.streams.iter().find(|s| *s.spec.name == ***name);
            let passes = of.is_some_and(|s| !s.is_output());
            passes && outlet.is_wanted()
        });
        let wanted = wanted.map(|(name, _)| name.clone()).collect();
        let mut delivery = Delivery {
            env: env.clone(),
            shared: shared.clone(),
            program: program.clone(),
            items: receiver,
            outlets,
            aborting: reasons::aborting(&program),
            logs: None,
            keeper: None,
            keep_cuts: settings.keep_cuts,
            tail: (settings.tail_rows, settings.tail_bytes),
            is_recovering,
            progress: Progress::new(&env, begun_ns, recorded),
            dead: Paced::after(counts.dead),
            late: Paced::after(counts.late),
            changed: durable.as_ref().map(Opening::changed).unwrap_or_default(),
            accepts: settings.accept_replay,
        };
        let (mut replay, mut verdicts, mut snapshots) = Default::default();
        let (mut dir, mut site) = (None, None);
        let mut guard = None;
        if let Some(Opening { dir: held, recovered, fingerprint, program: text, .. }) = durable {
            site = Some((held.site(), fingerprint));
            if settings.durable == Durable::LogAndSnapshots {
                let keeper = Keeper::start(
                    &env,
                    shared.clone(),
                    recovered.store,
                    held.app,
                    fingerprint,
                    text,
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
            let (mut tried, suspect) = CrashGuard::open(&env.disk, &held.path)?;
            let last = replay.back().map_or(epoch, |r: &Recorded| r.record.cut.epoch);
            let limit = settings.poison_after;
            if let Some(event) = tried.spared {
                crash_guard::report_spared(&program, event);
            }
            if let Some(suspect) = suspect.filter(|suspect| suspect.deaths >= limit) {
                let verdict = judge(&suspect, last, &program).or_else(|error| {
                    // The deaths are forgotten after this report. A user who starts again means to
                    // try again, and something else may have killed the process.
                    tried.forget(&suspect)?;
                    Err(error)
                })?;
                let (event, reason) = (program.event_named(suspect.event), &*verdict.reason);
                warn!(target: "tidemill::source", event, reason, "quarantined");
                // The verdict precedes every cut that obeys it.
                let record = put_verdict(&verdict);
                items.send(Item::Verdict(record)).map_err(|_| stopped())?;
                verdicts.push(verdict);
            }
            tried.is_recovering = !replay.is_empty();
            guard = Some(tried);
            dir = Some(held);
        }
        // Events that a dead process executed go into a snapshot soon, in case this process dies,
        // too.
        let is_careful = guard.as_ref().is_some_and(CrashGuard::is_careful);
        snapshots.iter_mut().for_each(|plan| plan.is_due = is_careful);
        let last_clock_us =
            replay.back().map_or(clock_us, |last: &Recorded| last.record.cut.clock_us);
        let (now_us, max_us) = (env.clock.now_us(), settings.clock_jump_us_max);
        clocks::check(now_us, last_clock_us, 0, max_us, guard.is_some())?;
        let (slides_us, is_open) = {
            let state = shared.state.lock();
            (executor.due_us(&state.tables), executor.is_open(&state.tables))
        };
        let named = |name: &str| program.streams.iter().position(|s| &*s.spec.name == name);
        let answers = externals.iter().filter_map(|external| named(&external.answers));
        let answers = answers.map(|stream| StreamId(stream as u16)).collect();
        let mut driver = Driver {
            env: env.clone(),
            sequencer,
            program: program.clone(),
            settings: settings.clone(),
            counts,
            gate: gate.clone(),
            shared: shared.clone(),
            executor,
            pool,
            items,
            wanted,
            failed,
            sources,
            answers,
            replay,
            awaited: Awaited::default(),
            was_over,
            gathered: Deposit::default(),
            verdicts,
            guard,
            on_their_way: VecDeque::new(),
            begun_ns: started_ns,
            last_clock_us,
            last_cut_ns: started_ns,
            limits: None,
            careful_rows: u64::from(!was_over),
            has_request_clock,
            lookups: asks_outside.then(|| Lookups::new(&env, settings.deadline())),
            slides_us,
            is_open,
            is_held,
            snapshots,
            open: 1,
            closing: false,
            first_row_ns: None,
            draining: None,
            drain_cut: 0,
        };
        // The flow numbers its epochs from 1.
        match driver.replay.front() {
            Some(first) => gate.open_to(1, &first.record.cut.offsets),
            None => driver.open_next(1),
        }
        let pushed = pushed
            .into_iter()
            .map(|(name, (source, handle, known))| {
                let is_over = over.contains(&source);
                (name, Pushed { source, handle, is_over, known, sent: AtomicU64::new(known) })
            })
            .collect();
        let procedures = calls::procedures(&program, &said);
        let view = Arc::new(View {
            program,
            env: env.clone(),
            gate: gate.clone(),
            shared: shared.clone(),
            pushed,
            answers: externals.iter().map(|external| external.answers.clone()).collect(),
            procedures,
            version,
            paths,
            started_ns,
            decls,
            settings,
            site,
            http: OnceLock::new(),
            has_followed,
            before,
        });
        external::start(&view, externals)?;
        let server = Server::start(&view)?;
        let timers = timers::start(&view)?;
        let rows_max = ROWS_MAX.min(driver.settings.epoch_rows_max);
        let flow = Spec { env: env.clone(), workers, inputs, rows_max, park_us: PARK_US };
        let delivering = env
            .threads
            .spawn("tidemill-out", Box::new(move || delivery.run()))
            .map_err(|e| Error::io("starting the engine's delivery", &e))?;
        let thread = {
            let (gate, shared, env) = (gate.clone(), shared.clone(), env.clone());
            let body = move || {
                let result = tidemill_flow::run(flow, gate, Box::new(driver));
                // The delivery ends, because its senders have ended with the flow.
                let delivered = delivering.join();
                let mut end = shared.end.lock();
                // An error of the delivery is the cause. The flow's error only says that the
                // delivery is gone.
                if let Err(error) = result {
                    end.error.get_or_insert(error);
                }
                if let Err(panic) = delivered {
                    let what = format!("the engine's delivery: {panic}");
                    end.error.get_or_insert(Error::internal(what));
                }
                end.seconds = (env.clock.monotonic_ns() - started_ns) as f64 / 1e9;
                let (failed, seconds) = (end.error.is_some(), end.seconds);
                info!(target: "tidemill::engine", failed, seconds, "stop");
                drop(end);
                shared.rings_changed.notify_all();
                if let Some(timers) = timers {
                    // The timers end by themselves, because the run has ended.
                    let _ = timers.join();
                }
                server.stop();
                // The directory is locked until nothing writes any more. After a panic the crash
                // guard stays open, as after a crash. It also stays open after a stopped recovery,
                // because the events under suspicion have not been executed yet.
                let panicked =
                    shared.end.lock().error.as_ref().map(|e| e.kind) == Some(Kind::Internal);
                let has_recovered = !shared.out.lock().is_recovering;
                if let Some(dir) = dir.filter(|_| !panicked && has_recovered) {
                    CrashGuard::close(&*env.disk, &dir.path);
                }
                let error = {
                    let mut end = shared.end.lock();
                    end.over = true;
                    end.error.clone()
                };
                shared.calls.end(error);
                shared.ended.notify_all();
                shared.drained.notify_all();
                shared.delivered.notify_all();
            };
            env.threads
                .spawn("tidemill-engine", Box::new(body))
                .map_err(|e| Error::io("starting the engine's thread", &e))?
        };
        Ok(Mill { view, thread: Mutex::new(Some(thread)), log: get_default(Dispatch::clone) })
    }

    /// Sends events into a pushed stream, and waits while its queue is full. Returns the number of
    /// the row after them, for [`acknowledge`](Mill::acknowledge). Several threads may send. Events
    /// for a procedure that is called are its parameters, and the results of such calls are
    /// dropped.
    ///
    /// # Errors
    /// When the stream is not pushed, the batch does not have its schema, or the run has ended.
    pub fn send(&self, stream: &str, batch: Batch) -> Result<u64> {
        let mut batch = batch;
        loop {
            match self.send_within(stream, batch, LOOK_US)? {
                TrySend::Sent(sent) => return Ok(sent),
                TrySend::Full(back) => batch = back,
            }
        }
    }

    /// Sends events as [`send`](Mill::send) does, but waits at most `us` microseconds for room in
    /// the queue. Returns the events after that.
    ///
    /// # Errors
    /// As [`send`](Mill::send).
    pub fn send_within(&self, stream: &str, batch: Batch, us: u64) -> Result<TrySend> {
        let pushed = self.view.pushed(stream)?;
        if pushed.is_over {
            return Err(Error::program(format!("stream {stream} was ended for good by an earlier run"))
                .help("the data directory records its end: call stop() instead of finish() when more rows will come; a fresh start deletes all data"));
        }
        let batch = requests::without_ids(pushed.handle.schema(), batch);
        // Large batches are not split here: a worker splits them when it reads them.
        let sent = pushed.handle.send_within(batch, Duration::from_micros(us));
        let sent = match sent.map_err(|e| self.view.shared.error().unwrap_or(e))? {
            TrySend::Sent(sent) => pushed.known + sent,
            full => return Ok(full),
        };
        pushed.sent.fetch_max(sent, Ordering::AcqRel);
        self.view.gate.wake_source(pushed.source);
        Ok(TrySend::Sent(sent))
    }

    /// Calls a procedure, and waits for the result of its transaction. With a data directory, the
    /// result is durable then. `arguments` is one event of the procedure's stream of calls.
    ///
    /// # Errors
    /// When the call is wrong, when too many calls wait, or when the run ends before the reply.
    pub fn call(&self, procedure: &str, arguments: Batch) -> Result<Reply> {
        let (tell, told) = crossbeam_channel::bounded(1);
        // The receiver exists until it has the reply.
        let then = Box::new(move |reply| drop(tell.send(reply)));
        self.call_then(procedure, arguments, None, then)?;
        told.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Calls a procedure. `then` receives the result on a thread that it must not block.
    ///
    /// A caller with a request id may repeat a call that got no reply, or only the end of the
    /// engine. The call is executed once. An aborted call has left nothing, and is executed again.
    ///
    /// # Errors
    /// When the call is wrong, or too many calls wait. `then` is not called in these cases. Not
    /// every procedure accepts request ids.
    pub fn call_then(
        &self,
        procedure: &str,
        arguments: Batch,
        request: Option<Request>,
        then: Then,
    ) -> Result<()> {
        let (pushed, event) = calls::callable(&self.view, procedure, arguments, request)?;
        let sent = self.view.shared.calls.call(pushed, event, then)?;
        pushed.sent.fetch_max(sent, Ordering::AcqRel);
        self.view.gate.wake_source(pushed.source);
        Ok(())
    }

    /// Returns how many rows of a pushed stream the engine has, over all runs. A sender continues
    /// there after a restart.
    ///
    /// # Errors
    /// When the stream is not pushed.
    pub fn sent(&self, stream: &str) -> Result<u64> {
        Ok(self.view.pushed(stream)?.sent.load(Ordering::Acquire))
    }

    /// Waits until the first `rows` rows of a pushed stream are in a cut, which is durable if there
    /// is a data directory. Their transactions have been executed by then, or they are buffered.
    ///
    /// # Errors
    /// When the stream is not pushed. When the run ended before, with its error.
    pub fn acknowledge(&self, stream: &str, rows: u64) -> Result<()> {
        while !self.acknowledge_within(stream, rows, LOOK_US)? {}
        Ok(())
    }

    /// Waits at most `us` microseconds for the same as [`acknowledge`](Mill::acknowledge). Returns
    /// whether it has happened.
    ///
    /// # Errors
    /// As [`acknowledge`](Mill::acknowledge).
    pub fn acknowledge_within(&self, stream: &str, rows: u64, us: u64) -> Result<bool> {
        let until_ns = self.until(us);
        let source = self.view.pushed(stream)?.source.index();
        let mut out = self.view.shared.out.lock();
        while out.offsets[source] < rows {
            let end = self.view.shared.end.lock();
            if let Some(error) = &end.error {
                return Err(error.clone());
            }
            if end.over {
                return Err(Error::resource("the engine has stopped before these rows were taken")
                    .help(
                        "send them again after the next start, from the row on that sent() returns",
                    ));
            }
            drop(end);
            if self.view.env.clock.monotonic_ns() >= until_ns {
                return Ok(false);
            }
            self.view.shared.delivered.wait_for(&mut out, Duration::from_millis(10));
        }
        Ok(true)
    }

    /// The time in `us` microseconds from now, in nanoseconds of the monotonic clock.
    fn until(&self, us: u64) -> u64 {
        self.view.env.clock.monotonic_ns().saturating_add(us.saturating_mul(1000))
    }

    /// Waits until everything sent so far is committed, durably if there is a data directory. All
    /// files are then read to the end, and followed files to their present end. Pushed and followed
    /// streams with event time are flushed: the cut treats them as idle.
    ///
    /// # Errors
    /// The error that ended the run, if there is one.
    pub fn drain(&self) -> Result<()> {
        let number = self.ask_to_drain();
        while !self.drained_within(number, LOOK_US)? {}
        Ok(())
    }

    /// Requests a drain, and returns the number of the request. See [`drain`](Mill::drain).
    pub fn ask_to_drain(&self) -> u64 {
        let mut drains = self.view.shared.drains.lock();
        let mut targets = vec![0; self.view.program.sources.len()];
        for pushed in self.view.pushed.values() {
            targets[pushed.source.index()] = pushed.sent.load(Ordering::Acquire);
        }
        drains.wanted += 1;
        // A later request covers more rows, so it completes the earlier ones, too.
        drains.targets = targets;
        let number = drains.wanted;
        self.view.gate.wake();
        number
    }

    /// Waits at most `us` microseconds until a requested drain is done. Returns whether it is.
    ///
    /// # Errors
    /// As [`drain`](Mill::drain).
    pub fn drained_within(&self, number: u64, us: u64) -> Result<bool> {
        let until_ns = self.until(us);
        let mut drains = self.view.shared.drains.lock();
        loop {
            let end = self.view.shared.end.lock();
            if let Some(error) = &end.error {
                return Err(error.clone());
            }
            if drains.done >= number || end.over {
                return Ok(true);
            }
            drop(end);
            if self.view.env.clock.monotonic_ns() >= until_ns {
                return Ok(false);
            }
            // The end of the run wakes this thread at the latest. The time-out covers a wake-up
            // between the two locks.
            self.view.shared.drained.wait_for(&mut drains, Duration::from_millis(10));
        }
    }

    /// Ends all input, runs everything to the end, including answers from outside, and closes the
    /// sinks. Followed files never end: with one of them this is a [`drain`](Mill::drain) and a
    /// [`stop`](Mill::stop).
    ///
    /// # Errors
    /// The error that ended the run, if there is one.
    pub fn finish(&self) -> Result<Summary> {
        if self.view.has_followed {
            // A followed source never ends by itself.
            self.drain()?;
            return self.stop();
        }
        for (name, pushed) in &self.view.pushed {
            // Streams of answers end when no question is open.
            if !self.view.answers.contains(name) {
                pushed.handle.close();
            }
        }
        self.view.gate.wake();
        self.join()?;
        self.summary()
    }

    /// Makes a last cut, executes it, and closes the sinks. Buffered events stay unexecuted.
    ///
    /// # Errors
    /// The error that ended the run, if there is one.
    pub fn stop(&self) -> Result<Summary> {
        // Pushed streams are closed last. Their end would move the watermark to the end, too.
        self.view.shared.stop.store(true, Ordering::Release);
        self.view.shared.troubles.give_up();
        self.view.gate.wake();
        let ended = self.join();
        for pushed in self.view.pushed.values() {
            pushed.handle.close();
        }
        ended?;
        self.summary()
    }

    /// Stops as [`stop`](Mill::stop) does, but a recovery stops between two epochs. The next start
    /// recovers from the beginning. All records stay as safe as before.
    ///
    /// # Errors
    /// The error that ended the run, if there is one.
    pub fn stop_now(&self) -> Result<Summary> {
        self.view.shared.stops_now.store(true, Ordering::Release);
        self.stop()
    }

    fn join(&self) -> Result<()> {
        // The lock is held while joining, so that a second caller waits for the same end.
        let mut thread = self.thread.lock();
        if let Some(handle) = thread.take() {
            handle.join().map_err(|panic| Error::internal(format!("the engine: {panic}")))?;
        }
        self.view.shared.error().map_or(Ok(()), Err)
    }

    /// Waits at most `timeout_us` microseconds for the end of the run. Returns whether it has
    /// ended.
    ///
    /// # Errors
    /// The error that ended the run, if there is one.
    pub fn wait(&self, timeout_us: u64) -> Result<bool> {
        let mut end = self.view.shared.end.lock();
        if !end.over {
            self.view.shared.ended.wait_for(&mut end, Duration::from_micros(timeout_us));
        }
        match &end.error {
            Some(error) => Err(error.clone()),
            None => Ok(end.over),
        }
    }

    /// Returns the present status of the run.
    pub fn status(&self) -> Status {
        self.view.status()
    }

    /// Returns the reasons of the faults so far with their lines, the most frequent one first.
    pub fn faults(&self) -> Vec<ReasonReport> {
        reasons::faults(&self.view.shared.reasons.lock())
    }

    /// Waits at most `us` microseconds for the end of a recovery. Tables can't be read before.
    /// Returns whether it has ended.
    ///
    /// # Errors
    /// The error that ended the run during the recovery.
    pub fn recovered_within(&self, us: u64) -> Result<bool> {
        self.view.shared.recovered_within(us)
    }

    /// Returns the rows of a table in order of their keys, as the last durable cut left them.
    /// Without a data directory, that is the last cut.
    ///
    /// # Errors
    /// When there is no such table.
    pub fn table(&self, name: &str) -> Result<Batch> {
        let index = self.view.table_index(name)?;
        self.view.shared.wait_for_recovery()?;
        let state = self.view.shared.state.lock();
        let seq = state.as_of(self.view.shared.delivered_epoch()).seq;
        Ok(state.tables[index].as_of(seq)?.to_batch())
    }

    /// Returns one row of a table, by a value for each key column, as of the same cut as
    /// [`table`](Mill::table).
    ///
    /// # Errors
    /// When there is no such table, or the values are not a key of it.
    pub fn row(&self, table: &str, key: &[Value]) -> Result<Option<Row>> {
        let index = self.view.table_index(table)?;
        self.view.shared.wait_for_recovery()?;
        let key = self.stored_key(index, key)?;
        let state = self.view.shared.state.lock();
        let seq = state.as_of(self.view.shared.delivered_epoch()).seq;
        Ok(state.tables[index].as_of(seq)?.get(&key))
    }

    /// Returns the first rows of a table by key, after a key or from the begin, as of the same cut
    /// as [`table`](Mill::table): at most `limit`, and whether there are more. The engine waits
    /// meanwhile.
    ///
    /// # Errors
    /// When there is no such table, or the values are not a key of it.
    pub fn rows_after(
        &self,
        table: &str,
        after: Option<&[Value]>,
        limit: usize,
    ) -> Result<(Vec<Row>, bool)> {
        let index = self.view.table_index(table)?;
        let after = after.map(|key| self.stored_key(index, key)).transpose()?;
        serve::rows_after(&self.view, index, after.map(|key| Key::of(&key)).as_ref(), limit)
    }

    /// Converts a key of a table.
    fn stored_key(&self, table: usize, key: &[Value]) -> Result<Vec<Value>> {
        let spec = &self.view.program.tables[table];
        let columns = spec.key.iter().map(|c| &spec.schema.columns[*c]);
        if key.len() != spec.key.len() {
            return Err(Error::input(format!(
                "a key of table {} has {} columns, not {}",
                spec.name,
                spec.key.len(),
                key.len()
            )));
        }
        let stored = |(value, column)| {
            tidemill_core::rules::store(value, column)
                .map_err(|fault| Error::input(format!("table {}: {fault}", spec.name)))
        };
        key.iter().zip(columns).map(stored).collect()
    }

    /// Returns the columns of a table.
    ///
    /// # Errors
    /// When there is no such table.
    pub fn schema(&self, table: &str) -> Result<Arc<Schema>> {
        Ok(self.view.program.tables[self.view.table_index(table)?].schema.clone())
    }

    /// Returns the retained events of a stream, from batch number `from` on.
    ///
    /// # Errors
    /// When there is no such stream.
    pub fn output(&self, stream: &str, from: usize) -> Result<Vec<Batch>> {
        self.view.check_stream(stream)?;
        let out = self.view.shared.out.lock();
        let batches = out.retained.batches.get(stream);
        Ok(batches.map_or(Vec::new(), |b| b[from.min(b.len())..].to_vec()))
    }

    /// Returns all cuts so far, when the setting `keep_cuts` is on.
    pub fn cuts(&self) -> Vec<Cut> {
        self.view.shared.out.lock().cuts.clone()
    }

    /// Returns the summary of the work so far.
    ///
    /// # Errors
    /// The error that ended the run during a recovery.
    pub fn summary(&self) -> Result<Summary> {
        self.view.shared.wait_for_recovery()?;
        self.view.summary()
    }

    /// Describes an app and how it will run: tables, streams, and the path of each handler with the
    /// reason.
    ///
    /// # Errors
    /// When the program is wrong.
    pub fn inspect(spec: &AppSpec) -> Result<serde_json::Value> {
        crate::inspect::inspect(spec)
    }
}

impl Drop for Mill {
    fn drop(&mut self) {
        // A handle that is dropped without an end must not leave threads running.
        let _ = self.stop();
    }
}
