//! The serial executor: one thread walks an epoch in order, and asks for the slots of the
//! transactions ahead of it, so that memory is there when they come.
//!
//! It wins whenever operations are cheap: planning who may run beside whom costs more than running.
//! What it costs itself, on the ledger at 100,000 keys (3.5 rows a transaction, 52 to 60 ns): half is
//! the transactions with their versions and outputs, a quarter asking for slots and finding those
//! that are not at home, a tenth ranking. Asking for slots ahead of time saves a quarter.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result, Row, SourceId, Stamp, StreamId, TableId, Value};
use tidemill_table::{Opened, Seq, Table};

use super::codes::{aborted, moved, Code, Codes, Path};
use super::command::{self, Command, Commands, Who};
use super::general::{Effects, General, Rows};
use super::lane::Lane;
use super::native::{self, NativeCode};
use super::output::{DerivedEvent, Origin, Output, OutputBuilder, NO_ROOT};
use super::segment::{run_words, End, InOrder, Turns};
use super::slide;
use super::turn;
use super::words::{Frame, WordCode};
use super::work::Usual;
use crate::order::{Epoch, Groups, Ranked, Section};
use crate::pool::{Alone, Pool};
use crate::program::inside::Transaction;
use crate::program::rounds::Agenda;
use crate::program::{firing, reasons, Abort, AbortKind, Body, Moment, Program, Until, WindowId};
use crate::reference::word_value;

/// Transactions of a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerCounts {
    /// Committed.
    pub committed: u64,
    /// Aborted, those among them whose function failed included.
    pub aborted: u64,
    /// Those whose function failed.
    #[serde(default)]
    pub faults: u64,
}

/// An opaque handler that did something else when it ran again on the same input: hidden
/// non-determinism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstable {
    /// The handler.
    pub handler: usize,
    /// The event.
    pub stamp: Stamp,
}

/// A call of an opaque function that took too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// The input event: its source, and its row there.
    pub event: (SourceId, u64),
    /// Which of the calls of functions that the event has set off, from 0.
    pub call: u32,
    /// The reason of the abort.
    pub reason: String,
}

/// A transaction whose function failed: it raised what it did not mean to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faulted {
    /// The input event: its source, and its row there. Of a slide what [`slide_of`](crate::program::slide_of) reads.
    pub event: (SourceId, u64),
    /// The handler.
    pub handler: usize,
    /// Whether the transaction is on the input event itself, and not on what that has set off: then
    /// whoever calls is told.
    pub is_direct: bool,
    /// Why.
    pub abort: Abort,
}

/// A window that slid without its triggers, because one of them aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortedSlide {
    /// The window.
    pub window: WindowId,
    /// When the window ended, in the time of its stream.
    pub ends_us: i64,
    /// Why.
    pub abort: Abort,
}

/// What an epoch comes to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Output events by stream, in stamp order.
    pub outputs: Vec<Output>,
    /// Derived events that set off transactions, for stamps.
    pub derived: Vec<DerivedEvent>,
    /// Transactions by handler.
    pub counts: Vec<HandlerCounts>,
    /// Re-runs that differed.
    pub unstable: Vec<Unstable>,
    /// The hash of all rows that each opaque handler has written, of those that committed: nothing
    /// else tells whether they do the same when they are called again.
    pub written: BTreeMap<usize, u64>,
    /// Calls that took too long.
    pub overdue: Vec<Overdue>,
    /// Transactions whose functions failed, in stamp order.
    pub faults: Vec<Faulted>,
    /// Slides whose triggers aborted: there is no event that could be told why.
    pub aborted_slides: Vec<AbortedSlide>,
    /// All transactions, where they are logged.
    pub commands: Vec<Command>,
    /// The number of the last transaction.
    pub seq: Seq,
}

/// Transactions for which the tables are opened at a time: their versions need room before.
const OPEN: usize = 4096;

