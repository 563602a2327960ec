//! Serving the log to other processes.

use std::sync::Weak;

use tidemill_cluster::Topic;
use tidemill_mesh::{Lane, Mesh, Peer};

use super::files::{begins, FileLog, Found};
use crate::word::Word;

/// Bytes of records in one answer, about.
const ANSWER_BYTES: usize = 1 << 20;

/// Takes a call of another process; `None` when it is one, or what else it is.
pub(crate) fn serve(log: &FileLog, mesh: &Weak<Mesh>, peer: Peer, word: Word) -> Option<Word> {
    let answer = {
        let mesh = mesh.clone();
        move |lane: Lane, word: Word| {
            if let Some(mesh) = mesh.upgrade() {
                mesh.send(peer, lane, word.bytes());
            }
        }
    };
    match word {
        Word::Append { call, topic, generation, records } => {
            let then = move |result| answer(Lane::Urgent, Word::Appended { call, result });
            log.append_raw(topic, generation, begins(&records), records, Box::new(then));
            None
        }
        Word::Read { call, topic, from, limit, wait_us } => {
            let lane = lane(topic, limit);
            let then = move |found| answer(lane, answered(call, found));
            let limit = limit.map(|limit| limit as usize);
            log.read_raw(topic, from, limit, wait_us, Box::new(then));
            None
        }
        other => Some(other),
    }
}

/// What a generation begins with is long, and nobody waits for it who executes.
fn lane(topic: Topic, limit: Option<u64>) -> Lane {
    match (topic, limit) {
        (Topic::Output(_) | Topic::Cuts, None) => Lane::Bulk,
        _ => Lane::Urgent,
    }
}

/// As much as one answer takes; who has asked asks for the rest.
fn answered(call: u64, found: Option<Found>) -> Word {
    let Some(Found { mut records, mut upto }) = found else { return Word::NotFound { call } };
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
    Word::Found { call, records, upto, is_all }
}
