//! The sequencer's driver: closes epochs, makes cuts, executes, hands outputs on.
//!
//! The flow calls it between its own steps. It closes the open epoch as soon as something waits in
//! it and nothing is being executed; rows, bytes and time are upper bounds. When the flow says that
//! a closed epoch is all there, it makes the cut and runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_core::{
    Batch, BatchBuilder, Cut, Error, Position, Result, SourceId, SourceSpec, StreamId, Value,
};
use tidemill_env::Env;
use tidemill_flow::{Bad, Conductor, Deposit, Deposits, Gate, Turn};
use tidemill_txn::execute::{Outcome, Serial};
use tidemill_txn::order::{CutInput, Epoch, Run, Sequenced, Sequencer};
use tidemill_txn::program::{Origin, Program};

use crate::mill::Shared;
use crate::outlets::{dead_schema, Outlets};
use crate::settings::Settings;
use crate::stages::FailedList;

pub(crate) struct Driver {
    pub(crate) env: Env,
    pub(crate) program: Arc<Program>,
    pub(crate) settings: Settings,
    pub(crate) gate: Arc<Gate>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) sequencer: Sequencer,
    pub(crate) serial: Serial,
    pub(crate) outlets: Outlets,
    pub(crate) failed: FailedList,
    pub(crate) sources: Vec<SourceState>,
    /// The flow's number of the epoch that is open or being closed.
    pub(crate) open: u64,
    /// The next epoch has been opened; what was deposited in this one is being completed.
    pub(crate) closing: bool,
    /// When the first row of the open epoch was seen, in nanoseconds of the monotonic clock.
    pub(crate) first_row_ns: Option<u64>,
    /// Request number of the drain that the next cut answers.
    pub(crate) draining: Option<u64>,
}

/// What is known of a source.
#[derive(Clone, Debug)]
pub(crate) struct SourceState {
    pub(crate) next_offset: u64,
    pub(crate) time_max: Option<i64>,
    pub(crate) ended: bool,
    pub(crate) is_push: bool,
    pub(crate) paused: bool,
    /// When rows came last.
    pub(crate) active_ns: u64,
    /// It counted as idle at the last cut.
    pub(crate) was_idle: bool,
}

impl Conductor for Driver {
    fn turn(&mut self, closed: u64, deposits: &mut Deposits) -> Result<Turn> {
        if closed > self.open {
            let deposit = deposits.take(self.open);
            self.open += 1;
            self.closing = false;
            self.first_row_ns = None;
            self.cut(deposit)?;
            return Ok(if self.is_done() { Turn::Stop } else { Turn::Busy });
        }
        if !self.closing && self.should_close(deposits) {
            self.closing = true;
            self.gate.open(self.open + 1);
            return Ok(Turn::Busy);
        }
        Ok(Turn::Idle)
    }
}

impl Driver {
    fn should_close(&mut self, deposits: &Deposits) -> bool {
        if self.shared.stop_wanted() || self.sources.is_empty() {
            return true;
        }
        let now = self.env.clock.monotonic_ns();
        if !deposits.is_empty(self.open) {
            // Nothing is being executed while we are asked, so what waits need not wait longer;
            // epochs grow while the one before is executed.
            let since = *self.first_row_ns.get_or_insert(now);
            let waited_us = (now.saturating_sub(since) / 1000) as i64;
            return self.settings.epoch_idle
                || deposits.rows(self.open) >= self.settings.epoch_rows_max as u64
                || deposits.bytes(self.open) >= self.settings.epoch_bytes_max as u64 / 2
                || waited_us >= self.settings.epoch_us_max
                || self.shared.drain_wanted().is_some();
        }
        if let Some((number, targets)) = self.shared.drain_wanted() {
            let reached = self.sources.iter().zip(&targets).all(|(source, target)| {
                if source.is_push {
                    source.next_offset >= *target
                } else {
                    source.ended
                }
            });
            if reached {
                self.draining = Some(number);
                return true;
            }
        }
        // A source that falls silent lets the watermark go on without any input.
        let falls_idle = |index: usize| {
            let source = &self.sources[index];
            !source.was_idle && !source.ended && self.is_idle(index, now)
        };
        (0..self.sources.len()).any(falls_idle) && self.sequencer.parked_rows() > 0
    }

    fn is_idle(&self, index: usize, now: u64) -> bool {
        let limit = self.program.sources[index].idle_us;
        let silent_ns = now.saturating_sub(self.sources[index].active_ns);
        limit.is_some_and(|us| silent_ns >= us as u64 * 1000)
    }

    /// Whether nothing more is to be done: asked to stop, or all sources have ended.
    fn is_done(&self) -> bool {
        self.shared.stop_wanted() || self.sources.iter().all(|s| s.ended)
    }

