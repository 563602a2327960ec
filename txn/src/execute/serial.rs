//! The serial executor: one thread walks an epoch in order, and prefetches the slots of the
//! transactions ahead.
//!
//! It wins whenever operations are cheap, because planning parallel execution costs more than
//! running them. On the ledger at 100,000 keys, a transaction of 3.5 rows takes 52 to 60 ns. Half
//! of it is the transactions with their versions and outputs. A quarter is prefetching slots and
//! finding those that are not at home, and a tenth is ranking. Prefetching slots saves a quarter.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Error, Result, Row, SourceId, Stamp, StreamId, TableId, Value};
use tidemill_table::{Opened, Seq, Table};

use super::codes::{aborted, moved, Code, Codes, Path};
use super::command::{self, Command, Commands, Owner};
use super::general::{Effects, General, Rows};
use super::lane::Lane;
use super::native::NativeCode;
use super::output::{DerivedEvent, Origin, Output, OutputBuilder};
use super::segment::{run_words, End, InOrder, Turns};
use super::sink::Sink;
use super::slide;
use super::turn;
use super::words::{Frame, WordCode};
use super::work::Usual;
use crate::order::{Epoch, Groups, Ranked, Section};
use crate::pool::{Pool, SingleThread};
use crate::program::rounds::Agenda;
use crate::program::{firing, reasons, Abort, AbortKind, Body, Moment, Program, Until, WindowId};

/// The number of transactions of a handler, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerCounts {
    /// The number of committed transactions.
    pub committed: u64,
    /// The number of aborted transactions, including those whose function failed.
    pub aborted: u64,
    /// The number of transactions whose function failed.
    #[serde(default)]
    pub faults: u64,
}

/// An opaque handler with another result when it ran again on the same input: hidden
/// non-determinism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unstable {
    /// The handler.
    pub handler: usize,
    /// The event.
    pub stamp: Stamp,
}

/// A call of an opaque function that exceeded its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// The input event: its source, and its row there.
    pub event: (SourceId, u64),
    /// The number of the call among the calls of functions that the event has triggered, from 0.
    pub call: u32,
    /// The reason of the abort.
    pub reason: String,
}

/// A transaction whose function failed: it raised an exception that it did not mean to raise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faulted {
    /// The input event: its source, and its row there. For a slide,
    /// [`slide_of`](crate::program::slide_of) reads it.
    pub event: (SourceId, u64),
    /// The handler.
    pub handler: usize,
    /// Whether the transaction takes the input event itself, and not an event that it has
    /// triggered. If so, the caller is notified.
    pub is_direct: bool,
    /// The abort.
    pub abort: Abort,
}

/// A window that slid without its triggers, because one of them aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortedSlide {
    /// The window.
    pub window: WindowId,
    /// The end of the window, in the time of its stream, in microseconds.
    pub ends_us: i64,
    /// The abort.
    pub abort: Abort,
    /// The index in the epoch's order of the next transaction, or the number of transactions.
    pub before: usize,
}

/// The outcome of an epoch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The output events by stream, in stamp order.
    pub outputs: Vec<Output>,
    /// The derived events that triggered transactions, for stamps.
    pub derived: Vec<DerivedEvent>,
    /// The counts of transactions, by handler.
    pub counts: Vec<HandlerCounts>,
    /// The re-runs that differed.
    pub unstable: Vec<Unstable>,
    /// The hash of all rows that each opaque handler has written in committed transactions. Only
    /// this shows whether a replay of handlers has the same result.
    pub written: BTreeMap<usize, u64>,
    /// The calls that exceeded their deadline.
    pub overdue: Vec<Overdue>,
    /// The transactions whose functions failed, in stamp order.
    pub faults: Vec<Faulted>,
    /// The slides whose triggers aborted. They have no event that could be aborted with the reason.
    pub aborted_slides: Vec<AbortedSlide>,
    /// All transactions, if they are logged.
    pub commands: Vec<Command>,
    /// The number of the last transaction.
    pub seq: Seq,
}

/// The number of transactions for which the tables are opened at a time: their versions need room
/// beforehand.
const OPEN: usize = 4096;

