//! Requests to the log that wait for the answers.

use std::sync::mpsc::{channel, Receiver};
use std::time::Duration;

use tidemill_cluster::{Log, Records, Then, Topic};
use tidemill_core::{Error, Kind, Result};

/// The longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Reads all records of a topic from an offset on.
pub(super) fn read(log: &dyn Log, topic: Topic, from: u64) -> Result<Records> {
    let records = answer(|then| log.read(topic, from, None, 0, then))?;
    records.ok_or_else(|| match log.failed() {
        Some(error) => error,
        None => Error::new(Kind::Io, format!("the cluster's log can't be read ({topic:?})"))
            .help("check that the brokers are reachable"),
    })
}

/// Makes a request and waits for the answer.
pub(super) fn answer<T: Send + 'static>(ask: impl FnOnce(Then<T>)) -> Result<T> {
    let (tell, told): (_, Receiver<T>) = channel();
    ask(Box::new(move |answer| drop(tell.send(answer))));
    told.recv_timeout(ANSWER).map_err(|_| {
        Error::new(Kind::Io, "the cluster's log does not answer")
            .help("check that the brokers are reachable, and start again")
    })
}
