//! The driver of the sequencer. It closes epochs, makes cuts, executes, and passes the results of
//! epochs on.
//!
//! The flow calls it between its own steps. It closes the open epoch as soon as rows wait in it and
//! nothing is being executed; rows, bytes and time are upper bounds. When all rows of a closed
//! epoch have arrived, it makes the cut and runs it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crossbeam_channel::Sender;
use tidemill_connect::Place;
use tidemill_core::{
    Batch, BatchBuilder, Cut, Error, Position, Result, SourceId, SourceSpec, StreamId,
};
use tidemill_env::Env;
use tidemill_flow::{Bad, Conductor, Deposit, Deposits, Gate, Report, Turn};
use tidemill_table::{Changed, Table};
use tidemill_txn::execute::{put_commands, take_commands, Executor, Outcome};
use tidemill_txn::order::{CutInput, Epoch, Run, Sequenced, Sequencer};
use tidemill_txn::program::{Answers, Program};
use tracing::{debug, info};

use crate::awaited::{ended, Awaited, Missing};
use crate::calls::Reply;
use crate::clocks;
use crate::counts::Counts;
use crate::crash_guard::CrashGuard;
use crate::deliver::{Done, Item};
use crate::feed::{stopped, Places};
use crate::fingerprint::has_request_clock;
use crate::internal::{Facts, Internal, SourceFacts};
use crate::lookups::Lookups;
use crate::quarantine;
use crate::records::Verdict;
use crate::recover::Recorded;
use crate::requests::HasClock;
use crate::settings::{OnFault, Recovery, Settings};
use crate::shared::Shared;
use crate::snapshots::Capture;
use crate::stages::FailedList;
use crate::workers::Workers;
use tidemill_txn::reasons::Reasons;

/// The bound of rows that wait for other rows under way, in bytes: some epochs of them.
const BUFFERED_BYTES: usize = 8 << 20;

/// The name of the clock among troubles.
const CLOCK: &str = "clock";
/// The period of snapshots after a death in a recovery, in nanoseconds.
const HURRIED_NS: u64 = 250_000_000;
/// After a death an epoch has at most so many rows of each source. The number doubles while an
/// epoch takes less than the first time, in nanoseconds, and falls to one when it takes more than
/// the second.
const CAREFUL_ROWS_MAX: u64 = 1024;
const CAREFUL_NS: (u64, u64) = (20_000_000, 100_000_000);

pub(crate) struct Driver {
    pub(crate) env: Env,
    pub(crate) program: Arc<Program>,
    pub(crate) settings: Settings,
    pub(crate) counts: Counts,
    pub(crate) gate: Arc<Gate>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) sequencer: Sequencer,
    pub(crate) executor: Executor,
    /// The threads that execute an epoch together.
    pub(crate) pool: Workers,
    /// The channel for the results of epochs.
    pub(crate) items: Sender<Item>,
    /// The input and derived streams whose events are retained or written.
    pub(crate) wanted: BTreeSet<String>,
    pub(crate) failed: FailedList,
    pub(crate) sources: Vec<SourceState>,
    /// The streams of answers from outside.
    pub(crate) answers: Vec<StreamId>,
    /// The recorded cuts to replay.
    pub(crate) replay: VecDeque<Recorded>,
    /// The rows that the next of them waits for.
    pub(crate) awaited: Awaited,
    /// Whether all sources had ended before the start.
    pub(crate) was_over: bool,
    /// The rows of the next one that have arrived.
    pub(crate) gathered: Deposit,
    /// The verdicts. Their events are quarantined before execution.
    pub(crate) verdicts: Vec<Verdict>,
    /// The crash guard, with notes for the next start.
    pub(crate) guard: Option<CrashGuard>,
    /// The epochs that were not durable at the last check, with their transactions.
    pub(crate) on_their_way: VecDeque<(u64, u64)>,
    /// The start of the process, in nanoseconds of the monotonic clock.
    pub(crate) begun_ns: u64,
    /// The last cut's clock in microseconds, and the time of that cut in nanoseconds of the
    /// monotonic clock. After a start it is the time of the start.
    pub(crate) last_clock_us: i64,
    pub(crate) last_cut_ns: u64,
    /// After a death: the bounds of the sources in the open epoch, and the rows of each source in
    /// the next one; 0 for epochs of normal length.
    pub(crate) limits: Option<Vec<u64>>,
    pub(crate) careful_rows: u64,
    /// Whether requests have a clock of their own in the epoch that is executed.
    pub(crate) has_request_clock: HasClock,
    /// Asks outside for functions, if they ask.
    pub(crate) lookups: Option<Lookups>,
    /// The time at which the clock ends the next window, and whether time will end an open window.
    pub(crate) slides_us: Option<i64>,
    pub(crate) is_open: bool,
    /// Whether event time could move on without further rows. The next cut then waits for none.
    pub(crate) is_held: bool,
    /// The plan of snapshots; `None` where none are taken.
    pub(crate) snapshots: Option<SnapshotPlan>,
    /// The flow's number of the epoch that is open or being closed.
    pub(crate) open: u64,
    /// Whether the next epoch is open already, while this one still receives rows.
    pub(crate) closing: bool,
    /// The time when the first row of the open epoch was seen, in nanoseconds of the monotonic
    /// clock.
    pub(crate) first_row_ns: Option<u64>,
    /// The number of the drain request that the next cut answers.
    pub(crate) draining: Option<u64>,
    /// The number of the last drain request that a cut has answered.
    pub(crate) drain_cut: u64,
}

