//! Timers: events that the clock sends.
//!
//! A firing is a pushed event like any other. It is logged, has its place in the one order, and is
//! replayed there after a crash. A timer fires at the multiples of its period, when the firing
//! before has been executed and its cut is durable. So missed firings become one: the last. Nothing
//! fires while nothing runs. None comes twice, whatever the clock does.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use tidemill_connect::push::TrySend;
use tidemill_core::{Batch, Error, Result, Value};
use tidemill_env::Handle;

use crate::view::{Pushed, View};

/// The longest sleep, in microseconds. The end of the engine waits no longer.
const SLEEP_US: u64 = 20_000;
/// The pause between checks of a due timer that can't fire yet, in microseconds.
const LOOK_US: u64 = 1_000;

/// A running timer.
struct Running<'v> {
    pushed: &'v Pushed,
    period_us: i64,
    /// The time of the next firing, in microseconds.
    due_us: i64,
    schema: Arc<tidemill_core::Schema>,
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
    let thread = view.env.threads.spawn("tidemill-timers", Box::new(move || run(&of)));
    thread.map(Some).map_err(|e| Error::io("starting the thread of timers", &e))
}

fn run(view: &View) {
    let now = view.env.clock.now_us();
    let mut timers = Vec::new();
    for timer in &view.program.timers {
        let spec = &view.program.streams[timer.stream.index()].spec;
        let Ok(pushed) = view.pushed(&spec.name) else { continue };
        if !pushed.is_over {
            let (period_us, schema) = (timer.period_us, spec.schema.clone());
            timers.push(Running { pushed, period_us, due_us: next(now, period_us), schema });
        }
    }
    while !view.shared.stop_wanted() && !view.shared.is_over() {
        if view.shared.others_ended.load(Ordering::Acquire) {
            // No further events will come that the timers could be for.
            timers.iter().for_each(|timer| timer.pushed.handle.close());
            view.gate.wake();
            return;
        }
        let now = view.env.clock.now_us();
        timers.retain_mut(|timer| timer.due_us > now || timer.fire(view, now));
        let Some(due) = timers.iter().map(|timer| timer.due_us).min() else { return };
        let left = u64::try_from(due.saturating_sub(now)).ok().filter(|left| *left > 0);
        view.env.clock.sleep_us(left.unwrap_or(LOOK_US).min(SLEEP_US));
    }
}

impl Running<'_> {
    /// Whether all its firings have been taken.
    fn is_taken(&self, view: &View) -> bool {
        let sent = self.pushed.sent.load(Ordering::Acquire);
        view.shared.out.lock().offsets[self.pushed.source.index()] >= sent
    }

    /// Fires, if the firing before was taken. Returns whether the timer may continue.
    fn fire(&mut self, view: &View, now: i64) -> bool {
        if !self.is_taken(view) {
            return true;
        }
        let at = next(now, self.period_us) - self.period_us;
        let row = [Value::Timestamp(at)];
        match self.pushed.handle.try_send(Batch::from_rows(self.schema.clone(), [&row[..]])) {
            Ok(TrySend::Sent(sent)) => {
                self.pushed.sent.fetch_max(self.pushed.known + sent, Ordering::AcqRel);
                view.gate.wake_source(self.pushed.source);
                self.due_us = at + self.period_us;
                true
            }
            // It fires when there is room.
            Ok(TrySend::Full(_)) => true,
            Err(_) => false,
        }
    }
}

/// The first multiple of a period after a time.
pub(crate) fn next(time_us: i64, period_us: i64) -> i64 {
    time_us.div_euclid(period_us).saturating_add(1).saturating_mul(period_us)
}