/// Executes epochs one transaction at a time.
pub struct Serial {
    pub(super) codes: Arc<Codes>,
    frames: Vec<Frame>,
    /// Per stream: its output events of the last epoch, so that the next one needs no growing.
    pub(super) rooms: Vec<usize>,
    /// Asks for memory ahead of time; off only to measure what that is worth.
    prefetch: bool,
    rerun_every: u64,
    calls: u64,
    groups: Groups,
    /// By group of streams: the windows that time ends.
    timed: Vec<Vec<WindowId>>,
    /// By procedure and stream: the events of batches that are not whole yet. Empty between epochs.
    open: BTreeMap<(usize, StreamId), Vec<Row>>,
    /// What took too long the first time that the epoch was executed.
    obeyed: Vec<Overdue>,
    pub(super) commands: Commands,
    pub(super) seq: Seq,
    /// What was executed here, in counted work.
    pub(super) work: u64,
    /// What transactions take here.
    pub(super) usual: Usual,
}

impl Serial {
    /// An executor. Every `rerun_every`-th call of an opaque handler is run twice and compared;
    /// never when 0.
    pub fn new(program: Arc<Program>, rerun_every: u64) -> Serial {
        let rooms = vec![0; program.streams.len()];
        let groups = Groups::of(&program).expect("the program was checked");
        let timed = program.timed_windows(&groups);
        let codes = Arc::new(Codes::new(program));
        let frames = codes.frames();
        Serial {
            codes,
            frames,
            rooms,
            prefetch: true,
            rerun_every,
            calls: 0,
            groups,
            timed,
            open: BTreeMap::new(),
            obeyed: Vec::new(),
            commands: Commands::default(),
            seq: 0,
            work: 0,
            usual: Usual::default(),
        }
    }

    /// Goes on behind a recovered state, of which `seq` is the number of the last transaction.
    pub fn after(mut self, seq: Seq) -> Serial {
        self.seq = seq;
        self
    }

    /// Without prefetching: only to measure what it is worth.
    pub fn without_prefetch(mut self) -> Serial {
        self.prefetch = false;
        self
    }

    /// How each handler is executed.
    pub fn paths(&self) -> &[Path] {
        &self.codes.paths
    }

    /// Sends declared transactions over words and closures through the general path, too: for
    /// tests that compare the two.
    pub fn general_only(mut self) -> Serial {
        let mut codes = Codes::new(self.codes.program.clone());
        codes.general_only();
        self.codes = Arc::new(codes);
        self
    }

    /// Interprets declared transactions over words, also where they would be machine code: for tests
    /// that compare the two.
    pub fn interpreted(mut self) -> Serial {
        let mut codes = Codes::new(self.codes.program.clone());
        codes.interpreted();
        self.codes = Arc::new(codes);
        self
    }

    /// Executes an epoch on the tables, which belong to the program.
    pub fn run(&mut self, tables: &mut [Table], epoch: &Epoch) -> Result<Outcome> {
        let mut out = self.sink();
        self.whole(tables, epoch, &mut out)?;
        Ok(self.finish(&Alone, epoch, out))
    }

    /// Executes an epoch; what it comes to goes to a sink.
    pub(crate) fn whole(
        &mut self,
        tables: &mut [Table],
        epoch: &Epoch,
        out: &mut Sink,
    ) -> Result<()> {
        match self.commands.are_followed() {
            true => command::follow(self, tables, epoch, out),
            false => self.stretch(tables, &epoch.whole(), out),
        }
        let until = epoch.slides.iter().enumerate();
        until.for_each(|(group, until)| self.slide(tables, epoch, out, group, *until));
        if let Some(what) = self.commands.differs.take() {
            return Err(Error::internal(what).help(
                "either its code is another now: run the code from before once more, stop it in good order (Ctrl-C), and \
                 start this one; or it does not do the same when it is executed again: look for clocks, random numbers \
                 and what it keeps between calls, and go on with what it comes to now by --accept-replay \
                 (accept_replay=True); the data directory is as it was",
            ));
        }
        Ok(())
    }

