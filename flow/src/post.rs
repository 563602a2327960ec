//! Messages between processes of a mesh other than parcels: steering, and the end of the run.

use std::rc::Rc;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Kind};
use timely::communication::{Pull, Push};
use timely::worker::Worker;
use timely::Bincode;

use crate::gate::{Gate, Steering};
use crate::run::FirstError;

/// A message between the first workers of processes.
#[derive(Clone, Serialize, Deserialize)]
enum Note {
    /// From the first process: obey this steering. `taken` has an entry for each process.
    Steer { steering: Steering, taken: Vec<u64> },
    /// The run ends. If it is because of an error, this is the reason.
    Stop(Option<Failure>),
}

/// An error in a form that can be sent.
#[derive(Clone, Serialize, Deserialize)]
struct Failure {
    kind: u8,
    what: String,
    help: String,
    at: Option<String>,
}

const KINDS: [Kind; 6] =
    [Kind::Program, Kind::Setting, Kind::Input, Kind::Resource, Kind::Io, Kind::Internal];

impl Failure {
    fn of(error: Error) -> Failure {
        let kind = KINDS.iter().position(|k| *k == error.kind).unwrap_or(KINDS.len() - 1);
        Failure { kind: kind as u8, what: error.what, help: error.help, at: error.at }
    }

    fn error(self) -> Error {
        let kind = KINDS.get(usize::from(self.kind)).copied().unwrap_or(Kind::Internal);
        Error { kind, what: self.what, help: self.help, at: self.at }
    }
}

/// A worker's end of the channel for notes. Timely's progress tracking does not see it, because
/// notes belong to no epoch. Only the first worker of each process uses it.
pub(crate) struct Post {
    pushers: Vec<Box<dyn Push<Bincode<Note>>>>,
    puller: Box<dyn Pull<Bincode<Note>>>,
    process: usize,
    workers: usize,
    /// The last steering that was sent to the others.
    sent: Option<(u64, Vec<u64>)>,
    is_stopped: bool,
}

impl Post {
    /// Creates the channel. All workers must do so, after the dataflow. A channel that is allocated
    /// before would be forgotten when the dataflow completes, and its messages would wake no
    /// worker.
    pub(crate) fn new(worker: &Worker, workers: usize) -> Post {
        // Messages activate this path, which no dataflow needs to have. It prevents the worker from
        // parking while a message is unread.
        let nowhere: Rc<[usize]> = Rc::new([usize::MAX]);
        let (pushers, puller) = worker.allocate(worker.new_identifier(), nowhere);
        let process = worker.index() / workers;
        Post { pushers, puller, process, workers, sent: None, is_stopped: false }
    }

    /// Reads the notes that have arrived, and acts on them.
    pub(crate) fn read(&mut self, gate: &Gate, fault: &Arc<FirstError>) {
        while let Some(note) = self.puller.recv() {
            match note.payload {
                Note::Steer { steering, taken } => {
                    gate.obey(steering, taken.get(self.process).copied().unwrap_or(0));
                }
                Note::Stop(failure) => {
                    if let Some(failure) = failure {
                        fault.set(failure.error());
                    }
                    // The first process passes it on. The others have no one to tell.
                    self.is_stopped = self.process != 0;
                    gate.stop();
                }
            }
        }
    }

    /// Sends changes to the other processes. This is for the first process only.
    pub(crate) fn steer(&mut self, gate: &Gate, taken: &[u64]) {
        let known = |sent: &(u64, Vec<u64>)| sent.0 == gate.version() && sent.1 == taken;
        if self.process != 0 || self.sent.as_ref().is_some_and(known) {
            return;
        }
        let (version, steering) = gate.steering();
        self.send_all(&Note::Steer { steering, taken: taken.to_vec() });
        self.sent = Some((version, taken.to_vec()));
    }

    /// Sends the last note. The first process tells all others to stop, and the others tell the
    /// first.
    pub(crate) fn farewell(&mut self, fault: Option<Error>) {
        let note = Note::Stop(fault.map(Failure::of));
        if self.process == 0 {
            self.send_all(&note);
        } else if !self.is_stopped {
            self.pushers[0].send(note.into());
        }
    }

    fn send_all(&mut self, note: &Note) {
        for first in self.pushers.iter_mut().step_by(self.workers).skip(1) {
            first.send(note.clone().into());
        }
    }
}
