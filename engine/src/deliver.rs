//! Delivery. The results of an epoch wait here until its cut is durable, and nothing leaves before.
//!
//! One thread takes executed epochs in order. It hashes their outputs and appends a record of the
//! cut. Then it commits everything that has gathered as one group, inputs first and then cuts.
//! Inputs are committed alone while their epoch is still being executed. Only after that it passes
//! outputs to sinks and subscribers, and sends replies. Execution runs ahead by the capacity of the
//! channel.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use tidemill_connect::Place;
use tidemill_core::{Batch, Cut, Error, Kind, Result, SourceId};
use tidemill_env::{Clock, Env};
use tidemill_log::Log;
use tidemill_txn::execute::{AbortedSlide, Faulted, Overdue};
use tidemill_txn::program::{Program, QuestionId};
use tracing::{info, trace, warn};

use crate::calls::Answer;
use crate::counts::Counts;
use crate::followed::Noted;
use crate::full_disk::FULL_US;
use crate::logging::Paced;
use crate::outlets::Outlets;
use crate::records::{self, CutRecord};
use crate::recover::{Logged, Recorded};
use crate::report::LogReport;
use crate::shared::Shared;
use crate::snapshots::{Capture, Keeper};
use tidemill_txn::reasons::Reasons;

/// The most items that wait before the executor and the readers must wait.
pub(crate) const ITEMS_MAX: usize = 64;
/// The most items that are committed as one group.
const GROUP_MAX: usize = 256;

/// An item for the delivery, in order.
pub(crate) enum Item {
    /// A rows record for the input log. The cut that covers it comes after it.
    Rows { source: SourceId, next_offset: u64, record: Vec<u8> },
    /// A verdict record for the input log.
    Verdict(Vec<u8>),
    /// An executed epoch.
    Epoch(Box<Done>),
    /// All recorded epochs have been replayed, so sinks are where they were.
    Settled,
}

/// The results of an epoch.
pub(crate) struct Done {
    pub(crate) cut: Cut,
    /// The events by stream, each in stamp order.
    pub(crate) events: Vec<(Arc<str>, Batch)>,
    /// The counts after it.
    pub(crate) counts: Counts,
    /// Hashes of the rows that opaque handlers have written.
    pub(crate) written: BTreeMap<usize, u64>,
    /// Calls of functions that took too long.
    pub(crate) overdue: Vec<Overdue>,
    /// Transactions whose functions failed.
    pub(crate) faults: Vec<Faulted>,
    /// Slides whose triggers aborted.
    pub(crate) aborted_slides: Vec<AbortedSlide>,
    /// All transactions, where recovery is strong.
    pub(crate) commands: Option<Vec<u8>>,
    /// The answers from outside that transactions received.
    pub(crate) received: Vec<(QuestionId, Arc<[u8]>)>,
    /// The changed positions of sources.
    pub(crate) places: Vec<(SourceId, Place)>,
    /// The number of the drain request that it answers.
    pub(crate) drained: Option<u64>,
    /// Its record, when it is a replay.
    pub(crate) recorded: Option<Recorded>,
    /// The state after it, when it becomes a snapshot.
    pub(crate) capture: Option<Box<Capture>>,
    /// The results of its calls.
    pub(crate) answers: Vec<Answer>,
    /// Its changes of followed tables.
    pub(crate) noted: Noted,
    /// Whether no later one follows, in this run or another.
    pub(crate) is_last: bool,
    /// Rows and hash of all outputs after it. They are set when it is recorded.
    pub(crate) outputs: BTreeMap<String, u64>,
    pub(crate) output_hash: u128,
}

/// The logs of a data directory.
pub(crate) struct Logs {
    pub(crate) input: Log,
    pub(crate) cuts: Log,
    pub(crate) fingerprint: u128,
    /// Rows in the input log that are in no cut yet.
    pub(crate) logged: VecDeque<Logged>,
}

impl Logs {
    /// The first record of the input log that a snapshot after this cut needs.
    fn input_next(&mut self, cut: &Cut) -> u64 {
        let is_in = |l: &Logged| l.next_offset <= cut.offsets[l.source.index()];
        while self.logged.front().is_some_and(is_in) {
            self.logged.pop_front();
        }
        self.logged.front().map_or(self.input.next(), |first| first.number)
    }
}

