//! The lines of a reply.

use std::io;

use serde_json::{json, Value};
use tidemill_core::Error;

/// The reason why an answer ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The client has gone, or reads nothing.
    Gone,
    /// An error, and further fields of the answer.
    Failed(Error, Value),
}

/// The result of an answer.
pub(crate) type Answer = Result<(), Stop>;

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error, json!({}))
    }
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Stop {
        Stop::Gone
    }
}

/// The target of the lines of a reply.
pub(crate) struct Reply<'a> {
    /// Takes bytes that end with a newline.
    put: &'a mut dyn FnMut(&[u8]) -> io::Result<()>,
    /// `running` or `stopped`.
    pub(crate) engine: &'static str,
    /// Whether a line has been written since the last request.
    pub(crate) has_begun: bool,
}

impl Reply<'_> {
    pub(crate) fn new<'a>(
        put: &'a mut dyn FnMut(&[u8]) -> io::Result<()>,
        engine: &'static str,
    ) -> Reply<'a> {
        Reply { put, engine, has_begun: false }
    }

    /// Writes a line of JSON, given without its newline.
    pub(crate) fn raw(&mut self, mut line: Vec<u8>) -> Answer {
        line.push(b'\n');
        self.has_begun = true;
        Ok((self.put)(&line)?)
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, value: &Value) -> Answer {
        self.raw(value.to_string().into_bytes())
    }

    /// Writes the last line; `fields` is an object.
    pub(crate) fn end(&mut self, mut fields: Value) -> Answer {
        fields["engine"] = json!(self.engine);
        fields["end"] = json!(true);
        self.line(&fields)
    }

    /// Reports the error that has ended an answer. Returns an error when the client is gone.
    pub(crate) fn close(&mut self, answer: Answer) -> io::Result<()> {
        match answer {
            Ok(()) => Ok(()),
            Err(Stop::Gone) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(Stop::Failed(error, mut fields)) => {
                let Error { kind, what, help, .. } = error;
                fields["error"] = json!({"kind": kind.name(), "what": what, "help": help});
                self.end(fields).map_err(|_| io::ErrorKind::BrokenPipe.into())
            }
        }
    }
}