    fn cut(&mut self, deposit: Deposit) -> Result<()> {
        let now = self.env.clock.monotonic_ns();
        let mut bad: Vec<(SourceId, Bad)> = Vec::new();
        for report in deposit.reports {
            let source = &mut self.sources[report.source.index()];
            if report.rows > 0 || report.next_offset > source.next_offset {
                source.active_ns = now;
            }
            source.next_offset = source.next_offset.max(report.next_offset);
            source.time_max = source.time_max.max(report.time_max);
            source.ended |= report.ended;
            bad.extend(report.bad.into_iter().map(|b| (report.source, b)));
        }
        let draining = self.draining.take();
        let mut idle = Vec::new();
        for index in 0..self.sources.len() {
            // A drain flushes pushed streams: whoever pushes has said that nothing is missing.
            let flushed = draining.is_some() && self.sources[index].is_push;
            self.sources[index].was_idle = flushed || self.is_idle(index, now);
            if self.sources[index].was_idle && !self.sources[index].ended {
                idle.push(SourceId(index as u32));
            }
        }
        let ids = (0..self.sources.len() as u32).map(SourceId);
        let input = CutInput {
            runs: deposit
                .parcels
                .into_iter()
                .map(|p| Run {
                    stream: p.stream,
                    source: p.source,
                    batch: p.batch,
                    offsets: p.offsets,
                    times: p.times,
                    admitted: None,
                })
                .collect(),
            offsets: self.sources.iter().map(|s| s.next_offset).collect(),
            times_max: self.sources.iter().map(|s| s.time_max).collect(),
            clock_us: self.env.clock.now_us(),
            idle,
            ended: ids.filter(|s| self.sources[s.index()].ended).collect(),
        };
        let sequenced = self.sequencer.cut(input)?;
        self.execute(sequenced, bad)?;
        self.steer();
        if let Some(number) = draining {
            self.shared.drained(number);
        }
        Ok(())
    }

    /// Runs an epoch and hands its outputs on, all of it or, on an error, nothing more.
    fn execute(&mut self, sequenced: Sequenced, bad: Vec<(SourceId, Bad)>) -> Result<()> {
        let Sequenced { cut, epoch, late } = sequenced;
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        let outcome = self.serial.run(&mut state.tables, &epoch)?;
        for table in &mut state.tables {
            table.commit(outcome.seq);
        }
        let counts = &mut state.counts;
        counts.epochs += 1;
        counts.events += bad.len() as u64;
        for run in &epoch.runs {
            // Each event once, however many streams it is on.
            if self.program.root_stream(run.stream) == run.stream {
                counts.events += run.offsets.len() as u64;
            }
        }
        for (total, epoch) in counts.handlers.iter_mut().zip(&outcome.counts) {
            total.committed += epoch.committed;
            total.aborted += epoch.aborted;
        }
        for unstable in &outcome.unstable {
            let entry = counts.unstable.entry(unstable.handler);
            entry.or_insert_with(|| (unstable.stamp.to_string(), 0)).1 += 1;
        }
        let state = &mut *state;
        let dead = self.dead(&cut.offsets, bad);
        for (stream, batch) in dead {
            state.counts.dead += batch.len() as u64;
            self.outlets.take(&format!("{stream}.dead"), batch, &mut state.kept)?;
        }
        for run in late {
            if self.program.root_stream(run.stream) == run.stream {
                state.counts.late += run.offsets.len() as u64;
                state.counts.events += run.offsets.len() as u64;
            }
            let name = format!("{}.late", self.program.streams[run.stream.index()].spec.name);
            self.outlets.take(&name, run.batch, &mut state.kept)?;
        }
        self.hand_on(&epoch, outcome, &mut state.kept)?;
        self.outlets.commit()?;
        state.counts.parked = self.sequencer.parked_rows() as u64;
        state.counts.lag_us = self.lag_us(&cut);
        state.counts.outputs = self.outlets.rows();
        state.counts.output_hash = self.outlets.hash();
        if self.settings.keep_cuts {
            state.cuts.push(cut);
        }
        let parked = self.sequencer.parked_bytes();
        let tables: usize = state.tables.iter().map(tidemill_table::Table::bytes).sum();
        if tables + parked + state.kept.bytes > self.settings.memory_bytes_max {
            let largest = state.tables.iter().max_by_key(|t| t.bytes());
            let largest = largest.map_or(String::new(), |t| {
                format!("; the largest table is {} with {} bytes", t.spec().name, t.bytes())
            });
            return Err(Error::resource(format!(
                "memory_bytes_max is {}, but tables hold {tables} bytes, events that wait for \
                 their watermark {parked}, and kept outputs {}{largest}",
                self.settings.memory_bytes_max, state.kept.bytes
            ))
            .help("raise memory_bytes_max, delete rows that are no longer needed, or keep less"));
        }
        Ok(())
    }