/// The plan of snapshots.
pub(crate) struct SnapshotPlan {
    pub(crate) every_ns: u64,
    /// The time of the last one, in nanoseconds of the monotonic clock.
    pub(crate) last_ns: u64,
    /// Whether changes wait for a snapshot.
    pub(crate) is_due: bool,
}

/// The state of a source.
#[derive(Clone, Debug)]
pub(crate) struct SourceState {
    pub(crate) name: String,
    /// Whether its end has been seen. The cut that reports it may still be to come.
    pub(crate) end_seen: bool,
    /// Its position at the last cut, and the positions since then.
    pub(crate) place: Place,
    pub(crate) places: Option<Places>,
    pub(crate) next_offset: u64,
    pub(crate) time_max: Option<i64>,
    pub(crate) ended: bool,
    pub(crate) is_push: bool,
    /// Whether it is followed, and so never ends. All its present rows are read when it finds
    /// nothing more.
    pub(crate) is_followed: bool,
    /// Whether it is a partition of a topic.
    pub(crate) is_topic: bool,
    /// How often there was nothing to read, and how often at the first sight of a drain.
    pub(crate) empty_polls: Arc<AtomicU64>,
    pub(crate) empty_polls_before: Option<(u64, u64)>,
    pub(crate) paused: bool,
    /// The time of its last rows, in nanoseconds of the monotonic clock.
    pub(crate) active_ns: u64,
    /// Whether the last cut has rows of it.
    pub(crate) gives: bool,
    /// Whether the last cut counted it as idle.
    pub(crate) was_idle: bool,
}

impl SourceState {
    /// Reports whether it is idle, or has ended, if that differs from before.
    fn report(&self, (was_idle, had_ended): (bool, bool)) {
        let (source, rows) = (self.name.as_str(), self.next_offset);
        match (had_ended, self.ended) {
            (false, true) => info!(target: "tidemill::source", source, rows, "ended"),
            (true, false) => info!(target: "tidemill::source", source, rows, "continues"),
            _ if self.ended || was_idle == self.was_idle => {}
            _ if self.was_idle => debug!(target: "tidemill::source", source, rows, "idle"),
            _ => debug!(target: "tidemill::source", source, rows, "active"),
        }
    }

    /// Whether a poll that began after this drain was seen has found nothing.
    fn has_found_nothing(&mut self, drain: u64) -> bool {
        let polls = self.empty_polls.load(Ordering::Acquire);
        match self.empty_polls_before {
            // The first of two polls may have begun before.
            Some((of, before)) if of == drain => polls >= before + 2,
            _ => {
                self.empty_polls_before = Some((drain, polls));
                false
            }
        }
    }
}

impl Conductor for Driver {
    fn turn(&mut self, closed: u64, deposits: &mut Deposits) -> Result<Turn> {
        if self.shared.has_failed() {
            return Ok(Turn::Stop);
        }
        if closed > self.open {
            let deposit = self.gather(deposits);
            self.awaited.over(&self.shared.troubles);
            self.open += 1;
            self.closing = false;
            self.first_row_ns = None;
            let was_recorded = !self.replay.is_empty();
            let is_last = self.cut(deposit)?;
            if was_recorded && is_last && !self.shared.stop_wanted() {
                self.was_over = true;
                return Ok(Turn::Busy);
            }
            return Ok(if is_last { Turn::Stop } else { Turn::Busy });
        }
        if self.was_over {
            return Ok(self.look_again(deposits));
        }
        if !self.replay.is_empty() && self.stops_now() {
            return Ok(Turn::Stop);
        }
        if self.closing && !self.replay.is_empty() {
            let mut files = self.sources.iter().filter(|source| !source.is_push);
            if let Some(source) = files.find(|source| !source.end_seen) {
                let now = self.env.clock.monotonic_ns();
                self.awaited.read_blocked(&source.name, now, &self.shared.troubles);
            }
        }
        if !self.closing && self.should_close(deposits)? {
            self.closing = true;
            // The bounds of the epoch after the one that closes now.
            match self.replay.get(1) {
                Some(next) => self.gate.open_to(self.open + 1, &next.record.cut.offsets),
                None => self.open_next(self.open + 1),
            }
            return Ok(Turn::Busy);
        }
        Ok(Turn::Idle)
    }
}

