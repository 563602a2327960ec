//! Tests that nothing else may run beside: brokers that die or stop, and measurements. They run one
//! after the other, and all other tests run in parallel.

#[path = "figures.rs"]
mod figures;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidemill_cluster::{Record, Topic};
use tidemill_connect::{Polled, Troubles};
use tidemill_core::{Result, Row};

use crate::common::*;
use crate::streams::{batch, open_plain, rows_in, topic_sink};
use crate::topic::{all, row, sink, topic, Writer, LONG};

/// The broker dies midway and comes back. The acknowledged records are there, in order.
#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_broker_that_dies_loses_nothing() {
    let mut settings = settings("dies", 1);
    settings.timeout_us = 30_000_000;
    let log = open(&settings);
    let topic = Topic::Output(0);
    append(&log, topic, 1, Record::Generation { generation: 1 }).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut waiting = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                let n = waiting.len() as u64;
                waiting.push(begin_append(&log, topic, 1, record(topic, n)));
                std::thread::sleep(Duration::from_micros(500));
            }
            waiting
        });
        std::thread::sleep(Duration::from_millis(300));
        for (deed, back, away_ms) in [("kill", "start", 300), ("stop", "go", 1500)] {
            control(deed);
            // A killed broker takes some time to come back.
            std::thread::sleep(Duration::from_millis(away_ms));
            control(back);
            std::thread::sleep(Duration::from_millis(500));
        }
        is_over.store(true, Ordering::SeqCst);
        let mut expected = Vec::new();
        for (n, answer) in writer.join().unwrap().into_iter().enumerate() {
            let offset = answer.recv().unwrap().expect("all were appended at last");
            expected.push((offset, record(topic, n as u64)));
        }
        let found = read(&log, topic, 0, None, 0).unwrap().records;
        assert_eq!(found[1..], expected);
        println!("{} records over two failures of the broker", expected.len());
    });
}

