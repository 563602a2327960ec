//! Clusters with real sockets and files. Whatever process ends, every request is executed once, in
//! one order.

mod common;

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use common::{transfer, Coordinator, Site, OPENING};
use parking_lot::Mutex;
use tidemill_cluster::{Log, Output, Record, Records, Topic};
use tidemill_env::Env;
use tidemill_host::Answer;

const ACCOUNTS: i64 = 50;

/// Applies an answered request to the expected accounts. A request with an unknown outcome counts
/// by its reply in the log.
fn settle(balances: &mut BTreeMap<i64, i64>, from: i64, to: i64, amount: i64) {
    *balances.entry(from).or_insert(OPENING) -= amount;
    *balances.entry(to).or_insert(OPENING) += amount;
}

fn way(n: i64) -> (i64, i64, i64) {
    let from = (n * 7919) % ACCOUNTS;
    (from, (from + 1 + n % (ACCOUNTS - 1)) % ACCOUNTS, n % 40)
}

#[test]
fn several_workers_execute_one_order() {
    let mut site = Site::new(4);
    let coordinator = site.coordinator();
    let workers: Vec<_> = (0..3).map(|_| site.worker()).collect();
    coordinator.wait_for(3);
    let sent: Vec<_> = (0..2_000)
        .map(|n| {
            let (from, to, amount) = way(n);
            ((from, to, amount), coordinator.send(transfer(from, to, amount)))
        })
        .collect();
    let mut balances = BTreeMap::new();
    let mut refused = 0;
    for ((from, to, amount), reply) in sent {
        match reply.recv_timeout(std::time::Duration::from_secs(20)).unwrap_or_else(|_| {
            panic!(
                "no reply: {:?} {:?}",
                coordinator.process.status(),
                workers.iter().map(|w| w.status()).collect::<Vec<_>>()
            )
        }) {
            Answer::Returned(_) => settle(&mut balances, from, to, amount),
            Answer::Aborted(why) => {
                assert_eq!(why.reason, "insufficient funds");
                refused += 1;
            }
            Answer::Unknown => panic!("nothing has failed"),
        }
    }
    assert!(refused < 2_000);
    assert_eq!(coordinator.balances(ACCOUNTS), balances);
    drop(workers);
}

#[test]
fn who_ends_in_good_order_leaves_all_in_a_snapshot() {
    let mut site = Site::new(3);
    let coordinator = site.coordinator();
    let workers: Vec<_> = (0..2).map(|_| site.worker()).collect();
    coordinator.wait_for(2);
    let waits: Vec<_> =
        (0..500).map(way).map(|(a, b, n)| coordinator.send(transfer(a, b, n))).collect();
    // Some have been executed by then, and the others are executed before the end.
    let _ = waits[100].recv_timeout(std::time::Duration::from_secs(20));
    let waits: Vec<_> = (0..).zip(waits).filter(|(nth, _)| *nth != 100).collect();
    assert!(coordinator.process.leave(3, 60_000_000), "{:?}", coordinator.process.status());
    let ended = coordinator.process.status();
    assert!(ended.epoch > 0 && ended.snapshot == ended.epoch, "{ended:?}");
    // All requests that were there have been executed, and no more are accepted.
    let is_answered = |wait: &Receiver<Answer>| matches!(wait.recv(), Ok(Answer::Returned(_)));
    assert!(waits.iter().all(|(_, wait)| is_answered(wait)));
    let (from, to, amount) = way(0);
    let late = coordinator.send(transfer(from, to, amount));
    assert!(matches!(late.recv(), Ok(Answer::Unknown)));
    let coordinator = again(&mut site, coordinator);
    coordinator.wait_for(2);
    let mut balances = BTreeMap::new();
    for (from, to, amount) in (0..500).map(way) {
        settle(&mut balances, from, to, amount);
    }
    // All accounts have enough, so all requests are executed, once.
    while coordinator.process.status().lag().iter().any(|lag| *lag > 0) {
        Env::real().clock.sleep_us(1_000);
    }
    balances.retain(|_, balance| *balance != OPENING);
    let mut found = coordinator.balances(ACCOUNTS);
    found.retain(|_, balance| *balance != OPENING);
    assert_eq!(found, balances);
    drop(workers);
    // Without workers that could take a snapshot, it does not wait, and reports that. Its status may
    // lack the last cut.
    let is_whole = coordinator.process.leave(3, 60_000_000);
    let ended = coordinator.process.status();
    assert!(!is_whole || ended.snapshot == ended.epoch, "{ended:?}");
}

