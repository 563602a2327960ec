//! The compiled handlers of a program, for every executor.

use std::sync::Arc;

use tidemill_core::{Batch, StreamId, Value};
use tidemill_table::{Layout, Table};

use super::closure::RowBits;
use super::lane::{Lane, Wants, WordColumns};
use super::native::{self, NativeCode};
use super::output::OutputBuilder;
use super::segment::Reason;
use super::serial::HandlerCounts;
use super::words::{self, Frame, WordCode};
use super::work;
use crate::order::{Epoch, Ranked};
use crate::program::rounds::Turns;
use crate::program::{Body, NativeBody, Origin, Program};

/// The way in which a handler is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// A declared handler, over words.
    Words,
    /// A declared handler, over values, and the reason why not over words.
    Values(String),
    /// A closure, over words.
    Native,
    /// A closure, through values, and the reason.
    NativeValues(String),
    /// An opaque function.
    Opaque,
}

/// A handler, ready to be executed.
pub(crate) enum Code {
    Words(WordCode),
    Native(NativeCode, Arc<dyn NativeBody>),
    General,
}

impl Code {
    /// Returns the columns that the code uses of its events, or `None` without a fast path.
    fn wants(&self, columns: usize) -> Option<Wants> {
        match self {
            Code::Words(code) => Some(Wants {
                columns: code.columns.iter().map(|(c, _)| usize::from(*c)).collect(),
                keys: code.rows.iter().map(|r| (r.table, r.key)).collect(),
                written: RowBits::from(code.written),
                places: !code.asks,
            }),
            Code::Native(code, _) => Some(Wants {
                columns: (0..columns).collect(),
                keys: code.rows.iter().map(|r| (r.table, r.key)).collect(),
                written: code.written,
                places: true,
            }),
            Code::General => None,
        }
    }

    /// Returns the streams that its fast path emits to, if these are only outputs.
    pub(crate) fn streams(&self) -> Option<&[usize]> {
        match self {
            Code::Words(code) => (!code.consumed).then_some(&code.streams),
            Code::Native(code, _) => (!code.consumed).then_some(&code.streams),
            Code::General => None,
        }
    }

    /// Returns the number of rows of a table in each of its transactions, on the fast path.
    pub(crate) fn rows_of(&self, table: usize) -> usize {
        match self {
            Code::Words(code) => code.rows.iter().filter(|row| row.table == table).count(),
            Code::Native(code, _) => code.rows.iter().filter(|row| row.table == table).count(),
            Code::General => 0,
        }
    }

    /// Returns the counted work of each of its transactions, or `None` without a fast path.
    fn work(&self) -> Option<u64> {
        let rows = match self {
            Code::Words(code) => code.rows.len(),
            Code::Native(code, _) => code.rows.len(),
            Code::General => return None,
        };
        Some(work::TRANSACTION + work::ROW * rows as u64)
    }

    /// Returns the registers that its transactions work in.
    fn frame(&self) -> Frame {
        let mut frame = [0; 256];
        if let Code::Words(code) = self {
            code.prepare(&mut frame);
        }
        frame
    }
}

/// The reason why a handler needs the general path.
const MORE: &str = "it maintains indexes or runs triggers";

/// The handlers of a program, ready to be executed.
pub(crate) struct Codes {
    pub(crate) program: Arc<Program>,
    /// The code of each handler.
    pub(crate) code: Vec<Code>,
    pub(crate) paths: Vec<Path>,
    wants: Vec<Option<Wants>>,
    /// Whether a handler takes the events, by stream.
    pub(crate) consumed: Vec<bool>,
    /// The stream of the aborts, by handler.
    pub(crate) aborted: Vec<usize>,
    /// The turns of procedures.
    pub(crate) turns: Turns,
    /// The counted work of each transaction, by handler, if it is always the same.
    pub(crate) work: Vec<Option<u64>>,
    /// The counted work of each transaction with everything that it triggers, by handler.
    pub(crate) known: Vec<Option<u64>>,
    /// The most rows of a table in one transaction on the fast path, by table.
    pub(crate) rows_max: Vec<usize>,
}

