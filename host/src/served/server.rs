//! Serving the log to other processes.

use std::sync::{Arc, Weak};

use tidemill_cluster::wire::put_record;
use tidemill_cluster::{Log, Records, Topic};
use tidemill_mesh::{Lane, Mesh, Peer};

use super::files::{begins, FileLog, Found};
use crate::message::Message;

/// The approximate bytes of records in one answer.
const ANSWER_BYTES: usize = 1 << 20;

/// The logs that a coordinator serves to the others.
#[derive(Clone, Default)]
pub struct Served {
    /// The log, if the others have none of their own.
    pub log: Option<Arc<FileLog>>,
    /// The inputs of a source and of those after it, for processes that can't read them.
    pub inputs: Option<(u32, Arc<dyn Log>)>,
}

impl Served {
    /// Returns the log of a topic that other processes may be unable to read.
    fn inputs_of(&self, topic: Topic) -> Option<&Arc<dyn Log>> {
        let Topic::Input(source) = topic else { return None };
        self.inputs.as_ref().filter(|(first, _)| source >= *first).map(|(_, inputs)| inputs)
    }
}

/// Takes a message if it is a call. Returns any other message.
pub(crate) fn serve(
    served: &Served,
    mesh: &Weak<Mesh>,
    peer: Peer,
    message: Message,
) -> Option<Message> {
    let answer = {
        let mesh = mesh.clone();
        move |lane: Lane, message: Message| {
            if let Some(mesh) = mesh.upgrade() {
                mesh.send(peer, lane, message.bytes());
            }
        }
    };
    match (message, &served.log) {
        (Message::Read { call, topic, from, limit, wait_us }, _)
            if served.inputs_of(topic).is_some() =>
        {
            let inputs = served.inputs_of(topic).expect("the guard has found them");
            let then = move |found: Option<Records>| {
                answer(Lane::Urgent, answered(call, found.map(raw)));
            };
            let limit = limit.map(|limit| limit as usize);
            inputs.read(topic, from, limit, wait_us, Box::new(then));
            None
        }
        (Message::Append { call, topic, generation, records }, Some(log)) => {
            let then = move |result| answer(Lane::Urgent, Message::Appended { call, result });
            log.append_raw(topic, generation, begins(&records), records, Box::new(then));
            None
        }
        (Message::Read { call, topic, from, limit, wait_us }, Some(log)) => {
            let lane = lane(topic, limit);
            let then = move |found| answer(lane, answered(call, found));
            let limit = limit.map(|limit| limit as usize);
            log.read_raw(topic, from, limit, wait_us, Box::new(then));
            None
        }
        (other, _) => Some(other),
    }
}

/// Encodes records.
fn raw(found: Records) -> Found {
    let bytes = |(offset, record)| {
        let mut bytes = Vec::new();
        put_record(&record, &mut bytes);
        (offset, bytes.into())
    };
    Found { records: found.records.into_iter().map(bytes).collect(), upto: found.upto }
}

/// Returns the lane of an answer. Reads at the beginning of a generation are long, and no execution
/// waits for them.
fn lane(topic: Topic, limit: Option<u64>) -> Lane {
    match (topic, limit) {
        (Topic::Output(_) | Topic::Cuts, None) => Lane::Bulk,
        _ => Lane::Urgent,
    }
}

/// Returns as many records as one answer takes. The caller requests the rest.
fn answered(call: u64, found: Option<Found>) -> Message {
    let Some(Found { mut records, mut upto }) = found else { return Message::NotFound { call } };
    let mut bytes = 0;
    let fits = records.iter().take_while(|(_, record)| {
        let fits = bytes < ANSWER_BYTES;
        bytes += record.len();
        fits
    });
    let count = fits.count();
    let is_all = count == records.len();
    if let Some((offset, _)) = records.get(count) {
        upto = *offset;
        records.truncate(count);
    }
    Message::Found { call, records, upto, is_all }
}