/// An executor of epochs, one transaction at a time.
pub struct Serial {
    pub(super) codes: Arc<Codes>,
    frames: Vec<Frame>,
    /// The number of output events in the last epoch, by stream, so that the next epoch needs no
    /// growth.
    pub(super) rooms: Vec<usize>,
    /// Whether memory is prefetched. It is off only to measure the benefit.
    prefetch: bool,
    rerun_every: u64,
    calls: u64,
    groups: Groups,
    /// The windows that are ended by time, by group of streams.
    timed: Vec<Vec<WindowId>>,
    /// The events of batches that are not whole yet, by procedure and stream. Empty between epochs.
    open: BTreeMap<(usize, StreamId), Vec<Row>>,
    /// The calls that exceeded their deadline in the first execution of the epoch.
    obeyed: Vec<Overdue>,
    pub(super) commands: Commands,
    pub(super) seq: Seq,
    /// The counted work of this executor.
    pub(super) work: u64,
    /// The usual work of transactions here.
    pub(super) usual: Usual,
}

impl Serial {
    /// Creates an executor. Every `rerun_every`-th call of an opaque handler is run twice and
    /// compared, or none if it is 0.
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

    /// Continues after a recovered state. `seq` is the number of its last transaction.
    pub fn after(mut self, seq: Seq) -> Serial {
        self.seq = seq;
        self
    }

    /// Turns off prefetching, to measure its benefit.
    pub fn without_prefetch(mut self) -> Serial {
        self.prefetch = false;
        self
    }

    /// Returns how each handler is executed.
    pub fn paths(&self) -> &[Path] {
        &self.codes.paths
    }

    /// Sends declared transactions over words and closures through the general path, too. For tests
    /// that compare the two.
    pub fn general_only(mut self) -> Serial {
        let mut codes = Codes::new(self.codes.program.clone());
        codes.general_only();
        self.codes = Arc::new(codes);
        self
    }

