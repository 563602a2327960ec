use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use tidemill_connect::push::{PushLimits, TrySend};
use tidemill_connect::source::contract::check;
use tidemill_connect::source::contract::read_on;
use tidemill_connect::{push, BadRow, Chunk, Place, Polled, Source};
use tidemill_core::{Batch, Column, DataType, Schema, Value};
use tidemill_env::Env;

use crate::{good, schema};

fn columns() -> Arc<Schema> {
    schema(vec![Column::new("a", DataType::Int), Column::new("s", DataType::Str)])
}

fn batch(numbers: std::ops::Range<i64>) -> Batch {
    let rows: Vec<_> = numbers.map(|i| [Value::Int(i), Value::str(&"x".repeat(10))]).collect();
    Batch::from_rows(columns(), rows.iter().map(|r| &r[..]))
}

fn limits(rows: usize, bytes: usize) -> PushLimits {
    PushLimits { rows, bytes }
}

fn poll(source: &mut dyn Source, rows_max: usize) -> Vec<i64> {
    match source.poll(rows_max).unwrap() {
        Polled::Rows(chunk) => chunk.batch.ints(0).unwrap().to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn keeps_the_contract() {
    let rows = check(|| {
        let (handle, source) = push(columns(), PushLimits::default());
        for part in [batch(0..3), batch(3..3), batch(3..4), batch(4..40)] {
            handle.send(part).unwrap();
        }
        handle.close();
        Box::new(source)
    });
    let numbers: Vec<Value> = good(&rows).iter().map(|r| r[0].clone()).collect();
    assert_eq!(numbers, (0..40).map(Value::Int).collect::<Vec<_>>());
}

#[test]
fn room_is_bounded() {
    let (handle, mut source) = push(columns(), limits(10, 1 << 20));
    assert!(matches!(source.poll(9), Ok(Polled::Pending)));
    handle.send(batch(0..100)).unwrap();
    assert!(matches!(handle.try_send(batch(0..1)), Ok(TrySend::Full(_))));
    assert_eq!(poll(&mut source, 95).len(), 95);
    assert!(matches!(handle.try_send(batch(100..105)), Ok(TrySend::Sent(105))));
    assert!(matches!(handle.try_send(batch(0..1)), Ok(TrySend::Full(_))));
    assert_eq!(poll(&mut source, 99), (95..105).collect::<Vec<_>>());

    // With 22 bytes a row: a slice counts only its own rows.
    let (handle, _source) = push(columns(), limits(1000, 44));
    let large = batch(0..500);
    assert!(matches!(handle.try_send(large.slice(0, 1)), Ok(TrySend::Sent(_))));
    assert!(matches!(handle.try_send(large.slice(1, 1)), Ok(TrySend::Sent(_))));
    assert!(matches!(handle.try_send(large.slice(2, 1)), Ok(TrySend::Full(_))));
}

#[test]
fn offsets_and_ends() {
    let (handle, mut source) = push(columns(), PushLimits::default());
    let at = |offset| Place { offset, ..Place::start() };
    source.resume(&at(7)).unwrap();
    handle.send(batch(0..2)).unwrap();
    let Polled::Rows(chunk) = source.poll(9).unwrap() else { panic!() };
    assert_eq!((chunk.offsets, chunk.next_offset), (vec![7, 8], 9));
    assert!(source.resume(&at(8)).is_err() && source.resume(&at(9)).is_ok());
    assert_eq!(source.place(), at(9));
    assert!(source.replay(Box::new(std::iter::empty())).is_err());
    assert!(!source.replayable());
    let other = schema(vec![Column::new("z", DataType::Int)]);
    assert!(handle.send(Batch::from_rows(other, [&[Value::Int(1)][..]])).is_err());

    let second = handle.clone();
    drop(handle);
    assert!(matches!(source.poll(9), Ok(Polled::Pending)));
    second.send(batch(0..1)).unwrap();
    drop(second);
    assert_eq!(poll(&mut source, 9), [0]);
    assert!(matches!(source.poll(9), Ok(Polled::End)), "all senders have gone");

    let (handle, source) = push(columns(), PushLimits::default());
    handle.close();
    assert!(handle.send(batch(0..1)).unwrap_err().what.contains("closed"));
    drop(source);
    assert!(handle.send(batch(0..1)).unwrap_err().what.contains("engine has stopped"));
}

#[test]
fn waiting_senders_are_let_go() {
    let env = Env::real();
    for close in [false, true] {
        let (handle, source) = push(columns(), limits(1, 1 << 20));
        handle.send(batch(0..5)).unwrap();
        let waiting = handle.clone();
        let body = move || assert!(waiting.send(batch(0..1)).is_err());
        let thread = env.threads.spawn("sender", Box::new(body)).unwrap();
        env.clock.sleep_us(20_000);
        let source = if close {
            handle.close();
            Some(source)
        } else {
            drop(source);
            None
        };
        thread.join().unwrap();
        drop(source);
    }
}

#[test]
fn threads_send_and_the_source_wakes() {
    let env = Env::real();
    let (handle, mut source) = push(columns(), limits(10, 1 << 20));
    let woken = Arc::new(AtomicUsize::new(0));
    let count = woken.clone();
    source.set_waker(Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    }));
    let threads: Vec<_> = (0..3i64)
        .map(|sender| {
            let handle = handle.clone();
            let body = move || {
                for i in 0..200 {
                    let first = sender * 10_000 + i * 3;
                    handle.send(batch(first..first + 3)).unwrap();
                }
            };
            env.threads.spawn("sender", Box::new(body)).unwrap()
        })
        .collect();
    drop(handle);
    let mut last = [-1i64; 3];
    let mut total = 0;
    loop {
        match source.poll(4).unwrap() {
            Polled::Rows(chunk) => {
                for number in chunk.batch.ints(0).unwrap() {
                    let sender = (number / 10_000) as usize;
                    assert_eq!(
                        number % 10_000,
                        last[sender] + 1,
                        "a sender's rows keep their order"
                    );
                    last[sender] = number % 10_000;
                    total += 1;
                }
            }
            Polled::Pending => std::thread::yield_now(),
            Polled::End => break,
        }
    }
    assert_eq!(total, 1800);
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(woken.load(Ordering::SeqCst) >= 600);
}