pub(crate) struct Delivery {
    pub(crate) env: Env,
    pub(crate) shared: Arc<Shared>,
    pub(crate) program: Arc<Program>,
    pub(crate) items: Receiver<Item>,
    pub(crate) outlets: Outlets,
    /// For each abort stream, the handler whose aborts it has.
    pub(crate) aborting: BTreeMap<Arc<str>, String>,
    pub(crate) logs: Option<Logs>,
    /// Takes snapshots, on a thread of its own.
    pub(crate) keeper: Option<Keeper>,
    pub(crate) keep_cuts: bool,
    /// The rows and bytes that are retained of each followed table.
    pub(crate) tail: (usize, usize),
    /// Whether recorded epochs are being replayed.
    pub(crate) is_recovering: bool,
    /// The progress of the recovery, for the log.
    pub(crate) progress: Progress,
    /// The dead-letter and late events, for the log.
    pub(crate) dead: Paced,
    pub(crate) late: Paced,
    /// The functions whose code has changed since the newest snapshot.
    pub(crate) changed: Vec<String>,
    /// Whether results of a replay that differ from the record are accepted.
    pub(crate) accepts: bool,
}

pub(crate) fn channel() -> (Sender<Item>, Receiver<Item>) {
    crossbeam_channel::bounded(ITEMS_MAX)
}

impl Delivery {
    /// Delivers until all senders are gone. An error ends the run.
    pub(crate) fn run(mut self) {
        let result = self.serve();
        if let Err(error) = &result {
            self.shared.fail(error.clone());
        }
        let counts = self.shared.out.lock().counts.clone();
        self.report_counts(&counts, true);
        // The channel is closed, so that senders notice the end. Waiting threads are woken.
        let Delivery { shared, items, mut outlets, keeper, .. } = self;
        drop(items);
        if let Some(keeper) = keeper {
            if let Err(error) = keeper.join() {
                shared.fail(error);
            }
        }
        // Whatever ended the run, sinks complete the committed rows. A sink that has failed reports
        // it again.
        let is_over = shared.out.lock().is_last;
        let closed = match is_over || !shared.is_durable {
            true => outlets.finish(),
            false => outlets.sync().map(drop),
        };
        if let Err(error) = closed {
            shared.fail(error);
        }
        shared.delivered.notify_all();
        shared.rings_changed.notify_all();
    }

    fn serve(&mut self) -> Result<()> {
        if !self.is_recovering {
            // The disk may have been full when the logs were opened.
            self.commit()?;
        }
        let mut group = Vec::new();
        while let Ok(first) = self.items.recv() {
            group.push(first);
            group.extend(self.items.try_iter().take(GROUP_MAX - 1));
            let mut epochs = Vec::new();
            for item in group.drain(..) {
                match item {
                    Item::Rows { source, next_offset, record } => {
                        if let Some(logs) = &mut self.logs {
                            let number = logs.input.append(records::ROWS, &record)?;
                            logs.logged.push_back(Logged { number, source, next_offset });
                        }
                    }
                    Item::Verdict(record) => {
                        if let Some(logs) = &mut self.logs {
                            logs.input.append(records::VERDICT, &record)?;
                        }
                    }
                    Item::Epoch(mut done) => {
                        self.record(&mut done)?;
                        epochs.push(*done);
                    }
                    Item::Settled => {
                        self.commit_for(&epochs)?;
                        self.deliver(std::mem::take(&mut epochs))?;
                        self.outlets.settle()?;
                        self.shared.out.lock().is_recovering = false;
                        self.is_recovering = false;
                        self.progress.ends();
                        self.shared.delivered.notify_all();
                    }
                }
            }
            self.commit_for(&epochs)?;
            self.deliver(epochs)?;
            self.trim()?;
        }
        // Pushed rows in no cut were not acknowledged, but their sender need not send them again.
        self.commit()
    }

    /// Removes what no snapshot needs, unless it is being copied.
    fn trim(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let Some(_held) = shared.copying.try_lock() else { return Ok(()) };
        let trim = shared.out.lock().trim.take();
        if let (Some((input, cuts)), Some(logs)) = (trim, &mut self.logs) {
            logs.cuts.trim(cuts)?;
            logs.input.trim(input)?;
        }
        Ok(())
    }

    /// Hashes an epoch's outputs. Appends its cut, or compares it with the record.
    fn record(&mut self, done: &mut Done) -> Result<()> {
        for (stream, batch) in &done.events {
            self.outlets.count(stream, batch);
        }
        let output_hash = self.outlets.hash();
        (done.outputs, done.output_hash) = (self.outlets.rows(), output_hash);
        if let Some(capture) = &mut done.capture {
            capture.internal.facts.outlets = self.outlets.facts();
        }
        let Some(logs) = &mut self.logs else { return Ok(()) };
        let number = match &done.recorded {
            None => {
                let record = CutRecord {
                    cut: done.cut.clone(),
                    fingerprint: logs.fingerprint,
                    output_hash,
                    places: done.places.clone(),
                    written: done.written.clone(),
                    overdue: done.overdue.clone(),
                    commands: done.commands.take(),
                    answers: std::mem::take(&mut done.received),
                };
                // Appended rows are committed before the cut is.
                let bytes = records::put_cut_after(logs.input.next(), &record);
                logs.cuts.append(records::CUT_BEHIND, &bytes)?
            }
            Some(recorded) => {
                if let Err(error) = compare(&self.program, &self.changed, &recorded.record, done) {
                    if !self.accepts {
                        return Err(error);
                    }
                    let what = format!("{}; accept_replay=True accepts that", error.what);
                    warn!(target: "tidemill::recovery", what, "accepted");
                    self.shared.troubles.report("recovery", &what);
                    // The next start should begin after it.
                    self.shared.force.store(true, Ordering::Release);
                }
                recorded.number
            }
        };
        if let Some(capture) = &mut done.capture {
            capture.cut_next = number + 1;
            capture.input_next = logs.input_next(&done.cut);
        }
        Ok(())
    }

