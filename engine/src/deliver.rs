//! The way out. What an epoch came to waits here until its cut is durable; nothing leaves before.
//!
//! One thread takes what the executor has done, in order. It hashes the outputs, appends a record
//! of the cut, commits all that has gathered meanwhile as one group (inputs first, then cuts; inputs
//! alone while their epoch is still being executed), and only then hands outputs to sinks and to whoever keeps them, and answers who waits. Execution runs
//! ahead by as much as the channel holds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use serde_json::json;
use tidemill_connect::Place;
use tidemill_core::{Batch, Cut, Error, Kind, Result, SourceId};
use tidemill_env::Env;
use tidemill_log::Log;
use tidemill_txn::execute::{AbortedSlide, Faulted, Overdue};
use tidemill_txn::program::{Asked, Program};

use crate::calls::Answer;
use crate::counts::Counts;
use crate::followed::Noted;
use crate::outlets::Outlets;
use crate::patient::FULL_US;
use crate::reasons::Reasons;
use crate::records::{self, CutRecord};
use crate::recover::{Logged, Recorded};
use crate::report::LogReport;
use crate::shared::Shared;
use crate::snapshots::{Capture, Keeper};

/// Items that may wait before the executor and the readers wait.
pub(crate) const ITEMS_MAX: usize = 64;
/// Items that are committed as one group, at most.
const GROUP_MAX: usize = 256;

/// What comes to be delivered, in order.
pub(crate) enum Item {
    /// A rows record for the input log. The cut that covers it comes behind it.
    Rows { source: SourceId, next_offset: u64, record: Vec<u8> },
    /// A verdict record for the input log.
    Verdict(Vec<u8>),
    /// An epoch has been executed.
    Epoch(Box<Done>),
    /// Everything recorded has been executed again: sinks are where they were.
    Settled,
}

/// What an epoch came to.
pub(crate) struct Done {
    pub(crate) cut: Cut,
    /// By stream, each in stamp order.
    pub(crate) events: Vec<(Arc<str>, Batch)>,
    /// Counts after it.
    pub(crate) counts: Counts,
    /// Hashes of what opaque handlers have written.
    pub(crate) written: BTreeMap<usize, u64>,
    /// Calls of functions that took too long.
    pub(crate) overdue: Vec<Overdue>,
    /// Transactions whose functions failed.
    pub(crate) faults: Vec<Faulted>,
    /// Slides whose triggers aborted.
    pub(crate) aborted_slides: Vec<AbortedSlide>,
    /// All transactions, where recovery is strong.
    pub(crate) commands: Option<Vec<u8>>,
    /// What transactions were told from outside.
    pub(crate) told: Vec<(Asked, Arc<[u8]>)>,
    /// Where sources stand, as far as that has changed.
    pub(crate) places: Vec<(SourceId, Place)>,
    /// Request number of the drain that it answers.
    pub(crate) drained: Option<u64>,
    /// The record of it, when it was executed again.
    pub(crate) recorded: Option<Recorded>,
    /// The state after it, when it is to be a snapshot.
    pub(crate) capture: Option<Box<Capture>>,
    /// What its calls came to.
    pub(crate) answers: Vec<Answer>,
    /// What it has changed in tables that are followed.
    pub(crate) noted: Noted,
    /// Nothing more will come, ever.
    pub(crate) is_last: bool,
    /// Rows and hash of all outputs after it; known when it is recorded.
    pub(crate) outputs: BTreeMap<String, u64>,
    pub(crate) output_hash: u128,
}

/// The logs of a data directory.
pub(crate) struct Logs {
    pub(crate) input: Log,
    pub(crate) cuts: Log,
    pub(crate) fingerprint: u128,
    /// Rows in the input log that are in no cut yet.
    pub(crate) logged: VecDeque<Logged>,
}

impl Logs {
    /// The first record of the input log that a snapshot after this cut needs.
    fn input_next(&mut self, cut: &Cut) -> u64 {
        let is_in = |l: &Logged| l.next_offset <= cut.offsets[l.source.index()];
        while self.logged.front().is_some_and(is_in) {
            self.logged.pop_front();
        }
        self.logged.front().map_or(self.input.next(), |first| first.number)
    }
}