/// Returns a chunk with two good rows and a bad one between them.
fn chunk(first: u64) -> Chunk {
    let bad = BadRow {
        offset: first + 1,
        origin: "push".into(),
        line: 0,
        raw: String::new(),
        reason: "it was bad".into(),
    };
    let batch = batch(first as i64..first as i64 + 2);
    Chunk { batch, offsets: vec![first, first + 2], bad: vec![bad], next_offset: first + 3 }
}

#[test]
fn what_was_pushed_before_comes_first() {
    let all = |rows_max| {
        let (handle, mut source) = push(columns(), PushLimits::default());
        handle.send(batch(0..2)).unwrap();
        handle.close();
        source.resume(&Place { offset: 10, ..Place::start() }).unwrap();
        source.replay(Box::new([10, 13, 16].map(|first| Ok(chunk(first))).into_iter())).unwrap();
        let rows = read_on(&mut source, rows_max);
        assert_eq!(source.place().offset, 21);
        rows
    };
    let rows = all(usize::MAX);
    assert_eq!((good(&rows).len(), crate::bad(&rows).len()), (8, 3));
    for rows_max in 1..5 {
        assert_eq!(all(rows_max), rows, "in parts of {rows_max}");
    }
    let (_handle, mut source) = push(columns(), PushLimits::default());
    source.replay(Box::new([Ok(chunk(1))].into_iter())).unwrap();
    assert!(source.poll(9).is_err(), "a gap");
}
