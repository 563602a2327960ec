//! Tests the log, and sources and sinks of streams, on a real broker. `make test-servers` starts
//! one and runs these tests.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // Threads, sleep, sockets and time of the tests themselves.

#[path = "server/alone.rs"]
mod alone;
#[path = "server/avro.rs"]
mod avro;
#[path = "server/common.rs"]
mod common;
#[path = "server/read.rs"]
mod read;
mod refusing;
#[path = "server/streams.rs"]
mod streams;
#[path = "server/topic.rs"]
mod topic;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use tidemill_cluster::{Log, Record, Refused, Topic};

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_records_are_read_back_in_order() {
    let log = open(&settings("order", 2));
    let offsets = append_all(&log, Topic::Input(1), 0, 0..3000);
    let offsets: Vec<u64> = offsets.into_iter().map(|o| o.unwrap()).collect();
    assert!(offsets.windows(2).all(|two| two[0] < two[1]));
    let all: Vec<(u64, Record)> =
        offsets.iter().zip(0..).map(|(offset, n)| (*offset, request(n))).collect();

    // Reads in steps, one after another.
    let (mut from, mut found) = (0, Vec::new());
    while found.len() < all.len() {
        let read = read(&log, Topic::Input(1), from, Some(700), 2_000_000).unwrap();
        assert!(!read.records.is_empty() && read.records.len() <= 700);
        assert!(read.upto > from);
        from = read.upto;
        found.extend(read.records);
    }
    assert_eq!(found, all);
    // Reads all at once, from any place.
    for n in 0..40u64 {
        let at = (n * 7919 % 3000) as usize;
        let limit = [None, Some(1), Some(50), Some(5000)][n as usize % 4];
        let read = read(&log, Topic::Input(1), all[at].0, limit, 2_000_000).unwrap();
        let expected = &all[at..];
        match limit {
            None => assert_eq!(read.records, expected),
            Some(limit) => {
                assert!(!read.records.is_empty() && read.records.len() <= limit);
                assert_eq!(read.records, expected[..read.records.len()]);
            }
        }
        assert_eq!(read.upto, read.records.last().unwrap().0 + 1);
    }
    // There is nothing after the end.
    let begun = Instant::now();
    let none = read(&log, Topic::Input(1), from, Some(10), 100_000).unwrap();
    assert_eq!((none.records.len(), none.upto), (0, from));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(read(&log, Topic::Input(1), from, None, 0).unwrap().upto, from);
    assert_eq!(read(&log, Topic::Input(0), 0, None, 0).unwrap().records, []);
    assert!(log.lost().is_none());
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_read_waits_for_what_comes() {
    let log = open(&settings("waits", 1));
    let mut taken = Vec::new();
    for n in 0..200 {
        let waiting = begin_read(&log, Topic::Input(0), n, Some(10), 5_000_000);
        std::thread::sleep(Duration::from_millis(5));
        let begun = Instant::now();
        let offset = append(&log, Topic::Input(0), 0, request(n)).unwrap();
        let read = waiting.recv().unwrap().unwrap();
        taken.push(begun.elapsed());
        assert_eq!(read.records, [(offset, request(n))]);
    }
    println!("a waiting read has a record {} after the append was begun", spread(&mut taken));
}

/// Two writers, the later of which begins a generation in the middle. A reader sees what was
/// acknowledged.
#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_later_generation_fences_the_earlier() {
    let settings = settings("fence", 4);
    let (old, new, third) = (open(&settings), open(&settings), open(&settings));
    let (mut fenced, mut ends) = (0, BTreeMap::new());
    for round in 0..24u64 {
        let topic = [Topic::Cuts, Topic::Output(0), Topic::Output(1)][round as usize % 3];
        let (first, second) = (2 * round + 1, 2 * round + 2);
        // Records of earlier rounds were compared in their rounds.
        let before = read(&third, topic, ends.get(&topic).copied().unwrap_or(0), None, 0);
        let before = before.unwrap().upto;
        ends.insert(topic, before);
        let mut answered: BTreeMap<u64, Record> = BTreeMap::new();
        let begun = append(&old, topic, first, Record::Generation { generation: first });
        answered.insert(begun.unwrap(), Record::Generation { generation: first });
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut waiting = Vec::new();
                let mut n = 0;
                while !is_over.load(Ordering::SeqCst) || n < 50 {
                    let record = record(topic, n);
                    waiting.push((begin_append(&old, topic, first, record.clone()), record));
                    n += 1;
                    if n % 8 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                waiting
            });
            std::thread::sleep(Duration::from_millis(round % 5 * 4));
            let generation = Record::Generation { generation: second };
            let begun = append(&new, topic, second, generation.clone()).unwrap();
            answered.insert(begun, generation.clone());
            // No other process may begin the same generation, nor an earlier one.
            assert_eq!(append(&old, topic, second, generation), Err(Refused::Fenced));
            let earlier = Record::Generation { generation: first };
            assert_eq!(append(&new, topic, first, earlier), Err(Refused::Fenced));
            for n in 10_000..10_050 {
                let record = record(topic, n);
                answered.insert(append(&new, topic, second, record.clone()).unwrap(), record);
            }
            is_over.store(true, Ordering::SeqCst);
            for (answer, record) in writer.join().unwrap() {
                match answer.recv().unwrap() {
                    // For outputs, only a reader decides which of them count.
                    Ok(offset) if topic != Topic::Cuts && offset > begun => fenced += 1,
                    Ok(offset) => assert_eq!(answered.insert(offset, record), None),
                    Err(Refused::Fenced) => fenced += 1,
                    Err(Refused::Unknown) => panic!("the broker was there"),
                }
            }
        });
        let answered: Vec<(u64, Record)> = answered.into_iter().collect();
        for log in [&old, &new, &third, &open(&settings)] {
            assert_eq!(read(log, topic, before, None, 0).unwrap().records, answered);
        }
    }
    println!("{fenced} appends were fenced");
    assert!(fenced > 0);
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_trimmed_log_still_knows_its_generation() {
    let settings = settings("trim", 1);
    let log = open(&settings);
    let generation = |generation| Record::Generation { generation };
    append(&log, Topic::Cuts, 1, generation(1)).unwrap();
    append_all(&log, Topic::Cuts, 1, 0..100);
    append(&log, Topic::Cuts, 2, generation(2)).unwrap();
    // Records of the first generation, after the beginning of the second.
    let late = append_all(&log, Topic::Cuts, 1, 100..110);
    assert!(late.iter().all(|answer| *answer == Err(Refused::Fenced)));
    // These are many more records than a generation needs to repeat its beginning.
    let offsets = append_all(&log, Topic::Cuts, 2, 200..25_200);
    let all: Vec<u64> = offsets.into_iter().map(|offset| offset.unwrap()).collect();
    for at in [15_000, 20_000, 24_900, 24_950] {
        log.trim(Topic::Cuts, all[at]);
        std::thread::sleep(Duration::from_millis(100));
        if at == 15_000 {
            // The last beginning is far behind now, and another record repeats it.
            append_all(&log, Topic::Cuts, 2, 30_000..30_010);
        }
    }
    let more = append_all(&log, Topic::Cuts, 2, 40_000..40_010);
    let last = more[9].unwrap();
    log.trim(Topic::Cuts, last);
    let begun = Instant::now();
    while low(&settings, settings.cuts.as_ref().unwrap()) <= all[24_999] {
        assert!(begun.elapsed() < Duration::from_secs(10), "nothing is deleted");
        std::thread::sleep(Duration::from_millis(50));
    }
    let fresh = open(&settings);
    let found = read(&fresh, Topic::Cuts, 0, None, 0).unwrap();
    assert_eq!(found.records[0].1, generation(2), "who reads from the beginning knows it");
    assert_eq!(found.records.last().unwrap(), &(last, record(Topic::Cuts, 40_009)));
    assert_eq!(append(&fresh, Topic::Cuts, 1, record(Topic::Cuts, 1)), Err(Refused::Fenced));
    assert_eq!(append(&fresh, Topic::Cuts, 2, generation(2)), Err(Refused::Fenced));
    append(&fresh, Topic::Cuts, 3, generation(3)).unwrap();

    // A reader that needs deleted records receives an error.
    assert_eq!(read(&fresh, Topic::Cuts, 5, None, 0), None);
    let lost = fresh.lost().unwrap().to_string();
    assert!(lost.contains("records from 5 on are needed"), "{lost}");
    assert_eq!(append(&fresh, Topic::Cuts, 4, generation(4)), Err(Refused::Unknown));
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_topics_that_cannot_do_are_refused() {
    let settings = settings("refused", 2);
    make_topic(&settings.inputs, 1, "delete");
    let error = refusal(&settings);
    assert!(error.contains("has 1 partitions, and 2 sources"), "{error}");
    let mut settings = common::settings("compacted", 1);
    make_topic(&settings.outputs, 1, "compact,delete");
    let error = refusal(&settings);
    assert!(error.contains(&format!("{} is compacted", settings.outputs)), "{error}");
    settings.outputs = "no name/of a topic".into();
    let error = refusal(&settings);
    assert!(error.contains("no name/of a topic"), "{error}");
    let mut settings = common::settings("replicated", 1);
    settings.replication = 3;
    let error = refusal(&settings);
    assert!(error.contains("start more brokers"), "{error}");
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_topic_made_anew_is_noticed() {
    // The topic is removed and recreated while it is read.
    let settings = settings("anew", 1);
    let log = open(&settings);
    let offsets = append_all(&log, Topic::Input(0), 0, 0..100);
    assert!(offsets.iter().all(Result::is_ok));
    let upto = read(&log, Topic::Input(0), 0, None, 0).unwrap().upto;
    remove_topic(&settings.inputs);
    std::thread::sleep(Duration::from_millis(500));
    make_topic(&settings.inputs, 1, "delete");
    let begun = Instant::now();
    while log.lost().is_none() && begun.elapsed() < Duration::from_secs(20) {
        read(&log, Topic::Input(0), upto, Some(10), 200_000);
    }
    let lost = log.lost().expect("it was noticed").to_string();
    println!("after {:?}: {lost}", begun.elapsed());
    assert!(lost.contains(&settings.inputs), "{lost}");

    // The topic is recreated while no process reads it.
    let settings = common::settings("anew2", 1);
    let log = open(&settings);
    append_all(&log, Topic::Input(0), 0, 0..100);
    remove_topic(&settings.inputs);
    std::thread::sleep(Duration::from_millis(500));
    let log = open(&settings);
    let begun = Instant::now();
    while log.lost().is_none() && begun.elapsed() < Duration::from_secs(20) {
        assert_eq!(read(&log, Topic::Input(0), 100, Some(1), 0), None);
        std::thread::sleep(Duration::from_millis(100));
    }
    // The log is not given up at once, because a broker that has just come back may say so for a
    // moment.
    assert!(begun.elapsed() > Duration::from_secs(4));
    let lost = log.lost().unwrap().to_string();
    assert!(lost.contains("ends at the offset 0, and has been read up to 100"), "{lost}");
}
