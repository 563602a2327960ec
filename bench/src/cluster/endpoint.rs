//! The two ways of clients into a cluster.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use tidemill_cluster::wire::{put_record, take_record};
use tidemill_cluster::{Output, Record, Request};
use tidemill_connect::Message;
use tidemill_core::{Error, Result};
use tidemill_engine::Cluster;
use tidemill_env::Env;
use tidemill_function::Tid;
use tidemill_host::Answer;
use tidemill_kafka::{Client, KafkaSettings, Outgoing};

use super::offer::{Book, Planned, ReplyContent};

const REQUEST_ID: &str = "request-id";
const RECORD: &str = "record";
const PLACE: &str = "id";
/// The time that requests wait for others in the same message, in nanoseconds.
const LINGER_NS: u64 = 1_000_000;

/// A way into a cluster.
pub(super) trait Endpoint {
    /// Sets the book that records replies from now on.
    fn set_book(&mut self, book: &Arc<Book>);

    /// Sends a request, at once or together with others. Its reply has the number `nth`.
    fn send(&mut self, nth: u64, asked: &Planned) -> Result<()>;

    /// Sends the requests that have waited long enough for others; all of them if `_is_over`.
    fn flush_due(&mut self, _is_over: bool) -> Result<()> {
        Ok(())
    }
}

/// The coordinator's request server, in the same process.
pub(super) struct RequestServer {
    cluster: Arc<Cluster>,
    book: Option<Arc<Book>>,
}

impl RequestServer {
    pub fn new(cluster: Arc<Cluster>) -> RequestServer {
        RequestServer { cluster, book: None }
    }
}

impl Endpoint for RequestServer {
    fn set_book(&mut self, book: &Arc<Book>) {
        self.book = Some(book.clone());
    }

    fn send(&mut self, nth: u64, asked: &Planned) -> Result<()> {
        let book = self.book.clone().ok_or_else(|| Error::internal("no book for replies"))?;
        let then = move |tid: Option<Tid>, answer| {
            // A request without a known outcome stays without reply.
            let Some(tid) = tid else { return };
            let content = match answer {
                Answer::Returned(value) if book.keeps_values => ReplyContent::Value(value),
                Answer::Returned(_) => ReplyContent::Returned,
                Answer::Aborted(abort) => ReplyContent::Aborted(abort.reason),
                Answer::Unknown => return,
            };
            book.take(nth, tid.0, content);
        };
        self.cluster.offer(asked.source, asked.call.clone(), Box::new(then));
        Ok(())
    }
}

/// The topics of Kafka, as any client would use them.
pub(super) struct Topics {
    env: Env,
    client: Client,
    /// A prefix of ids that separates this client's requests from others.
    own: u64,
    book: Arc<Mutex<Option<Arc<Book>>>>,
    /// The largest number of requests in a message.
    together: usize,
    /// For each source, the message that waits for more requests.
    open: Vec<Open>,
}

/// Requests that are not sent yet.
#[derive(Default)]
struct Open {
    count: usize,
    text: Vec<u8>,
    since_ns: u64,
}

impl Topics {
    pub fn open(env: &Env, settings: &KafkaSettings, together: usize) -> Result<Topics> {
        let own = env.random.next_u64();
        let book: Arc<Mutex<Option<Arc<Book>>>> = Arc::default();
        let shared = book.clone();
        let heard = move |message: &Message<'_>| {
            if let Some(book) = &*shared.lock() {
                let _ = receive(own, book, message);
            }
        };
        let client = Client::open(env, settings, Box::new(heard))?;
        let open = (0..settings.sources).map(|_| Open::default()).collect();
        Ok(Topics { env: env.clone(), client, own, book, together, open })
    }

    fn flush(&mut self, source: usize) -> Result<()> {
        let open = &mut self.open[source];
        if open.count == 0 {
            return Ok(());
        }
        open.text.push(b']');
        let value = std::mem::take(&mut open.text);
        open.count = 0;
        self.client.send(source as u32, &Outgoing { value, ..Outgoing::default() })
    }
}

