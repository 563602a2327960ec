//! The questions of a worker's clients that only the coordinator can answer, and its answers.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::json;
use tidemill_cluster::wire::{put_value, take_value};
use tidemill_core::wire::{
    put_batch, put_bytes, put_u16, put_u32, put_u64, take_batch, take_bytes, take_text, take_u16,
    take_u32, take_u64, take_u8,
};
use tidemill_core::{Error, Result, TableId, Value};
use tidemill_host::{CoordinatorLink, WorkerProcess};

use super::clients::{Home, Requests};
use crate::clients::{Health, RetainedRows, StreamProgress};
use crate::followed::{Changes, TableChange};

/// The longest wait for an answer. The coordinator answers at once.
const ANSWER: Duration = Duration::from_secs(2);

/// The most bytes of changes in an answer. With more of them, the worker's client reads the table.
const CHANGES_BYTES_MAX: usize = 64 << 20;

/// A question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether a generation runs. The answer is a byte.
    HasGeneration,
    /// Whether rows of earlier runs are still read again. The answer is a byte.
    IsRecovering,
    /// The answer is JSON.
    Health,
    /// The answer is text.
    Metrics,
    /// The answer has the retained rows, or the reason why there are none.
    Retained { stream: String, from: u64, rows_max: usize },
    /// The answer is a number that differs from the one seen, and comes as soon as there is one. A
    /// worker has one such question open; the next one ends it.
    News { seen: u64 },
    /// The answer has the changes of a table after an epoch.
    Changes { table: TableId, epoch: u64 },
    /// A worker is about to read a feed of files. The answer describes it, as JSON.
    Feed { feed: u32 },
    /// A worker has read more of a feed. The new marks are JSON. The answer is the record that no
    /// recovery goes back beyond.
    FeedRead { feed: u32, news: Vec<u8> },
}

impl Question {
    /// Returns the question as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Question::HasGeneration => out.push(0),
            Question::Health => out.push(1),
            Question::Metrics => out.push(2),
            Question::Retained { stream, from, rows_max } => {
                out.push(3);
                put_bytes(stream.as_bytes(), &mut out);
                put_u64(*from, &mut out);
                put_u64(*rows_max as u64, &mut out);
            }
            Question::News { seen } => {
                out.push(4);
                put_u64(*seen, &mut out);
            }
            Question::IsRecovering => out.push(5),
            Question::Changes { table, epoch } => {
                out.push(8);
                put_u16(table.0, &mut out);
                put_u64(*epoch, &mut out);
            }
            Question::Feed { feed } => {
                out.push(6);
                put_u32(*feed, &mut out);
            }
            Question::FeedRead { feed, news } => {
                out.push(7);
                put_u32(*feed, &mut out);
                put_bytes(news, &mut out);
            }
        }
        out
    }

    /// Returns the question of these bytes, if they are one.
    pub fn of(mut bytes: &[u8]) -> Option<Question> {
        let input = &mut bytes;
        let question = match take_u8(input)? {
            0 => Question::HasGeneration,
            1 => Question::Health,
            2 => Question::Metrics,
            3 => Question::Retained {
                stream: take_text(input)?.to_owned(),
                from: take_u64(input)?,
                rows_max: take_u64(input)? as usize,
            },
            4 => Question::News { seen: take_u64(input)? },
            5 => Question::IsRecovering,
            8 => Question::Changes { table: TableId(take_u16(input)?), epoch: take_u64(input)? },
            6 => Question::Feed { feed: take_u32(input)? },
            7 => Question::FeedRead { feed: take_u32(input)?, news: take_bytes(input)?.to_vec() },
            _ => return None,
        };
        input.is_empty().then_some(question)
    }
}

/// The answer to [`Question::Health`].
pub(super) fn health(health: &Health) -> Vec<u8> {
    json!({"ready": health.ready, "said": health.said}).to_string().into_bytes()
}

/// The answer to [`Question::Retained`].
pub(super) fn retained(found: &Result<RetainedRows>) -> Vec<u8> {
    let mut out = Vec::new();
    match found {
        Ok(RetainedRows { first, next, rows }) => {
            out.push(0);
            put_u64(*first, &mut out);
            put_u64(*next, &mut out);
            put_u32(rows.len() as u32, &mut out);
            for (at, batch) in rows {
                put_u64(*at, &mut out);
                put_batch(batch, &mut out);
            }
        }
        Err(error) => {
            out.push(1);
            put_bytes(error.what.as_bytes(), &mut out);
            put_bytes(error.help.as_bytes(), &mut out);
        }
    }
    out
}

