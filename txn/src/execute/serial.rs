//! The serial executor: one thread walks an epoch in order, and asks for the slots of the
//! transactions ahead of it, so that memory is there when they come.
//!
//! It wins whenever operations are cheap: planning who may run beside whom costs more than running.
//! What it costs itself, on the ledger at 100,000 keys (3.5 rows a transaction, 52 to 60 ns): half is
//! the transactions with their versions and outputs, a quarter asking for slots and finding those
//! that are not at home, a tenth ranking. Asking for slots ahead of time saves a quarter.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidemill_core::{Batch, Result, Stamp, StreamId, Value};
use tidemill_table::{Layout, Opened, Seq, Table};

use super::general::{Effects, General, Rows};
use super::lane::{Lane, Wants, WordColumns};
use super::native::{self, NativeCode};
use super::output::{DerivedEvent, Origin, Output, OutputBuilder};
use super::segment::{Course, End, Reason};
use super::words::{self, Frame, WordCode};
use crate::order::{Epoch, Ranked};
use crate::program::{reasons, Abort, Body, NativeBody, Program};
use crate::reference::word_value;

/// How a handler is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// Declared, over words.
    Words,
    /// Declared, over values; why not over words.
    Values(String),
    /// A closure over words.
    Native,
    /// A closure, through values; why.
    NativeValues(String),
    /// An opaque function.
    Opaque,
}

/// Transactions of a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerCounts {
    /// Committed.
    pub committed: u64,
    /// Aborted.
    pub aborted: u64,
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
    /// The number of the last transaction.
    pub seq: Seq,
}

/// Transactions for which the tables are opened at a time: their versions need room before.
const OPEN: usize = 4096;

enum Code {
    Words(WordCode),
    Native(NativeCode, Arc<dyn NativeBody>),
    General,
}

impl Code {
    /// What it wants of its events; nothing when it has no fast path.
    fn wants(&self, columns: usize) -> Option<Wants> {
        match self {
            Code::Words(code) => Some(Wants {
                columns: code.columns.iter().map(|(c, _)| usize::from(*c)).collect(),
                keys: code.rows.iter().map(|r| (r.table, r.key)).collect(),
                places: !code.asks,
            }),
            Code::Native(code, _) => Some(Wants {
                columns: (0..columns).collect(),
                keys: code.rows.iter().map(|r| (r.table, r.key)).collect(),
                places: true,
            }),
            Code::General => None,
        }
    }

    /// The streams that its fast path emits to, if these are outputs and nothing more.
    fn streams(&self) -> Option<&[usize]> {
        match self {
            Code::Words(code) => (!code.consumed).then_some(&code.streams),
            Code::Native(code, _) => (!code.consumed).then_some(&code.streams),
            Code::General => None,
        }
    }

    /// How many rows of a table each of its transactions has, on the fast path.
    fn rows_of(&self, table: usize) -> usize {
        match self {
            Code::Words(code) => code.rows.iter().filter(|row| row.table == table).count(),
            Code::Native(code, _) => code.rows.iter().filter(|row| row.table == table).count(),
            Code::General => 0,
        }
    }

    /// The registers that its transactions work in.
    fn frame(&self) -> Frame {
        let mut frame = [0; 256];
        if let Code::Words(code) = self {
            code.prepare(&mut frame);
        }
        frame
    }
}

/// Executes epochs one transaction at a time.
pub struct Serial {
    program: Arc<Program>,
    code: Vec<Code>,
    paths: Vec<Path>,
    wants: Vec<Option<Wants>>,
    frames: Vec<Frame>,
    /// Per stream: its output events of the last epoch, so that the next one needs no growing.
    rooms: Vec<usize>,
    /// Per stream: whether a handler takes its events.
    consumed: Vec<bool>,
    /// Per handler: the stream of its aborts.
    aborted: Vec<usize>,
    /// Per table: the most rows of it that one transaction on the fast path has.
    rows_max: Vec<usize>,
    /// Asks for memory ahead of time; off only to measure what that is worth.
    prefetch: bool,
    rerun_every: u64,
    calls: u64,
    seq: Seq,
}

