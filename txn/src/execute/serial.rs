//! The serial executor: one thread walks an epoch in order, and asks for the slots of the
//! transactions ahead of it, so that memory is there when they come.
//!
//! It wins whenever operations are cheap: planning who may run beside whom costs more than running.
//! What it costs itself, measured in order of weight: waiting for memory (prefetching halves it at
//! 100,000 keys and more than that at 10 million), moving the superseded version to the log,
//! appending outputs.

use std::sync::Arc;

use arrow_array::BooleanArray;
use tidemill_core::{Batch, Error, Result, Stamp, StreamId, Value};
use tidemill_table::{Layout, Seq, Table};

use super::general::{Effects, General};
use super::native::{self, NativeCode};
use super::output::{DerivedEvent, Origin, Output, OutputBuilder};
use super::words::{self, Frame, KeyFrom, Stop, WordCode};
use crate::order::{Epoch, Ranked};
use crate::program::{reasons, Abort, Body, NativeTx, Program};
use crate::reference::word_value;

/// Rows of a lane whose slots are asked for together, and how far ahead that is at least.
const STAGE: usize = 16;
/// Staged rows that a lane keeps: those being executed and those ahead.
const RING: usize = 4 * STAGE;

/// A slot that is not there: its row is missing and has defaults.
const MISSING: usize = usize::MAX;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// The number of the last transaction.
    pub seq: Seq,
}

enum Code {
    Words(WordCode),
    Native(NativeCode),
    General,
}

