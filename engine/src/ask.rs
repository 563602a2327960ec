//! Asking the engine of a data directory, running or stopped. `docs/running.md` has the requests.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use tidemill_core::Error;
use tidemill_env::{Addr, Connection, Env};

use crate::data_dir::Site;
use crate::serve::{Lines, Reply};
use crate::stopped;

/// How long a running engine may take to accept, in microseconds.
const CONNECT_US: u64 = 2_000_000;
/// Bytes of a line of a reply: rows are as long as their values.
const LINE_BYTES_MAX: usize = 1 << 30;

/// The lines of a reply, each a JSON object without its newline. The last one has `"end": true`.
pub struct Replies(From);

enum From {
    Running(Box<Lines>),
    Made(VecDeque<String>),
    Ended,
}

/// What may come within some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A line.
    Line(String),
    /// Nothing yet.
    Waiting,
    /// The reply has ended.
    End,
}

/// Asks the engine of a data directory, or reads what it has left when none runs. What goes wrong
/// is the last line.
pub fn ask(env: &Env, data_dir: &Path, request: &str) -> Replies {
    let path = Site::socket(data_dir);
    match env.net.connect(&Addr::Unix(path.clone()), CONNECT_US) {
        Ok(connection) => running(connection, request).unwrap_or_else(|e| {
            Replies::failed(Error::io(format!("asking {}", path.display()), &e))
        }),
        Err(e) if is_nobody(&e) => {
            let mut lines = VecDeque::new();
            let mut put = |bytes: &[u8]| {
                let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
                lines.push_back(String::from_utf8_lossy(line).into_owned());
                Ok(())
            };
            let mut reply = Reply::new(&mut put, "stopped");
            let answer = stopped::answer(env, data_dir, request, &mut reply);
            // It goes into memory.
            let _ = reply.close(answer);
            Replies(From::Made(lines))
        }
        Err(e) => Replies::failed(Error::io(format!("connecting to {}", path.display()), &e)),
    }
}

fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, Unsupported};
    matches!(error.kind(), ConnectionRefused | NotFound | Unsupported)
}

fn running(mut connection: Box<dyn Connection>, request: &str) -> io::Result<Replies> {
    // On one line, however it was written.
    let line = request.replace(['\n', '\r'], " ");
    connection.write_all(line.as_bytes())?;
    connection.write_all(b"\n")?;
    Ok(Replies(From::Running(Box::new(Lines::new(connection, LINE_BYTES_MAX)))))
}

impl Replies {
    fn failed(error: Error) -> Replies {
        let mut lines = VecDeque::new();
        let mut put = |bytes: &[u8]| {
            lines.push_back(String::from_utf8_lossy(bytes).trim_end().to_owned());
            Ok(())
        };
        let _ = Reply::new(&mut put, "unknown").close(Err(error.into()));
        Replies(From::Made(lines))
    }

    /// The next line, if it comes within so many microseconds.
    pub fn within(&mut self, timeout_us: u64) -> Next {
        self.step(Some(timeout_us))
    }

    fn step(&mut self, timeout_us: Option<u64>) -> Next {
        let line = match &mut self.0 {
            From::Made(lines) => match lines.pop_front() {
                Some(line) => return Next::Line(line),
                None => return Next::End,
            },
            From::Ended => return Next::End,
            From::Running(lines) => lines.next_within(timeout_us),
        };
        let why = match line {
            Ok(Some(line)) => {
                let line = String::from_utf8_lossy(&line).into_owned();
                // Ours and no other's: nothing in a row comes before it.
                if is_end(&line) {
                    self.0 = From::Ended;
                }
                return Next::Line(line);
            }
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Next::Waiting,
            Ok(None) => io::ErrorKind::UnexpectedEof.into(),
            Err(e) => e,
        };
        *self = Replies::failed(
            Error::io("the engine has ended in the midst of its answer, or is busy", &why)
                .help("ask again: when it has stopped, its files are read"),
        );
        self.step(timeout_us)
    }
}

/// Whether a line is the last one.
fn is_end(line: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Line {
        #[serde(default)]
        end: bool,
    }
    serde_json::from_str::<Line>(line).is_ok_and(|line| line.end)
}

impl Iterator for Replies {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.step(None) {
            Next::Line(line) => Some(line),
            Next::Waiting | Next::End => None,
        }
    }
}