impl Serial {
    /// An executor. Every `rerun_every`-th call of an opaque handler is run twice and compared;
    /// never when 0.
    pub fn new(program: Arc<Program>, rerun_every: u64) -> Serial {
        let layouts: Vec<Layout> = program.tables.iter().map(Layout::of).collect();
        let (mut code, mut paths) = (Vec::new(), Vec::new());
        for (index, handler) in program.handlers.iter().enumerate() {
            let (c, p) = match &handler.body {
                Body::Declared(_) => match words::compile(&program, &layouts, index) {
                    Ok(code) => (Code::Words(code), Path::Words),
                    Err(why) => (Code::General, Path::Values(why)),
                },
                Body::Native(n) => {
                    match native::prepare(&program, &layouts, &program.natives[*n]) {
                        Ok(code) => {
                            (Code::Native(code, program.natives[*n].body.clone()), Path::Native)
                        }
                        Err(why) => (Code::General, Path::NativeValues(why)),
                    }
                }
                Body::Opaque(_) => (Code::General, Path::Opaque),
            };
            code.push(c);
            paths.push(p);
        }
        let columns =
            |h: usize| program.streams[program.handlers[h].input.index()].spec.schema.len();
        let of = |(h, code): (usize, &Code)| (code.wants(columns(h)), code.frame());
        let (wants, frames) = code.iter().enumerate().map(of).unzip();
        let streams = 0..program.streams.len() as u16;
        let consumed = streams.map(|s| program.handlers_on(StreamId(s)).next().is_some()).collect();
        let aborted = program.handlers.iter().map(|h| h.aborted.index()).collect();
        let rows_max = (0..program.tables.len())
            .map(|table| code.iter().map(|code| code.rows_of(table)).max().unwrap_or(0))
            .collect();
        let rooms = vec![0; program.streams.len()];
        let (prefetch, calls, seq) = (true, 0, 0);
        Serial {
            code,
            paths,
            wants,
            frames,
            rooms,
            consumed,
            aborted,
            rows_max,
            prefetch,
            rerun_every,
            calls,
            seq,
            program,
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
        &self.paths
    }

    /// Sends declared transactions over words and closures through the general path, too: for
    /// tests that compare the two.
    pub fn general_only(mut self) -> Serial {
        self.code = self.code.into_iter().map(|_| Code::General).collect();
        self
    }

    /// Executes an epoch on the tables, which belong to the program.
    pub fn run(&mut self, tables: &mut [Table], epoch: &Epoch) -> Result<Outcome> {
        let mut out = self.sink();
        self.stretch(tables, epoch, 0..epoch.order.len(), &mut out);
        Ok(self.finish(out))
    }

    /// Collects what an epoch comes to.
    pub(crate) fn sink(&self) -> Sink {
        let builder = |(i, s): (usize, &crate::program::Stream)| {
            OutputBuilder::new(StreamId(i as u16), s.spec.schema.clone(), self.rooms[i])
        };
        Sink {
            builders: self.program.streams.iter().enumerate().map(builder).collect(),
            derived: Vec::new(),
            counts: vec![HandlerCounts::default(); self.program.handlers.len()],
            unstable: Vec::new(),
            written: BTreeMap::new(),
        }
    }

    /// What an epoch came to.
    pub(crate) fn finish(&mut self, mut out: Sink) -> Outcome {
        let outputs: Vec<Output> =
            out.builders.iter_mut().filter_map(OutputBuilder::finish).collect();
        for output in &outputs {
            self.rooms[output.stream.index()] = output.batch.len();
        }
        Outcome {
            outputs,
            derived: out.derived,
            counts: out.counts,
            unstable: out.unstable,
            written: out.written,
            seq: self.seq,
        }
    }

    /// The number of the last transaction.
    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    /// So many transactions have been executed elsewhere.
    pub(crate) fn advance(&mut self, transactions: u64) {
        self.seq += transactions;
    }

    /// Executes a stretch of an epoch's order.
    pub(crate) fn stretch(
        &mut self,
        tables: &mut [Table],
        epoch: &Epoch,
        order: Range<usize>,
        out: &mut Sink,
    ) {
        // Cascades need the executor while its code is walked.
        let code = std::mem::take(&mut self.code);
        let mut frames = std::mem::take(&mut self.frames);
        assert_eq!(tables.len(), self.program.tables.len(), "the tables are the program's");
        self.walk(&code, &mut frames, tables, epoch, order, out);
        (self.code, self.frames) = (code, frames);
    }

    fn walk(
        &mut self,
        codes: &[Code],
        frames: &mut [Frame],
        tables: &mut [Table],
        epoch: &Epoch,
        order: Range<usize>,
        out: &mut Sink,
    ) {
        let wants = std::mem::take(&mut self.wants);
        let columns: Vec<WordColumns<'_>> = (epoch.lanes.iter())
            .map(|lane| {
                let wanted = wants[lane.handler as usize].is_some();
                WordColumns::new(&epoch.runs[lane.run as usize].batch, wanted)
            })
            .collect();
        let mut lanes: Vec<Lane<'_>> = (epoch.lanes.iter().zip(&columns).enumerate())
            .map(|(index, (lane, columns))| {
                let (run, handler) = (&epoch.runs[lane.run as usize], lane.handler as usize);
                let code = &codes[handler];
                let fast = !matches!(code, Code::General);
                let wants = wants[handler].as_ref().filter(|_| fast).map(|wants| (wants, columns));
                Lane::new(&run.batch, index, handler, wants)
            })
            .collect();
        self.wants = wants;
        let mut at = order.start;
        while at < order.end {
            let reach = order.end.min(at + OPEN);
            let order = &epoch.order[..reach];
            let end = self.fast(codes, frames, tables, &mut lanes, order, &mut at, out);
            // Now that the tables are closed, whatever else there is may use them.
            let lane = |at: usize| &lanes[order[at].lane as usize];
            let origin = |at: usize| Origin::new(at as u32, 0, lane(at).handler);
            match end {
                End::Lane => {}
                End::Emitted => {
                    let done = at - 1;
                    let (origin, handler) = (origin(done), lane(done).handler);
                    match &codes[handler] {
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
                }
                End::Aborts(reason) => {
                    self.seq += 1;
                    let event =
                        aborted(&codes[lane(at).handler], lane(at).batch, order[at], reason);
                    abort(self, tables, epoch, out, event, origin(at));
                    at += 1;
                }
                End::General => {
                    self.seq += 1;
                    let event = lane(at).batch.row(order[at].row as usize);
                    transact(self, tables, epoch, out, &event, origin(at));
                    at += 1;
                }
            }
        }
    }

    /// Runs transactions on the fast path from `at` on, until one needs something else or the order
    /// ends; `at` is then that one.
    #[allow(clippy::too_many_arguments)] // One loop, cut in two where the tables are closed.
    fn fast(
        &mut self,
        codes: &[Code],
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
        let mut open: Vec<Option<Opened<'_>>> = (tables.iter_mut().zip(&self.rows_max))
            .map(|(table, rows)| (*rows > 0).then(|| table.open(rows * left)))
            .collect();
        for lane in lanes.iter_mut().filter(|lane| lane.fast) {
            let streams = codes[lane.handler].streams();
            lane.attach(&mut open, &mut out.builders, streams, moves);
        }
        let mut course = Course { order, at: *at, seq: self.seq, prefetch: self.prefetch };
        while let Some(ranked) = order.get(*at) {
            let lane = &mut lanes[ranked.lane as usize];
            let handler = lane.handler;
            (course.at, course.seq) = (*at, self.seq);
            let end = match &codes[handler] {
                // SAFETY: the lane has just been attached to the open tables, which nobody else
                // uses; each has room for a version of every row that a handler has of it, for all
                // transactions that are left.
                Code::Words(code) if lane.fast => unsafe {
                    course.run_words(lane, code, &mut frames[handler])
                },
                // SAFETY: as above.
                Code::Native(code, body) if lane.fast => unsafe {
                    body.run(&mut course, lane, code)
                },
                _ => End::General,
            };
            out.counts[handler].committed += (course.at - *at) as u64;
            (*at, self.seq) = (course.at, course.seq);
            match end {
                End::Lane => {}
                End::Aborts(reason) if !self.consumed[self.aborted[handler]] => {
                    self.seq += 1;
                    let lane = &lanes[order[*at].lane as usize];
                    let event = aborted(&codes[handler], lane.batch, order[*at], reason);
                    out.counts[handler].aborted += 1;
                    let origin = Origin::new(*at as u32, 0, handler);
                    out.builders[self.aborted[handler]].push(&event, origin);
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
            let row = row_of(&self.program, emit.stream, words);
            out.builders[stream].push(&row, origin);
            if self.consumed[stream] {
                cascade(self, tables, epoch, out, emit.stream, &row, origin);
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
            let (words, tail) = tail.split_at(self.program.streams[stream].spec.schema.len());
            let (id, origin) = (StreamId(stream as u16), origin.output(ordinal));
            let row = row_of(&self.program, id, words.iter().copied());
            out.builders[stream].push(&row, origin);
            if self.consumed[stream] {
                cascade(self, tables, epoch, out, id, &row, origin);
            }
            (rest, ordinal) = (tail, ordinal + 1);
        }
    }
}

/// The abort event of an event's transaction.
fn aborted(code: &Code, batch: &Batch, ranked: Ranked, reason: Reason) -> Vec<Value> {
    let mut event = batch.row(ranked.row as usize).into_vec();
    event.push(Value::str(reason_text(code, reason)));
    event
}

/// How often slots of any table have moved.
fn moved(tables: &[Table]) -> u64 {
    tables.iter().map(Table::moves).sum()
}

/// What an epoch comes to, while it is executed.
pub(crate) struct Sink {
    pub(crate) builders: Vec<OutputBuilder>,
    derived: Vec<DerivedEvent>,
    pub(crate) counts: Vec<HandlerCounts>,
    unstable: Vec<Unstable>,
    written: BTreeMap<usize, u64>,
}

fn reason_text(code: &Code, reason: Reason) -> &str {
    match (code, reason) {
        (Code::Words(code), Reason::Number(number)) => &code.reasons[usize::from(number)],
        (_, Reason::Text(text)) => text,
        _ => unreachable!("only compiled code numbers its reasons"),
    }
}

/// The values of a row of words.
fn row_of(program: &Program, stream: StreamId, words: impl Iterator<Item = u64>) -> Vec<Value> {
    let columns = &program.streams[stream.index()].spec.schema.columns;
    columns.iter().zip(words).map(|(c, w)| word_value(&c.ty, w)).collect()
}

/// The handlers on a derived event, in declaration order, each with its own cascade.
fn cascade(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    stream: StreamId,
    row: &[Value],
    origin: Origin,
) {
    out.derived.push(DerivedEvent(origin));
    let cause = out.derived.len() as u32;
    let handlers: Vec<usize> = serial.program.handlers_on(stream).collect();
    for handler in handlers {
        serial.seq += 1;
        let origin = Origin::new(origin.root(), cause, handler);
        transact(serial, tables, epoch, out, row, origin);
    }
}

/// One transaction on the general path; `seq` is its number already.
fn transact(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    event: &[Value],
    origin: Origin,
) {
    let program = serial.program.clone();
    let handler = origin.handler();
    let result = if depth(out, origin) > program.handlers.len() {
        Err(reasons::endless())
    } else {
        call(&program, &&*tables, handler, event)
    };
    if let Body::Opaque(_) = program.handlers[handler].body {
        serial.calls += 1;
        if serial.rerun_every > 0 && serial.calls.is_multiple_of(serial.rerun_every) {
            let same = match (&result, &call(&program, &&*tables, handler, event)) {
                (Ok(a), Ok(b)) => a.same_outcome(b),
                (Err(a), Err(b)) => a == b,
                _ => false,
            };
            if !same {
                let stamp = epoch.stamp(epoch.order[origin.root() as usize]);
                out.unstable.push(Unstable { handler, stamp });
            }
        }
    }
    match result {
        Ok(effects) => {
            effects.apply(tables, serial.seq);
            if let Body::Opaque(_) = program.handlers[handler].body {
                let sum = out.written.entry(handler).or_default();
                *sum = sum.wrapping_add(effects.written_hash(serial.seq));
            }
            out.counts[handler].committed += 1;
            for (ordinal, (stream, row)) in effects.emitted.iter().enumerate() {
                let origin = origin.output(ordinal as u32);
                out.builders[stream.index()].push(row, origin);
                if serial.consumed[stream.index()] {
                    cascade(serial, tables, epoch, out, *stream, row, origin);
                }
            }
        }
        Err(reason) => {
            let mut event = event.to_vec();
            event.push(Value::str(&reason.reason));
            abort(serial, tables, epoch, out, event, origin);
        }
    }
}

/// Steps from the input event to the one that this transaction is about.
fn depth(out: &Sink, origin: Origin) -> usize {
    let (mut depth, mut cause) = (0, origin.cause());
    while cause != 0 {
        depth += 1;
        cause = out.derived[cause as usize - 1].0.cause();
    }
    depth
}

/// Runs a transaction of a handler on the general path.
pub(crate) fn call(
    program: &Program,
    tables: &dyn Rows,
    handler: usize,
    event: &[Value],
) -> Result<Effects, Abort> {
    let handler = &program.handlers[handler];
    let mut tx = General::new(program, tables, handler.output);
    match &handler.body {
        Body::Declared(declared) => tx.declared(declared, event)?,
        Body::Native(n) => native::general(&mut tx, program, &program.natives[*n], event)?,
        Body::Opaque(opaque) => program.opaques[*opaque].call(event, &mut tx)?,
    }
    Ok(tx.effects())
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
    let stream = serial.program.handlers[handler].aborted;
    out.builders[stream.index()].push(&event, origin);
    if serial.consumed[stream.index()] {
        cascade(serial, tables, epoch, out, stream, &event, origin);
    }
}
