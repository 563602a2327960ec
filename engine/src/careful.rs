//! Executes an epoch; after a death, one transaction at a time: events, and slides of windows. Each
//! is noted before. Before the event at which the process died, the engine waits: see
//! [`crate::crash_guard`].

use tidemill_core::{Result, SourceId};
use tidemill_table::Table;
use tidemill_txn::execute::{Executor, Outcome};
use tidemill_txn::order::{Epoch, Ranked};
use tidemill_txn::program::{event_of_slide, Program, Until};

use crate::calls::{self, Answer};
use crate::driver::Driver;
use crate::workers::Workers;

/// The name of careful execution among troubles.
const CAREFUL: &str = "careful mode";
/// The longest sleep, in microseconds. The end of the engine waits no longer.
const STEP_US: u64 = 20_000;

/// An epoch that is executed in parts, and its result so far.
struct Parts<'a> {
    tables: &'a mut [Table],
    epoch: &'a mut Epoch,
    answers: &'a mut Vec<Answer>,
    all: Option<Outcome>,
}

impl Parts<'_> {
    /// Executes a part.
    fn run(
        &mut self,
        program: &Program,
        part: impl FnOnce(&mut [Table], &Epoch) -> Result<Outcome>,
    ) -> Result<()> {
        let outcome = part(self.tables, self.epoch)?;
        self.answers.extend(calls::answers(program, self.epoch, &outcome));
        match &mut self.all {
            None => self.all = Some(outcome),
            Some(all) => add(all, outcome),
        }
        Ok(())
    }
}

impl Driver {
    /// Executes an epoch, one transaction at a time where a death calls for it.
    pub(crate) fn run(
        &mut self,
        tables: &mut [Table],
        at: u64,
        epoch: &mut Epoch,
        answers: &mut Vec<Answer>,
    ) -> Result<Outcome> {
        if let Some(guard) = &mut self.guard {
            let durable = self.shared.delivered_epoch();
            self.on_their_way.retain(|(epoch, _)| *epoch > durable);
            self.on_their_way.push_back((at, epoch.order.len() as u64));
            if guard.is_careful() {
                return self.carefully(tables, at, epoch, answers);
            }
            guard.epoch(at, self.on_their_way.iter().map(|(_, count)| count).sum())?;
        }
        // A replay has the answers.
        if let Some(lookups) = self.lookups.as_ref().filter(|_| self.replay.is_empty()) {
            lookups.ask(&self.program, tables, epoch);
        }
        let outcome = self.executor.run(&self.pool, tables, epoch)?;
        answers.extend(calls::answers(&self.program, epoch, &outcome));
        Ok(outcome)
    }

    fn carefully(
        &mut self,
        tables: &mut [Table],
        at: u64,
        epoch: &mut Epoch,
        answers: &mut Vec<Answer>,
    ) -> Result<Outcome> {
        let program = self.program.clone();
        let groups = self.sequencer.groups().clone();
        let (order, slides) = (std::mem::take(&mut epoch.order), std::mem::take(&mut epoch.slides));
        let mut parts = Parts { tables, epoch, answers, all: None };
        // All handlers of an event run together, because procedures run after all others.
        let mut left = &order[..];
        while let Some(first) = left.first() {
            let event = parts.epoch.event(*first);
            let is_same = |next: &&Ranked| parts.epoch.event(**next) == event;
            let same = left.iter().take_while(is_same).count();
            let group = groups.of[parts.epoch.stream(*first).index()];
            let until = Until::Time(parts.epoch.time_us(*first));
            self.slide_carefully(&program, &mut parts, at, group, until)?;
            self.wait_and_note(at, event)?;
            parts.epoch.order = left[..same].to_vec();
            left = &left[same..];
            let (executor, pool): (&mut Executor, &Workers) = (&mut self.executor, &self.pool);
            parts.run(&program, |tables, epoch| executor.run(pool, tables, epoch))?;
        }
        parts.epoch.order = Vec::new();
        for (group, until) in slides.iter().enumerate() {
            self.slide_carefully(&program, &mut parts, at, group, *until)?;
        }
        // A replay by commands has the slides in the epoch.
        parts.epoch.slides.clone_from(&slides);
        if parts.all.is_none() {
            let (executor, pool) = (&mut self.executor, &self.pool);
            parts.run(&program, |tables, epoch| executor.run(pool, tables, epoch))?;
        }
        let all = parts.all.expect("something was executed");
        epoch.order = order;
        self.guard.iter_mut().try_for_each(|guard| guard.executed(at))?;
        Ok(all)
    }

    /// Executes the due slides of the windows of a group.
    fn slide_carefully(
        &mut self,
        program: &Program,
        parts: &mut Parts<'_>,
        at: u64,
        group: usize,
        until: Until,
    ) -> Result<()> {
        while let Some((window, end)) = self.executor.due_slide(parts.tables, group, until) {
            self.wait_and_note(at, event_of_slide(window, end))?;
            let executor = &mut self.executor;
            parts.run(program, |tables, epoch| Ok(executor.slide(tables, epoch, (window, end))))?;
        }
        Ok(())
    }

    /// Notes the next event. Waits before, if the last process died at it.
    fn wait_and_note(&mut self, at: u64, event: (SourceId, u64)) -> Result<()> {
        let Some(guard) = &mut self.guard else { return Ok(()) };
        if let Some(wait_us) = guard.waits(at, event)? {
            let begun_ns = self.env.clock.monotonic_ns();
            let what = format!(
                "the process ended when {} was executed: it is tried again, as the only event, \
                 after {} ms, to see whether something else ends the process",
                self.program.event_named(event),
                wait_us / 1000
            );
            self.shared.troubles.report(CAREFUL, &what);
            let waited = || (self.env.clock.monotonic_ns() - begun_ns) / 1000;
            while waited() < wait_us && !self.shared.stop_wanted() && !self.shared.is_over() {
                self.env.clock.sleep_us((wait_us - waited().min(wait_us)).clamp(1, STEP_US));
            }
            self.shared.troubles.clear(CAREFUL);
        }
        let lived_us = (self.env.clock.monotonic_ns() - self.begun_ns) / 1000;
        guard.transaction(at, event, lived_us)
    }
}

/// Adds the result of another part of an epoch.
fn add(all: &mut Outcome, outcome: Outcome) {
    all.outputs.extend(outcome.outputs);
    all.unstable.extend(outcome.unstable);
    all.overdue.extend(outcome.overdue);
    all.faults.extend(outcome.faults);
    all.aborted_slides.extend(outcome.aborted_slides);
    all.commands.extend(outcome.commands);
    for (total, count) in all.counts.iter_mut().zip(outcome.counts) {
        total.committed += count.committed;
        total.aborted += count.aborted;
        total.faults += count.faults;
    }
    for (handler, hash) in outcome.written {
        let sum = all.written.entry(handler).or_default();
        *sum = sum.wrapping_add(hash);
    }
    all.seq = outcome.seq;
}
