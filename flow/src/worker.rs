//! A worker: it reads its sources in turn. The first one also calls the conductor.

use std::sync::Arc;
use std::time::Duration;

use tidemill_core::Result;

use crate::deposit::{Deposits, Mailbox};
use crate::gate::Gate;
use crate::source::{Outcome, Progress, Reader};
use crate::spec::{Conductor, Turn};

/// The part of the flow that one worker has.
pub(crate) struct Worker {
    pub(crate) gate: Arc<Gate>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// The sources that it reads.
    pub(crate) readers: Vec<Reader>,
    /// The sequencer, at the first worker.
    pub(crate) lead: Option<Lead>,
    pub(crate) rows_max: usize,
    pub(crate) park: Duration,
}

/// The sequencer, and what it needs to know.
pub(crate) struct Lead {
    pub(crate) conductor: Box<dyn Conductor>,
    pub(crate) deposits: Deposits,
    /// The progress of all sources.
    pub(crate) progress: Vec<Progress>,
}

impl Worker {
    /// Runs the loop until the gate stops it.
    pub(crate) fn run(&mut self) -> Result<()> {
        let sources = self.readers.iter().map(|reader| reader.source).collect();
        self.gate.register(sources, self.lead.is_some());
        while !self.gate.is_stopped() {
            let mut is_busy = self.read()?;
            if let Some(lead) = &mut self.lead {
                let version = self.gate.version();
                match lead.turn(&self.gate, &self.mailbox)? {
                    Turn::Busy => is_busy = true,
                    Turn::Idle => {}
                    Turn::Stop => self.gate.stop(),
                }
                // The sources of this worker must follow, too.
                is_busy |= self.gate.version() != version;
            }
            if !is_busy {
                // A wake since the poll of the sources is not lost: the thread's token lets it pass.
                std::thread::park_timeout(self.park);
            }
        }
        Ok(())
    }

    /// Polls each source once. Returns whether there may be more.
    fn read(&mut self) -> Result<bool> {
        let (mut is_busy, mut items) = (false, Vec::new());
        let mut nth = 0;
        while let Some(reader) = self.readers.get_mut(nth) {
            let outcome = reader.read(&self.gate, self.rows_max, &mut items)?;
            if !items.is_empty() {
                self.mailbox.put(&mut items);
            }
            if outcome == Outcome::Ended {
                reader.end();
                self.readers.remove(nth);
            } else {
                nth += 1;
            }
            is_busy |= outcome == Outcome::Rows;
            // The first worker waits for rows, and for the ends of epochs.
            if outcome != Outcome::Nothing && self.lead.is_none() {
                self.gate.wake_first();
            }
        }
        Ok(is_busy)
    }
}

impl Lead {
    /// Collects the items that have arrived, and calls the conductor.
    fn turn(&mut self, gate: &Gate, mailbox: &Mailbox) -> Result<Turn> {
        // If nothing can arrive any more, all epochs that were open are closed. The progress comes
        // first: the items of closed epochs are in the mailbox then.
        let first = self.progress.iter().map(Progress::get).min();
        let closed = first.unwrap_or(u64::MAX).min(gate.epoch());
        for item in mailbox.take() {
            self.deposits.add(item);
        }
        gate.set_closed(closed);
        self.conductor.turn(closed, &mut self.deposits)
    }
}