    /// Interprets declared transactions over words, even if they could be machine code. For tests
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
        Ok(self.finish(&SingleThread, epoch, out))
    }

    /// Executes an epoch. The outcome goes to a sink.
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
        out.next = epoch.order.len() as u32;
        let until = epoch.slides.iter().enumerate();
        until.for_each(|(group, until)| self.slide(tables, epoch, out, group, *until));
        if let Some(what) = self.commands.differs.take() {
            return Err(Error::internal(what).help(
                "either its code has changed: run the old code once more, stop it cleanly (Ctrl-C), and start the new \
                 one; or its result depends on more than its input: look for clocks, random numbers and state that it \
                 keeps between calls, and accept the new result with --accept-replay (accept_replay=True); the data \
                 directory is unchanged",
            ));
        }
        Ok(())
    }

    /// Creates the sink for an epoch's outcome.
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
            next: 0,
        }
    }

    /// Returns the outcome of an epoch.
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
        // The next epoch will probably have about as many outputs.
        self.rooms.fill(0);
        for output in &outcome.outputs {
            self.rooms[output.stream.index()] = output.batch.len();
        }
        outcome
    }

    /// Returns the number of the last transaction.
    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    /// Records that as many transactions have been executed elsewhere.
    pub(crate) fn advance(&mut self, transactions: u64) {
        self.seq += transactions;
    }

    /// Sets the number of the last transaction, if it is higher than the known one.
    pub(crate) fn skip_to(&mut self, seq: Seq) {
        self.seq = self.seq.max(seq);
    }

    /// Sets the calls that exceed their deadline in the next epoch, whatever the clock says.
    pub(crate) fn obey(&mut self, overdue: Vec<Overdue>) {
        self.obeyed = overdue;
    }

    /// Calls functions of an event's round. A call that exceeded its deadline the first time fails
    /// without running.
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

    /// Whether the next call of an opaque handler is to be run twice and compared.
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

    /// Sets the commands that the next epoch replays.
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
                        out.next = at as u32;
                        self.slide(tables, epoch, out, group, Until::Time(time));
                    }
                    out.round = out.derived.len() as u32;
                }
            }
            // While procedures wait for their turn, no other event is executed, and none before
            // windows slide.
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
            // The tables are closed now, so all other code may use them.
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
                            let retained = &mut lanes[order[done].lane as usize].outs.retained;
                            let retained = std::mem::take(retained);
                            self.emit_retained(code, &retained, tables, epoch, out, origin);
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

    /// Whether time ends windows of the program. If so, windows that end before an event slide
    /// before it is executed.
    pub(crate) fn slides(&self) -> bool {
        self.timed.iter().any(|windows| !windows.is_empty())
    }

    /// Returns the clock's time when the next window that the clock ends is due.
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

    /// Returns the next slide of a group's windows that is due.
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

    /// Executes the due slides of a group's windows.
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

    /// Runs the procedures of the round of the transaction at `root`, each in its turn.
    pub(super) fn turns(&mut self, tables: &mut [Table], epoch: &Epoch, root: u32, out: &mut Sink) {
        while let Some((turn, mut given)) = out.agenda.pop() {
            let codes = self.codes.clone();
            self.seq += 1;
            let turn = (turn, &codes.turns.all[turn]);
            turn::run(self, tables, epoch, out, turn, &mut given, root);
        }
    }

    /// Runs transactions on the fast path from `at` on, until one needs something else or the order
    /// ends. `at` is then that transaction.
    #[allow(clippy::too_many_arguments)] // One loop, split where the tables are closed.
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
        let open: Vec<Option<Opened<'_>>> = (tables.iter_mut().zip(&codes.rows_max))
            .map(|(table, rows)| (*rows > 0).then(|| table.open(rows * left)))
            .collect();
        for lane in lanes.iter_mut().filter(|lane| lane.fast) {
            let streams = codes.code[lane.handler].streams();
            lane.attach(&open, &out.builders, streams, moves);
        }
        while let Some(ranked) = order.get(*at) {
            let lane = &mut lanes[ranked.lane as usize];
            let handler = lane.handler;
            let course = InOrder { order, at: *at, seq: self.seq, prefetch: self.prefetch };
            let mut turns = Turns::InOrder(course);
            let end = match &codes.code[handler] {
                // SAFETY: the lane has just been attached to the open tables, which no other code
                // uses. Each has room for a version of every row that a handler has of it, for all
                // remaining transactions.
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

    /// Appends the events of a declared transaction, each with its cascade.
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

    /// Appends the events of a closure that other handlers take, each with its cascade.
    fn emit_retained(
        &mut self,
        code: &NativeCode,
        retained: &[u64],
        tables: &mut [Table],
        epoch: &Epoch,
        out: &mut Sink,
        origin: Origin,
    ) {
        let (mut rest, mut ordinal) = (retained, 0);
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

/// Returns where the transactions of the next event begin, after that at `at`.
fn end_of_event(epoch: &Epoch, at: usize) -> usize {
    let round = |at: usize| epoch.round(epoch.order[at]);
    (at + 1..epoch.order.len()).find(|next| round(*next) != round(at)).unwrap_or(epoch.order.len())
}

/// Returns the values of a row of words.
fn row_of(program: &Program, stream: StreamId, words: impl Iterator<Item = u64>) -> Vec<Value> {
    let columns = &program.streams[stream.index()].spec.schema.columns;
    columns.iter().zip(words).map(|(c, w)| Value::of_word(&c.ty, w)).collect()
}

/// Runs the handlers that take a derived event, in declaration order, each with its own cascade.
/// The handlers in `but` have taken it already.
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

/// Gives an event to a handler. A procedure takes it with all others of the round, in its turn.
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

/// Runs one transaction on the general path. The current `seq` is its number.
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
    // A declared transaction may run triggers, which are functions.
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
    // A transaction of a handler with a fast path always counts the same, whichever path it took.
    serial.work += serial.codes.work[handler].unwrap_or(work);
    if serial.commands.is_on() {
        let seq = serial.seq;
        let outcome_hash =
            command::hash(result.as_ref().map(|effects| (effects, &[][..])), tables, seq);
        let cause = origin.cause().saturating_sub(out.round);
        let input = program.handlers[handler].input;
        let round_at = out.round_at(epoch, origin.root());
        let command = || Command {
            event: round_at,
            who: Owner::Handler(handler),
            cause,
            given: vec![(0, input, event.into())],
            outcome_hash,
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
            let event = program.abort_event(handler, event, &reason.public_reason());
            abort(serial, tables, epoch, out, event, origin);
        }
    }
}

/// Whether a call exceeded its deadline.
pub(super) fn is_overdue<T>(result: &Result<T, Abort>) -> bool {
    matches!(result, Err(Abort { kind: AbortKind::Overdue, .. }))
}

/// Returns the number of steps from the input event to the event of this transaction.
fn depth(out: &Sink, origin: Origin) -> usize {
    let (mut depth, mut cause) = (0, origin.cause());
    while cause != 0 {
        let DerivedEvent::Emitted(before) = out.derived[cause as usize - 1] else { break };
        (depth, cause) = (depth + 1, before.cause());
    }
    depth
}

/// Runs a transaction of a handler on the general path. Sets `work` to its counted work.
pub(crate) fn call(
    program: &Program,
    tables: &dyn Rows,
    handler: usize,
    event: &[Value],
    moment: &Moment<'_>,
    work: &mut u64,
) -> Result<Effects, Abort> {
    let mut tx = General::new(program, tables, handler, moment);
    let result = tx.handler(event);
    *work = tx.work();
    result.map(|()| tx.effects())
}

/// Records an abort. It emits only its abort event.
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
