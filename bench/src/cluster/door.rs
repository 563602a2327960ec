//! The two ways into a cluster.

use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_cluster::wire::{put_record, take_record};
use tidemill_cluster::{Output, Record};
use tidemill_connect::Message;
use tidemill_core::{Error, Result, Value};
use tidemill_engine::Cluster;
use tidemill_env::Env;
use tidemill_function::Tid;
use tidemill_host::Answer;
use tidemill_kafka::{Client, KafkaSettings, Outgoing};

use super::offer::{Asked, Book, Came};

const REQUEST_ID: &str = "request-id";
const RECORD: &str = "record";
const PLACE: &str = "id";

/// A way in.
pub(super) trait Door {
    /// Who is told of replies from now on.
    fn tell(&mut self, book: &Arc<Book>);

    /// Sends a request; `nth` comes back with its reply.
    fn send(&mut self, nth: u64, asked: &Asked) -> Result<()>;
}

/// The coordinator's desk, in its own process.
pub(super) struct Desk {
    cluster: Arc<Cluster>,
    book: Option<Arc<Book>>,
}

impl Desk {
    pub fn new(cluster: Arc<Cluster>) -> Desk {
        Desk { cluster, book: None }
    }
}

impl Door for Desk {
    fn tell(&mut self, book: &Arc<Book>) {
        self.book = Some(book.clone());
    }

    fn send(&mut self, nth: u64, asked: &Asked) -> Result<()> {
        let book = self.book.clone().ok_or_else(|| Error::internal("nobody is told"))?;
        let then = move |tid: Option<Tid>, answer| {
            // What nobody knows of stays without a reply.
            let Some(tid) = tid else { return };
            let came = match answer {
                Answer::Returned(value) if book.keeps_values => Came::Value(value),
                Answer::Returned(_) => Came::Returned,
                Answer::Aborted(abort) => Came::Aborted(abort.reason),
                Answer::Unknown => return,
            };
            book.take(nth, tid.0, came);
        };
        self.cluster.offer(asked.source, asked.call.clone(), Box::new(then));
        Ok(())
    }
}

/// Topics of Kafka, as any client would use them.
pub(super) struct Topics {
    client: Client,
    /// What tells the requests of this client from those of others.
    own: u64,
    told: Arc<Mutex<Option<Arc<Book>>>>,
}

impl Topics {
    pub fn open(env: &Env, settings: &KafkaSettings) -> Result<Topics> {
        let own = env.random.next_u64();
        let told: Arc<Mutex<Option<Arc<Book>>>> = Arc::default();
        let book = told.clone();
        let heard = move |message: &Message<'_>| {
            if let Some(book) = &*book.lock() {
                let _ = hear(own, book, message);
            }
        };
        let client = Client::open(env, settings, Box::new(heard))?;
        Ok(Topics { client, own, told })
    }
}

/// Takes a message of the outputs, if it is a reply to this client.
fn hear(own: u64, book: &Book, message: &Message<'_>) -> Option<()> {
    let (whose, nth) = message.header(REQUEST_ID)?.split_at_checked(8)?;
    if whose != own.to_be_bytes() {
        return None;
    }
    let nth = u64::from_be_bytes(nth.try_into().ok()?);
    let place = std::str::from_utf8(message.header(PLACE)?).ok()?;
    let place = place.split('/').next()?.parse().ok()?;
    let value = message.value?;
    let came = if value.starts_with(b"{\"aborted\"") {
        Came::Aborted(String::from_utf8_lossy(value).into_owned())
    } else if book.keeps_values {
        Came::Value(own_value(message.header(RECORD)?)?)
    } else {
        Came::Returned
    };
    book.take(nth, place, came);
    Some(())
}

fn own_value(mut bytes: &[u8]) -> Option<Value> {
    match take_record(&mut bytes)? {
        Record::Output(Output::Reply { outcome, .. }) => outcome.ok(),
        _ => None,
    }
}

impl Door for Topics {
    fn tell(&mut self, book: &Arc<Book>) {
        *self.told.lock() = Some(book.clone());
    }

    fn send(&mut self, nth: u64, asked: &Asked) -> Result<()> {
        let id: Vec<u8> = [self.own, nth].iter().flat_map(|n| n.to_be_bytes()).collect();
        let mut headers = vec![(REQUEST_ID.to_owned(), id.clone())];
        let value = match &asked.text {
            Some(text) => text.clone(),
            // What is no call of a client is written as the coordinator does.
            None => {
                let (mut bytes, call) = (Vec::new(), asked.call.clone());
                put_record(&Record::Request { id: id.into(), call }, &mut bytes);
                headers.push((RECORD.to_owned(), bytes));
                b"{}".to_vec()
            }
        };
        self.client.send(asked.source, &Outgoing { key: None, value, headers })
    }
}