fn retained_of(mut bytes: &[u8]) -> Option<Result<RetainedRows>> {
    let input = &mut bytes;
    let found = match take_u8(input)? {
        0 => {
            let (first, next, count) = (take_u64(input)?, take_u64(input)?, take_u32(input)?);
            let rows = (0..count).map(|_| Some((take_u64(input)?, take_batch(input)?)));
            Ok(RetainedRows { first, next, rows: rows.collect::<Option<Vec<_>>>()? })
        }
        1 => {
            let error = Error::program(take_text(input)?);
            Err(error.help(take_text(input)?))
        }
        _ => return None,
    };
    input.is_empty().then_some(found)
}

/// The answer to [`Question::Changes`].
pub(super) fn changes(found: &Result<Changes>) -> Vec<u8> {
    let mut out = Vec::new();
    let values = |values: &[Value], out: &mut Vec<u8>| {
        put_u32(values.len() as u32, out);
        values.iter().for_each(|value| put_value(value, out));
    };
    match found {
        Ok(Changes::Are(epochs, upto)) => {
            out.push(0);
            put_u64(*upto, &mut out);
            put_u32(epochs.len() as u32, &mut out);
            for (epoch, changes) in epochs {
                put_u64(*epoch, &mut out);
                put_u32(changes.len() as u32, &mut out);
                for TableChange { key, row } in &**changes {
                    values(key, &mut out);
                    out.push(u8::from(row.is_some()));
                    row.iter().for_each(|row| values(row, &mut out));
                }
            }
        }
        Ok(Changes::Unknown(epoch)) => {
            out.push(1);
            put_u64(*epoch, &mut out);
        }
        // A coordinator knows all tables of its workers.
        Err(_) => {}
    }
    match found {
        Ok(Changes::Are(_, upto)) if out.len() > CHANGES_BYTES_MAX => {
            changes(&Ok(Changes::Unknown(*upto)))
        }
        _ => out,
    }
}

fn changes_of(mut bytes: &[u8]) -> Option<Changes> {
    let input = &mut bytes;
    fn values(input: &mut &[u8]) -> Option<Vec<Value>> {
        (0..take_u32(input)?).map(|_| take_value(input)).collect()
    }
    fn change(input: &mut &[u8]) -> Option<TableChange> {
        let key = values(input)?;
        let row = match take_u8(input)? {
            0 => None,
            _ => Some(values(input)?.into()),
        };
        Some(TableChange { key, row })
    }
    fn epoch(input: &mut &[u8]) -> Option<(u64, Arc<Vec<TableChange>>)> {
        let epoch = take_u64(input)?;
        let changes = (0..take_u32(input)?).map(|_| change(input));
        Some((epoch, Arc::new(changes.collect::<Option<_>>()?)))
    }
    let found = match take_u8(input)? {
        0 => {
            let (upto, count) = (take_u64(input)?, take_u32(input)?);
            Changes::Are((0..count).map(|_| epoch(input)).collect::<Option<_>>()?, upto)
        }
        1 => Changes::Unknown(take_u64(input)?),
        _ => return None,
    };
    input.is_empty().then_some(found)
}

/// The coordinator, as a worker's clients reach it.
pub(super) struct Away {
    worker: Arc<WorkerProcess>,
    coordinator: CoordinatorLink,
    requests: Requests,
    /// Held during a pause.
    pause: Mutex<()>,
    never: Condvar,
}

impl Away {
    /// Creates it for the clients of a worker.
    pub fn new(worker: Arc<WorkerProcess>, requests: Requests) -> Away {
        let coordinator = worker.coordinator();
        Away { worker, coordinator, requests, pause: Mutex::default(), never: Condvar::new() }
    }

    fn ask(&self, question: &Question, wait: Duration) -> Option<Vec<u8>> {
        self.coordinator.ask(question.bytes(), wait)
    }

    fn nobody(&self) -> Error {
        let what =
            self.worker.trouble().unwrap_or_else(|| "the coordinator does not answer".into());
        Error::resource(what).help("try again; start the coordinator if it does not run")
    }
}

impl Home for Away {
    fn is_remote(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        self.ask(&Question::HasGeneration, ANSWER).is_some_and(|answer| answer == [1])
    }

    fn retained(&self, stream: &str, from: u64, rows_max: usize) -> Result<RetainedRows> {
        let question = Question::Retained { stream: stream.into(), from, rows_max };
        let answer = self.ask(&question, ANSWER);
        answer.and_then(|answer| retained_of(&answer)).unwrap_or_else(|| Err(self.nobody()))
    }