    /// Collects what an epoch comes to.
    pub(crate) fn sink(&self) -> Sink {
        Sink {
            builders: self.codes.builders(&self.rooms),
            derived: Vec::new(),
            counts: vec![HandlerCounts::default(); self.codes.code.len()],
            unstable: Vec::new(),
            written: BTreeMap::new(),
            overdue: Vec::new(),
            faults: Vec::new(),
            aborted_slides: Vec::new(),
            call: None,
            commands: Vec::new(),
            following: None,
            round: 0,
            agenda: Agenda::default(),
            fired: None,
        }
    }

    /// What an epoch came to.
    pub(crate) fn finish(&mut self, pool: &dyn Pool, epoch: &Epoch, out: Sink) -> Outcome {
        let finish = |builder: OutputBuilder| {
            let reasons = self.codes.reasons(builder.stream());
            builder.finish(pool, epoch, reasons)
        };
        let outputs: Vec<Output> = out.builders.into_iter().filter_map(finish).collect();
        let outcome = Outcome {
            outputs,
            derived: out.derived,
            counts: out.counts,
            unstable: out.unstable,
            written: out.written,
            overdue: out.overdue,
            faults: out.faults,
            aborted_slides: out.aborted_slides,
            commands: out.commands,
            seq: self.seq,
        };
        // The next epoch will come to about as much.
        self.rooms.fill(0);
        for output in &outcome.outputs {
            self.rooms[output.stream.index()] = output.batch.len();
        }
        outcome
    }

    /// The number of the last transaction.
    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    /// So many transactions have been executed elsewhere.
    pub(crate) fn advance(&mut self, transactions: u64) {
        self.seq += transactions;
    }

    /// In the next epoch these calls take too long, whatever the clock says.
    pub(crate) fn obey(&mut self, overdue: Vec<Overdue>) {
        self.obeyed = overdue;
    }

    /// Calls functions of an event's round, or says that they took too long the first time.
    pub(super) fn call<T>(
        &mut self,
        event: (SourceId, u64),
        out: &mut Sink,
        run: impl FnOnce() -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let call = match out.call {
            Some((last, call)) if last == event => call + 1,
            _ => 0,
        };
        out.call = Some((event, call));
        let known = self.obeyed.iter().find(|o| (o.event, o.call) == (event, call));
        let result = match known {
            None => run(),
            Some(Overdue { reason, .. }) => {
                Err(Abort { kind: AbortKind::Overdue, reason: reason.clone() })
            }
        };
        if let Err(Abort { kind: AbortKind::Overdue, reason }) = &result {
            out.overdue.push(Overdue { event, call, reason: reason.clone() });
        }
        result
    }

    /// Whether the next call of an opaque handler is to be compared with another one.
    pub(crate) fn is_compared(&mut self) -> bool {
        self.calls += 1;
        self.rerun_every > 0 && self.calls.is_multiple_of(self.rerun_every)
    }

    /// Logs each transaction from now on. All of them then go through the general path.
    pub(crate) fn log(&mut self) {
        let mut codes = Codes::new(self.codes.program.clone());
        codes.general_only();
        (self.codes, self.commands.logs) = (Arc::new(codes), true);
    }

    /// The next epoch is what these commands say.
    pub(crate) fn follow(&mut self, commands: Option<Vec<Command>>) {
        self.commands.followed = commands.map(Into::into);
    }

    /// Executes transactions of an epoch.
    pub(crate) fn stretch(&mut self, tables: &mut [Table], section: &Section<'_>, out: &mut Sink) {
        let codes = self.codes.clone();
        // Cascades need the executor while its frames are in use.
        let mut frames = std::mem::take(&mut self.frames);
        assert_eq!(tables.len(), codes.program.tables.len(), "the tables are the program's");
        self.walk(&codes, &mut frames, tables, section, out);
        self.frames = frames;
    }

