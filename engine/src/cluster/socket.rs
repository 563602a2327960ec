//! The answers at the socket of a coordinator's directory: the retained rows of the running app, and
//! rows that are sent again. All else is answered from the newest snapshot, as when nothing runs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tidemill_cluster::{Events, Refused};
use tidemill_core::{Error, Kind, Result};
use tidemill_env::Env;
use tidemill_function::Functions as _;
use tidemill_host::CoordinatorProcess;

use super::ask::answer;
use super::clients::{partition_of, Requests};
use super::delivered::Delivered;
use crate::serve::{
    self, Answer, AnswerRequest, Endpoint, Fields, LiveRings, Ls, Replay, Reply, Tail,
};
use crate::stopped;

/// The socket, until this is dropped.
pub(super) struct Socket(Mutex<Option<Endpoint>>);

/// The parts of a coordinator that answers need.
pub(super) struct Desk {
    pub env: Env,
    /// The coordinator's directory.
    pub dir: PathBuf,
    pub delivered: Arc<Delivered>,
    pub requests: Requests,
    pub coordinator: Arc<CoordinatorProcess>,
}

impl Socket {
    /// Listens in the coordinator's directory.
    ///
    /// # Errors
    /// When the address is not available.
    pub fn open(desk: Desk) -> Result<Socket> {
        let (env, dir, waits) = (desk.env.clone(), desk.dir.clone(), desk.delivered.clone());
        let answer: AnswerRequest =
            Arc::new(move |request, stopping, reply| desk.answer(request, stopping, reply));
        let wake = Box::new(move || {
            waits.rings_changed.notify_all();
        });
        Endpoint::open(&env, &dir, answer, wake).map(|open| Socket(Mutex::new(Some(open))))
    }

    /// Ends all answers. Nothing answers any more.
    pub fn close(&self) {
        let open = self.0.lock().take();
        open.into_iter().for_each(Endpoint::close);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}

impl Desk {
    fn answer(&self, request: &[u8], stopping: &AtomicBool, reply: &mut Reply<'_>) -> Answer {
        reply.engine = "running";
        let mut fields = Fields::parse(request)?;
        match fields.verb() {
            "tail" => {
                let tail = Tail::take(&mut fields)?;
                fields.done()?;
                let rings = LiveRings {
                    program: self.requests.functions.program(),
                    rings: &self.delivered.rings,
                    changed: &self.delivered.rings_changed,
                    is_recovering: self.delivered.is_recovering(),
                    is_over: &|| stopping.load(Ordering::Acquire) || self.delivered.is_over(),
                    is_several: true,
                };
                tail.answer(&rings, reply)
            }
            "dlq_ls" => {
                let ls = Ls::take(&mut fields)?;
                fields.done()?;
                let found = ls.find(&self.delivered.rings.lock())?;
                ls.rows(&found, self.coordinator.status().epoch, reply)
            }
            "dlq_replay" => {
                let replay = Replay::take(&mut fields)?;
                fields.done()?;
                reply.end(json!({"sent": self.send(&replay)?}))
            }
            _ => {
                reply.engine = stopped::SNAPSHOT;
                let data_dir = self.dir.parent().unwrap_or(Path::new("."));
                let request = String::from_utf8_lossy(request);
                stopped::answer(&self.env, data_dir, &request, reply)
            }
        }
    }

    /// Sends all rows or none: they are one record of the log. Returns their number.
    fn send(&self, replay: &Replay) -> Result<u64> {
        let base = replay.base()?;
        let Requests { functions, server, .. } = &self.requests;
        let stream = functions.pushed(base).ok_or_else(|| serve::not_pushed(base))?;
        let schema = &functions.program().streams[stream.index()].spec.schema;
        let batch = replay.batch(&self.delivered.rings.lock(), schema)?;
        let rows = batch.len() as u64;
        let Some(first) = batch.rows().next() else { return Ok(0) };
        // They enter where a client's event would.
        let calls = functions.event(stream, &first)?;
        let partition = calls.first().map(|call| partition_of(functions.program(), call));
        let source = partition.transpose()?.map_or(0, |of| server.source_of(of));
        let events = Events { stream, from: None, is_run: false, batch };
        match answer(|then| server.send(source, events, then))? {
            Ok(_) => Ok(rows),
            Err(Refused::Fenced) => {
                Err(Error::new(Kind::Io, "another coordinator runs")
                    .help("ask there: this one ends"))
            }
            Err(Refused::Unknown) => Err(Error::resource(
                "it is unknown whether the rows were recorded",
            )
            .help(
                "look whether they have come before you send them again; send fewer rows at a time",
            )),
        }
    }
}