impl Driver {
    /// Opens an epoch that is not recorded. After a death it is short, so that its results are soon
    /// in a snapshot.
    pub(crate) fn open_next(&mut self, epoch: u64) {
        if self.careful_rows == 0 || !self.guard.as_ref().is_some_and(CrashGuard::is_careful) {
            self.limits = None;
            return self.gate.open(epoch);
        }
        let from = match (self.replay.front(), self.limits.take()) {
            (Some(recorded), _) => recorded.record.cut.offsets.clone(),
            (None, Some(limits)) => limits,
            (None, None) => self.sources.iter().map(|source| source.next_offset).collect(),
        };
        let recorded = self.replay.front().map(|recorded| &recorded.record.cut.ended);
        let to = |(index, from): (usize, u64)| {
            let has_ended = match recorded {
                Some(ended) => ended.contains(&SourceId(index as u32)),
                None => self.sources[index].ended,
            };
            // A file that had ended may have more rows. That is known when its end is seen again.
            if has_ended {
                u64::MAX
            } else {
                from.saturating_add(self.careful_rows)
            }
        };
        let limits: Vec<u64> = from.into_iter().enumerate().map(to).collect();
        self.gate.open_to(epoch, &limits);
        self.limits = Some(limits);
    }

    /// Returns the clock for a cut: see [`clocks`].
    ///
    /// # Errors
    /// When the clock is far ahead of its earlier values.
    fn clock_us(&self) -> Result<i64> {
        let now_us = self.env.clock.now_us();
        let passed_ns = self.env.clock.monotonic_ns() - self.last_cut_ns;
        let max_us = self.settings.clock_jump_us_max;
        let (last_us, is_kept) = (self.last_clock_us, self.guard.is_some());
        match clocks::check(now_us, last_us, passed_ns / 1000, max_us, is_kept)? {
            Some(what) => self.shared.troubles.report(CLOCK, &what),
            None => self.shared.troubles.clear(CLOCK),
        }
        Ok(now_us)
    }

    /// Whether a recovery should stop before it is complete. The next start then recovers from the
    /// beginning. A stop waits for a recovery, but not for rows that do not arrive.
    fn stops_now(&self) -> bool {
        let is_asked = self.shared.stops_now.load(Ordering::Acquire);
        self.shared.stop_wanted() && (is_asked || self.awaited.is_long())
    }

    /// Takes all rows of the open epoch. A replayed epoch includes the rows that were taken before
    /// it was complete, because it may be larger than the limit of waiting rows.
    fn gather(&mut self, deposits: &mut Deposits) -> Deposit {
        let deposit = deposits.take(self.open);
        self.gathered.parcels.extend(deposit.parcels);
        self.gathered.reports.extend(deposit.reports);
        std::mem::take(&mut self.gathered)
    }

    /// Looks for new rows when everything had ended in an earlier run, because a file may have
    /// grown. Waits for the end of each file.
    fn look_again(&mut self, deposits: &mut Deposits) -> Turn {
        let deposit = deposits.take(self.open);
        self.gathered.parcels.extend(deposit.parcels);
        self.gathered.reports.extend(deposit.reports);
        let reports = &self.gathered.reports;
        let has_ended =
            |index| reports.iter().any(|r: &Report| r.source.index() == index && r.ended);
        if self.shared.stop_wanted() {
            return Turn::Stop;
        }
        if !(0..self.sources.len()).all(|index| self.sources[index].is_push || has_ended(index)) {
            return Turn::Idle;
        }
        self.was_over = false;
        if reports.iter().all(|r| r.next_offset <= self.sources[r.source.index()].next_offset) {
            return Turn::Stop;
        }
        self.closing = true;
        self.gate.open(self.open + 1);
        Turn::Busy
    }