    fn walk(
        &mut self,
        codes: &Codes,
        frames: &mut [Frame],
        tables: &mut [Table],
        section: &Section<'_>,
        out: &mut Sink,
    ) {
        let Section { epoch, ranks } = section;
        let columns = codes.columns(epoch);
        let mut lanes = codes.lanes(epoch, &columns);
        let (mut at, slides) = (ranks.start, self.slides());
        while at < ranks.end {
            if self.commands.is_on() || slides {
                let round = |at: usize| epoch.round(epoch.order[at]);
                if at == 0 || round(at) != round(at - 1) {
                    if slides {
                        let ranked = epoch.order[at];
                        let stream =
                            epoch.runs[epoch.lanes[ranked.lane as usize].run as usize].stream;
                        let (group, time) = (self.groups.of[stream.index()], epoch.time_us(ranked));
                        self.slide(tables, epoch, out, group, Until::Time(time));
                    }
                    out.round = out.derived.len() as u32;
                }
            }
            // While procedures wait for their turn, no other event comes; nor before windows slide.
            let reach = match out.agenda.is_empty() {
                true if slides => ranks.end.min(end_of_event(epoch, at)),
                true => ranks.end.min(at + OPEN),
                false => ranks.end.min(end_of_event(epoch, at - 1)),
            };
            let order = &epoch.order[..reach];
            let before = codes.work_of(&out.counts);
            let end = self.fast(codes, frames, tables, &mut lanes, order, &mut at, out);
            self.work += codes.work_of(&out.counts) - before;
            let worked = self.work;
            // Now that the tables are closed, whatever else there is may use them.
            let lane = |at: usize| &lanes[order[at].lane as usize];
            let origin = |at: usize| Origin::new(at as u32, 0, lane(at).handler);
            match end {
                End::Lane => {}
                End::Emitted => {
                    let done = at - 1;
                    let (origin, handler) = (origin(done), lane(done).handler);
                    match &codes.code[handler] {
                        Code::Words(code) => {
                            self.emit_words(code, &frames[handler], tables, epoch, out, origin);
                        }
                        Code::Native(code, _) => {
                            let kept = &mut lanes[order[done].lane as usize].outs.kept;
                            let kept = std::mem::take(kept);
                            self.emit_kept(code, &kept, tables, epoch, out, origin);
                        }
                        Code::General => unreachable!("it has no fast path"),
                    }
                    // The transaction itself counts as all of its handler do.
                    let work = codes.work[handler].unwrap_or(0) + self.work - worked;
                    self.usual.learn(handler, 1, work);
                }
                End::Aborts(reason) => {
                    self.seq += 1;
                    let handler = lane(at).handler;
                    let event = aborted(&codes.code[handler], lane(at).batch, order[at], reason);
                    self.work += codes.work[handler].unwrap_or(0);
                    abort(self, tables, epoch, out, event, origin(at));
                    self.usual.learn(handler, 1, self.work - worked);
                    at += 1;
                }
                End::General => {
                    let event = lane(at).batch.row(order[at].row as usize);
                    let stream =
                        epoch.runs[epoch.lanes[order[at].lane as usize].run as usize].stream;
                    let handler = lane(at).handler;
                    hand(self, tables, epoch, out, (stream, &event), origin(at));
                    self.usual.learn(handler, 1, self.work - worked);
                    at += 1;
                }
            }
            if !out.agenda.is_empty() && at == end_of_event(epoch, at - 1) {
                self.turns(tables, epoch, at as u32 - 1, out);
            }
        }
    }

    /// Whether time ends windows of the program: then an event is executed when those have slid that end before it.
    pub(crate) fn slides(&self) -> bool {
        self.timed.iter().any(|windows| !windows.is_empty())
    }

    /// When the next window ends, by the clock, that the clock ends.
    pub(crate) fn due_us(&self, tables: &[Table]) -> Option<i64> {
        let by_clock = self.timed.iter().zip(&self.groups.event_time);
        let by_clock = by_clock.filter(|(_, is_timed)| !**is_timed);
        let first = |windows| self.next_slide(tables, windows, Until::Time(i64::MAX));
        by_clock.filter_map(|(windows, _)| first(windows)).map(|(_, edge)| edge).min()
    }

    /// Whether a window by time has rows.
    pub(crate) fn is_open(&self, tables: &[Table]) -> bool {
        let first =
            |windows: &Vec<WindowId>| self.next_slide(tables, windows, Until::End(i64::MIN));
        self.timed.iter().any(|windows| first(windows).is_some())
    }