/// Executes epochs one transaction at a time.
pub struct Serial {
    program: Arc<Program>,
    code: Vec<Code>,
    paths: Vec<Path>,
    frames: Vec<Box<Frame>>,
    /// Per stream: whether a handler takes its events.
    consumed: Vec<bool>,
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
                        Ok(code) => (Code::Native(code), Path::Native),
                        Err(why) => (Code::General, Path::NativeValues(why)),
                    }
                }
                Body::Opaque(_) => (Code::General, Path::Opaque),
            };
            code.push(c);
            paths.push(p);
        }
        let frames = code
            .iter()
            .map(|code| {
                let mut frame = Box::new([0; 256]);
                if let Code::Words(code) = code {
                    code.prepare(&mut frame);
                }
                frame
            })
            .collect();
        let streams = 0..program.streams.len() as u16;
        let consumed = streams.map(|s| program.handlers_on(StreamId(s)).next().is_some()).collect();
        let (prefetch, calls, seq) = (true, 0, 0);
        Serial { code, paths, frames, consumed, prefetch, rerun_every, calls, seq, program }
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
        // Cascades need the executor while its code is walked.
        let (code, mut frames) = (std::mem::take(&mut self.code), std::mem::take(&mut self.frames));
        let outcome = self.walk(&code, &mut frames, tables, epoch);
        (self.code, self.frames) = (code, frames);
        outcome
    }

    fn walk(
        &mut self,
        codes: &[Code],
        frames: &mut [Box<Frame>],
        tables: &mut [Table],
        epoch: &Epoch,
    ) -> Result<Outcome> {
        let mut out = Sink {
            builders: (self.program.streams.iter().enumerate())
                .map(|(i, s)| OutputBuilder::new(StreamId(i as u16), s.spec.schema.clone()))
                .collect(),
            derived: Vec::new(),
            counts: vec![HandlerCounts::default(); codes.len()],
            unstable: Vec::new(),
        };
        let mut lanes: Vec<LaneState<'_>> = Vec::with_capacity(epoch.lanes.len());
        for lane in &epoch.lanes {
            let batch = &epoch.runs[lane.run as usize].batch;
            lanes.push(LaneState::new(batch, lane.handler as usize, codes));
        }
        let program = self.program.clone();
        for (root, &ranked) in epoch.order.iter().enumerate() {
            let Ranked { lane, row } = ranked;
            let lane = &mut lanes[lane as usize];
            let row = row as usize;
            let origin =
                Origin { root: root as u32, cause: 0, handler: lane.handler as u32, output: 0 };
            self.seq += 1;
            let done = match &codes[lane.handler] {
                Code::Words(code) if lane.fast => {
                    lane.stage(row, tables, self.prefetch);
                    let frame = &mut frames[lane.handler];
                    word_transaction(code, frame, lane, row, tables, self.seq)
                }
                Code::Native(code) if lane.fast => {
                    lane.stage(row, tables, self.prefetch);
                    let Body::Native(native) = program.handlers[lane.handler].body else {
                        return Err(Error::internal("native code of another handler"));
                    };
                    let body = &*program.natives[native].body;
                    native_transaction(code, body, lane, row, tables, self.seq)
                }
                _ => Fast::General,
            };
            match done {
                Fast::Committed => {
                    out.counts[lane.handler].committed += 1;
                    match &codes[lane.handler] {
                        Code::Words(code) => {
                            let frame = &frames[lane.handler];
                            for (ordinal, emit) in code.emits.iter().enumerate() {
                                let words = emit.registers.iter().map(|r| frame[usize::from(*r)]);
                                let origin = Origin { output: ordinal as u32, ..origin };
                                let stream = emit.stream.index();
                                out.builders[stream].push_words(words.clone(), origin);
                                if self.consumed[stream] {
                                    let row = row_of(&program, emit.stream, words);
                                    cascade(
                                        self,
                                        tables,
                                        epoch,
                                        &mut out,
                                        emit.stream,
                                        &row,
                                        origin,
                                    );
                                }
                            }
                        }
                        Code::Native(code) => {
                            let mut rest = &lane.emitted[..];
                            let mut ordinal = 0;
                            let mut derived = Vec::new();
                            while let Some((&number, tail)) = rest.split_first() {
                                let (number, origin) =
                                    (number as usize, Origin { output: ordinal, ..origin });
                                let (words, tail) = tail.split_at(code.widths[number]);
                                let stream = code.emits[number];
                                let canonical =
                                    canonical_words(&program, stream, words.iter().copied());
                                if self.consumed[stream.index()] {
                                    derived.push((
                                        stream,
                                        row_of(&program, stream, canonical),
                                        origin,
                                    ));
                                } else {
                                    out.builders[stream.index()].push_words(canonical, origin);
                                }
                                rest = tail;
                                ordinal += 1;
                            }
                            for (stream, row, origin) in derived {
                                out.builders[stream.index()].push(&row, origin);
                                cascade(self, tables, epoch, &mut out, stream, &row, origin);
                            }
                        }
                        Code::General => unreachable!("it has no fast path"),
                    }
                }
                Fast::Aborted(reason) => {
                    let mut event = lane.batch.row(row).into_vec();
                    event.push(Value::str(reason_text(&codes[lane.handler], reason)));
                    abort(self, tables, epoch, &mut out, event, origin);
                }
                Fast::General => {
                    let event = lane.batch.row(row);
                    transact(self, tables, epoch, &mut out, &event, origin);
                }
            }
        }
        let outputs = out.builders.iter_mut().filter_map(OutputBuilder::finish).collect();
        Ok(Outcome {
            outputs,
            derived: out.derived,
            counts: out.counts,
            unstable: out.unstable,
            seq: self.seq,
        })
    }
}

struct Sink {
    builders: Vec<OutputBuilder>,
    derived: Vec<DerivedEvent>,
    counts: Vec<HandlerCounts>,
    unstable: Vec<Unstable>,
}

/// What the fast path made of a transaction.
#[derive(Clone, Copy)]
enum Fast {
    Committed,
    Aborted(Reason),
    General,
}