    /// Makes the records of these epochs durable before their outputs leave. It is called without
    /// epochs, too: the sync of rows is then over, or nearly, when their cut comes.
    ///
    /// Replayed epochs were durable before, or were rewritten when the logs were opened, unless the
    /// disk was full. Only a snapshot of them needs more, because it counts records. So a recovery
    /// can end on a full disk, and the tables can be read.
    fn commit_for(&mut self, epochs: &[Done]) -> Result<()> {
        let is_settled = |logs: &Logs| logs.input.is_settled() && logs.cuts.is_settled();
        let is_durable = self.is_recovering && self.logs.as_ref().is_none_or(is_settled);
        match is_durable && epochs.iter().all(|done| done.capture.is_none()) {
            true => Ok(()),
            false => self.commit(),
        }
    }

    /// Makes everything appended durable. Waits while the disk is full. Meanwhile the data stays
    /// readable, and the engine continues when there is space again.
    fn commit(&mut self) -> Result<()> {
        let Some(logs) = &mut self.logs else { return Ok(()) };
        for log in [&mut logs.input, &mut logs.cuts] {
            loop {
                match log.make_ready().and_then(|()| log.commit()) {
                    Ok(_) => break,
                    Err(error) if error.kind == Kind::Resource => {
                        if self.shared.gives_up() {
                            match log.waiting_bytes() {
                                0 => break,
                                _ => return Err(error),
                            }
                        }
                        self.shared.stall(error);
                        self.env.clock.sleep_us(FULL_US);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        self.shared.has_room();
        self.shared.out.lock().log = Some([&logs.input, &logs.cuts].map(|log| LogReport {
            first: log.first(),
            next: log.durable(),
            bytes: log.bytes(),
        }));
        Ok(())
    }

    /// Passes the results of durable epochs on.
    fn deliver(&mut self, epochs: Vec<Done>) -> Result<()> {
        for done in epochs {
            let Done {
                cut,
                events,
                counts,
                faults,
                aborted_slides,
                drained,
                capture,
                answers,
                noted,
                is_last,
                outputs,
                output_hash,
                ..
            } = done;
            let shared = self.shared.clone();
            let mut rings = shared.rings.lock();
            events.iter().for_each(|(stream, batch)| rings.push(stream, batch));
            let kept = capture.is_some().then(|| rings.facts());
            drop(rings);
            let reasons = self.count_aborts(&events, &faults, &aborted_slides, capture.is_some());
            // Outputs may have to wait for disk space. Nothing else may wait with them.
            for (stream, batch) in &events {
                self.outlets.write(stream, batch)?;
            }
            self.outlets.commit()?;
            self.report(&cut, &counts);
            let mut out = shared.out.lock();
            for (stream, batch) in events {
                self.outlets.keep(&stream, batch, &mut out.retained);
            }
            out.counts = counts;
            let epoch = cut.epoch;
            out.epoch = epoch;
            (out.outputs, out.output_hash) = (outputs, output_hash);
            out.offsets.clone_from(&cut.offsets);
            out.is_last = is_last;
            if self.keep_cuts {
                out.cuts.push(cut);
            }
            // This comes before `out` shows that rows are safe, because they must be visible then.
            shared.delivered_epoch.store(epoch, Ordering::Release);
            // A reader that sees this epoch finds its changes, and its rows in the tables.
            shared.followed.lock().push(epoch, noted, self.tail.0, self.tail.1);
            drop(out);
            shared.calls.answer(answers);
            shared.delivered.notify_all();
            shared.rings_changed.notify_all();
            if let Some(number) = drained {
                shared.drained(number);
            }
            if let (Some(mut capture), Some(keeper)) = (capture, &self.keeper) {
                // This comes before the manifest is written, because a snapshot's epochs are never
                // computed again.
                capture.internal.facts.sinks = self.outlets.sync()?;
                capture.internal.rings = kept.unwrap_or_default();
                capture.internal.facts.reasons = reasons.unwrap_or_default();
                keeper.take(capture);
            }
        }
        Ok(())
    }
}

/// The progress of a recovery.
pub(crate) struct Progress {
    clock: Arc<dyn Clock>,
    begun_ns: u64,
    /// The number of epochs to replay, and of those that are replayed already.
    epochs: u64,
    done: u64,
    pace: Paced,
}

impl Progress {
    pub(crate) fn new(env: &Env, begun_ns: u64, epochs: u64) -> Progress {
        let (clock, mut pace) = (env.clock.clone(), Paced::default());
        // The first report is due after a while.
        pace.due(1, Some(&*clock));
        Progress { clock, begun_ns, epochs, done: 0, pace }
    }

    fn advances(&mut self) {
        self.done += 1;
        if self.pace.due(self.done, Some(&*self.clock)).is_some() {
            let (done, epochs) = (self.done, self.epochs);
            info!(target: "tidemill::recovery", done, epochs, "recovery progress");
        }
    }

    fn ends(&self) {
        let seconds = self.clock.monotonic_ns().saturating_sub(self.begun_ns) as f64 / 1e9;
        info!(target: "tidemill::recovery", epochs = self.epochs, seconds, "recovery ended");
    }
}

impl Delivery {
    /// Reports an epoch, and what a user may have to look at.
    fn report(&mut self, cut: &Cut, counts: &Counts) {
        let (epoch, events) = (cut.epoch, counts.events);
        trace!(target: "tidemill::engine", epoch, events, "epoch");
        if self.is_recovering {
            // An earlier run has reported them.
            (self.dead, self.late) = (Paced::after(counts.dead), Paced::after(counts.late));
            return self.progress.advances();
        }
        self.report_counts(counts, false);
    }

    /// Reports new dead-letter and late events, at the end also those since the last report.
    fn report_counts(&mut self, counts: &Counts, is_end: bool) {
        let clock = (!is_end).then_some(&*self.env.clock);
        if let Some(rows) = self.dead.due(counts.dead, clock) {
            warn!(target: "tidemill::source", rows, total = counts.dead, "dead letters");
        }
        if let Some(rows) = self.late.due(counts.late, clock) {
            warn!(target: "tidemill::source", rows, total = counts.late, "late events");
        }
    }

    /// Counts the reasons of an epoch's aborts. Returns all counts, if they are wanted.
    fn count_aborts(
        &self,
        events: &[(Arc<str>, Batch)],
        faults: &[Faulted],
        slides: &[AbortedSlide],
        is_wanted: bool,
    ) -> Option<Reasons> {
        let of = |(stream, batch)| Some((self.aborting.get(stream)?, batch));
        let mut aborted =
            events.iter().map(|(stream, batch)| (stream, batch)).filter_map(of).peekable();
        if aborted.peek().is_none() && slides.is_empty() && !is_wanted {
            return None;
        }
        let mut reasons = self.shared.reasons.lock();
        aborted.for_each(|(handler, batch)| reasons.count(handler, batch));
        slides.iter().for_each(|slide| reasons.slide(&self.program, slide));
        reasons.place(&self.program, faults);
        is_wanted.then(|| reasons.clone())
    }
}

/// Refuses a replayed epoch whose results differ from the record.
fn compare(program: &Program, changed: &[String], before: &CutRecord, now: &Done) -> Result<()> {
    let what = if !before.has_written(&now.written) {
        let handlers = program.handlers.iter().enumerate();
        let others = handlers
            .filter(|(index, _)| before.written.get(index) != now.written.get(index))
            .map(|(_, handler)| &*handler.name);
        let names = others.collect::<Vec<_>>().join(", ");
        format!("the rows that {names} has written")
    } else if before.output_hash != now.output_hash {
        "its outputs".into()
    } else {
        return Ok(());
    };
    let epoch = now.cut.epoch;
    Err(Error::internal(format!(
        "epoch {epoch} was executed again after a restart, and {what} are not those of the first \
         time"
    ))
    .help(differs(changed)))
}

/// The help for functions with different results. Nothing is changed.
pub(crate) fn differs(changed: &[String]) -> String {
    let why = match changed {
        [] => "either the code of a function has changed, or a function depends on more than its \
               event and the rows that it reads: look for the clock, random numbers, files or \
               global variables in it (tidemill inspect names the handlers that can't be checked)"
            .to_owned(),
        names => format!("the code of {} has changed since the newest snapshot", names.join(", ")),
    };
    format!(
        "{why}. If the code has changed: run the earlier code once more, stop it with Ctrl-C, and \
         start the new code. Otherwise --accept-replay (accept_replay=True) continues with the new \
         results; outputs that were written stay as they are. The data directory has not changed"
    )
}