pub(crate) struct Delivery {
    pub(crate) env: Env,
    pub(crate) shared: Arc<Shared>,
    pub(crate) program: Arc<Program>,
    pub(crate) items: Receiver<Item>,
    pub(crate) outlets: Outlets,
    /// The handlers whose abort events a stream has.
    pub(crate) aborting: BTreeMap<Arc<str>, String>,
    pub(crate) logs: Option<Logs>,
    /// Takes snapshots, on a thread of its own.
    pub(crate) keeper: Option<Keeper>,
    pub(crate) keep_cuts: bool,
    /// Rows and bytes that are kept of each table that is followed.
    pub(crate) tail: (usize, usize),
    /// What is recorded is being executed again.
    pub(crate) is_recovering: bool,
    /// Functions of which the code is not that of the newest snapshot.
    pub(crate) changed: Vec<String>,
    /// What functions come to now is taken, where that is something else than what is recorded.
    pub(crate) accepts: bool,
}

pub(crate) fn channel() -> (Sender<Item>, Receiver<Item>) {
    crossbeam_channel::bounded(ITEMS_MAX)
}

impl Delivery {
    /// Delivers until nobody sends any more. An error ends the run.
    pub(crate) fn run(mut self) {
        let result = self.serve();
        if let Err(error) = &result {
            self.shared.fail(error.clone());
        }
        // The channel is closed, so that whoever sends finds out; whoever waits is woken.
        let Delivery { shared, items, mut outlets, keeper, .. } = self;
        drop(items);
        if let Some(keeper) = keeper {
            if let Err(error) = keeper.join() {
                shared.fail(error);
            }
        }
        // Whatever ended the run, what was committed is completed at the sinks; a sink that has
        // failed says so again.
        let is_over = shared.out.lock().is_last;
        let closed = match is_over || !shared.is_durable {
            true => outlets.finish(),
            false => outlets.sync().map(drop),
        };
        if let Err(error) = closed {
            shared.fail(error);
        }
        shared.delivered.notify_all();
        shared.ring_come.notify_all();
    }

    fn serve(&mut self) -> Result<()> {
        if !self.is_recovering {
            // The disk may have been full when the logs were opened.
            self.commit()?;
        }
        let mut group = Vec::new();
        while let Ok(first) = self.items.recv() {
            group.push(first);
            group.extend(self.items.try_iter().take(GROUP_MAX - 1));
            let mut epochs = Vec::new();
            for item in group.drain(..) {
                match item {
                    Item::Rows { source, next_offset, record } => {
                        if let Some(logs) = &mut self.logs {
                            let number = logs.input.append(records::ROWS, &record)?;
                            logs.logged.push_back(Logged { number, source, next_offset });
                        }
                    }
                    Item::Verdict(record) => {
                        if let Some(logs) = &mut self.logs {
                            logs.input.append(records::VERDICT, &record)?;
                        }
                    }
                    Item::Epoch(mut done) => {
                        self.record(&mut done)?;
                        epochs.push(*done);
                    }
                    Item::Settled => {
                        self.commit_for(&epochs)?;
                        self.deliver(std::mem::take(&mut epochs))?;
                        self.outlets.settle()?;
                        self.shared.out.lock().is_recovering = false;
                        self.is_recovering = false;
                        self.shared.life.recovered();
                        self.shared.delivered.notify_all();
                    }
                }
            }
            self.commit_for(&epochs)?;
            self.deliver(epochs)?;
            self.trim()?;
        }
        // What was pushed and is in no cut was not answered for, but whoever sent it need not send
        // it again.
        self.commit()
    }

    /// Removes what no snapshot needs, unless somebody copies it just now.
    fn trim(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let Some(_held) = shared.copying.try_lock() else { return Ok(()) };
        let trim = shared.out.lock().trim.take();
        if let (Some((input, cuts)), Some(logs)) = (trim, &mut self.logs) {
            logs.cuts.trim(cuts)?;
            logs.input.trim(input)?;
        }
        Ok(())
    }