#[derive(Clone, Copy)]
enum Reason {
    Number(u16),
    Text(&'static str),
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

/// Words as they are stored: floats have one NaN.
fn canonical_words<'a>(
    program: &'a Program,
    stream: StreamId,
    words: impl Iterator<Item = u64> + 'a,
) -> impl Iterator<Item = u64> + 'a {
    let columns = &program.streams[stream.index()].spec.schema.columns;
    columns.iter().zip(words).map(|(c, w)| match c.ty {
        tidemill_core::DataType::Float => {
            tidemill_core::value::canonical_f64(f64::from_bits(w)).to_bits()
        }
        _ => w,
    })
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
        let origin = Origin { root: origin.root, cause, handler: handler as u32, output: 0 };
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
    let handler = origin.handler as usize;
    let result = if depth(out, origin) > program.handlers.len() {
        Err(reasons::endless())
    } else {
        call(&program, tables, handler, event)
    };
    if let Body::Opaque(_) = program.handlers[handler].body {
        serial.calls += 1;
        if serial.rerun_every > 0 && serial.calls % serial.rerun_every == 0 {
            let same = match (&result, &call(&program, tables, handler, event)) {
                (Ok(a), Ok(b)) => a.same_outcome(b),
                (Err(a), Err(b)) => a == b,
                _ => false,
            };
            if !same {
                let stamp = epoch.stamp(epoch.order[origin.root as usize]);
                out.unstable.push(Unstable { handler, stamp });
            }
        }
    }
    match result {
        Ok(effects) => {
            effects.apply(tables, serial.seq);
            out.counts[handler].committed += 1;
            for (ordinal, (stream, row)) in effects.emitted.iter().enumerate() {
                let origin = Origin { output: ordinal as u32, ..origin };
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
    let (mut depth, mut cause) = (0, origin.cause);
    while cause != 0 {
        depth += 1;
        cause = out.derived[cause as usize - 1].0.cause;
    }
    depth
}

fn call(
    program: &Program,
    tables: &[Table],
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
    let handler = origin.handler as usize;
    out.counts[handler].aborted += 1;
    let stream = serial.program.handlers[handler].aborted;
    out.builders[stream.index()].push(&event, origin);
    if serial.consumed[stream.index()] {
        cascade(serial, tables, epoch, out, stream, &event, origin);
    }
}

// ---- the fast path --------------------------------------------------------------------------

/// A column of an event batch, as words.
#[derive(Clone, Copy)]
enum Words<'a> {
    Ints(&'a [i64]),
    Floats(&'a [f64]),
    Bools(&'a BooleanArray),
}

impl<'a> Words<'a> {
    fn of(batch: &'a Batch, column: usize) -> Option<Words<'a>> {
        batch
            .ints(column)
            .map(Words::Ints)
            .or_else(|| batch.floats(column).map(Words::Floats))
            .or_else(|| batch.bools(column).map(Words::Bools))
    }

    #[inline(always)]
    fn get(&self, row: usize) -> u64 {
        match self {
            Words::Ints(ints) => ints[row] as u64,
            Words::Floats(floats) => floats[row].to_bits(),
            Words::Bools(bools) => u64::from(bools.value(row)),
        }
    }
}

/// A key of a row to come and its hash.
#[derive(Clone, Copy, Default)]
struct Staged {
    key: u64,
    hash: u64,
}

/// A lane being walked from front to back.
struct LaneState<'a> {
    batch: &'a Batch,
    handler: usize,
    /// Whether the fast path can take its events.
    fast: bool,
    /// The event columns that the code wants, in its order.
    columns: Vec<Words<'a>>,
    /// Per row of the handler: its table and where its key comes from.
    keys: Vec<(usize, KeySource<'a>)>,
    staged: Vec<Staged>,
    staged_to: usize,
    /// Scratch: where each row's slot begins.
    bases: Vec<usize>,
    // Scratch of native handlers.
    event: Vec<u64>,
    words: Vec<u64>,
    word_bases: Vec<u32>,
    emitted: Vec<u64>,
}

#[derive(Clone, Copy)]
enum KeySource<'a> {
    Column(Words<'a>),
    Const(u64),
}

impl<'a> LaneState<'a> {
    fn new(batch: &'a Batch, handler: usize, code: &[Code]) -> LaneState<'a> {
        let mut lane = LaneState {
            batch,
            handler,
            fast: false,
            columns: Vec::new(),
            keys: Vec::new(),
            staged: Vec::new(),
            staged_to: 0,
            bases: Vec::new(),
            event: Vec::new(),
            words: Vec::new(),
            word_bases: Vec::new(),
            emitted: Vec::new(),
        };
        let (columns, rows): (Vec<usize>, Vec<(usize, KeyFrom)>) = match &code[handler] {
            Code::Words(code) => (
                code.columns.iter().map(|(c, _)| usize::from(*c)).collect(),
                code.rows.iter().map(|r| (r.table, r.key)).collect(),
            ),
            Code::Native(code) => {
                lane.words = vec![0; code.words];
                lane.event = vec![0; batch.schema().len()];
                (
                    (0..batch.schema().len()).collect(),
                    code.rows.iter().map(|r| (r.table, r.key)).collect(),
                )
            }
            Code::General => return lane,
        };
        for column in columns {
            let Some(words) = Words::of(batch, column) else { return lane };
            lane.columns.push(words);
        }
        for (table, key) in rows {
            let source = match key {
                KeyFrom::Const(word) => KeySource::Const(word),
                KeyFrom::Column(column) => match Words::of(batch, usize::from(column)) {
                    Some(words) => KeySource::Column(words),
                    None => return lane,
                },
            };
            lane.keys.push((table, source));
        }
        lane.staged = vec![Staged::default(); RING * lane.keys.len()];
        lane.bases = vec![0; lane.keys.len()];
        lane.word_bases = vec![0; lane.keys.len()];
        lane.fast = true;
        lane
    }

    /// Sees to it that the keys of `row` are hashed, and those of the rows ahead, with their slots
    /// asked for.
    #[inline(always)]
    fn stage(&mut self, row: usize, tables: &[Table], prefetch: bool) {
        while self.staged_to < self.batch.len() && row + 2 * STAGE > self.staged_to {
            self.stage_block(tables, prefetch);
        }
    }

    #[inline(never)]
    fn stage_block(&mut self, tables: &[Table], prefetch: bool) {
        let (from, to) = (self.staged_to, (self.staged_to + STAGE).min(self.batch.len()));
        let rows = self.keys.len();
        for (index, (table, source)) in self.keys.iter().enumerate() {
            let table = &tables[*table];
            for row in from..to {
                let key = match source {
                    KeySource::Column(words) => words.get(row),
                    KeySource::Const(word) => *word,
                };
                let hash = table.hash(key);
                self.staged[row % RING * rows + index] = Staged { key, hash };
                if prefetch {
                    table.prefetch(hash);
                }
            }
        }
        self.staged_to = to;
    }
}

/// Finds the slots of a transaction's rows; `false` when a missing row has no defaults.
#[inline(always)]
fn locate(lane: &mut LaneState<'_>, row: usize, tables: &[Table]) -> bool {
    let rows = lane.keys.len();
    let staged = &lane.staged[row % RING * rows..][..rows];
    for ((base, staged), (table, _)) in lane.bases.iter_mut().zip(staged).zip(&lane.keys) {
        let table = &tables[*table];
        *base = match table.find(staged.key, staged.hash) {
            Some(base) if table.is_present(base) => base,
            _ if table.default_body().is_some() => MISSING,
            _ => return false,
        };
    }
    true
}

/// Begins a new version of a row that may be missing; gives the words of its body.
#[inline(always)]
fn write<'t>(
    tables: &'t mut [Table],
    table: usize,
    base: usize,
    staged: Staged,
    moved: &mut bool,
    seq: Seq,
) -> &'t mut [u64] {
    let table = &mut tables[table];
    if base != MISSING && !*moved {
        return table.write(base, seq);
    }
    write_slowly(table, staged, moved, seq)
}

/// As [`write`], for a row that is missing, or after one: making a slot may have moved the others.
#[cold]
fn write_slowly<'t>(
    table: &'t mut Table,
    staged: Staged,
    moved: &mut bool,
    seq: Seq,
) -> &'t mut [u64] {
    *moved = true;
    let base = match table.find(staged.key, staged.hash) {
        Some(base) => base,
        None => table.take(staged.key, staged.hash),
    };
    if table.is_present(base) {
        return table.write(base, seq);
    }
    let defaults: Vec<u64> = table.default_body().expect("located as a missing row").to_vec();
    let body = table.write(base, seq);
    body.copy_from_slice(&defaults);
    body
}

#[inline(always)]
fn word_transaction(
    code: &WordCode,
    frame: &mut Frame,
    lane: &mut LaneState<'_>,
    row: usize,
    tables: &mut [Table],
    seq: Seq,
) -> Fast {
    let rows = code.rows.len();
    let at = row % RING * rows;
    for (a, b) in &code.pairs {
        let (a, b) = (lane.staged[at + usize::from(*a)], lane.staged[at + usize::from(*b)]);
        if a.key == b.key {
            return Fast::General;
        }
    }
    if !locate(lane, row, tables) {
        return Fast::General;
    }
    for ((_, register), words) in code.columns.iter().zip(&lane.columns) {
        frame[usize::from(*register)] = words.get(row);
    }
    for (row, base) in code.rows.iter().zip(&lane.bases) {
        let table = &tables[row.table];
        let body = match *base {
            MISSING => table.default_body().expect("located as a missing row"),
            base => table.body(base),
        };
        for (register, word) in &row.loads {
            frame[usize::from(*register)] = body[usize::from(*word)];
        }
        if let Some(register) = row.exists {
            frame[usize::from(register)] = u64::from(*base != MISSING);
        }
    }
    match code.run(frame) {
        Ok(()) => {}
        Err(Stop::Abort(reason)) => return Fast::Aborted(Reason::Number(reason)),
        Err(Stop::Trap) => return Fast::General,
    }
    let mut moved = false;
    for (index, row) in code.rows.iter().enumerate() {
        if !row.stores.is_empty() {
            let (base, staged) = (lane.bases[index], lane.staged[at + index]);
            let body = write(tables, row.table, base, staged, &mut moved, seq);
            for (word, register) in &row.stores {
                body[usize::from(*word)] = frame[usize::from(*register)];
            }
        }
    }
    Fast::Committed
}

#[inline(always)]
fn native_transaction(
    code: &NativeCode,
    body: &crate::program::NativeBody,
    lane: &mut LaneState<'_>,
    row: usize,
    tables: &mut [Table],
    seq: Seq,
) -> Fast {
    if !locate(lane, row, tables) {
        return Fast::General;
    }
    let at = row % RING * code.rows.len();
    for (word, column) in lane.event.iter_mut().zip(&lane.columns) {
        *word = column.get(row);
    }
    let mut present = 0;
    for (index, row) in code.rows.iter().enumerate() {
        let (base, staged) = (lane.bases[index], lane.staged[at + index]);
        present |= u64::from(base != MISSING) << index;
        let same =
            row.earlier.iter().find(|e| lane.staged[at + usize::from(**e)].key == staged.key);
        if let Some(same) = same {
            lane.word_bases[index] = lane.word_bases[usize::from(*same)];
            continue;
        }
        lane.word_bases[index] = row.base;
        let table = &tables[row.table];
        let body = match base {
            MISSING => table.default_body().expect("located as a missing row"),
            base => table.body(base),
        };
        let words = &mut lane.words[row.base as usize..][..row.columns.len()];
        for (word, column) in words.iter_mut().zip(&row.columns) {
            *word = column.map_or(staged.key, |c| body[usize::from(c)]);
        }
    }
    lane.emitted.clear();
    let mut tx = NativeTx {
        event: &lane.event,
        words: &mut lane.words,
        bases: &lane.word_bases,
        dirty: 0,
        present,
        emitted: &mut lane.emitted,
    };
    if let Err(reason) = body(&mut tx) {
        return Fast::Aborted(Reason::Text(reason));
    }
    let mut dirty = tx.dirty;
    let mut moved = false;
    while dirty != 0 {
        let index = dirty.trailing_zeros() as usize;
        dirty &= dirty - 1;
        let (row, staged) = (&code.rows[index], lane.staged[at + index]);
        let slot = write(tables, row.table, lane.bases[index], staged, &mut moved, seq);
        let words = &lane.words[lane.word_bases[index] as usize..][..row.columns.len()];
        for ((word, column), float) in words.iter().zip(&row.columns).zip(&row.floats) {
            if let Some(column) = column {
                slot[usize::from(*column)] = if *float {
                    tidemill_core::value::canonical_f64(f64::from_bits(*word)).to_bits()
                } else {
                    *word
                };
            }
        }
    }
    Fast::Committed
}