    /// How far the slowest watermark is behind the newest event time of its stream's sources.
    fn lag_us(&self, cut: &Cut) -> i64 {
        let behind = |(source, state): (&SourceSpec, &SourceState)| {
            let mark = cut.watermarks[source.stream.index()];
            let known = mark != Position::MIN && mark != Position::MAX;
            state.time_max.filter(|_| known).map(|t| t.saturating_sub(mark.time_us))
        };
        self.program.sources.iter().zip(&self.sources).filter_map(behind).max().unwrap_or(0)
    }

    fn hand_on(
        &mut self,
        epoch: &Epoch,
        outcome: Outcome,
        kept: &mut crate::outlets::Kept,
    ) -> Result<()> {
        // Input and derived streams that somebody wants to see pass through in stamp order.
        for index in 0..self.program.streams.len() {
            let stream = &self.program.streams[index];
            if !matches!(stream.origin, Origin::Input | Origin::Derived { .. }) {
                continue;
            }
            let name = &stream.spec.name;
            if self.outlets.by_name.get(&**name).is_some_and(|o| o.is_wanted()) {
                if let Some(batch) = in_order(epoch, StreamId(index as u16)) {
                    self.outlets.take(name, batch, kept)?;
                }
            }
        }
        for output in outcome.outputs {
            let name = &self.program.streams[output.stream.index()].spec.name;
            self.outlets.take(name, output.batch, kept)?;
        }
        Ok(())
    }

    /// The rows that could not be decoded, and the events that a stage could not compute, up to
    /// this cut: by stream, in order of source and offset.
    fn dead(&self, offsets: &[u64], bad: Vec<(SourceId, Bad)>) -> Vec<(Arc<str>, Batch)> {
        let mut rows: BTreeMap<StreamId, BTreeMap<(SourceId, u64), Vec<Value>>> = BTreeMap::new();
        for (source, bad) in bad {
            let spec = &self.program.sources[source.index()];
            let row = vec![
                Value::str(&spec.name),
                Value::Int(bad.offset as i64),
                Value::str(&bad.origin),
                Value::Int(bad.line as i64),
                Value::str(&bad.reason),
                Value::str(&bad.raw),
            ];
            rows.entry(spec.stream).or_default().insert((source, bad.offset), row);
        }
        let mut waiting = self.failed.lock();
        // A stage runs once for each branch behind it, and each time notes the same.
        let due: BTreeSet<_> =
            waiting.iter().filter(|f| f.offset < offsets[f.source.index()]).cloned().collect();
        waiting.retain(|f| f.offset >= offsets[f.source.index()]);
        drop(waiting);
        for failed in due {
            let spec = &self.program.sources[failed.source.index()];
            let row = vec![
                Value::str(&spec.name),
                Value::Int(failed.offset as i64),
                Value::str("stage"),
                Value::Int(0),
                Value::str(&failed.reason),
                Value::str(&failed.raw),
            ];
            let rows = rows.entry(failed.stream).or_default();
            rows.insert((failed.source, failed.offset), row);
        }
        rows.into_iter()
            .map(|(stream, rows)| {
                let name = self.program.streams[stream.index()].spec.name.clone();
                (name, Batch::from_rows(dead_schema(), rows.values().map(|r| &r[..])))
            })
            .collect()
    }

    /// Pauses the source that is ahead in time while too much waits for the others, never the one
    /// behind.
    fn steer(&mut self) {
        let parked = self.sequencer.parked_bytes();
        let times: Vec<Option<i64>> = self.sources.iter().map(|s| s.time_max).collect();
        let ended: Vec<bool> = self.sources.iter().map(|s| s.ended).collect();
        for index in 0..self.sources.len() {
            let id = SourceId(index as u32);
            let free = parked < self.settings.parked_bytes_max / 2
                || !self.sequencer.is_ahead(id, &times, &ended);
            if free && std::mem::take(&mut self.sources[index].paused) {
                self.gate.pause(id, false);
            }
        }
        if parked > self.settings.parked_bytes_max {
            if let Some(ahead) = self.sequencer.farthest_ahead(&times, &ended) {
                if !std::mem::replace(&mut self.sources[ahead.index()].paused, true) {
                    self.gate.pause(ahead, true);
                }
            }
        }
    }
}

impl Drop for Driver {
    /// Whatever ended the run, what was committed is completed at the sinks.
    fn drop(&mut self) {
        if let Err(error) = self.outlets.finish() {
            self.shared.fail(error);
        }
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