    /// Hashes an epoch's outputs and appends its cut, or compares it with the record.
    fn record(&mut self, done: &mut Done) -> Result<()> {
        for (stream, batch) in &done.events {
            self.outlets.count(stream, batch);
        }
        let output_hash = self.outlets.hash();
        (done.outputs, done.output_hash) = (self.outlets.rows(), output_hash);
        if let Some(capture) = &mut done.capture {
            capture.internal.facts.outlets = self.outlets.facts();
        }
        let Some(logs) = &mut self.logs else { return Ok(()) };
        let number = match &done.recorded {
            None => {
                let record = CutRecord {
                    cut: done.cut.clone(),
                    fingerprint: logs.fingerprint,
                    output_hash,
                    places: done.places.clone(),
                    written: done.written.clone(),
                    overdue: done.overdue.clone(),
                    commands: done.commands.take(),
                    answers: std::mem::take(&mut done.told),
                };
                // What was appended is committed before the cut is.
                let bytes = records::put_cut_behind(logs.input.next(), &record);
                logs.cuts.append(records::CUT_BEHIND, &bytes)?
            }
            Some(recorded) => {
                if let Err(error) = compare(&self.program, &self.changed, &recorded.record, done) {
                    if !self.accepts {
                        return Err(error);
                    }
                    let what = format!("{}; it was told to accept that", error.what);
                    self.shared.life.tell("accepted", json!({"what": what}));
                    self.shared.troubles.tell("recovery", &what);
                    // The next start is to begin behind it.
                    self.shared.force.store(true, Ordering::Release);
                }
                recorded.number
            }
        };
        if let Some(capture) = &mut done.capture {
            capture.cut_next = number + 1;
            capture.input_next = logs.input_next(&done.cut);
        }
        Ok(())
    }

    /// Makes durable what these epochs are to leave with; also when there are none: the rows' own
    /// sync is then over, or nearly, when their cut comes.
    ///
    /// What is executed again was durable before, or was written again when the logs were opened, unless
    /// the disk was too full even for that. Only a snapshot of it needs more: it counts records. So a
    /// recovery comes to its end on a full disk, and the tables can be read.
    fn commit_for(&mut self, epochs: &[Done]) -> Result<()> {
        let is_settled = |logs: &Logs| logs.input.is_settled() && logs.cuts.is_settled();
        let is_durable = self.is_recovering && self.logs.as_ref().is_none_or(is_settled);
        match is_durable && epochs.iter().all(|done| done.capture.is_none()) {
            true => Ok(()),
            false => self.commit(),
        }
    }

