//! Errors of the brokers, and their texts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tidemill_core::{Error, Kind};
use tracing::dispatcher::get_default;
use tracing::Dispatch;

use crate::report::report;
use crate::topics::is_missing;

/// The last error of the brokers. Clones share it.
#[derive(Clone, Default)]
pub(super) struct LastError(Arc<Inner>);

struct Inner {
    last: Mutex<String>,
    is_away: AtomicBool,
    /// Where its creator logs.
    log: Dispatch,
}

impl Default for Inner {
    fn default() -> Inner {
        let log = get_default(Dispatch::clone);
        Inner { last: Mutex::default(), is_away: AtomicBool::default(), log }
    }
}

impl LastError {
    pub fn log(&self) -> &Dispatch {
        &self.0.log
    }

    pub fn note(&self, error: &KafkaError, reason: &str) {
        // The library reports this event here, too, though it is no error.
        if let Some(Code::PartitionEOF) = error.rdkafka_error_code() {
            return;
        }
        let text = match reason.is_empty() {
            true => error.to_string(),
            false => format!("{error} ({reason})"),
        };
        if let Some(Code::AllBrokersDown) = error.rdkafka_error_code() {
            self.0.is_away.store(true, Ordering::Relaxed);
            // The error has less detail than the one before it.
            if !self.0.last.lock().is_empty() {
                return;
            }
        }
        *self.0.last.lock() = text;
    }

    /// Notes that a broker has answered.
    pub fn is_well(&self) {
        self.0.is_away.store(false, Ordering::Relaxed);
        self.0.last.lock().clear();
    }

    /// Whether all brokers were reported to be away since the last answer.
    pub fn is_away(&self) -> bool {
        self.0.is_away.load(Ordering::Relaxed)
    }

    pub fn last(&self) -> String {
        self.0.last.lock().clone()
    }

    /// Returns the text for brokers that do not answer.
    pub fn away(&self, brokers: &str, error: &KafkaError) -> String {
        match self.last() {
            last if last.is_empty() => format!("no broker of {brokers} answers: {error}"),
            last => format!("no broker of {brokers} answers: {last}"),
        }
    }

    /// Returns the error that no broker has answered.
    pub fn unreachable(&self, brokers: &str, error: &KafkaError) -> Error {
        let what = self.away(brokers, error);
        let is_login = what.to_ascii_lowercase().contains("authentication");
        Error::new(Kind::Io, what).help(match is_login {
            true => "check sasl.username, sasl.password and sasl.mechanism in properties=",
            false => {
                "check the address, that the broker runs and advertises an address that can be reached \
                 from here, and security.protocol in properties="
            }
        })
    }
}

/// Receives the errors that brokers report unasked.
pub(super) struct Listener(pub LastError);

impl ClientContext for Listener {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        report(self.0.log(), level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.note(&error, reason);
    }
}

impl ConsumerContext for Listener {}

/// Returns the error for a failure that does not go away by waiting; nothing for others.
pub(super) fn lasting(topic: &str, error: &KafkaError) -> Option<Error> {
    let code = error.rdkafka_error_code()?;
    let failed = |what: &str| Error::new(Kind::Io, format!("topic {topic}: {what} ({code})"));
    Some(match code {
        _ if is_missing(error) => failed("there is no such topic or partition")
            .help("it was removed, or its name is wrong; create it, or correct the name"),
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            failed("the broker refuses access").help(
                "grant this user Read and Describe on topics that are read, Write and Describe on those \
                 that are written, and IdempotentWrite on the cluster",
            )
        }
        Code::TransactionalIdAuthorizationFailed => failed("the broker refuses transactions")
            .help("grant this user Write and Describe on the transactional id"),
        Code::MessageSizeTooLarge => failed("a message is too large").help(
            "raise max.message.bytes of the topic, and message.max.bytes in properties= of the sink",
        ),
        Code::InvalidRecord => failed("the broker refuses a message").help(
            "a topic with cleanup.policy=compact takes only messages with a key: say key=, or write to \
             another topic",
        ),
        Code::PolicyViolation => failed("a policy of the broker refuses a message"),
        _ => return None,
    })
}
