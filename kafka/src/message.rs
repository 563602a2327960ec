//! Messages of Kafka, as Tidemill reads and writes them.

use rdkafka::message::Headers;
use tidemill_cluster::{Record, Topic};
use tidemill_connect::Message;

use crate::log::Part;
use crate::{BEGINS, GENERATION};

/// Returns the number that a header has in decimal digits.
fn number(header: Option<&[u8]>) -> Option<u64> {
    std::str::from_utf8(header?).ok()?.parse().ok()
}

/// A message to be appended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Vec<u8>,
    /// The headers. Names that begin with `tidemill-` are reserved.
    pub headers: Vec<(String, Vec<u8>)>,
}

impl Outgoing {
    /// Returns the mark that readers of the message see.
    pub(crate) fn mark(&self) -> Mark {
        let header = |name: &str| {
            self.headers.iter().rev().find(|(of, _)| of == name).map(|(_, value)| &value[..])
        };
        Mark { generation: number(header(GENERATION)), begins: number(header(BEGINS)) }
    }

    /// Returns the approximate size, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        self.key.as_ref().map_or(0, Vec::len) + self.value.len() + headers.sum::<usize>()
    }
}

/// The form of requests and replies in Kafka. It is called from several threads, and must not panic
/// on any bytes.
pub trait Format: Send + Sync {
    /// Returns the requests of a message of the inputs. Every message has one: a message that can't
    /// be read is a request that will be refused.
    fn requests(&self, message: &Message<'_>) -> Record;

    /// Returns the message for a record of the inputs or the outputs. The message of a
    /// [`Record::Generation`] is for people only, because it is read by its headers.
    fn encode(&self, record: &Record) -> Outgoing;

    /// Returns the record of a message of the outputs; `None` if it has none.
    fn decode(&self, message: &Message<'_>) -> Option<Record>;
}

/// The headers that decide whether a message counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The generation of the record's writer.
    pub(crate) generation: Option<u64>,
    /// The generation that begins with it.
    pub(crate) begins: Option<u64>,
}

/// Returns the headers that decide whether a message counts.
pub(crate) fn mark(message: &Message<'_>) -> Mark {
    let header = |name| number(message.header(name));
    Mark { generation: header(GENERATION), begins: header(BEGINS) }
}

/// Returns the view of a message.
pub(crate) fn incoming(message: &impl rdkafka::Message) -> Message<'_> {
    let headers = message.headers().map_or(Vec::new(), |headers| {
        headers.iter().filter_map(|header| Some((header.key, header.value?))).collect()
    });
    Message {
        key: message.key(),
        value: message.payload(),
        headers,
        timestamp_ms: message.timestamp().to_millis(),
        partition: u32::try_from(message.partition()).unwrap_or(0),
        offset: u64::try_from(message.offset()).unwrap_or(0),
    }
}

/// Returns the message for a record.
pub(crate) fn encode(
    format: &dyn Format,
    topic: Topic,
    generation: u64,
    record: &Record,
) -> Outgoing {
    let mut outgoing = match topic {
        Topic::Input(_) => return format.encode(record),
        Topic::Output(_) => format.encode(record),
        Topic::Cuts => {
            let mut value = Vec::new();
            tidemill_cluster::wire::put_record(record, &mut value);
            let version = tidemill_cluster::wire::VERSION.to_string().into_bytes();
            Outgoing { key: None, value, headers: vec![(crate::VERSION.into(), version)] }
        }
    };
    outgoing.headers.push((GENERATION.into(), generation.to_string().into_bytes()));
    if let Record::Generation { generation } = record {
        outgoing.headers.push((BEGINS.into(), generation.to_string().into_bytes()));
    }
    outgoing
}

/// The reason why a message of the cuts can't be read.
pub(crate) enum Unread {
    /// The message is not Tidemill's.
    Foreign,
    /// Another version has written it.
    Version(u64),
    /// Its bytes are damaged.
    Damaged,
}

/// Returns the record of a message that counts.
pub(crate) fn decode(
    format: &dyn Format,
    part: &Part,
    message: &Message<'_>,
) -> Result<Record, Unread> {
    match part.topic {
        Topic::Input(_) => Ok(format.requests(message)),
        Topic::Output(_) => format.decode(message).ok_or(Unread::Foreign),
        Topic::Cuts => {
            let version = number(message.header(crate::VERSION)).ok_or(Unread::Foreign)?;
            if version != u64::from(tidemill_cluster::wire::VERSION) {
                return Err(Unread::Version(version));
            }
            let mut bytes = message.value.ok_or(Unread::Damaged)?;
            let record = tidemill_cluster::wire::take_record(&mut bytes).ok_or(Unread::Damaged)?;
            match bytes.is_empty() {
                true => Ok(record),
                false => Err(Unread::Damaged),
            }
        }
    }
}
