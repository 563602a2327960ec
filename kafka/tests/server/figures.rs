//! Measurements for people. They are right only if nothing else runs.

use std::time::{Duration, Instant};

use tidemill_cluster::{Record, Topic};

use crate::common::*;

/// Prints the measurements.
#[test]
#[ignore = "needs a server: make test-servers"]
fn server_figures() {
    let begun = Instant::now();
    let settings = settings("figures", 4);
    drop(open(&settings));
    let made = begun.elapsed();
    let begun = Instant::now();
    let log = open(&settings);
    println!("a log is made in {made:.1?} and opened in {:.1?}", begun.elapsed());
    let topic = Topic::Output(0);
    for topic in [Topic::Cuts, Topic::Output(1), Topic::Output(2), Topic::Input(0)] {
        let begun = Instant::now();
        append(&log, topic, 1, Record::Generation { generation: 1 }).unwrap();
        let appended = begun.elapsed();
        let begun = Instant::now();
        read(&log, topic, 0, Some(1), 5_000_000).unwrap();
        let read = begun.elapsed();
        println!("the first append to {topic:?} takes {appended:.1?}, the first read {read:.1?}");
    }
    append(&log, topic, 1, Record::Generation { generation: 1 }).unwrap();
    let mut taken: Vec<Duration> = (0..2000)
        .map(|n| {
            let begun = Instant::now();
            append(&log, topic, 1, record(topic, n)).unwrap();
            begun.elapsed()
        })
        .collect();
    println!("one append at a time is answered after {}", spread(&mut taken));

    for (topics, count) in [(1, 50_000), (4, 100_000u64)] {
        for n in 1..topics {
            let _ = append(&log, Topic::Output(n), 1, Record::Generation { generation: 1 });
        }
        let begun = Instant::now();
        let mut waiting = std::collections::VecDeque::new();
        let mut taken = Vec::new();
        for n in 0..count {
            let topic = Topic::Output((n % u64::from(topics)) as u32);
            waiting.push_back(begin_timed_append(&log, topic, 1, record(topic, n)));
            // At most this many appends are in flight.
            if waiting.len() > 10_000 {
                taken.push(waiting.pop_front().unwrap().recv().unwrap());
            }
        }
        taken.extend(waiting.into_iter().map(|answer| answer.recv().unwrap()));
        let per_second = count as f64 / begun.elapsed().as_secs_f64();
        println!(
            "10,000 in flight on {topics} partitions: {per_second:.0} a second, answered after {}",
            spread(&mut taken)
        );
    }
    let begun = Instant::now();
    let found = read(&log, topic, 0, None, 0).unwrap().records.len();
    println!(
        "{found} records read at {:.0} a second",
        found as f64 / begun.elapsed().as_secs_f64()
    );
}