/// The broker is away for longer than the time-out. The result is unknown, but no record in between
/// is missing, and the next generation continues.
#[test]
#[ignore = "needs a server: make test-servers"]
fn server_what_is_unknown_leaves_no_hole() {
    let mut settings = settings("unknown", 1);
    settings.timeout_us = 500_000;
    let log = open(&settings);
    let topic = Topic::Output(0);
    let mut generation = 0;
    for round in 0..6 {
        generation += 1;
        let before = read_patiently(&log, topic, 0).upto;
        while append(&log, topic, generation, Record::Generation { generation }).is_err() {
            generation += 1;
        }
        let is_over = AtomicBool::new(false);
        let waiting = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut waiting = Vec::new();
                for n in 0..6000 {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    waiting.push(begin_append(&log, topic, generation, record(topic, n)));
                    std::thread::sleep(Duration::from_micros(400));
                }
                waiting
            });
            std::thread::sleep(Duration::from_millis(300));
            control(if round % 2 == 0 { "stop" } else { "kill" });
            // This is about as long as the time-out, so some answers arrive before it and some
            // after.
            std::thread::sleep(Duration::from_millis(300 + 100 * round));
            control(if round % 2 == 0 { "go" } else { "start" });
            std::thread::sleep(Duration::from_millis(200));
            is_over.store(true, Ordering::SeqCst);
            writer.join().unwrap()
        });
        let answers: Vec<_> = waiting.into_iter().map(|answer| answer.recv().unwrap()).collect();
        let known = answers.iter().take_while(|answer| answer.is_ok()).count();
        // The next generation is the fence after which no record of this one counts.
        let of = generation;
        loop {
            generation += 1;
            if append(&log, topic, generation, Record::Generation { generation }).is_ok() {
                break;
            }
        }
        let found = read_patiently(&log, topic, before).records;
        let found: Vec<&Record> =
            found.iter().map(|(_, r)| r).filter(|r| matches!(r, Record::Outputs(_))).collect();
        println!("generation {of}: {known} of {} known, {} there", answers.len(), found.len());
        assert!(found.len() >= known, "what was answered is there");
        for (n, found) in found.iter().enumerate() {
            assert_eq!(**found, record(topic, n as u64), "none is missing before another");
        }
        for (answer, n) in answers.iter().zip(0..) {
            assert!(answer.is_err() || n < found.len());
        }
    }
    assert!(log.lost().is_none(), "{:?}", log.lost());
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_reads_say_that_no_broker_answers() {
    let mut settings = settings("away", 1);
    settings.timeout_us = 700_000;
    let log = open(&settings);
    append_all(&log, Topic::Input(0), 0, 0..10);
    let upto = read(&log, Topic::Input(0), 0, Some(10), 1_000_000).unwrap().upto;
    control("kill");
    let begun = Instant::now();
    assert_eq!(read(&log, Topic::Input(0), 0, None, 0), None);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let mut is_none = false;
    for _ in 0..50 {
        is_none = is_none || read(&log, Topic::Input(0), upto, Some(10), 100_000).is_none();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_none, "a reader at the end learns it, too");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    control("start");
    assert_eq!(read_patiently(&log, Topic::Input(0), 0).records.len(), 10);
    assert!(log.lost().is_none());
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_source_waits_for_a_broker() {
    let name = topic("waits", 1);
    Writer::new(&name).rows(0, 0..1000);
    let troubles = Troubles::default();
    let mut source = open_plain(&name, &troubles);
    let mut rows = 0;
    let mut go_on = |until: &dyn Fn(u64) -> bool| {
        let begun = Instant::now();
        while !until(rows) {
            assert!(begun.elapsed() < 4 * LONG, "{rows} rows, {:?}", troubles.all());
            match source.poll(7).unwrap() {
                Polled::Rows(chunk) => rows += chunk.rows() as u64,
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    };
    go_on(&|rows| rows >= 500);
    for (deed, back) in [("kill", "start"), ("stop", "go")] {
        control(deed);
        go_on(&|_| !troubles.all().is_empty());
        println!("{:?}", troubles.all());
        control(back);
        go_on(&|_| troubles.all().is_empty());
    }
    Writer::new(&name).rows(0, 1000..1100);
    go_on(&|rows| rows == 1100);
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_sink_waits_for_a_broker() {
    for transactions in [false, true] {
        let name = topic("patient", 1);
        let troubles = Troubles::default();
        let settings = topic_sink(&name, transactions);
        let (told, is_over) = (troubles.clone(), Arc::new(AtomicBool::new(false)));
        let (over, (begins, has_begun)) = (is_over.clone(), channel());
        let writer = std::thread::spawn(move || -> Result<i64> {
            let mut sink = sink(&settings, 1, None, &told)?;
            let mut written = 0;
            while !over.load(Ordering::SeqCst) {
                sink.write(&batch(written..written + 10))?;
                sink.commit()?;
                written += 10;
                if written % 500 == 0 {
                    sink.sync()?;
                    let _ = begins.send(());
                }
                std::thread::sleep(Duration::from_millis(15));
            }
            sink.finish()?;
            Ok(written)
        });
        // While it is being opened it reports nothing, and gives up in the end.
        has_begun.recv().expect("it writes");
        for (deed, back) in [("stop", "go"), ("kill", "start")] {
            control(deed);
            let begun = Instant::now();
            while troubles.all().is_empty() {
                if writer.is_finished() || begun.elapsed() > LONG {
                    control(back);
                    panic!("it says nothing: {:?}", writer.join());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            println!("{:?}", troubles.all());
            control(back);
            while !troubles.all().is_empty() && !writer.is_finished() {
                assert!(begun.elapsed() < 4 * LONG, "{:?}", troubles.all());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        is_over.store(true, Ordering::SeqCst);
        let written = writer.join().unwrap().unwrap();
        assert!(troubles.all().is_empty());
        let values: Vec<String> = all(&name).concat().into_iter().map(|f| f.value).collect();
        assert_eq!(values.len() as i64, written);
        assert_eq!(rows_in(&name), (0..written).map(|n| Row::from(row(n))).collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_sink_that_ends_does_not_wait_for_ever() {
    let troubles = Troubles::default();
    let name = topic("gives-up", 1);
    let mut sink_ = sink(&topic_sink(&name, false), 1, None, &troubles).unwrap();
    control("stop");
    sink_.write(&batch(0..1)).unwrap();
    sink_.commit().unwrap();
    troubles.give_up();
    let begun = Instant::now();
    let error = sink_.sync().unwrap_err();
    control("go");
    println!("after {:?}: {error}", begun.elapsed());
    assert!(begun.elapsed() < LONG);
}
