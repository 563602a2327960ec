//! Commands: the log of strong recovery. It has each transaction, including those inside of a
//! round, and replays it (S-Store, section 3.2.5).
//!
//! A command has the input of its transaction, and a hash of the outcome. A replay of commands
//! triggers nothing: each transaction is in the log, with the input that it had then. If one has a
//! different outcome, the run ends at once with an error that names the function.

use std::collections::VecDeque;

use tidemill_core::{encode, wire, Error, Result, Row, SourceId, StreamId, Value};
use tidemill_table::{Seq, Table};

use super::general::Effects;
use super::output::Origin;
use super::serial::{transact, Serial};
use super::sink::Sink;
use super::slide;
use super::turn;
use crate::order::{Epoch, ADMITTED};
use crate::program::rounds::{Emitted, Given};
use crate::program::{firing, Abort, Program};

/// A transaction, as strong recovery logs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// The identity of its round ([`Epoch::round`]): the source of the input event, and its row
    /// there.
    pub(crate) event: (SourceId, u64),
    /// The handler or the turn that it belongs to.
    pub(crate) who: Owner,
    /// The number of its event among those derived from the input event, from 1. 0 for the input
    /// event itself.
    pub(crate) cause: u32,
    /// The events that it takes, with their places in a turn.
    pub(crate) given: Vec<(u32, StreamId, Row)>,
    /// The hash of its outcome.
    pub(crate) outcome_hash: u64,
}

/// The owner of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Handler(usize),
    Turn(usize),
    /// A window that slides by time.
    Window(usize),
}

/// The commands that are logged or replayed.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    /// Whether each transaction is logged.
    pub(crate) logs: bool,
    /// The commands that are replayed.
    pub(crate) followed: Option<VecDeque<Command>>,
    /// The report of the first function with a different outcome.
    pub(crate) differs: Option<String>,
}

impl Commands {
    /// Whether transactions are logged or replayed.
    pub(crate) fn is_on(&self) -> bool {
        self.logs || self.followed.is_some()
    }

    /// Whether transactions are replayed from commands, and trigger nothing.
    pub(crate) fn are_followed(&self) -> bool {
        self.followed.is_some()
    }
}

impl Command {
    fn put(&self, out: &mut Vec<u8>) {
        wire::put_u32(self.event.0 .0, out);
        wire::put_u64(self.event.1, out);
        let (kind, number) = match self.who {
            Owner::Handler(handler) => (0, handler),
            Owner::Turn(turn) => (1, turn),
            Owner::Window(window) => (2, window),
        };
        out.push(kind);
        wire::put_u32(number as u32, out);
        wire::put_u32(self.cause, out);
        wire::put_u64(self.outcome_hash, out);
        wire::put_u32(self.given.len() as u32, out);
        for (place, stream, row) in &self.given {
            wire::put_u32(*place, out);
            wire::put_u32(u32::from(stream.0), out);
            row.iter().for_each(|value| encode::value(value, out));
        }
    }

    fn take(program: &Program, input: &mut &[u8]) -> Option<Command> {
        let event = (SourceId(wire::take_u32(input)?), wire::take_u64(input)?);
        let (kind, number) = (wire::take_u8(input)?, wire::take_u32(input)? as usize);
        let who = match kind {
            0 if number < program.handlers.len() => Owner::Handler(number),
            1 => Owner::Turn(number),
            2 if number < program.windows.len() => Owner::Window(number),
            _ => return None,
        };
        let (cause, outcome_hash) = (wire::take_u32(input)?, wire::take_u64(input)?);
        let mut given = Vec::new();
        for _ in 0..wire::take_u32(input)? {
            let (place, stream) = (wire::take_u32(input)?, wire::take_u32(input)?);
            let stream = StreamId(u16::try_from(stream).ok()?);
            let columns = &program.streams.get(stream.index())?.spec.schema.columns;
            let row: Option<Vec<Value>> =
                columns.iter().map(|column| encode::decode(&column.ty, input)).collect();
            given.push((place, stream, row?.into()));
        }
        Some(Command { event, who, cause, given, outcome_hash })
    }
}

/// Encodes the commands of an epoch.
pub fn put_commands(commands: &[Command]) -> Vec<u8> {
    let mut out = Vec::new();
    wire::put_u32(commands.len() as u32, &mut out);
    commands.iter().for_each(|command| command.put(&mut out));
    out
}

/// Decodes the commands of an epoch.
///
/// # Errors
/// If the bytes belong to another program.
pub fn take_commands(program: &Program, bytes: &[u8]) -> Result<Vec<Command>> {
    let take = |mut input: &[u8]| {
        let input = &mut input;
        let mut commands = Vec::new();
        for _ in 0..wire::take_u32(input)? {
            commands.push(Command::take(program, input)?);
        }
        input.is_empty().then_some(commands)
    };
    take(bytes).ok_or_else(|| Error::internal("the log of transactions belongs to another program"))
}