    fn changes(&self, table: TableId, epoch: u64) -> Result<Changes> {
        let answer = self.ask(&Question::Changes { table, epoch }, ANSWER);
        answer.and_then(|answer| changes_of(&answer)).ok_or_else(|| self.nobody())
    }

    fn is_recovering(&self) -> bool {
        self.ask(&Question::IsRecovering, ANSWER).is_some_and(|answer| answer == [1])
    }

    fn news(&self, seen: StreamProgress, timeout_us: u64) -> StreamProgress {
        let timeout = Duration::from_micros(timeout_us);
        let answer = self.ask(&Question::News { seen: seen.epoch }, timeout);
        let Some(epoch) = answer.and_then(|answer| take_u64(&mut &answer[..])) else {
            // Without a coordinator there is no answer at once, and none after a moment either.
            self.never.wait_for(&mut self.pause.lock(), timeout);
            return seen;
        };
        StreamProgress { epoch, over: false }
    }

    fn health(&self) -> Health {
        let answer = self.ask(&Question::Health, ANSWER);
        let mut found =
            answer.and_then(|answer| serde_json::from_slice::<serde_json::Value>(&answer).ok());
        let Some(found) = &mut found else {
            let error = self.nobody();
            let said = json!({"live": true, "what": error.what, "help": error.help});
            return Health { ready: false, said };
        };
        Health { ready: found["ready"] == true, said: found["said"].take() }
    }

    fn metrics(&self) -> String {
        let answer = self.ask(&Question::Metrics, ANSWER);
        answer.and_then(|answer| String::from_utf8(answer).ok()).unwrap_or_default()
    }

    fn answers_at(&self, address: &str) {
        self.worker.answers_clients(&self.requests.server, address);
    }
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Batch, Column, DataType, Schema};

    use super::*;

    #[test]
    fn questions_come_back() {
        for question in [
            Question::HasGeneration,
            Question::IsRecovering,
            Question::Health,
            Question::Metrics,
            Question::Retained { stream: "paid".into(), from: 7, rows_max: 256 },
            Question::News { seen: u64::MAX },
            Question::Changes { table: TableId(4), epoch: 9 },
            Question::Feed { feed: 3 },
            Question::FeedRead { feed: 3, news: b"{}".to_vec() },
        ] {
            let bytes = question.bytes();
            for cut in 0..bytes.len() {
                assert_eq!(Question::of(&bytes[..cut]), None, "{question:?} without its end");
            }
            assert_eq!(Question::of(&[&bytes[..], &[0]].concat()), None, "{question:?} and more");
            assert_eq!(Question::of(&bytes), Some(question));
        }
        assert_eq!(Question::of(&[9]), None);
    }

    #[test]
    fn changes_come_back() {
        let change = |id, row: Option<&[Value]>| TableChange {
            key: vec![Value::Int(id)],
            row: row.map(|row| row.to_vec().into()),
        };
        let changed = vec![change(1, Some(&[Value::Int(1), Value::Null])), change(2, None)];
        let are = Changes::Are(vec![(5, Arc::new(changed)), (7, Arc::default())], 9);
        for found in [are, Changes::Unknown(4)] {
            let bytes = changes(&Ok(found.clone()));
            for cut in 0..bytes.len() {
                assert!(changes_of(&bytes[..cut]).is_none(), "{cut} bytes");
            }
            assert_eq!(changes_of(&bytes), Some(found));
        }
        assert_eq!(changes_of(&changes(&Err(Error::program("none")))), None);
    }

    #[test]
    fn retained_rows_come_back() {
        let schema = Arc::new(Schema::new(vec![Column::new("n", DataType::Int)]));
        let batch = Batch::from_rows(schema, [&[Value::Int(3)][..], &[Value::Int(4)]]);
        let found = RetainedRows { first: 2, next: 9, rows: vec![(5, batch.clone())] };
        let bytes = retained(&Ok(found));
        for cut in 0..bytes.len() {
            assert!(retained_of(&bytes[..cut]).is_none(), "{cut} bytes");
        }
        let again = retained_of(&bytes).expect("they come back").expect("they are rows");
        assert_eq!((again.first, again.next, again.rows.len()), (2, 9, 1));
        assert_eq!((again.rows[0].0, again.rows[0].1.rows().count()), (5, 2));
        assert_eq!(again.rows[0].1.row(1)[0], Value::Int(4));
        let refused = Error::program("there is no stream x").help("there are y and z");
        let again = retained_of(&retained(&Err(refused.clone()))).expect("it comes back");
        assert_eq!(again.unwrap_err(), refused);
    }
}
