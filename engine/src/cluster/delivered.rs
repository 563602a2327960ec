//! The outputs that have left, as followers see them.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidemill_cluster::{Emitted, Output, Record, Then};
use tidemill_core::{Batch, StreamId};
use tidemill_mesh::Peer;
use tidemill_txn::program::Program;

use crate::rings::Rings;

/// The retained outputs, and who waits for more.
pub(super) struct Delivered {
    pub rings: Mutex<Rings>,
    count: Mutex<Counted>,
    more: Condvar,
}

#[derive(Default)]
struct Counted {
    /// The number of records with outputs.
    count: u64,
    /// The workers whose clients wait for more, each once.
    waiting: BTreeMap<Peer, Then<Vec<u8>>>,
}

impl Delivered {
    /// Creates it without outputs.
    pub fn new(rings: Rings) -> Delivered {
        let (count, more) = Default::default();
        Delivered { rings: Mutex::new(rings), count, more }
    }

    /// Takes the outputs of a record.
    pub fn take(&self, program: &Program, record: &Record) {
        let name = |stream: &StreamId| Some(&program.streams.get(stream.index())?.spec);
        match record {
            Record::Outputs(outputs) => {
                for output in outputs {
                    let Output::Event { stream, row, .. } = output else { continue };
                    if let Some(spec) = name(stream) {
                        let batch = Batch::from_rows(spec.schema.clone(), [&row[..]]);
                        self.rings.lock().push(&spec.name, &batch);
                    }
                }
            }
            Record::Emitted(Emitted { stream, batch, .. }) => {
                if let Some(spec) = name(stream) {
                    self.rings.lock().push(&spec.name, batch);
                }
            }
            _ => return,
        }
        let mut counted = self.count.lock();
        counted.count += 1;
        let (count, waiting) = (counted.count, std::mem::take(&mut counted.waiting));
        drop(counted);
        self.more.notify_all();
        waiting.into_values().for_each(|then| then(count.to_le_bytes().to_vec()));
    }

    /// Waits until the count differs from `seen`, at most this long. Returns the count.
    pub fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut counted = self.count.lock();
        if counted.count == seen {
            self.more.wait_for(&mut counted, timeout);
        }
        counted.count
    }

    /// Calls `then` with the count when it differs from `seen`. An earlier wait of the same worker
    /// ends.
    pub fn notify(&self, who: Peer, seen: u64, then: Then<Vec<u8>>) {
        let mut counted = self.count.lock();
        if counted.count == seen {
            // The worker has given up the earlier wait.
            counted.waiting.insert(who, then);
            return;
        }
        let count = counted.count;
        drop(counted);
        then(count.to_le_bytes().to_vec());
    }
}