    /// Makes everything appended durable. A full disk is waited for: what is there stays readable,
    /// and the engine goes on when there is room again.
    fn commit(&mut self) -> Result<()> {
        let Some(logs) = &mut self.logs else { return Ok(()) };
        for log in [&mut logs.input, &mut logs.cuts] {
            loop {
                match log.make_ready().and_then(|()| log.commit()) {
                    Ok(_) => break,
                    Err(error) if error.kind == Kind::Resource => {
                        if self.shared.gives_up() {
                            match log.waiting_bytes() {
                                0 => break,
                                _ => return Err(error),
                            }
                        }
                        self.shared.stall(error);
                        self.env.clock.sleep_us(FULL_US);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        self.shared.has_room();
        self.shared.out.lock().log = Some([&logs.input, &logs.cuts].map(|log| LogReport {
            first: log.first(),
            next: log.durable(),
            bytes: log.bytes(),
        }));
        Ok(())
    }

    /// Hands on what durable epochs came to.
    fn deliver(&mut self, epochs: Vec<Done>) -> Result<()> {
        for done in epochs {
            let Done {
                cut,
                events,
                counts,
                faults,
                aborted_slides,
                drained,
                capture,
                answers,
                noted,
                is_last,
                outputs,
                output_hash,
                ..
            } = done;
            let shared = self.shared.clone();
            let mut rings = shared.rings.lock();
            events.iter().for_each(|(stream, batch)| rings.push(stream, batch));
            let kept = capture.is_some().then(|| rings.facts());
            drop(rings);
            let reasons = self.count_aborts(&events, &faults, &aborted_slides, capture.is_some());
            // Outputs may have to wait for room, and nobody else with them.
            for (stream, batch) in &events {
                self.outlets.write(stream, batch)?;
            }
            self.outlets.commit()?;
            let mut out = shared.out.lock();
            for (stream, batch) in events {
                self.outlets.keep(&stream, batch, &mut out.kept);
            }
            out.counts = counts;
            let epoch = cut.epoch;
            out.epoch = epoch;
            (out.outputs, out.output_hash) = (outputs, output_hash);
            out.offsets.clone_from(&cut.offsets);
            out.is_last = is_last;
            if self.keep_cuts {
                out.cuts.push(cut);
            }
            // Before anybody finds in `out` that rows are safe: they can be seen then.
            shared.left.store(epoch, Ordering::Release);
            // Whoever sees that it has left finds what it has changed, and its rows in the tables.
            shared.followed.lock().push(epoch, noted, self.tail.0, self.tail.1);
            drop(out);
            shared.calls.answer(answers);
            shared.delivered.notify_all();
            shared.ring_come.notify_all();
            if let Some(number) = drained {
                shared.drained(number);
            }
            if let (Some(mut capture), Some(keeper)) = (capture, &self.keeper) {
                // Before the manifest is written: what is in the snapshot is never computed again.
                capture.internal.facts.sinks = self.outlets.sync()?;
                capture.internal.rings = kept.unwrap_or_default();
                capture.internal.facts.reasons = reasons.unwrap_or_default();
                keeper.take(capture);
            }
        }
        Ok(())
    }
}

impl Delivery {
    /// Counts why transactions of an epoch aborted; gives all counts, where they are wanted.
    fn count_aborts(
        &self,
        events: &[(Arc<str>, Batch)],
        faults: &[Faulted],
        slides: &[AbortedSlide],
        is_wanted: bool,
    ) -> Option<Reasons> {
        let of = |(stream, batch)| Some((self.aborting.get(stream)?, batch));
        let mut aborted =
            events.iter().map(|(stream, batch)| (stream, batch)).filter_map(of).peekable();
        if aborted.peek().is_none() && slides.is_empty() && !is_wanted {
            return None;
        }
        let mut reasons = self.shared.reasons.lock();
        aborted.for_each(|(handler, batch)| reasons.count(handler, batch));
        slides.iter().for_each(|slide| reasons.slide(&self.program, slide));
        reasons.place(&self.program, faults);
        is_wanted.then(|| reasons.clone())
    }
}

/// Refuses an epoch that has come to something else than the first time.
fn compare(program: &Program, changed: &[String], before: &CutRecord, now: &Done) -> Result<()> {
    let what = if !before.has_written(&now.written) {
        let handlers = program.handlers.iter().enumerate();
        let others = handlers
            .filter(|(index, _)| before.written.get(index) != now.written.get(index))
            .map(|(_, handler)| &*handler.name);
        let names = others.collect::<Vec<_>>().join(", ");
        format!("the rows that {names} has written")
    } else if before.output_hash != now.output_hash {
        "its outputs".into()
    } else {
        return Ok(());
    };
    let epoch = now.cut.epoch;
    Err(Error::internal(format!(
        "epoch {epoch} was executed again after a restart, and {what} are not those of the first \
         time"
    ))
    .help(differs(changed)))
}

/// What to do where functions come to something else. All that is there stays as it is.
pub(crate) fn differs(changed: &[String]) -> String {
    let why = match changed {
        [] => "either the code of a function is another now, or a function is not one of its event and of what it reads: \
               look for the clock, random numbers, files or global variables in it (tidemill inspect names the handlers \
               that can't be checked)"
            .to_owned(),
        names => format!(
            "the code of {} is not that which took the newest snapshot",
            names.join(", ")
        ),
    };
    format!(
        "{why}. With other code: run the code from before once more, stop it in good order (Ctrl-C), and start this one. \
         Otherwise --accept-replay (accept_replay=True) goes on with what functions come to now; what has left already \
         stays as it is. The data directory is as it was"
    )
}