    /// Whether all rows of a recorded cut have been read again.
    fn is_complete(&mut self, deposits: &mut Deposits) -> Result<bool> {
        let Some(recorded) = self.replay.front() else { return Ok(true) };
        self.gathered = {
            let deposit = deposits.take(self.open);
            let mut gathered = std::mem::take(&mut self.gathered);
            gathered.parcels.extend(deposit.parcels);
            gathered.reports.extend(deposit.reports);
            gathered
        };
        for (index, (source, wanted)) in
            self.sources.iter().zip(&recorded.record.cut.offsets).enumerate()
        {
            let reports = self.gathered.reports.iter().filter(|r| r.source.index() == index);
            let reached = reports.clone().map(|r| r.next_offset).max().unwrap_or(0);
            if reached.max(source.next_offset) >= *wanted {
                continue;
            }
            let reached = reached.max(source.next_offset);
            if source.end_seen || reports.clone().any(|r| r.ended) {
                return Err(ended(&source.name, reached, *wanted));
            }
            let behind = Missing {
                source: &source.name,
                reached,
                wanted: *wanted,
                looks: source.empty_polls.load(Ordering::Acquire),
                is_topic: source.is_topic,
                is_followed: source.is_followed,
            };
            let now = self.env.clock.monotonic_ns();
            self.awaited.wait(&behind, now, &self.shared.troubles)?;
            return Ok(false);
        }
        self.awaited.over(&self.shared.troubles);
        Ok(true)
    }

    fn should_close(&mut self, deposits: &mut Deposits) -> Result<bool> {
        if !self.replay.is_empty() {
            return self.is_complete(deposits);
        }
        if self.shared.stop_wanted() || self.sources.is_empty() || self.is_held {
            return Ok(true);
        }
        if self.snapshots.is_some() && self.shared.snapshot_is_forced() {
            return Ok(true);
        }
        let now = self.env.clock.monotonic_ns();
        if !deposits.is_empty(self.open) {
            // Nothing is being executed now, so waiting rows need not wait longer. Epochs grow
            // while the one before is executed.
            let since = *self.first_row_ns.get_or_insert(now);
            let waited_us = (now.saturating_sub(since) / 1000) as i64;
            return Ok(self.settings.epoch_idle
                || deposits.rows(self.open) >= self.settings.epoch_rows_max as u64
                || deposits.bytes(self.open) >= self.settings.epoch_bytes_max as u64 / 2
                || waited_us >= self.settings.epoch_us_max
                || self.drain_wanted().is_some());
        }
        if let Some((number, targets)) = self.drain_wanted() {
            let reached = self.sources.iter_mut().zip(&targets).all(|(source, target)| {
                if source.is_push {
                    source.next_offset >= *target
                } else {
                    // An end in an earlier run does not count, because the file may have grown.
                    source.end_seen || source.is_followed && source.has_found_nothing(number)
                }
            });
            if reached {
                (self.draining, self.drain_cut) = (Some(number), number);
                return Ok(true);
            }
        }
        // A source that becomes idle lets the watermark move on without any input.
        let falls_idle = |index: usize| {
            let source = &self.sources[index];
            !source.was_idle && !source.ended && self.is_idle(index, now)
        };
        let may_go_on = self.is_open || self.sequencer.buffered_rows() > 0;
        if (0..self.sources.len()).any(falls_idle) && may_go_on {
            return Ok(true);
        }
        // A batch or window whose time is over needs a cut, too.
        let due_us = self.sequencer.due_us().into_iter().chain(self.slides_us).min();
        Ok(due_us.is_some_and(|due| self.env.clock.now_us() >= due))
    }

    /// The drain that no cut has answered yet: its number, and the rows that it waits for.
    fn drain_wanted(&self) -> Option<(u64, Vec<u64>)> {
        // A drain that a cut has answered is reported when the cut is durable.
        self.shared.drain_wanted().filter(|(number, _)| *number > self.drain_cut)
    }

    fn is_idle(&self, index: usize, now: u64) -> bool {
        let limit = self.program.sources[index].idle_us;
        let silent_ns = now.saturating_sub(self.sources[index].active_ns);
        limit.is_some_and(|us| silent_ns >= us as u64 * 1000)
    }

    /// Whether there is nothing more to do: a stop was requested, or all sources have ended.
    fn is_done(&self) -> bool {
        // A stop waits for the end of a recovery, because recorded epochs have been acknowledged.
        self.replay.is_empty() && (self.shared.stop_wanted() || self.has_ended())
    }

    fn has_ended(&self) -> bool {
        !self.is_held && self.sources.iter().all(|s| s.ended)
    }