    /// The next slide of a group's windows that is due.
    pub(crate) fn due_slide(
        &self,
        tables: &[Table],
        group: usize,
        until: Until,
    ) -> Option<(WindowId, i64)> {
        self.next_slide(tables, &self.timed[group], until)
    }

    fn next_slide(
        &self,
        tables: &[Table],
        windows: &[WindowId],
        until: Until,
    ) -> Option<(WindowId, i64)> {
        let mut row =
            |table: TableId, key: &[Value]| Ok::<_, Infallible>(tables[table.index()].get(key));
        let Ok(due) = firing::due(&self.codes.program, windows, until, &mut row);
        due
    }

    /// Windows of a group slide whose time has come.
    fn slide(
        &mut self,
        tables: &mut [Table],
        epoch: &Epoch,
        out: &mut Sink,
        group: usize,
        until: Until,
    ) {
        let windows = std::mem::take(&mut self.timed[group]);
        while let Some((window, edge)) = self.next_slide(tables, &windows, until) {
            slide::run(self, tables, epoch, out, window, edge);
        }
        self.timed[group] = windows;
    }

    /// The procedures of a round whose event is that of the transaction at `root`, each when it is its
    /// turn.
    pub(super) fn turns(&mut self, tables: &mut [Table], epoch: &Epoch, root: u32, out: &mut Sink) {
        while let Some((turn, mut given)) = out.agenda.next() {
            let codes = self.codes.clone();
            self.seq += 1;
            let turn = (turn, &codes.turns.all[turn]);
            turn::run(self, tables, epoch, out, turn, &mut given, root);
        }
    }

