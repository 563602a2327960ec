//! The messages that processes send over the mesh.

use std::sync::Arc;

use tidemill_cluster::wire::{put_packet, take_packet};
use tidemill_cluster::{Packet, Refused, Topic};
use tidemill_core::wire::{
    put_bytes, put_u32, put_u64, take_bytes, take_text, take_u32, take_u64, take_u8,
};
use tidemill_env::Addr;
use tidemill_mesh::Peer;

use crate::served::{put_topic, take_topic, Raw};

/// A message.
#[derive(Debug)]
pub(crate) enum Message {
    /// Packets between state machines.
    Packets(Vec<Packet>),
    /// To a worker: the addresses of the others.
    Directory(Vec<(Peer, Addr)>),
    /// To the server of the log: a request to append these records, one after the other.
    Append { call: u64, topic: Topic, generation: u64, records: Vec<Vec<u8>> },
    /// To the server of the log: a request to read.
    Read { call: u64, topic: Topic, from: u64, limit: Option<u64>, wait_us: u64 },
    /// From the server of the log: the offset of the first appended record.
    Appended { call: u64, result: Result<u64, Refused> },
    /// From the server of the log: the records, and whether these are all.
    Found { call: u64, records: Vec<Raw>, upto: u64, is_all: bool },
    /// From the server of the log: the records can't be read.
    NotFound { call: u64 },
    /// To the coordinator: what holds a worker up, or an empty text when nothing does any more.
    Trouble(String),
    /// To the coordinator: the worker's process id on its machine.
    Process(u32),
    /// To the coordinator: a question.
    Ask { call: u64, question: Vec<u8> },
    /// From the coordinator: the answer to a question.
    Answer { call: u64, answer: Vec<u8> },
    /// To the coordinator: the address at which a worker answers clients, and the number that the
    /// ids of their requests begin with.
    Connect { own: u64, address: String },
    /// From the coordinator: it sends the replies to a worker's requests from now on.
    Connected,
    /// From the coordinator: replies, as a record of outputs.
    Replies(Vec<u8>),
}

impl Message {
    /// Returns the message as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Packets(packets) => {
                out.push(0);
                packets.iter().for_each(|packet| put_packet(packet, &mut out));
            }
            Message::Directory(peers) => {
                out.push(1);
                for (Peer(peer), address) in peers {
                    put_u32(*peer, &mut out);
                    put_bytes(address.to_string().as_bytes(), &mut out);
                }
            }
            Message::Append { call, topic, generation, records } => {
                out.push(2);
                put_u64(*call, &mut out);
                put_topic(*topic, &mut out);
                put_u64(*generation, &mut out);
                records.iter().for_each(|bytes| put_bytes(bytes, &mut out));
            }
            Message::Read { call, topic, from, limit, wait_us } => {
                out.push(3);
                put_u64(*call, &mut out);
                put_topic(*topic, &mut out);
                put_u64(*from, &mut out);
                put_u64(limit.map_or(u64::MAX, |limit| limit.min(u64::MAX - 1)), &mut out);
                put_u64(*wait_us, &mut out);
            }
            Message::Appended { call, result } => {
                out.push(4);
                put_u64(*call, &mut out);
                out.push(match result {
                    Ok(_) => 0,
                    Err(Refused::Fenced) => 1,
                    Err(Refused::Unknown) => 2,
                });
                put_u64(result.unwrap_or_default(), &mut out);
            }
            Message::Found { call, records, upto, is_all } => {
                out.push(5);
                put_u64(*call, &mut out);
                put_u64(*upto, &mut out);
                out.push(u8::from(*is_all));
                for (offset, bytes) in records {
                    put_u64(*offset, &mut out);
                    put_bytes(bytes, &mut out);
                }
            }
            Message::NotFound { call } => {
                out.push(6);
                put_u64(*call, &mut out);
            }
            Message::Trouble(what) => {
                out.push(7);
                put_bytes(what.as_bytes(), &mut out);
            }
            Message::Process(id) => {
                out.push(8);
                put_u32(*id, &mut out);
            }
            Message::Ask { call, question: bytes } | Message::Answer { call, answer: bytes } => {
                out.push(if matches!(self, Message::Ask { .. }) { 9 } else { 10 });
                put_u64(*call, &mut out);
                put_bytes(bytes, &mut out);
            }
            Message::Connect { own, address } => {
                out.push(11);
                put_u64(*own, &mut out);
                put_bytes(address.as_bytes(), &mut out);
            }
            Message::Connected => out.push(12),
            Message::Replies(outputs) => {
                out.push(13);
                put_bytes(outputs, &mut out);
            }
        }
        out
    }

    /// Returns the message of these bytes, if they are valid.
    pub fn of(mut bytes: &[u8]) -> Option<Message> {
        let input = &mut bytes;
        let message = match take_u8(input)? {
            0 => Message::Packets(all(input, take_packet)?),
            1 => Message::Directory(all(input, |input| {
                Some((Peer(take_u32(input)?), take_text(input)?.parse().ok()?))
            })?),
            2 => Message::Append {
                call: take_u64(input)?,
                topic: take_topic(input)?,
                generation: take_u64(input)?,
                records: all(input, |input| take_bytes(input).map(<[u8]>::to_vec))?,
            },
            3 => Message::Read {
                call: take_u64(input)?,
                topic: take_topic(input)?,
                from: take_u64(input)?,
                limit: Some(take_u64(input)?).filter(|limit| *limit < u64::MAX),
                wait_us: take_u64(input)?,
            },
            4 => {
                let (call, status, offset) = (take_u64(input)?, take_u8(input)?, take_u64(input)?);
                let result = match status {
                    0 => Ok(offset),
                    1 => Err(Refused::Fenced),
                    2 => Err(Refused::Unknown),
                    _ => return None,
                };
                Message::Appended { call, result }
            }
            5 => {
                let (call, upto, is_all) =
                    (take_u64(input)?, take_u64(input)?, take_u8(input)? == 1);
                let record =
                    |input: &mut &[u8]| Some((take_u64(input)?, Arc::from(take_bytes(input)?)));
                Message::Found { call, records: all(input, record)?, upto, is_all }
            }
            6 => Message::NotFound { call: take_u64(input)? },
            7 => Message::Trouble(take_text(input)?.to_string()),
            8 => Message::Process(take_u32(input)?),
            9 => Message::Ask {
                call: take_u64(input)?,
                question: take_bytes(input).map(<[u8]>::to_vec)?,
            },
            10 => Message::Answer {
                call: take_u64(input)?,
                answer: take_bytes(input).map(<[u8]>::to_vec)?,
            },
            11 => {
                Message::Connect { own: take_u64(input)?, address: take_text(input)?.to_string() }
            }
            12 => Message::Connected,
            13 => Message::Replies(take_bytes(input).map(<[u8]>::to_vec)?),
            _ => return None,
        };
        input.is_empty().then_some(message)
    }
}

/// Takes items until the input ends.
fn all<T>(input: &mut &[u8], mut take: impl FnMut(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    let mut items = Vec::new();
    while !input.is_empty() {
        items.push(take(input)?);
    }
    Some(items)
}