/// The outputs by their client's id: each reply must be there once.
#[derive(Default)]
struct Left(Mutex<BTreeMap<Vec<u8>, usize>>);

/// Counts the replies of a source, from an offset on.
fn count(log: Weak<dyn Log>, source: u32, from: u64, left: Weak<Left>) {
    let Some(open) = log.upgrade() else { return };
    let then = move |found: Option<Records>| {
        let Some(to) = left.upgrade() else { return };
        let Records { records, upto } =
            found.unwrap_or(Records { records: Vec::new(), upto: from });
        for (_, record) in records {
            let Record::Outputs(outputs) = record else { continue };
            for output in outputs {
                if let Output::Reply { id, .. } = output {
                    *to.0.lock().entry(id.to_vec()).or_default() += 1;
                }
            }
        }
        count(log, source, upto, left);
    };
    open.read(Topic::Output(source), from, Some(4096), 1_000_000, Box::new(then));
}

#[test]
fn workers_that_die_and_come_lose_nothing_and_repeat_nothing() {
    let mut site = Site::new(4);
    let left = Arc::new(Left::default());
    let coordinator = site.coordinator();
    for source in 0..4 {
        count(Arc::downgrade(coordinator.request_server.log()), source, 0, Arc::downgrade(&left));
    }
    let mut workers: Vec<_> = (0..2).map(|_| site.worker()).collect();
    coordinator.wait_for(2);
    let mut balances = BTreeMap::new();
    let mut sent = 0;
    for round in 0..6 {
        let ways: Vec<_> = (0..300).map(|n| way(1_000 * round + n)).collect();
        let replies: Vec<_> =
            ways.iter().map(|(from, to, n)| coordinator.send(transfer(*from, *to, *n))).collect();
        sent += replies.len();
        // Meanwhile a worker leaves, or another one joins.
        match round % 3 {
            0 => drop(workers.remove(0)),
            1 => workers.push(site.worker()),
            _ => {
                drop(workers.remove(0));
                workers.push(site.worker());
            }
        }
        for ((from, to, amount), reply) in ways.into_iter().zip(replies) {
            match reply.recv_timeout(std::time::Duration::from_secs(20)).unwrap_or_else(|_| {
                panic!(
                    "no reply: {:?} {:?}",
                    coordinator.process.status(),
                    workers.iter().map(|w| w.status()).collect::<Vec<_>>()
                )
            }) {
                Answer::Returned(_) => settle(&mut balances, from, to, amount),
                Answer::Aborted(_) => {}
                Answer::Unknown => panic!("the log is there"),
            }
        }
    }
    assert_eq!(coordinator.balances(ACCOUNTS), balances);
    let left = left.0.lock();
    assert!(left.len() >= sent && left.values().all(|times| *times == 1));
}

/// Stops the coordinator, and starts it again at the same place.
fn again(site: &mut Site, coordinator: Coordinator) -> Coordinator {
    drop(coordinator);
    site.coordinator()
}

#[test]
fn a_coordinator_that_comes_back_goes_on() {
    let mut site = Site::new(2);
    let mut coordinator = site.coordinator();
    let workers: Vec<_> = (0..2).map(|_| site.worker()).collect();
    coordinator.wait_for(2);
    let mut balances = BTreeMap::new();
    for round in 0..4 {
        for n in 0..200 {
            let (from, to, amount) = way(500 * round + n);
            if let Answer::Returned(_) = coordinator.call(transfer(from, to, amount)) {
                settle(&mut balances, from, to, amount);
            }
        }
        assert_eq!(coordinator.balances(ACCOUNTS), balances);
        coordinator = again(&mut site, coordinator);
    }
    coordinator.wait_for(2);
    assert_eq!(coordinator.balances(ACCOUNTS), balances);
    drop(workers);
    // All at once, too.
    let coordinator = again(&mut site, coordinator);
    let _worker = site.worker();
    coordinator.wait_for(1);
    assert_eq!(coordinator.balances(ACCOUNTS), balances);
    Env::real().clock.sleep_us(1);
}
