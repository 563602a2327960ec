//! Tests sources and sinks of streams on a real broker.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, AlterConfig, NewPartitions, ResourceSpecifier};
use tidemill_connect::sink::contract::{self, check_recovery, Known, World};
use tidemill_connect::source::contract::{check, read_on, Taken};
use tidemill_connect::{Place, Polled, Sink, SinkPlace, Source, Troubles};
use tidemill_core::{Batch, Error, Kind, Result, Row};
use tidemill_kafka::partition_of_key;
use tidemill_kafka::stream::{open_sources, Begin, Numbers, TopicSink, TopicSource};

use crate::common::{brokers, make_topic, remove_topic};
use crate::topic::*;

pub fn batch(rows: std::ops::Range<i64>) -> Batch {
    let rows: Vec<_> = rows.map(row).collect();
    Batch::from_rows(schema(), rows.iter().map(|r| &r[..]))
}

/// Creates a topic with rows, unreadable messages, and uncommitted ones.
fn mixed(name: &str) -> String {
    let topic = topic(name, 1);
    let writer = Writer::new(&topic);
    writer.rows(0, 0..20);
    for value in
        [Some("no JSON"), None, Some("{\"n\": \"x\"}"), Some("\u{e9}".repeat(900).as_str())]
    {
        writer.send(0, None, value);
    }
    writer.rows(0, 20..23);
    let others = Writer::transactional(&topic);
    others.transaction(900..905, false);
    others.transaction(23..30, true);
    others.transaction(905..906, false);
    topic
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_the_source_keeps_the_contract() {
    let topic = mixed("source");
    let rows = check(|| source(&topic));
    assert_eq!(numbers(&rows), (0..30).collect::<Vec<_>>());
    let bad = rows.iter().filter_map(|row| match row {
        Taken::Bad(bad) => Some(bad),
        Taken::Good(_) => None,
    });
    let bad: Vec<_> = bad.collect();
    assert_eq!(bad.len(), 4);
    assert_eq!((&*bad[0].origin, bad[0].line), (&*format!("{topic}/0"), 20));
    assert_eq!((bad[0].offset, &*bad[0].raw), (20, "no JSON"));
    assert!(bad[1].reason.contains("tombstone"), "{}", bad[1].reason);
    assert!(bad[2].reason.contains("column 'n'"), "{}", bad[2].reason);
    // A topic without any rows, and one without committed messages.
    assert!(check(|| source(&self::topic("empty", 1))).is_empty());
    let topic = self::topic("aborted", 1);
    Writer::transactional(&topic).transaction(0..3, false);
    assert!(check(|| source(&topic)).is_empty());
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_partitions_are_sources_and_begin_where_it_is_said() {
    let topic = topic("begin", 3);
    let writer = Writer::new(&topic);
    (0..3).for_each(|partition| writer.rows(partition, 0..5));
    let between = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    writer.rows(1, 5..9);
    let settings = TopicSource::new(&topic, &brokers());
    let of = |settings: &TopicSource| -> Vec<Vec<i64>> {
        let read = |mut source: Box<dyn Source>| numbers(&read_on(&mut *source, 100));
        sources(settings).unwrap().into_iter().map(read).collect()
    };
    let upto = |n| (0..n).collect::<Vec<i64>>();
    assert_eq!(of(&settings), [upto(5), upto(9), upto(5)]);
    let two = TopicSource { partitions: Some(vec![2, 1]), ..settings.clone() };
    assert_eq!(of(&two), [upto(5), upto(9)]);
    let begin = Begin::Time(between.as_micros() as i64 + 10_000);
    assert_eq!(of(&TopicSource { begin, ..settings.clone() }), [vec![], vec![5, 6, 7, 8], vec![]]);
    // A later start begins at the end as of the first start, too.
    let latest = TopicSource { begin: Begin::Latest, ..settings.clone() };
    let places: Vec<Place> = sources(&latest).unwrap().iter().map(|s| s.place()).collect();
    writer.rows(2, 5..7);
    let mut later = sources(&latest).unwrap().remove(2);
    assert_eq!(read_on(&mut *later, 100), []);
    later.resume(&places[2]).unwrap();
    assert_eq!(numbers(&read_on(&mut *later, 100)), [5, 6]);
    let fourth = TopicSource { partitions: Some(vec![3]), ..settings };
    let error = sources(&fourth).err().unwrap().to_string();
    assert!(error.contains("has no partition 3"), "{error}");
}

/// Reads half of a topic, and returns the place.
fn half(topic: &str) -> Place {
    let mut source = source(topic);
    while source.offset() < 50 {
        source.poll(50 - source.offset() as usize).unwrap();
    }
    source.place()
}

fn refused(done: Result<()>, words: &[&str]) {
    let error = done.expect_err("a refusal");
    println!("{error} ({})", error.help);
    assert_eq!(error.kind, Kind::Input);
    assert!(!error.help.is_empty());
    for word in words {
        assert!(error.what.contains(word), "{error}");
    }
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_topic_that_is_not_what_it_was_is_refused() {
    let topic = topic("changed", 1);
    Writer::new(&topic).rows(0, 0..100);
    let place = half(&topic);
    let resumed = |place: &Place| source(&topic).resume(place);
    resumed(&place).unwrap();

    // The topic is trimmed, up to the place and past it.
    trim(&topic, 0, 30);
    resumed(&place).unwrap();
    let begin = Place { begin: Some(0), ..Place::start() };
    refused(resumed(&begin), &["partition 0", &topic, "begins at offset 30", "from 0 on"]);
    trim(&topic, 0, 50);
    let mut source = source(&topic);
    source.resume(&place).unwrap();
    assert_eq!(numbers(&read_on(&mut *source, 7)), (50..100).collect::<Vec<_>>());
    trim(&topic, 0, 51);
    refused(resumed(&place), &["begins at offset 51", "from 50 on"]);

    // The topic is recreated: shorter, and as long as before.
    remove_topic(&topic);
    std::thread::sleep(Duration::from_millis(500));
    make_topic(&topic, 1, "delete");
    refused(resumed(&place), &["ends at offset 0", "up to 50"]);
    Writer::new(&topic).rows(0, 0..100);
    refused(resumed(&place), &["another message at offset 49"]);

    // A compacted topic is refused at once.
    let name = ResourceSpecifier::Topic(&topic);
    let compact = AlterConfig::new(name).set("cleanup.policy", "compact");
    futures_executor::block_on(admin().alter_configs([&compact], &AdminOptions::new())).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let error = sources(&TopicSource::new(&topic, &brokers())).err().unwrap();
    assert!(error.what.contains("compacted"), "{error}");
    let error = sources(&TopicSource::new("not-there", &brokers())).err().unwrap();
    assert!(error.what.contains("there is no topic not-there"), "{error}");
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_compacted_topic_is_noticed_at_the_last_message() {
    let topic = topic("gap", 1);
    Writer::new(&topic).rows(0, 0..60);
    let others = Writer::transactional(&topic);
    others.transaction(60..65, false);
    Writer::new(&topic).rows(0, 65..70);
    // As if the last message that was read had gone, but older ones had not.
    let place = Place { offset: 61, bytes: 62, ..half(&topic) };
    refused(source(&topic).resume(&place), &["no message at offset 61"]);
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_topic_is_watched_while_it_is_read() {
    let name = topic("watched", 1);
    Writer::new(&name).rows(0, 0..10);
    let mut plain = open_plain(&name, &Troubles::default());
    while plain.offset() < 10 {
        plain.poll(100).unwrap();
    }
    remove_topic(&name);
    std::thread::sleep(Duration::from_millis(500));
    make_topic(&name, 1, "delete");
    let begun = Instant::now();
    let error = loop {
        assert!(begun.elapsed() < LONG, "it was not noticed");
        match plain.poll(1) {
            Err(error) => break error,
            Ok(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    println!("{error}");
    assert!(error.what.contains(&name), "{error}");
    assert_eq!(error.kind, Kind::Input);

    // More partitions are reported, and nothing else happens.
    let name = topic("grows", 1);
    let troubles = Troubles::default();
    let mut plain = open_plain(&name, &troubles);
    let more = NewPartitions::new(&name, 3);
    futures_executor::block_on(admin().create_partitions([&more], &AdminOptions::new())).unwrap();
    let begun = Instant::now();
    while troubles.all().is_empty() {
        assert!(begun.elapsed() < LONG, "it was not noticed");
        assert!(matches!(plain.poll(1), Ok(Polled::Pending)));
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = format!("{:?}", troubles.all());
    assert!(said.contains("has 2 partitions more than the 1"), "{said}");
    drop(plain);
    assert!(troubles.all().is_empty());
}

pub fn open_plain(topic: &str, troubles: &Troubles) -> Box<dyn Source> {
    let settings = TopicSource::new(topic, &brokers());
    let opened = open_sources(
        &settings,
        &schema(),
        &tidemill_env::Env::real(),
        Numbers::Counted,
        (troubles, "test"),
    );
    opened.unwrap().remove(0).1
}

pub fn topic_sink(topic: &str, transactions: bool) -> TopicSink {
    TopicSink { transactions, ..TopicSink::new(topic, &brokers()) }
}

/// Returns the rows in the only partition of a topic.
pub fn rows_in(topic: &str) -> Vec<Row> {
    numbers(&read_on(&mut *source(topic), 1000)).into_iter().map(|n| row(n).into()).collect()
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_the_sink_keeps_the_contract() {
    for transactions in [false, true] {
        let make = || -> contract::Made {
            let topic = topic("sink", 1);
            let opened = sink(&topic_sink(&topic, transactions), 1, None, &Troubles::default());
            (opened.unwrap(), Box::new(move || rows_in(&topic)))
        };
        contract::check(make, &batch(0..9));
    }
}

struct OneTopic {
    settings: TopicSink,
}

impl World for OneTopic {
    fn open(&self, resume: Option<&SinkPlace>) -> Result<Box<dyn Sink>> {
        sink(&self.settings, 7, resume, &Troubles::default())
    }

    fn rows(&self) -> usize {
        let found = all(&self.settings.topic).remove(0);
        for (n, found) in found.iter().enumerate() {
            let id = format!("app-{:016x}/out/{n}", 7);
            assert_eq!(found.id.as_ref(), Some(&id), "each once, and in order");
        }
        found.len()
    }

    fn content(&self) -> Vec<u8> {
        format!("{:?}", all(&self.settings.topic)).into_bytes()
    }
}

/// Fails from a given call on, and so stops its driver as a kill does.
struct Stopped<'a> {
    world: &'a OneTopic,
    after: usize,
}

struct StoppedSink {
    sink: Option<Box<dyn Sink>>,
    left: usize,
    place: SinkPlace,
}

impl World for Stopped<'_> {
    fn open(&self, resume: Option<&SinkPlace>) -> Result<Box<dyn Sink>> {
        let sink = self.world.open(resume)?;
        let place = sink.place();
        Ok(Box::new(StoppedSink { sink: Some(sink), left: self.after, place }))
    }

    fn rows(&self) -> usize {
        self.world.rows()
    }

    fn content(&self) -> Vec<u8> {
        self.world.content()
    }
}

impl StoppedSink {
    fn sink(&mut self) -> Result<&mut Box<dyn Sink>> {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.sink = None,
        }
        self.sink.as_mut().ok_or_else(|| Error::internal("stopped"))
    }
}

impl Sink for StoppedSink {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        let sink = self.sink()?;
        sink.write(batch)?;
        self.place = sink.place();
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.sink()?.commit()
    }

    fn place(&self) -> SinkPlace {
        self.place.clone()
    }

    fn sync(&mut self) -> Result<SinkPlace> {
        self.sink()?.sync()
    }

    fn settle(&mut self) -> Result<()> {
        self.sink()?.settle()
    }

    fn finish(&mut self) -> Result<()> {
        self.sink()?.finish()
    }
}

/// Stops after a number of calls, and continues.
fn go_on(transactions: bool) {
    let mut first = 0;
    let epochs: Vec<Batch> = [2, 1, 0, 3, 1, 300, 2, 1]
        .into_iter()
        .map(|rows| {
            let batch = batch(first..first + rows);
            first += rows;
            batch
        })
        .collect();
    for after in [1, 2, 6, 7, 12, 13, 18] {
        let world = OneTopic { settings: topic_sink(&topic("stopped", 1), transactions) };
        let mut last = Known::default();
        let stopped = Stopped { world: &world, after };
        let _ = contract::run(&stopped, &epochs, &mut |known| last = known.clone());
        let before = world.rows();
        println!("stopped after {after}: {} cuts, {before} rows", last.cuts);
        check_recovery(&world, &epochs, &last, false);
    }
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_sink_goes_on_wherever_it_was_stopped() {
    go_on(false);
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_a_sink_with_transactions_goes_on_wherever_it_was_stopped() {
    go_on(true);
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_rows_go_where_their_keys_say_and_come_back_once() {
    for transactions in [false, true] {
        let name = topic("keys", 5);
        let mut settings = topic_sink(&name, transactions);
        settings.key = vec!["n".into()];
        settings.headers = [("from".to_owned(), "here".to_owned())].into();
        let troubles = Troubles::default();
        let mut first = sink(&settings, 1, None, &troubles).unwrap();
        let rows = batch(0..400);
        first.write(&rows.slice(0, 100)).unwrap();
        first.commit().unwrap();
        let place = first.sync().unwrap();
        for part in 1..3 {
            first.write(&rows.slice(100 * part, 100)).unwrap();
            first.commit().unwrap();
        }
        // Some of it may be in flight.
        drop(first);
        // Rows of other programs, and of another run of this app, are not ours.
        Writer::new(&name).rows(0, 0..3);
        let mut other = sink(&settings, 2, None, &troubles).unwrap();
        other.write(&rows.slice(0, 10)).unwrap();
        other.commit().unwrap();
        other.finish().unwrap();
        let mut again = sink(&settings, 1, Some(&place), &troubles).unwrap();
        for part in 1..4 {
            again.write(&rows.slice(100 * part, 100)).unwrap();
            again.commit().unwrap();
        }
        again.settle().unwrap();
        again.finish().unwrap();
        let mut seen = vec![0; 400];
        let prefix = format!("app-{:016x}/out/", 1);
        for (partition, found) in all(&name).into_iter().enumerate() {
            let mut before = None;
            for found in found {
                let Some(row) = found.id.as_ref().and_then(|id| id.strip_prefix(&prefix)) else {
                    continue;
                };
                let row: usize = row.parse().unwrap();
                assert_eq!(found.key, Some(row.to_string()));
                assert_eq!(partition_of_key(row.to_string().as_bytes(), 5), partition as u32);
                assert!(before < Some(row), "in order");
                (before, seen[row]) = (Some(row), seen[row] + 1);
            }
        }
        assert_eq!(seen, vec![1; 400], "transactions: {transactions}");
        // A data directory that is older than the topic.
        let mut older = sink(&settings, 1, Some(&place), &troubles).unwrap();
        older.write(&rows.slice(100, 10)).unwrap();
        older.commit().unwrap();
        let error = older.settle().unwrap_err();
        println!("{error}");
        assert!(error.what.contains("up to number 399"), "{error}");
    }
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_transactions_are_seen_at_once_and_fence() {
    let name = topic("fence", 2);
    let settings = topic_sink(&name, true);
    let troubles = Troubles::default();
    let mut old = sink(&settings, 1, None, &troubles).unwrap();
    old.write(&batch(0..10)).unwrap();
    old.commit().unwrap();
    assert_eq!(all(&name).concat().len(), 10);
    let place = old.sync().unwrap();
    old.write(&batch(10..20)).unwrap();
    let mut new = sink(&settings, 1, Some(&place), &troubles).unwrap();
    let error = old.commit().unwrap_err();
    println!("{error}");
    assert!(error.what.contains("same transactional id"), "{error}");
    assert!(old.write(&batch(0..1)).is_err(), "a failed sink stays failed");
    assert_eq!(all(&name).concat().len(), 10, "nothing of it is seen");
    new.write(&batch(10..20)).unwrap();
    new.commit().unwrap();
    new.finish().unwrap();
    assert_eq!(all(&name).concat().len(), 20);
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_what_can_not_be_delivered_is_an_error() {
    let name = topic("refuses", 1);
    let troubles = Troubles::default();
    let mut small = topic_sink(&name, false);
    small.properties = [("message.max.bytes".to_owned(), "1000".to_owned())].into();
    let long = [tidemill_core::Value::Int(1), tidemill_core::Value::str(&"x".repeat(2000))];
    let rows = Batch::from_rows(schema(), std::iter::once(&long[..]));
    let mut sink_ = sink(&small, 1, None, &troubles).unwrap();
    sink_.write(&rows).unwrap();
    let error = sink_.commit().unwrap_err();
    println!("{error}");
    assert!(error.what.contains("too large") && error.what.contains("/out/0"), "{error}");
    assert!(sink_.sync().is_err() && sink_.finish().is_err());

    // The topic is removed while it is written. For this long, a missing topic may still be in
    // creation.
    let mut gone = topic_sink(&name, false);
    gone.properties = [("topic.metadata.propagation.max.ms".to_owned(), "1000".to_owned())].into();
    let mut sink_ = sink(&gone, 2, None, &troubles).unwrap();
    sink_.write(&batch(0..1)).unwrap();
    sink_.commit().unwrap();
    sink_.sync().unwrap();
    remove_topic(&name);
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    let error = loop {
        assert!(begun.elapsed() < LONG);
        sink_.write(&batch(1..2)).unwrap();
        if let Err(error) = sink_.commit().and_then(|()| sink_.sync()) {
            break error;
        }
    };
    println!("{error}");
    assert!(error.what.contains(&name), "{error}");
    let error = sink(&topic_sink("not-there", false), 1, None, &troubles).err().unwrap();
    assert!(error.what.contains("there is no topic"), "{error}");
}
