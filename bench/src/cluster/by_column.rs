//! Events that a client sends in batches, without replies: at a rate, or up to a number in flight.
//!
//! Nobody waits for the result of an event. So the client learns from the coordinator's counts how
//! many have been executed, and from the cuts in the log in which order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_cluster::{CutRecord, Log, Record, Records, Topic};
use tidemill_core::{Batch, Error, Result, StreamId};
use tidemill_engine::Cluster;
use tidemill_env::Env;
use tidemill_function::{Counts, Sequencing};

use super::offer::{Pace, Replied, NAP_US};

/// The time for which a read of cuts waits for more, in microseconds.
const WAIT_US: u64 = 100_000;
/// The number of cuts that are read at once.
const READ: usize = 1024;

/// Events of one stream for one source.
pub(super) struct SentEvents {
    pub source: u32,
    pub stream: StreamId,
    /// The numbers of the events among all.
    pub numbers: Vec<u32>,
    pub batch: Batch,
}

/// The cuts since a moment.
#[derive(Default)]
struct Cuts {
    all: Vec<CutRecord>,
    has_begun: bool,
    is_over: bool,
}

/// Reads cuts into a list, until that is over.
fn follow(log: Arc<dyn Log>, from: u64, limit: Option<usize>, cuts: Arc<Mutex<Cuts>>) {
    let own = log.clone();
    let then = move |found: Option<Records>| {
        let Some(Records { records, upto }) = found else {
            return follow(own, from, limit, cuts);
        };
        let mut known = cuts.lock();
        for (_, record) in records {
            if let Record::Cut(cut) = record {
                known.all.push(cut);
            }
        }
        known.has_begun = true;
        let is_over = known.is_over;
        drop(known);
        if !is_over {
            follow(own, upto, Some(READ), cuts);
        }
    };
    log.read(Topic::Cuts, from, limit, WAIT_US, Box::new(then));
}

/// Sends all events, and waits until they have been executed.
pub(super) fn send(
    env: &Env,
    cluster: &Cluster,
    sources: u32,
    all: &[SentEvents],
    pace: &Pace,
) -> Result<Replied> {
    let cuts: Arc<Mutex<Cuts>> = Arc::default();
    // The first read only finds the end.
    follow(cluster.log(), u64::MAX, None, cuts.clone());
    while !cuts.lock().has_begun {
        env.clock.sleep_us(NAP_US);
    }
    let offsets: Arc<Mutex<Vec<Option<u64>>>> = Arc::new(Mutex::new(vec![None; all.len()]));
    let before = cluster.status().counts;
    let executed = || {
        let counts = cluster.status().counts;
        counts.events - before.events
    };
    let begun = env.clock.monotonic_ns();
    let until = pace.seconds.map_or(u64::MAX, |seconds| begun + (seconds * 1e9) as u64);
    let patience = (pace.patience_s * 1e9) as u64;
    let (mut done, mut last_ns) = (0, begun);
    // The time and the number when the events that count began.
    let (mut counted, warm_up) = ((begun, 0), pace.warm_up as u64);
    let (mut sent, mut batches) = (0u64, 0);
    // The events up to which each batch has been sent, and the time when it was due.
    let mut open: VecDeque<(u64, u64)> = VecDeque::new();
    let mut waits_ns = Vec::new();
    let mut look = |sent: u64, open: &mut VecDeque<(u64, u64)>| -> Result<u64> {
        let (now_ns, now_done) = (env.clock.monotonic_ns(), executed());
        if now_done > done {
            (done, last_ns) = (now_done, now_ns);
            if counted.1 < warm_up {
                counted = (now_ns, now_done);
            }
        }
        while let Some((upto, due)) = open.pop_front_if(|(upto, _)| *upto <= done) {
            waits_ns.extend((upto > warm_up).then(|| now_ns.saturating_sub(due)));
        }
        if sent > done && now_ns > last_ns.max(begun).saturating_add(patience) {
            return Err(Error::resource("events are not executed").help("see what the workers say"));
        }
        Ok(done)
    };
    for (nth, events) in all.iter().enumerate() {
        let due = pace.rate.map(|rate| begun + (sent as f64 * 1e9 / rate) as u64);
        let mut now = env.clock.monotonic_ns();
        while match due {
            Some(due) => due > now,
            None => sent - look(sent, &mut open)? >= pace.under_way as u64,
        } {
            env.clock.sleep_us(NAP_US);
            look(sent, &mut open)?;
            now = env.clock.monotonic_ns();
        }
        if now >= until {
            break;
        }
        sent += events.batch.len() as u64;
        batches += 1;
        open.push_back((sent, due.unwrap_or(now)));
        let known = offsets.clone();
        let then = move |result: std::result::Result<u64, _>| known.lock()[nth] = result.ok();
        cluster.send(events.source, events.stream, events.batch.clone(), Box::new(then));
    }
    while look(sent, &mut open)? < sent {
        env.clock.sleep_us(NAP_US);
    }
    let ns = last_ns.saturating_sub(counted.0).max(1);
    let counts = cluster.status().counts;
    let offsets = std::mem::take(&mut *offsets.lock());
    let mut records: BTreeMap<(u32, u64), &SentEvents> = BTreeMap::new();
    for (events, offset) in all[..batches].iter().zip(offsets) {
        let offset = offset.ok_or_else(|| Error::resource("events could not be appended"))?;
        records.insert((events.source, offset), events);
    }
    // A cut may become known a moment after it has been executed.
    let is_cut = |(source, offset): &(u32, u64)| {
        cuts.lock().all.last().is_some_and(|cut| cut.upto[*source as usize] > *offset)
    };
    let waits_since_ns = env.clock.monotonic_ns();
    while !records.keys().all(is_cut) {
        if env.clock.monotonic_ns() > waits_since_ns + patience {
            return Err(Error::resource("events are in no cut"));
        }
        env.clock.sleep_us(NAP_US);
    }
    let mut places = vec![0; all.iter().map(|events| events.numbers.len()).sum()];
    for cut in &cuts.lock().all {
        let order = Sequencing { sources, base: cut.base };
        for source in 0..sources {
            let (from, upto) = (cut.from[source as usize], cut.upto[source as usize]);
            let of_cut = records.range((source, from)..(source, upto));
            let numbers = of_cut.flat_map(|(_, events)| &events.numbers);
            for (nth, number) in (0..).zip(numbers) {
                places[*number as usize] = order.tid(source, nth).0 + 1;
            }
        }
    }
    cuts.lock().is_over = true;
    let Counts { refused, faults, .. } = &*counts;
    Ok(Replied {
        sent: sent as usize,
        warm_up: counted.1 as usize,
        ns,
        waits_ns: if waits_ns.is_empty() { vec![0] } else { waits_ns },
        aborted: refused + faults - before.refused - before.faults,
        reason: None,
        unanswered: 0,
        seen_again: 0,
        differs: false,
        values: Default::default(),
        places,
    })
}
