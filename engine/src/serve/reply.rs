//! The lines of a reply.

use std::io;

use serde_json::{json, Value};
use tidemill_core::Error;

/// Why an answer ends before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Who asked has gone, or takes nothing.
    Gone,
    /// Something is wrong, and what else is to be said of it.
    Failed(Error, Value),
}

/// What an answer comes to.
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

/// Where the lines of a reply go.
pub(crate) struct Reply<'a> {
    /// Takes bytes that end with a newline.
    put: &'a mut dyn FnMut(&[u8]) -> io::Result<()>,
    /// `running` or `stopped`.
    pub(crate) engine: &'static str,
    /// A line has been put since the last request.
    pub(crate) has_begun: bool,
}

impl Reply<'_> {
    pub(crate) fn new<'a>(
        put: &'a mut dyn FnMut(&[u8]) -> io::Result<()>,
        engine: &'static str,
    ) -> Reply<'a> {
        Reply { put, engine, has_begun: false }
    }

    /// A line that is JSON already, without its newline.
    pub(crate) fn raw(&mut self, mut line: Vec<u8>) -> Answer {
        line.push(b'\n');
        self.has_begun = true;
        Ok((self.put)(&line)?)
    }

    /// A line.
    pub(crate) fn line(&mut self, value: &Value) -> Answer {
        self.raw(value.to_string().into_bytes())
    }

    /// The last line; `fields` is an object.
    pub(crate) fn end(&mut self, mut fields: Value) -> Answer {
        fields["engine"] = json!(self.engine);
        fields["end"] = json!(true);
        self.line(&fields)
    }

    /// Says what has ended an answer. An error when nobody hears it.
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