    /// Runs transactions on the fast path from `at` on, until one needs something else or the order
    /// ends; `at` is then that one.
    #[allow(clippy::too_many_arguments)] // One loop, cut in two where the tables are closed.
    fn fast(
        &mut self,
        codes: &Codes,
        frames: &mut [Frame],
        tables: &mut [Table],
        lanes: &mut [Lane<'_>],
        order: &[Ranked],
        at: &mut usize,
        out: &mut Sink,
    ) -> End {
        if !lanes[order[*at].lane as usize].fast {
            return End::General;
        }
        let (moves, left) = (moved(tables), order.len() - *at);
        let mut open: Vec<Option<Opened<'_>>> = (tables.iter_mut().zip(&codes.rows_max))
            .map(|(table, rows)| (*rows > 0).then(|| table.open(rows * left)))
            .collect();
        for lane in lanes.iter_mut().filter(|lane| lane.fast) {
            let streams = codes.code[lane.handler].streams();
            lane.attach(&mut open, &mut out.builders, streams, moves);
        }
        while let Some(ranked) = order.get(*at) {
            let lane = &mut lanes[ranked.lane as usize];
            let handler = lane.handler;
            let course = InOrder { order, at: *at, seq: self.seq, prefetch: self.prefetch };
            let mut turns = Turns::InOrder(course);
            let end = match &codes.code[handler] {
                // SAFETY: the lane has just been attached to the open tables, which nobody else
                // uses; each has room for a version of every row that a handler has of it, for all
                // transactions that are left.
                Code::Words(code) if lane.fast => unsafe {
                    run_words(&mut turns, lane, code, &mut frames[handler])
                },
                // SAFETY: as above.
                Code::Native(code, body) if lane.fast => unsafe {
                    body.run(&mut turns, lane, code)
                },
                _ => End::General,
            };
            if let Turns::InOrder(course) = turns {
                out.counts[handler].committed += (course.at - *at) as u64;
                (*at, self.seq) = (course.at, course.seq);
            }
            match end {
                End::Lane => {}
                End::Aborts(reason) if !codes.consumed[codes.aborted[handler]] => {
                    self.seq += 1;
                    out.counts[handler].aborted += 1;
                    let origin = Origin::new(*at as u32, 0, handler);
                    out.builders[codes.aborted[handler]].note_abort(origin, reason);
                    *at += 1;
                }
                end => return end,
            }
        }
        End::Lane
    }

    /// Appends what a declared transaction emitted, each event with its cascade.
    fn emit_words(
        &mut self,
        code: &WordCode,
        frame: &Frame,
        tables: &mut [Table],
        epoch: &Epoch,
        out: &mut Sink,
        origin: Origin,
    ) {
        for (ordinal, emit) in code.emits.iter().enumerate() {
            let origin = origin.output(ordinal as u32);
            let stream = usize::from(emit.stream.0);
            let words = emit.registers.iter().map(|r| frame[usize::from(*r)]);
            let row = row_of(&self.codes.program, emit.stream, words);
            out.builders[stream].push(&row, origin);
            if self.codes.consumed[stream] {
                cascade(self, tables, epoch, out, (emit.stream, &row), origin, &[]);
            }
        }
    }

    /// Appends what a closure emitted that other handlers take, each event with its cascade.
    fn emit_kept(
        &mut self,
        code: &NativeCode,
        kept: &[u64],
        tables: &mut [Table],
        epoch: &Epoch,
        out: &mut Sink,
        origin: Origin,
    ) {
        let (mut rest, mut ordinal) = (kept, 0);
        while let Some((number, tail)) = rest.split_first() {
            let stream = code.streams[*number as usize];
            let (words, tail) = tail.split_at(self.codes.program.streams[stream].spec.schema.len());
            let (id, origin) = (StreamId(stream as u16), origin.output(ordinal));
            let row = row_of(&self.codes.program, id, words.iter().copied());
            out.builders[stream].push(&row, origin);
            if self.codes.consumed[stream] {
                cascade(self, tables, epoch, out, (id, &row), origin, &[]);
            }
            (rest, ordinal) = (tail, ordinal + 1);
        }
    }
}

/// What an epoch comes to, while it is executed.
pub(crate) struct Sink {
    pub(crate) builders: Vec<OutputBuilder>,
    pub(crate) derived: Vec<DerivedEvent>,
    pub(crate) counts: Vec<HandlerCounts>,
    pub(crate) unstable: Vec<Unstable>,
    pub(crate) written: BTreeMap<usize, u64>,
    pub(crate) overdue: Vec<Overdue>,
    pub(crate) faults: Vec<Faulted>,
    pub(crate) aborted_slides: Vec<AbortedSlide>,
    /// The last call of a function: the event, and which of its calls it was.
    call: Option<((SourceId, u64), u32)>,
    pub(crate) commands: Vec<Command>,
    /// What the transaction that is followed came to.
    pub(crate) following: Option<u64>,
    /// Events that had been derived before the round that is being executed.
    pub(crate) round: u32,
    /// Of the round that is being executed.
    pub(crate) agenda: Agenda,
    /// The window whose slide is being executed with all that it sets off, when it ended, and where that is among what
    /// set off transactions.
    pub(crate) fired: Option<(WindowId, i64, u32)>,
}

impl Sink {
    /// The event of the transaction at `root`; of a slide what tells it from all others.
    pub(super) fn event_at(&self, epoch: &Epoch, root: u32) -> (SourceId, u64) {
        match self.fired {
            Some((window, edge, _)) if root == NO_ROOT => firing::event_of_slide(window, edge),
            _ => epoch.event(epoch.order[root as usize]),
        }
    }

    /// As [`Epoch::round`], of the transaction at `root`.
    pub(super) fn round_at(&self, epoch: &Epoch, root: u32) -> (SourceId, u64) {
        match self.fired {
            Some((window, edge, _)) if root == NO_ROOT => firing::event_of_slide(window, edge),
            _ => epoch.round(epoch.order[root as usize]),
        }
    }

    /// The same event's stamp.
    pub(super) fn stamp_at(&self, epoch: &Epoch, root: u32) -> Stamp {
        match self.fired {
            Some((window, edge, _)) if root == NO_ROOT => firing::stamp(window, edge),
            _ => epoch.stamp(epoch.order[root as usize]),
        }
    }