impl Codes {
    /// Compiles the handlers of a program.
    pub(crate) fn new(program: Arc<Program>) -> Codes {
        let layouts: Vec<Layout> = program.tables.iter().map(Layout::of).collect();
        let (mut code, mut paths) = (Vec::new(), Vec::new());
        for (index, handler) in program.handlers.iter().enumerate() {
            let (c, p) = match &handler.body {
                Body::Declared(_) if program.has_hooks(index) => {
                    (Code::General, Path::Values(MORE.into()))
                }
                Body::Native(_) if program.has_hooks(index) => {
                    (Code::General, Path::NativeValues(MORE.into()))
                }
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
        let wants = |(h, code): (usize, &Code)| code.wants(columns(h));
        let wants = code.iter().enumerate().map(wants).collect();
        let streams = 0..program.streams.len() as u16;
        let consumed = streams.map(|s| program.handlers_on(StreamId(s)).next().is_some()).collect();
        let aborted = program.handlers.iter().map(|h| h.aborted.index()).collect();
        let rows_max = (0..program.tables.len())
            .map(|table| code.iter().map(|code| code.rows_of(table)).max().unwrap_or(0))
            .collect();
        let turns = Turns::of(&program).expect("the program was checked");
        let work: Vec<Option<u64>> = code.iter().map(Code::work).collect();
        let mut codes = Codes {
            known: work.clone(),
            program,
            code,
            paths,
            wants,
            work,
            consumed,
            aborted,
            turns,
            rows_max,
        };
        codes.forget_unknown();
        codes
    }

    /// Removes the known work of handlers that trigger others, because it is not known beforehand.
    fn forget_unknown(&mut self) {
        for (handler, code) in self.code.iter().enumerate() {
            let consumed = match code {
                Code::Words(code) => code.consumed,
                Code::Native(code, _) => code.consumed,
                Code::General => true,
            };
            if consumed || self.consumed[self.aborted[handler]] {
                self.known[handler] = None;
            }
        }
    }

    /// Returns the counted work of these transactions of each handler, on the fast path.
    pub(crate) fn work_of(&self, counts: &[HandlerCounts]) -> u64 {
        let of = |(work, counts): (&Option<u64>, &HandlerCounts)| {
            work.unwrap_or(0) * (counts.committed + counts.aborted)
        };
        self.work.iter().zip(counts).map(of).sum()
    }

    /// Returns the registers that each handler's transactions work in.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        self.code.iter().map(Code::frame).collect()
    }

    /// Creates builders of output events, with room for about `rooms` events by stream.
    pub(crate) fn builders(&self, rooms: &[usize]) -> Vec<OutputBuilder> {
        let streams = self.program.streams.iter().zip(rooms).enumerate();
        streams
            .map(|(i, (s, room))| {
                let (id, schema) = (StreamId(i as u16), s.spec.schema.clone());
                match s.origin {
                    Origin::Aborted(_) => OutputBuilder::of_aborts(id, schema, *room),
                    Origin::Input | Origin::Derived { .. } => OutputBuilder::of_inputs(id, schema),
                    _ => OutputBuilder::new(id, schema, *room),
                }
            })
            .collect()
    }

    /// Returns the numbered reasons in the code of the handler whose aborts this stream has.
    pub(crate) fn reasons(&self, stream: StreamId) -> &[String] {
        match self.program.streams[stream.index()].origin {
            Origin::Aborted(handler) => match &self.code[handler.index()] {
                Code::Words(code) => &code.reasons,
                _ => &[],
            },
            _ => &[],
        }
    }

    /// Returns the columns of each lane's events as words, as far as its handler uses them.
    pub(crate) fn columns<'e>(&self, epoch: &'e Epoch) -> Vec<WordColumns<'e>> {
        let of = |lane: &crate::order::Lane| {
            let wanted = self.wants[lane.handler as usize].is_some();
            WordColumns::new(&epoch.runs[lane.run as usize].batch, wanted)
        };
        epoch.lanes.iter().map(of).collect()
    }

    /// Returns the lanes of an epoch.
    pub(crate) fn lanes<'e>(
        &self,
        epoch: &'e Epoch,
        columns: &'e [WordColumns<'e>],
    ) -> Vec<Lane<'e>> {
        let of = |(index, (lane, columns)): (usize, (&crate::order::Lane, &'e WordColumns<'e>))| {
            let (run, handler) = (&epoch.runs[lane.run as usize], lane.handler as usize);
            let fast = !matches!(self.code[handler], Code::General);
            let wants = self.wants[handler].as_ref().filter(|_| fast).map(|wants| (wants, columns));
            let mut lane = Lane::new(&run.batch, index, handler, wants);
            // For admitted events, these are also the times of their stamps.
            lane.columns.times = &run.times;
            lane
        };
        epoch.lanes.iter().zip(columns).enumerate().map(of).collect()
    }

    /// Interprets code instead of compiling it to machine code.
    pub(crate) fn interpreted(&mut self) {
        let code = std::mem::take(&mut self.code);
        let interpreted = |code| match code {
            Code::Words(code) => Code::Words(code.interpreted()),
            code => code,
        };
        self.code = code.into_iter().map(interpreted).collect();
    }

    /// Sends everything through the general path.
    pub(crate) fn general_only(&mut self) {
        self.code.iter_mut().for_each(|code| *code = Code::General);
        (self.work, self.known) = (vec![None; self.code.len()], vec![None; self.code.len()]);
    }
}

/// Returns the abort event of an event's transaction.
pub(crate) fn aborted(code: &Code, batch: &Batch, ranked: Ranked, reason: Reason) -> Vec<Value> {
    let mut event = batch.row(ranked.row as usize).into_vec();
    event.push(Value::str(reason_text(code, reason)));
    event
}

/// Returns how often slots of any table have moved.
pub(crate) fn moved(tables: &[Table]) -> u64 {
    tables.iter().map(Table::moves).sum()
}

fn reason_text(code: &Code, reason: Reason) -> &str {
    match (code, reason) {
        (Code::Words(code), Reason::Number(number)) => &code.reasons[usize::from(number)],
        (_, Reason::Text(text)) => text,
        _ => unreachable!("only compiled code numbers its reasons"),
    }
}