    /// Makes a cut and executes it. Returns whether it was the last.
    fn cut(&mut self, deposit: Deposit) -> Result<bool> {
        let now = self.env.clock.monotonic_ns();
        let mut bad: Vec<(SourceId, Bad)> = Vec::new();
        let mut late = Vec::new();
        self.sources.iter_mut().for_each(|source| source.gives = false);
        for report in deposit.reports {
            let source = &mut self.sources[report.source.index()];
            if report.rows > 0 || report.next_offset > source.next_offset {
                (source.active_ns, source.gives) = (now, true);
                // The file had ended and has grown. It ends again after its new rows.
                source.end_seen = false;
            }
            source.next_offset = source.next_offset.max(report.next_offset);
            source.time_max = source.time_max.max(report.time_max);
            source.end_seen |= report.ended;
            late.extend(report.late.into_iter().map(|row| (report.source, row)));
            bad.extend(report.bad.into_iter().map(|b| (report.source, b)));
        }
        let recorded = self.replay.pop_front();
        let draining = self.draining.take();
        let mut idle = Vec::new();
        for index in 0..self.sources.len() {
            let id = SourceId(index as u32);
            // A drain flushes pushed streams and followed files, because its caller says that
            // nothing is missing.
            let source = &self.sources[index];
            let flushed = draining.is_some() && (source.is_push || source.is_followed);
            let is_idle = flushed || self.is_idle(index, now);
            let source = &mut self.sources[index];
            let before = (source.was_idle, source.ended);
            match &recorded {
                None => (source.was_idle, source.ended) = (is_idle, source.end_seen),
                Some(Recorded { record, .. }) => {
                    source.was_idle = record.cut.idle.contains(&id);
                    source.ended = record.cut.ended.contains(&id);
                }
            }
            if before != (source.was_idle, source.ended) {
                source.report(before);
            }
            if source.was_idle && !source.ended {
                idle.push(id);
            }
        }
        let places = self.places(recorded.as_ref())?;
        let clock_us = match &recorded {
            None => self.clock_us()?,
            Some(recorded) => recorded.record.cut.clock_us,
        };
        let runs = deposit.parcels.into_iter().map(|p| Run {
            stream: p.stream,
            source: p.source,
            batch: p.batch,
            offsets: p.offsets,
            times: p.times,
            admitted: None,
        });
        let runs = runs.collect();
        let watermarks_max = recorded.as_ref().map(|r| r.record.cut.watermarks.clone());
        let input =
            CutInput { runs, late, clock_us, idle, watermarks_max, ..present_input(&self.sources) };
        let sequenced = self.sequencer.cut(self.executor.awake(&self.pool), input)?;
        if let Some(Recorded { record, .. }) = &recorded {
            if record.cut != sequenced.cut {
                return Err(Error::internal(format!(
                    "epoch {} was cut again after a restart, and the cut differs from the recorded one",
                    record.cut.epoch
                ))
                .help("the input has changed: restore the files; --fresh (fresh=True) starts from scratch"));
            }
        }
        self.is_held = sequenced.is_held;
        // A drain waits until all event time is executed.
        let draining = match self.is_held {
            true => {
                self.draining = draining;
                None
            }
            false => draining,
        };
        let stream = |index: usize| self.program.sources[index].stream;
        let is_timer =
            |index: &usize| self.program.timers.iter().any(|timer| timer.stream == stream(*index));
        let asks = (0..self.sources.len()).filter(|index| !self.answers.contains(&stream(*index)));
        if !self.answers.is_empty() && asks.clone().all(|index| self.sources[index].ended) {
            // The first epoch with all questions asked counts.
            let _ = self.shared.asked_all.compare_exchange(
                0,
                sequenced.cut.epoch,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
        }
        let mut others = asks.filter(|index| !is_timer(index)).peekable();
        if others.peek().is_some() && others.all(|index| self.sources[index].ended) {
            self.shared.others_ended.store(true, Ordering::Release);
        }
        self.last_clock_us = sequenced.cut.clock_us;
        self.last_cut_ns = self.env.clock.monotonic_ns();
        let was_recorded = recorded.is_some();
        // This is decided once: a later stop gets a cut of its own.
        let is_last = self.is_done();
        let done = self.execute(sequenced, bad, places, draining, recorded, is_last)?;
        self.items.send(Item::Epoch(done)).map_err(|_| stopped())?;
        if was_recorded && self.replay.is_empty() {
            self.items.send(Item::Settled).map_err(|_| stopped())?;
        }
        self.steer();
        Ok(is_last)
    }

    /// Returns the positions of sources that the present cut changes.
    fn places(&mut self, recorded: Option<&Recorded>) -> Result<Vec<(SourceId, Place)>> {
        let mut changed = Vec::new();
        for (index, source) in self.sources.iter_mut().enumerate() {
            let id = SourceId(index as u32);
            let Some(places) = &source.places else { continue };
            let mut places = places.lock();
            let mut place = None;
            while places.front().is_some_and(|p| p.offset <= source.next_offset) {
                place = places.pop_front();
            }
            let Some(place) = place else { continue };
            if source.place == place {
                continue;
            }
            if let Some((_, before)) =
                recorded.and_then(|r| r.record.places.iter().find(|(s, _)| *s == id))
            {
                place.check(&source.name, before)?;
            }
            source.place = place.clone();
            if !source.is_push {
                changed.push((id, place));
            }
        }
        Ok(changed)
    }

    /// Runs an epoch. Its result is complete, or after an error nothing of it leaves.
    fn execute(
        &mut self,
        sequenced: Sequenced,
        bad: Vec<(SourceId, Bad)>,
        places: Vec<(SourceId, Place)>,
        drained: Option<u64>,
        recorded: Option<Recorded>,
        is_last: bool,
    ) -> Result<Box<Done>> {
        let Sequenced { cut, mut epoch, late, .. } = sequenced;
        let (undecoded, mut bad) = (bad.len(), bad);
        quarantine::set_aside(&self.verdicts, cut.epoch, &mut epoch, &mut bad);
        let aside = bad[undecoded..]
            .iter()
            .map(|(source, bad)| ((*source, bad.offset), Reply::Aborted(bad.reason.clone())));
        let aside = aside.collect();
        let mut events: Vec<(Arc<str>, Batch)> = Vec::new();
        let shared = self.shared.clone();
        // This bounds how far execution runs ahead of a full disk, to the epochs that were under
        // way.
        shared.wait_for_room();
        let mut state = shared.state.lock();
        state.release(shared.delivered_epoch());
        let overdue = recorded.as_ref().map(|recorded| recorded.record.overdue.clone());
        let overdue = overdue.unwrap_or_else(|| quarantine::slides(&self.verdicts, cut.epoch));
        self.executor.obey(overdue);
        let commands = recorded.as_ref().and_then(|recorded| recorded.record.commands.as_ref());
        let commands = commands.map(|bytes| take_commands(&self.program, bytes)).transpose()?;
        let has_clock =
            recorded.as_ref().is_none_or(|recorded| has_request_clock(recorded.record.fingerprint));
        self.has_request_clock.store(has_clock, Ordering::Relaxed);
        // If other results are accepted, the transactions that they trigger are not in the log. So
        // the logged commands are not followed.
        self.executor.follow(commands.filter(|_| !self.settings.accept_replay));
        let told = recorded.as_ref().map(|recorded| recorded.record.answers.clone());
        epoch.answers = Arc::new(Answers::of(told.unwrap_or_default()));
        if let Some(guard) = &mut self.guard {
            guard.is_recovering &= recorded.is_some() || shared.out.lock().snapshots == 0;
        }
        let begun = self.env.clock.monotonic_ns();
        let mut answers = aside;
        let outcome = self.run(&mut state.tables, cut.epoch, &mut epoch, &mut answers)?;
        let ns = self.env.clock.monotonic_ns() - begun;
        // A replayed slide was reported the first time.
        if recorded.is_none() {
            crate::faults::report_slides(&self.program, &outcome.aborted_slides);
        }
        if recorded.is_none() && !outcome.faults.is_empty() {
            crate::faults::report(&self.program, &outcome.faults);
            if self.settings.on_fault == OnFault::Stop {
                if let Some(error) = crate::faults::stops(&self.program, &outcome.faults) {
                    return Err(error);
                }
            }
        }
        self.careful_rows = match ns {
            ns if ns < CAREFUL_NS.0 => CAREFUL_ROWS_MAX.min(self.careful_rows * 2),
            ns if ns > CAREFUL_NS.1 => self.careful_rows.min(1),
            _ => self.careful_rows,
        };
        self.slides_us = self.executor.due_us(&state.tables);
        self.is_open = self.executor.is_open(&state.tables);
        let noted = shared.followed.lock().note(&state.tables, self.settings.tail_rows);
        shared.recent.note(cut.epoch, epoch.order.len(), ns, self.executor.ran());
        state.executed(&cut, outcome.seq);
        let dead = quarantine::dead(&self.program, &self.failed, &cut.offsets, bad);
        let dead_rows = dead.iter().map(|(_, batch)| batch.len()).sum();
        self.counts.add(&self.program, &epoch, &outcome, &late, undecoded, dead_rows);
        events.extend(dead);
        events.extend(quarantine::late(&self.program, late));
        let (seq, written) = (outcome.seq, outcome.written.clone());
        let overdue = outcome.overdue.clone();
        let (faults, aborted_slides) = (outcome.faults.clone(), outcome.aborted_slides.clone());
        let is_strong = self.settings.recovery == Recovery::Strong && recorded.is_none();
        let commands = is_strong.then(|| put_commands(&outcome.commands));
        let received = epoch.answers.all();
        self.hand_on(&epoch, outcome, &mut events);
        self.counts.buffered = self.sequencer.buffered_rows() as u64;
        self.counts.lag_us = self.lag_us(&cut);
        let buffered = self.sequencer.buffered_bytes();
        let retained = shared.out.lock().retained.bytes;
        let tables: usize = state.tables.iter().map(tidemill_table::Table::bytes).sum();
        if tables + buffered + retained > self.settings.memory_bytes_max {
            let largest = state.tables.iter().max_by_key(|t| t.bytes());
            let largest = largest.map_or(String::new(), |t| {
                format!("; the largest table is {} with {} bytes", t.spec().name, t.bytes())
            });
            return Err(Error::resource(format!(
                "memory_bytes_max is {}, but tables hold {tables} bytes, events that wait for \
                 their watermark {buffered}, and retained outputs {retained}{largest}",
                self.settings.memory_bytes_max
            ))
            .help(
                "raise memory_bytes_max, delete rows that are no longer needed, or retain less",
            ));
        }
        // The log has the recorded epochs. A process that died while it replayed them must get
        // further the next time.
        let is_hurried =
            recorded.is_some() && self.guard.as_ref().is_some_and(|guard| guard.died_recovering);
        let every_ns = if is_hurried { HURRIED_NS } else { u64::MAX };
        let capture = match recorded {
            Some(_) if !is_last && !is_hurried => None,
            _ => self.capture(&mut state.tables, &cut, seq, (is_last, every_ns)),
        };
        let counts = self.counts.clone();
        // This includes a recorded cut, because the earlier process may not have completed the
        // sinks.
        let is_last = self.replay.is_empty() && self.has_ended();
        Ok(Box::new(Done {
            cut,
            events,
            counts,
            written,
            overdue,
            faults,
            aborted_slides,
            commands,
            received,
            places,
            drained,
            recorded,
            capture,
            answers,
            noted,
            is_last,
            outputs: BTreeMap::new(),
            output_hash: 0,
        }))
    }

    /// Copies the state after this cut, when a snapshot is due.
    fn capture(
        &mut self,
        tables: &mut [Table],
        cut: &Cut,
        seq: u64,
        (is_last, every_ns): (bool, u64),
    ) -> Option<Box<Capture>> {
        let now = self.env.clock.monotonic_ns();
        let plan = self.snapshots.as_mut()?;
        let forced = self.shared.force.load(Ordering::Acquire);
        plan.is_due |= forced || now.saturating_sub(plan.last_ns) >= plan.every_ns.min(every_ns);
        if is_last {
            // The next start then has nothing to replay.
            self.shared.wait_for_snapshot();
        }
        if !(plan.is_due || is_last) || !self.shared.begin_snapshot() {
            return None;
        }
        (plan.is_due, plan.last_ns) = (false, now);
        if forced {
            self.shared.force.store(false, Ordering::Release);
        }
        let sources = self.sources.iter().map(|source| SourceFacts {
            name: source.name.clone(),
            next_offset: source.next_offset,
            time_max: source.time_max,
            ended: source.ended,
            place: source.place.clone(),
        });
        let state = self.sequencer.state();
        let facts = Facts {
            epoch: cut.epoch,
            clock_us: cut.clock_us,
            watermarks: state.watermarks,
            seq,
            sources: sources.collect(),
            tables: tables.iter().map(|table| table.len() as u64).collect(),
            frontiers_us: tables.iter().map(Table::frontier_us).collect(),
            counts: self.counts.clone(),
            outlets: BTreeMap::new(),
            sinks: Vec::new(),
            reasons: Reasons::default(),
            salt: state.salt,
        };
        let changed: Vec<_> = tables.iter_mut().map(Table::take_changes).collect();
        // Only versions without a snapshot are taken.
        let is_all = |(changed, table): (&Changed, &Table)| {
            let rows = changed.len() - changed.deleted();
            table.spec().history.is_none() && rows == table.len()
        };
        Some(Box::new(Capture {
            is_whole: changed.iter().zip(&*tables).all(is_all),
            internal: Internal { facts, buffered: state.buffered, rings: Vec::new() },
            changed,
            input_next: 0,
            cut_next: 0,
        }))
    }

    /// How far the slowest watermark is behind the newest event time of its stream's sources, in
    /// microseconds.
    fn lag_us(&self, cut: &Cut) -> i64 {
        let behind = |(source, state): (&SourceSpec, &SourceState)| {
            let mark = cut.watermarks[source.stream.index()];
            let known = mark != Position::MIN && mark != Position::MAX;
            state.time_max.filter(|_| known).map(|t| t.saturating_sub(mark.time_us))
        };
        let all = self.program.sources.iter().zip(&self.sources).filter_map(behind);
        all.max().unwrap_or(0).max(0)
    }

    fn hand_on(&self, epoch: &Epoch, outcome: Outcome, events: &mut Vec<(Arc<str>, Batch)>) {
        // Events of input and derived streams are passed on in stamp order, where they are retained
        // or written.
        for index in 0..self.program.streams.len() {
            let name = &self.program.streams[index].spec.name;
            if self.wanted.contains(&**name) {
                if let Some(batch) = in_order(epoch, StreamId(index as u16)) {
                    events.push((name.clone(), batch));
                }
            }
        }
        for output in outcome.outputs {
            let name = &self.program.streams[output.stream.index()].spec.name;
            events.push((name.clone(), output.batch));
        }
    }

    /// Pauses the source that is ahead in time while too many bytes wait for the others. It never
    /// pauses the one behind.
    fn steer(&mut self) {
        let buffered = self.sequencer.buffered_bytes();
        let times: Vec<Option<i64>> = self.sources.iter().map(|s| s.time_max).collect();
        let ended: Vec<bool> = self.sources.iter().map(|s| s.ended).collect();
        for index in 0..self.sources.len() {
            let id = SourceId(index as u32);
            let limit = self.buffered_limit(id, &times, &ended);
            let free = limit.is_none_or(|limit| buffered < limit / 2);
            if free && std::mem::take(&mut self.sources[index].paused) {
                self.gate.pause(id, false);
            }
        }
        let Some(ahead) = self.sequencer.farthest_ahead(&times, &ended) else { return };
        let is_over = |limit| buffered > limit;
        // Recorded cuts bound how far each source is read.
        if self.replay.is_empty()
            && self.buffered_limit(ahead, &times, &ended).is_some_and(is_over)
            && !std::mem::replace(&mut self.sources[ahead.index()].paused, true)
        {
            self.gate.pause(ahead, true);
        }
    }

    /// The number of bytes that may wait before a source pauses that is ahead of others; `None` if
    /// it is not ahead.
    ///
    /// If the sources behind give rows, the rows that wait for them are soon needed. A small number
    /// is enough then, and costs less memory and less space in snapshots.
    fn buffered_limit(&self, of: SourceId, times: &[Option<i64>], ended: &[bool]) -> Option<usize> {
        let mut behind = self.sequencer.after(of, times, ended).peekable();
        behind.peek()?;
        let max = self.settings.buffered_bytes_max;
        let comes = behind.any(|source| self.sources[source.index()].gives);
        Some(if comes { max.min(BUFFERED_BYTES) } else { max })
    }
}

/// The input of a cut without new rows.
pub(crate) fn present_input(sources: &[SourceState]) -> CutInput {
    let ids = (0..sources.len() as u32).map(SourceId);
    CutInput {
        offsets: sources.iter().map(|source| source.next_offset).collect(),
        times_max: sources.iter().map(|source| source.time_max).collect(),
        ended: ids.filter(|id| sources[id.index()].ended).collect(),
        ..CutInput::default()
    }
}

/// The events of a stream in an epoch, in stamp order.
fn in_order(epoch: &Epoch, stream: StreamId) -> Option<Batch> {
    let runs: Vec<&Run> = epoch.runs.iter().filter(|r| r.stream == stream).collect();
    match &runs[..] {
        [] => None,
        [run] => Some(run.batch.clone()),
        runs => {
            let mut rows = Vec::new();
            for run in runs {
                rows.extend((0..run.offsets.len()).map(|row| (run.stamp(row), run, row)));
            }
            rows.sort_by(|a, b| a.0.cmp(&b.0));
            let mut builder = BatchBuilder::new(runs[0].batch.schema().clone());
            for (_, run, row) in rows {
                builder.push(&run.batch.row(row));
            }
            Some(builder.finish())
        }
    }
}