    /// What set off the round of the transaction at `root`, unless it was the input event.
    pub(super) fn cause_at(&self, root: u32) -> u32 {
        self.fired.filter(|_| root == NO_ROOT).map_or(0, |(_, _, cause)| cause)
    }

    /// How many transactions have aborted.
    pub(crate) fn aborted(&self) -> u64 {
        self.counts.iter().map(|count| count.aborted).sum()
    }

    /// A transaction of a handler has aborted for this reason, which is counted as an abort elsewhere.
    pub(crate) fn note_fault(&mut self, epoch: &Epoch, origin: Origin, abort: &Abort) {
        if abort.is_fault() {
            let handler = origin.handler();
            self.counts[handler].faults += 1;
            let event = self.event_at(epoch, origin.root());
            let (is_direct, abort) = (origin.cause() == 0, abort.clone());
            self.faults.push(Faulted { event, handler, is_direct, abort });
        }
    }
}

/// Where the transactions of another event begin, behind that at `at`.
fn end_of_event(epoch: &Epoch, at: usize) -> usize {
    let round = |at: usize| epoch.round(epoch.order[at]);
    (at + 1..epoch.order.len()).find(|next| round(*next) != round(at)).unwrap_or(epoch.order.len())
}

/// The values of a row of words.
fn row_of(program: &Program, stream: StreamId, words: impl Iterator<Item = u64>) -> Vec<Value> {
    let columns = &program.streams[stream.index()].spec.schema.columns;
    columns.iter().zip(words).map(|(c, w)| word_value(&c.ty, w)).collect()
}

/// The handlers on a derived event, in declaration order, each with its own cascade; `but` have taken it.
pub(super) fn cascade(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    (stream, row): (StreamId, &[Value]),
    origin: Origin,
    but: &[usize],
) {
    out.derived.push(DerivedEvent::Emitted(origin));
    let cause = out.derived.len() as u32;
    if serial.commands.are_followed() {
        let (root, cause) = (origin.root(), cause - out.round);
        return command::follow_cause(serial, tables, epoch, out, root, cause);
    }
    let handlers =
        serial.codes.program.handlers_on(stream).filter(|handler| !but.contains(handler));
    let handlers: Vec<usize> = handlers.collect();
    for handler in handlers {
        let origin = Origin::new(origin.root(), cause, handler);
        hand(serial, tables, epoch, out, (stream, row), origin);
    }
}

/// A handler takes an event: now, or, with all others of the round, when it is its turn.
fn hand(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    (stream, event): (StreamId, &[Value]),
    origin: Origin,
) {
    let handler = origin.handler();
    if serial.codes.program.handlers[handler].is_procedure() {
        let is_batched = serial.codes.program.streams[stream.index()].batch.is_some();
        if !is_batched || origin.cause() != 0 {
            out.agenda.add(&serial.codes.turns, handler, stream, event.into());
            return;
        }
        let open = serial.open.entry((handler, stream)).or_default();
        open.push(event.into());
        let (source, offset) = out.event_at(epoch, origin.root());
        if epoch.closings.contains(&(stream, source, offset)) {
            for event in std::mem::take(open) {
                out.agenda.add(&serial.codes.turns, handler, stream, event);
            }
        }
        return;
    }
    serial.seq += 1;
    transact(serial, tables, epoch, out, event, origin);
}

/// One transaction on the general path; `seq` is its number already.
pub(super) fn transact(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    event: &[Value],
    origin: Origin,
) {
    let program = serial.codes.program.clone();
    let handler = origin.handler();
    let stamp = origin.event(epoch, &out.derived);
    let moment = Moment::at(epoch, stamp, handler);
    let time_us = moment.time_us();
    let is_endless = depth(out, origin) > program.handlers.len();
    let mut work = 0;
    let mut run = |tables: &[Table]| match is_endless {
        true => Err(reasons::endless()),
        false => call(&program, &tables, handler, event, &moment, &mut work),
    };
    let is_opaque = matches!(program.handlers[handler].body, Body::Opaque(_));
    // A declared transaction may set off triggers, which are functions.
    let may_be_overdue = is_opaque || !program.triggers.is_empty();
    let result = match may_be_overdue {
        true => {
            let event = out.event_at(epoch, origin.root());
            serial.call(event, out, || run(tables))
        }
        false => run(tables),
    };
    if is_opaque && serial.is_compared() && !is_overdue(&result) {
        let again = run(tables);
        let same = match (&result, &again) {
            (Ok(a), Ok(b)) => a.same_outcome(b),
            (Err(a), Err(b)) => a == b,
            _ => false,
        };
        if !same && !is_overdue(&again) {
            let stamp = out.stamp_at(epoch, origin.root());
            out.unstable.push(Unstable { handler, stamp });
        }
    }
    // Of what has a fast path each transaction counts the same, whichever it took.
    serial.work += serial.codes.work[handler].unwrap_or(work);
    if serial.commands.is_on() {
        let seq = serial.seq;
        let came_to = command::hash(result.as_ref().map(|effects| (effects, &[][..])), tables, seq);
        let cause = origin.cause().saturating_sub(out.round);
        let input = program.handlers[handler].input;
        let round_at = out.round_at(epoch, origin.root());
        let command = || Command {
            event: round_at,
            who: Who::Handler(handler),
            cause,
            given: vec![(0, input, event.into())],
            came_to,
        };
        command::note(serial, out, command);
    }
    match result {
        Ok(effects) => {
            effects.apply(tables, serial.seq, time_us);
            if let Body::Opaque(_) = program.handlers[handler].body {
                let sum = out.written.entry(handler).or_default();
                *sum = sum.wrapping_add(effects.written_hash(tables, serial.seq));
            }
            out.counts[handler].committed += 1;
            for (ordinal, (stream, row)) in effects.emitted.iter().enumerate() {
                let origin = origin.output(ordinal as u32);
                out.builders[stream.index()].push(row, origin);
                if serial.codes.consumed[stream.index()] {
                    cascade(serial, tables, epoch, out, (*stream, row), origin, &[]);
                }
            }
        }
        Err(reason) => {
            out.note_fault(epoch, origin, &reason);
            let event = program.abort_event(handler, event, &reason.told());
            abort(serial, tables, epoch, out, event, origin);
        }
    }
}

/// Whether a call took too long.
pub(super) fn is_overdue<T>(result: &Result<T, Abort>) -> bool {
    matches!(result, Err(Abort { kind: AbortKind::Overdue, .. }))
}

/// Steps from the input event to the one that this transaction is about.
fn depth(out: &Sink, origin: Origin) -> usize {
    let (mut depth, mut cause) = (0, origin.cause());
    while cause != 0 {
        let DerivedEvent::Emitted(before) = out.derived[cause as usize - 1] else { break };
        (depth, cause) = (depth + 1, before.cause());
    }
    depth
}

/// Runs a transaction of a handler on the general path; `work` is what that takes, in counted work.
pub(crate) fn call(
    program: &Program,
    tables: &dyn Rows,
    handler: usize,
    event: &[Value],
    moment: &Moment<'_>,
    work: &mut u64,
) -> Result<Effects, Abort> {
    let mut tx = General::new(program, tables, handler, moment);
    let result = match &program.handlers[handler].body {
        Body::Declared(declared) => tx.declared(declared, event),
        Body::Native(n) => {
            tx.function(|tx| native::general(tx, program, &program.natives[*n], event))
        }
        Body::Opaque(opaque) => tx.function(|tx| program.opaques[*opaque].call(event, tx)),
    };
    *work = tx.work();
    result.map(|()| tx.effects())
}

/// Records an abort: it emits nothing but its abort event.
fn abort(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    event: Vec<Value>,
    origin: Origin,
) {
    let handler = origin.handler();
    out.counts[handler].aborted += 1;
    let stream = serial.codes.program.handlers[handler].aborted;
    out.builders[stream.index()].push(&event, origin);
    if serial.codes.consumed[stream.index()] {
        cascade(serial, tables, epoch, out, (stream, &event), origin, &[]);
    }
}
