//! Timers: events that a clock sends.
//!
//! A timer fires at the multiples of its period, when the firing before has been executed. So missed
//! firings become one: the last. Nothing fires while nothing runs. None comes twice, whatever the
//! clock does. In one process a firing is a pushed event like any other: it is logged, has its place
//! in the one order, and is replayed there after a crash. On several processes it is a request with
//! an id of its own (`cluster/firings.rs`).

use std::sync::atomic::Ordering;
use std::sync::Arc;

use tidemill_connect::push::TrySend;
use tidemill_core::{Batch, Error, Result, Schema, Value};
use tidemill_env::{Clock, Handle};

use crate::view::{Pushed, View};

/// The longest sleep, in microseconds. The end of the engine waits no longer.
const SLEEP_US: u64 = 20_000;
/// The pause between checks of a due timer that can't fire yet, in microseconds.
const LOOK_US: u64 = 1_000;

/// The way in which a timer sends its firings.
pub(crate) trait Fire {
    /// Whether all firings that were sent have been executed.
    fn is_done(&mut self) -> bool;

    /// Sends a firing.
    fn send(&mut self, at_us: i64) -> Firing;
}

/// The result of sending a firing.
pub(crate) enum Firing {
    Sent,
    /// There is no room. It is sent when there is.
    Later,
    /// The timer fires no more.
    Never,
}

/// A running timer.
pub(crate) struct Timer<F> {
    period_us: i64,
    /// The time of the next firing, in microseconds.
    due_us: i64,
    pub(crate) fires: F,
}

impl<F: Fire> Timer<F> {
    /// Creates a timer. `is_repeated` means that the last firing before now may not have been executed,
    /// and is sent again.
    pub(crate) fn new(now_us: i64, period_us: i64, is_repeated: bool, fires: F) -> Timer<F> {
        let next_us = next(now_us, period_us);
        let due_us = if is_repeated { next_us - period_us } else { next_us };
        Timer { period_us, due_us, fires }
    }

    /// Fires if it is due, and the firing before has been executed. Returns whether it goes on.
    fn look(&mut self, now_us: i64) -> bool {
        if self.due_us > now_us || !self.fires.is_done() {
            return true;
        }
        let at_us = next(now_us, self.period_us) - self.period_us;
        match self.fires.send(at_us) {
            Firing::Sent => self.due_us = at_us + self.period_us,
            Firing::Later => {}
            Firing::Never => return false,
        }
        true
    }
}

/// Runs timers until `is_over` returns `true`, or none is left.
pub(crate) fn run<F: Fire>(
    clock: &dyn Clock,
    mut timers: Vec<Timer<F>>,
    mut is_over: impl FnMut(&mut [Timer<F>]) -> bool,
) {
    while !is_over(&mut timers) {
        let now_us = clock.now_us();
        timers.retain_mut(|timer| timer.look(now_us));
        let Some(due_us) = timers.iter().map(|timer| timer.due_us).min() else { return };
        let left_us = u64::try_from(due_us.saturating_sub(now_us)).ok().filter(|left| *left > 0);
        clock.sleep_us(left_us.unwrap_or(LOOK_US).min(SLEEP_US));
    }
}

/// A timer that pushes events.
struct Pushing<'v> {
    view: &'v View,
    pushed: &'v Pushed,
    schema: Arc<Schema>,
}

impl Fire for Pushing<'_> {
    fn is_done(&mut self) -> bool {
        let sent = self.pushed.sent.load(Ordering::Acquire);
        self.view.shared.out.lock().offsets[self.pushed.source.index()] >= sent
    }

    fn send(&mut self, at_us: i64) -> Firing {
        let row = [Value::Timestamp(at_us)];
        match self.pushed.handle.try_send(Batch::from_rows(self.schema.clone(), [&row[..]])) {
            Ok(TrySend::Sent(sent)) => {
                self.pushed.sent.fetch_max(self.pushed.known + sent, Ordering::AcqRel);
                self.view.gate.wake_source(self.pushed.source);
                Firing::Sent
            }
            Ok(TrySend::Full(_)) => Firing::Later,
            Err(_) => Firing::Never,
        }
    }
}

/// Starts the timers of an app, if it has any.
///
/// # Errors
/// When their thread can't be started.
pub(crate) fn start(view: &Arc<View>) -> Result<Option<Handle>> {
    if view.program.timers.is_empty() {
        return Ok(None);
    }
    let of = view.clone();
    let thread = view.env.threads.spawn("tidemill-timers", Box::new(move || push(&of)));
    thread.map(Some).map_err(|e| Error::io("starting the thread of timers", &e))
}

fn push(view: &View) {
    let now_us = view.env.clock.now_us();
    let mut timers = Vec::new();
    for timer in &view.program.timers {
        let spec = &view.program.streams[timer.stream.index()].spec;
        let Ok(pushed) = view.pushed(&spec.name) else { continue };
        if !pushed.is_over {
            let fires = Pushing { view, pushed, schema: spec.schema.clone() };
            timers.push(Timer::new(now_us, timer.period_us, false, fires));
        }
    }
    run(&*view.env.clock, timers, |timers| {
        if view.shared.others_ended.load(Ordering::Acquire) {
            // No further events will come that the timers could be for.
            timers.iter().for_each(|timer| timer.fires.pushed.handle.close());
            view.gate.wake();
            return true;
        }
        view.shared.stop_wanted() || view.shared.is_over()
    });
}

/// The first multiple of a period after a time.
pub(crate) fn next(time_us: i64, period_us: i64) -> i64 {
    time_us.div_euclid(period_us).saturating_add(1).saturating_mul(period_us)
}
