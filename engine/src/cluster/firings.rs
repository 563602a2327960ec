//! Firings of timers as requests of the coordinator, as a client would send them.
//!
//! A firing is a request with an id of its own, so it is executed once, whatever process dies and
//! whatever the clock does. A coordinator that starts requests the last firing again, which is
//! executed unless it was before. So firings that were missed while no process executed them become
//! one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_core::{encode, Error, Result, StreamId};
use tidemill_env::{Env, Handle};
use tidemill_function::{Call, Functions as _};
use tidemill_host::{Answer, Placed, RequestServer};

use super::panics::catch_panic;
use crate::functions::AppFunctions;
use crate::timers::{run, Fire, Firing, Timer};

/// The looks before a firing of which nothing is known is requested again: about 20 ms.
const PAUSE: u32 = 20;
/// The time for firings under way when the cluster ends, in microseconds.
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
    /// Whether firings under way are not awaited.
    is_over: AtomicBool,
    has_ended: AtomicBool,
    failed: Mutex<Option<Error>>,
}

/// The requests of one timer.
struct Firings {
    request_server: Arc<RequestServer>,
    functions: Arc<AppFunctions>,
    state: Arc<State>,
    stream: StreamId,
    period_us: i64,
    /// The source of its requests. There is one, so firings are in order. A firing that was recorded
    /// but not executed before a coordinator died precedes those of the next one.
    source: u32,
    /// The firing under way, and how many of its answers are not here yet.
    under_way: Option<(Vec<Call>, Receiver<Answer>, usize)>,
    /// The looks until a firing of which nothing is known is requested again.
    pause: u32,
}

impl Firings {
    /// Requests the transactions of a firing, all or none of them, in the order of their handlers.
    fn request(&mut self, firing: Vec<Call>) {
        let (tell, told) = channel();
        let ask = |call: &Call| -> (Call, Placed) {
            let tell = tell.clone();
            (call.clone(), Box::new(move |_, answer| drop(tell.send(answer))))
        };
        let calls: Vec<_> = firing.iter().map(ask).collect();
        drop(tell);
        let left = firing.len();
        self.request_server.call_together(self.source, calls);
        (self.under_way, self.pause) = (Some((firing, told, left)), PAUSE);
    }
}

impl Fire for Firings {
    fn is_done(&mut self) -> bool {
        while let Some((firing, told, left)) = &mut self.under_way {
            match told.try_recv() {
                _ if *left == 0 => self.under_way = None,
                Ok(Answer::Returned(_) | Answer::Aborted(_)) => *left -= 1,
                Err(TryRecvError::Empty) => return false,
                // It is unknown whether the firing was recorded. By its ids it is executed once.
                Ok(Answer::Unknown) => {}
                Err(TryRecvError::Disconnected) if self.pause > 0 => {
                    self.pause -= 1;
                    return false;
                }
                Err(TryRecvError::Disconnected) => {
                    let firing = std::mem::take(firing);
                    self.request(firing);
                    return false;
                }
            }
        }
        true
    }

    fn send(&mut self, at_us: i64) -> Firing {
        if self.state.is_ending.load(Ordering::Acquire) {
            return Firing::Later;
        }
        let firing = self.functions.firing(self.stream, at_us, self.period_us);
        let firing = firing.unwrap_or_default();
        if !firing.is_empty() {
            self.request(firing);
        }
        Firing::Sent
    }
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
        let (now_us, state) = (env.clock.now_us(), Arc::<State>::default());
        let timers = functions.timers().iter().map(|timer| {
            let (stream, period_us) = (timer.stream, timer.period_us);
            let name = &functions.program().streams[stream.index()].spec.name;
            let hash = encode::hash128(name.as_bytes()) as u64;
            let source = (hash % u64::from(request_server.sources())) as u32;
            let fires = Firings {
                request_server: request_server.clone(),
                functions: functions.clone(),
                state: state.clone(),
                stream,
                period_us,
                source,
                under_way: None,
                pause: 0,
            };
            Timer::new(now_us, period_us, true, fires)
        });
        let timers: Vec<Timer<Firings>> = timers.collect();
        let env = env.clone();
        if timers.is_empty() {
            state.has_ended.store(true, Ordering::Release);
            return Ok(Timers { env, state, thread: Mutex::new(None) });
        }
        let (own, clock) = (state.clone(), env.clock.clone());
        let body = move || {
            let is_over = |timers: &mut [Timer<Firings>]| {
                let is_ending = own.is_ending.load(Ordering::Acquire);
                own.is_over.load(Ordering::Acquire)
                    || is_ending && timers.iter_mut().all(|timer| timer.fires.is_done())
            };
            let fire = || {
                run(&*clock, timers, is_over);
                Ok(())
            };
            *own.failed.lock() = catch_panic("timers", fire).err();
            own.has_ended.store(true, Ordering::Release);
        };
        let thread = env.threads.spawn("tidemill-timers", Box::new(body));
        let thread = thread.map_err(|e| Error::io("starting the thread of timers", &e))?;
        Ok(Timers { env, state, thread: Mutex::new(Some(thread)) })
    }

    /// The error that has ended the timers, if there is one.
    pub fn failed(&self) -> Option<Error> {
        self.state.failed.lock().clone()
    }

    /// Stops the timers, and waits a limited time for firings under way.
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
