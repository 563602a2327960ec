//! Requests at a rate, or up to a number in flight, and their replies.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use tidemill_core::{Result, Value};
use tidemill_env::Env;
use tidemill_function::Call;

use super::endpoint::Endpoint;

/// The first nanoseconds of a run, whose latencies do not count in a much longer run: some
/// resources are still being created.
const WARM_UP_NS: u64 = 1_000_000_000;
/// The time that an idle client sleeps, in microseconds. Requests that become due meanwhile count
/// as late.
pub(super) const NAP_US: u64 = 300;

/// A request that the benchmark offers.
pub(super) struct Planned {
    pub source: u32,
    pub call: Call,
    /// The text that a client of Kafka would write.
    pub text: Option<Vec<u8>>,
}

/// The pace of the requests.
#[derive(Clone)]
pub(super) struct Pace {
    pub rate: Option<f64>,
    pub seconds: Option<f64>,
    pub under_way: usize,
    pub patience_s: f64,
    pub keeps_values: bool,
    /// The number of requests before those that count.
    pub warm_up: usize,
}

/// The content of a reply.
#[derive(Clone)]
pub(super) enum ReplyContent {
    Returned,
    Value(Value),
    Aborted(String),
}

/// The replies received so far.
pub(super) struct Book {
    env: Env,
    /// The number of the first request; earlier numbers are ignored.
    first: u64,
    pub keeps_values: bool,
    page: Mutex<Page>,
}

#[derive(Default)]
struct Page {
    /// For each request its place in the order plus 1, and the time of its reply.
    replies: Vec<(u64, u64)>,
    count: usize,
    last_ns: u64,
    aborted: u64,
    reason: Option<String>,
    again: u64,
    differs: bool,
    values: HashMap<usize, Value, FixedState>,
}

impl Book {
    /// Records a reply.
    pub fn take(&self, nth: u64, place: u64, content: ReplyContent) {
        let Some(nth) = nth.checked_sub(self.first) else { return };
        let now_ns = self.env.clock.monotonic_ns();
        let mut page = self.page.lock();
        let page = &mut *page;
        let Some(entry) = page.replies.get_mut(nth as usize) else { return };
        if entry.0 != 0 {
            page.again += 1;
            page.differs |= entry.0 != place + 1;
            return;
        }
        *entry = (place + 1, now_ns);
        page.count += 1;
        page.last_ns = now_ns;
        match content {
            ReplyContent::Returned => {}
            ReplyContent::Value(value) => drop(page.values.insert(nth as usize, value)),
            ReplyContent::Aborted(reason) => {
                page.aborted += 1;
                page.reason.get_or_insert(reason);
            }
        }
    }

    /// Returns the number of replies.
    fn count(&self) -> usize {
        self.page.lock().count
    }
}

/// The outcome of the requests.
pub(super) struct Replied {
    pub sent: usize,
    /// The number of requests that do not count in the figures below.
    pub warm_up: usize,
    /// The nanoseconds from the first request that counts to the last reply.
    pub ns: u64,
    pub waits_ns: Vec<u64>,
    pub aborted: u64,
    /// The reason of the first abort.
    pub reason: Option<String>,
    pub unanswered: usize,
    /// The number of repeated replies, and whether any of them had another place.
    pub seen_again: u64,
    pub differs: bool,
    pub values: HashMap<usize, Value, FixedState>,
    /// For each request its place in the order plus 1, or 0.
    pub places: Vec<u64>,
}

impl Replied {
    /// Returns the requests in the order of their execution.
    pub fn order(&self) -> Vec<usize> {
        let numbers = 0..self.places.len();
        let mut order: Vec<usize> = numbers.filter(|nth| self.places[*nth] != 0).collect();
        order.sort_by_key(|nth| self.places[*nth]);
        order
    }
}

/// Sends requests, numbered from `first`, and waits for their replies.
pub(super) fn offer(
    env: &Env,
    endpoint: &mut dyn Endpoint,
    first: u64,
    asked: &[Planned],
    pace: &Pace,
) -> Result<Replied> {
    let page = Mutex::new(Page { replies: vec![(0, 0); asked.len()], ..Page::default() });
    let keeps_values = pace.keeps_values;
    let book = Arc::new(Book { env: env.clone(), first, keeps_values, page });
    endpoint.set_book(&book);
    let begun = env.clock.monotonic_ns();
    let until = pace.seconds.map_or(u64::MAX, |seconds| begun + (seconds * 1e9) as u64);
    let patience = (pace.patience_s * 1e9) as u64;
    let is_over = |now: u64| now > book.page.lock().last_ns.max(begun).saturating_add(patience);
    let mut due = Vec::with_capacity(asked.len());
    'sending: for (nth, asked) in asked.iter().enumerate() {
        let mut now = env.clock.monotonic_ns();
        let at = pace.rate.map(|rate| begun + (nth as f64 * 1e9 / rate) as u64);
        if at.is_some_and(|at| at >= until) {
            break;
        }
        while at.map_or_else(|| nth - book.count() >= pace.under_way, |at| at > now) {
            endpoint.flush_due(false)?;
            env.clock.sleep_us(NAP_US);
            now = env.clock.monotonic_ns();
            if is_over(now) {
                break 'sending;
            }
        }
        if at.is_none() && now >= until {
            break;
        }
        due.push(at.unwrap_or(now));
        endpoint.send(first + nth as u64, asked)?;
    }
    endpoint.flush_due(true)?;
    let (sent, stopped) = (due.len(), env.clock.monotonic_ns());
    while book.count() < sent {
        let now = env.clock.monotonic_ns();
        if is_over(now) && now > stopped + patience {
            break;
        }
        env.clock.sleep_us(NAP_US);
    }
    let page = std::mem::take(&mut *book.page.lock());
    let is_long = due.last().is_some_and(|last| *last > begun + 2 * WARM_UP_NS);
    let warm_up = pace.warm_up.min(sent);
    let begun = if warm_up > 0 { due.get(warm_up).copied().unwrap_or(stopped) } else { begun };
    let counts = begun + if is_long && warm_up == 0 { WARM_UP_NS } else { 0 };
    let waits =
        page.replies.iter().zip(&due).filter(|((place, _), at)| *place != 0 && **at >= counts);
    let mut waits_ns: Vec<u64> =
        waits.map(|((_, replied), at)| replied.saturating_sub(*at)).collect();
    if waits_ns.is_empty() {
        waits_ns.push(0);
    }
    Ok(Replied {
        sent,
        warm_up,
        ns: page.last_ns.saturating_sub(begun).max(1),
        waits_ns,
        aborted: page.aborted,
        reason: page.reason,
        unanswered: sent - page.count,
        seen_again: page.again,
        differs: page.differs,
        values: page.values,
        places: page.replies.into_iter().map(|(place, _)| place).collect(),
    })
}