/// Returns a hash of a transaction's outcome.
pub(crate) fn hash(
    result: Result<(&Effects, &[Emitted]), &Abort>,
    tables: &[Table],
    seq: Seq,
) -> u64 {
    let mut bytes = Vec::new();
    let written = match result {
        Ok((effects, emitted)) => {
            bytes.push(1);
            let alone = effects.emitted.iter().map(|event| (0, event));
            let of_turn = emitted.iter().flat_map(|(p, events)| events.iter().map(|e| (*p, e)));
            for (place, (stream, row)) in alone.chain(of_turn) {
                wire::put_u32(place as u32, &mut bytes);
                wire::put_u32(u32::from(stream.0), &mut bytes);
                row.iter().for_each(|value| encode::value(value, &mut bytes));
            }
            effects.written_hash(tables, seq)
        }
        Err(abort) => {
            bytes.push(0);
            bytes.extend_from_slice(abort.public_reason().as_bytes());
            0
        }
    };
    (encode::hash128(&bytes) as u64).wrapping_add(written)
}

/// Logs a transaction that has been executed, or compares it with its command.
pub(crate) fn note(serial: &mut Serial, out: &mut Sink, command: impl FnOnce() -> Command) {
    if serial.commands.are_followed() {
        let wanted = out.following.take();
        let command = command();
        if wanted != Some(command.outcome_hash) && serial.commands.differs.is_none() {
            let program = &serial.codes.program;
            let handler = match command.who {
                Owner::Handler(handler) => handler,
                Owner::Turn(turn) => serial.codes.turns.all[turn].procedures[0],
                Owner::Window(window) => program.windows[window].owner.index(),
            };
            let at = match firing::slide_of(command.event) {
                Some(_) => program.event_named(command.event),
                None => program.event_named((command.event.0, command.event.1 & !ADMITTED)),
            };
            let name = &program.handlers[handler].name;
            serial.commands.differs =
                Some(format!("{name} gave a different result when it was executed again, on {at}"));
        }
    } else if serial.commands.logs {
        out.commands.push(command());
    }
}

/// Executes the commands of the events of an epoch.
pub(crate) fn follow(serial: &mut Serial, tables: &mut [Table], epoch: &Epoch, out: &mut Sink) {
    let mut before = None;
    for (at, ranked) in epoch.order.iter().enumerate() {
        let event = epoch.round(*ranked);
        if before.replace(event) != Some(event) {
            follow_slides(serial, tables, epoch, out);
            out.round = out.derived.len() as u32;
            follow_cause(serial, tables, epoch, out, at as u32, 0);
        }
    }
    follow_slides(serial, tables, epoch, out);
}

/// Executes the slides of windows that are next.
fn follow_slides(serial: &mut Serial, tables: &mut [Table], epoch: &Epoch, out: &mut Sink) {
    let is_slide = |next: &mut Command| matches!(next.who, Owner::Window(_));
    loop {
        let followed = serial.commands.followed.as_mut().expect("commands are followed");
        let Some(command) = followed.pop_front_if(is_slide) else { return };
        let Some((window, edge)) = firing::slide_of(command.event) else { return };
        out.following = Some(command.outcome_hash);
        slide::run(serial, tables, epoch, out, window, edge);
    }
}

/// Executes the next commands about one event of a round, depth first, as in the first execution.
pub(crate) fn follow_cause(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    root: u32,
    cause: u32,
) {
    let event = out.round_at(epoch, root);
    let is_next = |next: &Command| (next.event, next.cause) == (event, cause);
    loop {
        let followed = serial.commands.followed.as_mut().expect("commands are followed");
        let Some(command) = followed.pop_front_if(|next| is_next(next)) else { return };
        let Command { who, given, outcome_hash, .. } = command;
        out.following = Some(outcome_hash);
        serial.seq += 1;
        match who {
            Owner::Handler(handler) => {
                let cause = if cause == 0 { 0 } else { out.round + cause };
                let cause = if cause == 0 { out.cause_at(root) } else { cause };
                let origin = Origin::new(root, cause, handler);
                let event = given.into_iter().next().map(|(_, _, event)| event);
                transact(serial, tables, epoch, out, &event.unwrap_or_default(), origin);
            }
            Owner::Turn(number) => {
                let codes = serial.codes.clone();
                let mut all = Given::default();
                for (place, stream, event) in given {
                    all.add(place as usize, stream, event, true);
                }
                let Some(turn) = codes.turns.all.get(number) else { continue };
                turn::run(serial, tables, epoch, out, (number, turn), &mut all, root);
            }
            // Slides are between the events of sources.
            Owner::Window(_) => {}
        }
    }
}
