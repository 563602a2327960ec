//! Timers: transactions that the coordinator's clock requests, as a client would.
//!
//! A firing is a request with an id of its own, so it is executed once, whatever process dies and
//! whatever the clock does. A timer fires at the multiples of its period. A coordinator that starts
//! requests the last firing again, which is executed unless it was before. So firings that were
//! missed while no process executed them become one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidemill_core::{encode, Error, Result, StreamId};
use tidemill_env::{Env, Handle};
use tidemill_function::{Call, Functions as _};
use tidemill_host::{Answer, Placed, RequestServer};

use super::panics::catch_panic;
use crate::functions::AppFunctions;
use crate::timers::next;

/// The longest sleep, in microseconds. The end of the cluster waits no longer.
const SLEEP_US: u64 = 20_000;

/// The time for a firing under way when the cluster ends, in microseconds.
const FINISH_US: u64 = 5_000_000;

/// The running timers of an app, until this is dropped.
pub(super) struct Timers {
    env: Env,
    state: Arc<State>,
    // The lock is there only because a handle can't be shared between threads.
    thread: Mutex<Option<Handle>>,
}

/// The state that the thread shares.
#[derive(Default)]
struct State {
    /// Whether no timer fires any more.
    is_ending: AtomicBool,
    /// Whether a firing under way is not awaited.
    is_over: AtomicBool,
    has_ended: AtomicBool,
    failed: Mutex<Option<Error>>,
}

/// A timer.
struct Timer {
    stream: StreamId,
    period_us: i64,
    due_us: i64,
}

/// The thread's own parts.
struct Clockwork {
    env: Env,
    request_server: Arc<RequestServer>,
    functions: Arc<AppFunctions>,
    state: Arc<State>,
}

impl Timers {
    /// Starts the timers of an app, if it has any.
    ///
    /// # Errors
    /// When their thread can't be started.
    pub fn start(
        env: &Env,
        request_server: &Arc<RequestServer>,
        functions: &Arc<AppFunctions>,
    ) -> Result<Timers> {
        let now_us = env.clock.now_us();
        let timers = functions.timers().iter().map(|timer| {
            let period_us = timer.period_us;
            Timer { stream: timer.stream, period_us, due_us: next(now_us, period_us) - period_us }
        });
        let timers: Vec<Timer> = timers.collect();
        let (env, state) = (env.clone(), Arc::<State>::default());
        if timers.is_empty() {
            state.has_ended.store(true, Ordering::Release);
            return Ok(Timers { env, state, thread: Mutex::new(None) });
        }
        let (request_server, functions) = (request_server.clone(), functions.clone());
        let (env_too, state_too) = (env.clone(), state.clone());
        let clockwork = Clockwork { env: env_too, request_server, functions, state: state_too };
        let run = move || {
            let fire = || {
                clockwork.run(timers);
                Ok(())
            };
            *clockwork.state.failed.lock() = catch_panic("timers", fire).err();
            clockwork.state.has_ended.store(true, Ordering::Release);
        };
        let thread = env.threads.spawn("tidemill-timers", Box::new(run));
        let thread = thread.map_err(|e| Error::io("starting the thread of timers", &e))?;
        Ok(Timers { env, state, thread: Mutex::new(Some(thread)) })
    }

    /// The error that has ended the timers, if there is one.
    pub fn failed(&self) -> Option<Error> {
        self.state.failed.lock().clone()
    }

    /// Stops the timers, and waits a limited time for a firing under way.
    pub fn finish(&self) {
        self.state.is_ending.store(true, Ordering::Release);
        let begun_ns = self.env.clock.monotonic_ns();
        let has_ended = || self.state.has_ended.load(Ordering::Acquire);
        while !has_ended() && self.env.clock.monotonic_ns() - begun_ns < FINISH_US * 1_000 {
            self.env.clock.sleep_us(1_000);
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.state.is_ending.store(true, Ordering::Release);
        self.state.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get_mut().take() {
            // The thread has reported why it ended, even after a panic.
            let _ = thread.join();
        }
    }
}

impl Clockwork {
    fn run(&self, mut timers: Vec<Timer>) {
        while !self.state.is_ending.load(Ordering::Acquire) {
            for timer in &mut timers {
                let now_us = self.env.clock.now_us();
                if timer.due_us <= now_us {
                    timer.due_us = next(now_us, timer.period_us);
                    self.fire(timer, timer.due_us - timer.period_us);
                }
            }
            let due_us = timers.iter().map(|timer| timer.due_us).min().unwrap_or(i64::MAX);
            let left_us = due_us.saturating_sub(self.env.clock.now_us());
            self.env.clock.sleep_us(u64::try_from(left_us).unwrap_or(0).clamp(1, SLEEP_US));
        }
    }

    /// Requests the transactions of a firing, all or none of them, in the order of their handlers.
    fn fire(&self, timer: &Timer, at_us: i64) {
        let firing = self.functions.firing(timer.stream, at_us, timer.period_us);
        let firing = firing.unwrap_or_default();
        // All firings of a timer are in one source, and so in order. A firing that was recorded but
        // not executed before a coordinator died precedes those of the next one.
        let name = &self.functions.program().streams[timer.stream.index()].spec.name;
        let hash = encode::hash128(name.as_bytes()) as u64;
        let source = (hash % u64::from(self.request_server.sources())) as u32;
        // It may be unknown whether the firing was recorded. By its ids it is executed once.
        while !self.is_over() {
            if self.is_done(&firing, source) {
                return;
            }
        }
    }

    /// Requests a firing, and waits for it. Returns whether it has been executed.
    fn is_done(&self, firing: &[Call], source: u32) -> bool {
        if firing.is_empty() {
            return true;
        }
        let (tell, told) = channel();
        let ask = |call: &Call| -> (Call, Placed) {
            let tell = tell.clone();
            (call.clone(), Box::new(move |_, answer| drop(tell.send(answer))))
        };
        let calls = firing.iter().map(ask).collect();
        drop(tell);
        self.request_server.call_together(source, calls);
        let mut left = firing.len();
        while left > 0 {
            match told.recv_timeout(Duration::from_micros(SLEEP_US)) {
                Ok(Answer::Unknown) | Err(RecvTimeoutError::Disconnected) => {
                    self.env.clock.sleep_us(SLEEP_US);
                    return false;
                }
                Ok(_) => left -= 1,
                Err(RecvTimeoutError::Timeout) if self.is_over() => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        true
    }

    fn is_over(&self) -> bool {
        self.state.is_over.load(Ordering::Acquire)
    }
}