/// Returns the number of a request, if it is of this client.
fn number(own: u64, id: &[u8]) -> Option<u64> {
    let (whose, nth) = std::str::from_utf8(id).ok()?.split_at_checked(16)?;
    (u64::from_str_radix(whose, 16) == Ok(own)).then(|| nth.parse().ok())?
}

/// Returns the place in the order that an output's id contains.
fn place(id: &str) -> Option<u64> {
    id.split('/').next()?.parse().ok()
}

/// One of several replies in a message.
#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow, rename = "request-id")]
    request: Cow<'a, str>,
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    aborted: Option<Cow<'a, str>>,
}

/// Reads an output message and records its replies to this client.
fn receive(own: u64, book: &Book, message: &Message<'_>) -> Option<()> {
    let value = message.value?;
    if book.keeps_values {
        let mut bytes = message.header(RECORD)?;
        let Record::Outputs(outputs) = take_record(&mut bytes)? else { return None };
        for output in outputs {
            let Output::Reply { tid, id, outcome } = output else { continue };
            let content = outcome
                .map_or_else(|abort| ReplyContent::Aborted(abort.reason), ReplyContent::Value);
            number(own, &id).into_iter().for_each(|nth| book.take(nth, tid.0, content.clone()));
        }
    } else if value.starts_with(b"[") {
        let replies: Vec<Reply<'_>> = serde_json::from_slice(value).ok()?;
        for reply in replies {
            let Some(nth) = number(own, reply.request.as_bytes()) else { continue };
            let content = reply
                .aborted
                .map_or(ReplyContent::Returned, |why| ReplyContent::Aborted(why.into_owned()));
            book.take(nth, place(&reply.id)?, content);
        }
    } else {
        let nth = number(own, message.header(REQUEST_ID)?)?;
        let place = place(std::str::from_utf8(message.header(PLACE)?).ok()?)?;
        let content = match value.starts_with(b"{\"aborted\"") {
            true => ReplyContent::Aborted(String::from_utf8_lossy(value).into_owned()),
            false => ReplyContent::Returned,
        };
        book.take(nth, place, content);
    }
    Some(())
}

impl Endpoint for Topics {
    fn set_book(&mut self, book: &Arc<Book>) {
        *self.book.lock() = Some(book.clone());
    }

    fn send(&mut self, nth: u64, asked: &Planned) -> Result<()> {
        let id = format!("{:016x}{nth}", self.own);
        let source = asked.source as usize;
        let text = asked.text.as_ref().filter(|_| self.together > 1);
        if let Some(text) = text {
            let now_ns = self.env.clock.monotonic_ns();
            let open = &mut self.open[source];
            if open.count == 0 {
                open.since_ns = now_ns;
            }
            open.text.push(if open.count == 0 { b'[' } else { b',' });
            // The request id becomes a field of the object.
            let rest = text.strip_prefix(b"{").expect("it is an object");
            open.text.extend_from_slice(format!("{{\"request-id\":\"{id}\",").as_bytes());
            open.text.extend_from_slice(rest);
            open.count += 1;
            return if open.count < self.together { Ok(()) } else { self.flush(source) };
        }
        let mut headers = vec![(REQUEST_ID.to_owned(), id.clone().into_bytes())];
        let value = match &asked.text {
            Some(text) => text.clone(),
            // Events that fill tables are not calls of a client, so they are encoded as records of
            // the coordinator.
            None => {
                let (mut bytes, call) = (Vec::new(), asked.call.clone());
                let id = id.into_bytes().into();
                put_record(&Record::Requests(vec![Request { id, call }]), &mut bytes);
                headers.push((RECORD.to_owned(), bytes));
                b"{}".to_vec()
            }
        };
        self.client.send(asked.source, &Outgoing { key: None, value, headers })
    }

    fn flush_due(&mut self, is_over: bool) -> Result<()> {
        let now_ns = self.env.clock.monotonic_ns();
        for source in 0..self.open.len() {
            if is_over || now_ns >= self.open[source].since_ns + LINGER_NS {
                self.flush(source)?;
            }
        }
        Ok(())
    }
}
