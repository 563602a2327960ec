//! A plain format, and calls that wait for their answers.

use std::ops::Range;
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::ClientConfig;
use tidemill_cluster::wire::{put_record, take_record};
use tidemill_cluster::{CutRecord, Log, Output, Record, Records, Refused, Request, Topic};
use tidemill_connect::Message;
use tidemill_core::{TableId, Value};
use tidemill_env::Env;
use tidemill_function::{Call, Target, Tid};
use tidemill_kafka::{Format, KafkaLog, KafkaSettings, Outgoing};

pub use crate::read::brokers;

/// A format that writes records as they are.
struct Plain;

impl Format for Plain {
    fn requests(&self, message: &Message<'_>) -> Record {
        take_record(&mut message.value.unwrap_or_default()).unwrap_or(request(0))
    }

    fn encode(&self, record: &Record) -> Outgoing {
        let mut value = Vec::new();
        put_record(record, &mut value);
        Outgoing { key: Some(b"key".to_vec()), value, headers: vec![("a".into(), b"b".to_vec())] }
    }

    fn decode(&self, message: &Message<'_>) -> Option<Record> {
        assert_eq!((message.key, message.header("a")), (Some(&b"key"[..]), Some(&b"b"[..])));
        take_record(&mut message.value?)
    }
}

/// Returns settings with topics that no other test has.
pub fn settings(name: &str, sources: u32) -> KafkaSettings {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    KafkaSettings::new(&brokers(), &format!("{name}-{}", now.as_micros()), sources)
}

pub fn open(settings: &KafkaSettings) -> KafkaLog {
    KafkaLog::open(&Env::real(), settings.clone(), Arc::new(Plain)).expect("the log opens")
}

pub fn refusal(settings: &KafkaSettings) -> String {
    let opened = KafkaLog::open(&Env::real(), settings.clone(), Arc::new(Plain));
    let error = opened.err().expect("a refusal");
    println!("{error}");
    error.to_string()
}

pub fn request(n: u64) -> Record {
    let id = n.to_be_bytes().into();
    let call = Call {
        target: Target::Function(0),
        table: TableId(0),
        key: [Value::Int(n as i64)].into(),
        args: [Value::Str("a".repeat(70).as_str().into())].into(),
    };
    Record::Requests(vec![Request { id, call }])
}

/// Returns a record of some hundred bytes.
pub fn record(topic: Topic, n: u64) -> Record {
    match topic {
        Topic::Input(_) => request(n),
        Topic::Output(_) => {
            let outcome = Ok(Value::Str("a".repeat(70).as_str().into()));
            Record::Outputs(vec![Output::Reply {
                tid: Tid(n),
                id: n.to_be_bytes().into(),
                outcome,
            }])
        }
        Topic::Cuts => Record::Cut(CutRecord {
            epoch: n,
            clock_us: 7,
            base: 0,
            count: 0,
            from: vec![n; 4],
            upto: vec![n; 4],
            times: Default::default(),
            by_owner: true,
            stops_on_fault: false,
        }),
    }
}

pub fn begin_append(
    log: &KafkaLog,
    topic: Topic,
    generation: u64,
    record: Record,
) -> Receiver<Result<u64, Refused>> {
    let (send, receive) = channel();
    let then = move |answer| {
        let _ = send.send(answer);
    };
    log.append(topic, generation, record, Box::new(then));
    receive
}

/// Begins an append, and sends the time of its answer.
pub fn begin_timed_append(
    log: &KafkaLog,
    topic: Topic,
    generation: u64,
    record: Record,
) -> Receiver<Duration> {
    let (send, receive) = channel();
    let begun = Instant::now();
    let then = move |answer: Result<u64, Refused>| {
        answer.expect("it is appended");
        let _ = send.send(begun.elapsed());
    };
    log.append(topic, generation, record, Box::new(then));
    receive
}

pub fn append(
    log: &KafkaLog,
    topic: Topic,
    generation: u64,
    record: Record,
) -> Result<u64, Refused> {
    begin_append(log, topic, generation, record).recv().expect("an answer")
}

/// Appends records, with all of them in flight at once.
pub fn append_all(
    log: &KafkaLog,
    topic: Topic,
    generation: u64,
    range: Range<u64>,
) -> Vec<Result<u64, Refused>> {
    let begun: Vec<_> =
        range.map(|n| begin_append(log, topic, generation, record(topic, n))).collect();
    begun.into_iter().map(|answer| answer.recv().expect("an answer")).collect()
}

pub fn begin_read(
    log: &KafkaLog,
    topic: Topic,
    from: u64,
    limit: Option<usize>,
    wait_us: u64,
) -> Receiver<Option<Records>> {
    let (send, receive) = channel();
    let then = move |records| {
        let _ = send.send(records);
    };
    log.read(topic, from, limit, wait_us, Box::new(then));
    receive
}

pub fn read(
    log: &KafkaLog,
    topic: Topic,
    from: u64,
    limit: Option<usize>,
    wait_us: u64,
) -> Option<Records> {
    begin_read(log, topic, from, limit, wait_us).recv().expect("an answer")
}

/// Reads all records, once the broker can be reached.
pub fn read_patiently(log: &KafkaLog, topic: Topic, from: u64) -> Records {
    let begun = Instant::now();
    loop {
        if let Some(records) = read(log, topic, from, None, 0) {
            return records;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?} {}", log.lost(), log.last_error());
    }
}

/// Sends a command to the broker's control, and waits until it is done.
pub fn control(deed: &str) {
    control_of("KAFKA", deed);
}

/// Sends a command to the control of one of the servers.
pub fn control_of(server: &str, deed: &str) {
    let name = format!("SERVERS_{server}_CONTROL");
    let folder = std::env::var(&name).expect(&name);
    let file = std::path::Path::new(&folder).join(deed);
    std::fs::write(&file, "").expect("a file");
    while file.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn admin() -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", brokers()).create().expect("a client")
}

pub fn make_topic(name: &str, partitions: i32, policy: &str) {
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    let topic = topic.set("cleanup.policy", policy);
    // A broker that was stopped does not answer for a moment, and a request in that time never gets
    // its answer.
    let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(3)));
    let begun = Instant::now();
    loop {
        // The client must live until the answer is there.
        let client = admin();
        let made = futures_executor::block_on(client.create_topics([&topic], &options));
        match made.as_ref().map(|made| &made[0]) {
            Ok(Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => return,
            _ => assert!(begun.elapsed() < Duration::from_secs(30), "{name}: {made:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn remove_topic(name: &str) {
    let client = admin();
    let removed = client.delete_topics(&[name], &AdminOptions::new());
    futures_executor::block_on(removed).expect("an answer")[0].as_ref().expect("it is removed");
}

/// Returns the first offset of a topic.
pub fn low(settings: &KafkaSettings, topic: &str) -> u64 {
    let client: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", &settings.brokers).create().expect("a client");
    let (low, _) = client.fetch_watermarks(topic, 0, Duration::from_secs(10)).expect("an answer");
    low as u64
}

/// Returns the median, the 99th percentile and the longest time.
pub fn spread(taken: &mut [Duration]) -> String {
    taken.sort_unstable();
    let at = |share: f64| taken[((taken.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    format!("{:.2} ms p50, {:.2} ms p99, {:.2} ms at most", at(0.5), at(0.99), at(1.0))
}
