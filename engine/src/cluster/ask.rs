//! Requests to the log and the store that wait for the answers.

use std::sync::mpsc::{channel, Receiver};
use std::time::Duration;

use tidemill_cluster::{Records, Topic};
use tidemill_core::{Error, Kind, Result};
use tidemill_durable::{Log, Then};

/// The longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Reads all records of a topic from an offset on.
pub(super) fn read(log: &dyn Log, topic: Topic, from: u64) -> Result<Records> {
    let records = answer(|then| log.read(topic, from, None, 0, then))?;
    records.ok_or_else(|| match log.failed() {
        Some(error) => error,
        None => Error::new(Kind::Io, format!("{topic:?} of the cluster's log can't be read"))
            .help("check that the brokers are reachable"),
    })
}

/// Makes a request and waits for the answer.
pub(super) fn answer<T: Send + 'static>(ask: impl FnOnce(Then<T>)) -> Result<T> {
    let (tell, told): (_, Receiver<T>) = channel();
    ask(Box::new(move |answer| drop(tell.send(answer))));
    told.recv_timeout(ANSWER).map_err(|_| {
        Error::new(Kind::Io, "the cluster's log or store does not answer")
            .help("check that the brokers and the store are reachable, and start again")
    })
}
