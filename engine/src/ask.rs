//! Asking the engine of a data directory, running or stopped. `docs/running.md` has the requests.

use std::path::Path;

use serde_json::json;
use tidemill_core::Error;
use tidemill_env::Env;

/// The lines of a reply, each a JSON object without its newline. The last one has `"end": true`.
pub struct Replies(Box<dyn Iterator<Item = String> + Send>);

impl Iterator for Replies {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.0.next()
    }
}

/// Asks the engine of a data directory, or reads what it has left when none runs. What goes wrong
/// is the last line.
pub fn ask(_env: &Env, data_dir: &Path, _request: &str) -> Replies {
    let error = Error::setting(format!("no engine runs on {}", data_dir.display()));
    Replies(Box::new(std::iter::once(failed(&error))))
}

/// An error as the last line of a reply.
pub(crate) fn failed(error: &Error) -> String {
    let Error { kind, what, help, .. } = error;
    json!({"error": {"kind": kind.name(), "what": what, "help": help}, "end": true}).to_string()
}
