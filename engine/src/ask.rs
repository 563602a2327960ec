//! Queries to the engine of a data directory, running or stopped. `docs/internals/protocol.md`
//! describes the requests.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tidemill_core::Error;
use tidemill_env::{Addr, Connection, Env};

use crate::data_dir::Site;
use crate::moves::Way;
use crate::process_mode::{held, CLUSTER};
use crate::serve::{Fields, Lines, Reply};
use crate::stopped;

/// The time for a running engine to accept a connection, in microseconds.
const CONNECT_US: u64 = 2_000_000;
/// The longest line of a reply, in bytes. A row is as long as its values.
const LINE_BYTES_MAX: usize = 1 << 30;

/// How often a request is sent to engines that end before they have answered anything.
const TRIES: u32 = 3;

/// The lines of a reply, each a JSON object without its newline. The last one has `"end": true`.
pub struct Replies {
    from: From,
    /// The request, until a line has arrived. If the engine ends before, it is asked again, or its
    /// files are read.
    request: Option<Request>,
}

enum From {
    Running(Box<Lines>),
    Made(VecDeque<String>),
    Ended,
}

struct Request {
    env: Env,
    data_dir: PathBuf,
    text: String,
    tries: u32,
}

/// The result of a wait for a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A line.
    Line(String),
    /// Nothing yet.
    Waiting,
    /// The reply has ended.
    End,
}

/// Asks the engine of a data directory, or reads its files when none runs. An error is reported in
/// the last line.
pub fn ask(env: &Env, data_dir: &Path, request: &str) -> Replies {
    // A request is one line, however it was written.
    let text = request.replace(['\n', '\r'], " ");
    // An engine may have executed a request that it has not answered. A second request would send
    // the rows twice.
    let asked: Option<Value> = serde_json::from_str(&text).ok();
    let tries = if asked.is_some_and(|asked| asked["do"] == "dlq_replay") { 1 } else { TRIES };
    let request = Request { env: env.clone(), data_dir: data_dir.into(), text, tries };
    let mut replies = Replies { from: From::Ended, request: Some(request) };
    replies.from = replies.again().unwrap_or(From::Ended);
    replies
}

impl Request {
    /// Whether it is about retained rows, which a coordinator has.
    fn is_of_retained(&self) -> bool {
        let fields = Fields::parse(self.text.as_bytes());
        fields.is_ok_and(|fields| matches!(fields.verb(), "tail" | "dlq_ls" | "dlq_replay"))
    }

    /// Sends the request to a running engine, or answers it from the files.
    fn send(&mut self) -> From {
        self.tries -= 1;
        // An unreadable directory is reported below.
        let held = held(&*self.env.disk, &self.data_dir).unwrap_or_default();
        let path = match held {
            Some(Way::Several) => Site::socket(&self.data_dir.join(CLUSTER)),
            Some(Way::One) | None => Site::socket(&self.data_dir),
        };
        let connection = match held == Some(Way::Several) && !self.is_of_retained() {
            // The coordinator has no tables, so it is not asked to load them.
            true => Err(io::ErrorKind::NotFound.into()),
            false => self.env.net.connect(&Addr::Unix(path.clone()), CONNECT_US),
        };
        match connection {
            Ok(connection) => match self.write(connection) {
                Ok(lines) => From::Running(Box::new(lines)),
                Err(_) if self.tries > 0 => self.send(),
                Err(e) => failed(Error::io(format!("asking {}", path.display()), &e)),
            },
            Err(e) if is_nobody(&e) => {
                let mut lines = VecDeque::new();
                let mut put = |bytes: &[u8]| {
                    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
                    lines.push_back(String::from_utf8_lossy(line).into_owned());
                    Ok(())
                };
                let read = if held == Some(Way::Several) { stopped::SNAPSHOT } else { "stopped" };
                let mut reply = Reply::new(&mut put, read);
                let answer = stopped::answer(&self.env, &self.data_dir, &self.text, &mut reply);
                // It is written to memory, so it can't fail.
                let _ = reply.close(answer);
                From::Made(lines)
            }
            Err(e) => failed(Error::io(format!("connecting to {}", path.display()), &e)),
        }
    }

    fn write(&self, mut connection: Box<dyn Connection>) -> io::Result<Lines> {
        connection.write_all(self.text.as_bytes())?;
        connection.write_all(b"\n")?;
        Ok(Lines::new(connection, LINE_BYTES_MAX))
    }
}

fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound, Unsupported};
    matches!(error.kind(), ConnectionRefused | NotADirectory | NotFound | Unsupported)
}

/// Returns a reply of one line, with an error.
fn failed(error: Error) -> From {
    let mut lines = VecDeque::new();
    let mut put = |bytes: &[u8]| {
        lines.push_back(String::from_utf8_lossy(bytes).trim_end().to_owned());
        Ok(())
    };
    // It is written to memory, so it can't fail.
    let _ = Reply::new(&mut put, "unknown").close(Err(error.into()));
    From::Made(lines)
}

impl Replies {
    /// Asks once more, if no line has arrived yet.
    fn again(&mut self) -> Option<From> {
        self.request.as_mut().filter(|request| request.tries > 0).map(Request::send)
    }

    /// Returns the next line, if it arrives within so many microseconds.
    pub fn within(&mut self, timeout_us: u64) -> Next {
        self.step(Some(timeout_us))
    }

    fn step(&mut self, timeout_us: Option<u64>) -> Next {
        let line = match &mut self.from {
            From::Made(lines) => match lines.pop_front() {
                Some(line) => return Next::Line(line),
                None => return Next::End,
            },
            From::Ended => return Next::End,
            From::Running(lines) => lines.next_within(timeout_us),
        };
        let why = match line {
            Ok(Some(line)) => {
                self.request = None;
                let line = String::from_utf8_lossy(&line).into_owned();
                // Only the engine's last line begins so. Rows do not.
                if is_end(&line) {
                    self.from = From::Ended;
                }
                return Next::Line(line);
            }
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Next::Waiting,
            Ok(None) => io::ErrorKind::UnexpectedEof.into(),
            Err(e) => e,
        };
        let ended = || {
            Error::io("the engine has ended during its answer, or is busy", &why)
                .help("ask again: after it has stopped, the answer comes from its files")
        };
        self.from = self.again().unwrap_or_else(|| failed(ended()));
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
