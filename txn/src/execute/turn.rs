//! A turn of a round: procedures as one transaction, on the general path.

use tidemill_table::Table;

use super::command::{self, Command, Owner};
use super::general::{Effects, General, Rows};
use super::output::Origin;
use super::serial::{cascade, is_overdue, Serial, Unstable};
use super::sink::Sink;
use crate::order::Epoch;
use crate::program::inside::Transaction;
use crate::program::rounds::{Emitted, Given, Turn};
use crate::program::{Abort, Body, Moment, Program};

/// The effects of a turn if it commits.
struct Performed {
    effects: Effects,
    /// The events of each of its procedures.
    emitted: Vec<Emitted>,
}

/// Executes a turn with everything that it triggers at once. The executor has its number. `root` is
/// a transaction of the round's event.
pub(super) fn run(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    (number, turn): (usize, &Turn),
    given: &mut Given,
    root: u32,
) {
    let program = serial.codes.program.clone();
    let stamp = out.stamp_at(epoch, root);
    let moment = Moment::at(epoch, stamp, turn.step);
    let time_us = moment.time_us();
    let first = turn.procedures[0];
    let perform = |given: &mut Given| perform(&program, &&*tables, turn, given, &moment);
    let event = out.event_at(epoch, root);
    let result = serial.call(event, out, || perform(given));
    if serial.is_compared() && !is_overdue(&result) {
        let again = perform(given);
        let same = is_overdue(&again)
            || match (&result, &again) {
                (Ok(a), Ok(b)) => a.emitted == b.emitted && a.effects.same_outcome(&b.effects),
                (Err(a), Err(b)) => a == b,
                _ => false,
            };
        if !same {
            let stamp = out.stamp_at(epoch, root);
            out.unstable.push(Unstable { handler: first, stamp });
        }
    }
    if serial.commands.is_on() {
        let seq = serial.seq();
        let outcome = result.as_ref().map(|done| (&done.effects, &done.emitted[..]));
        let outcome_hash = command::hash(outcome, tables, seq);
        let (given, event) = (given.outside(), out.round_at(epoch, root));
        let command = || Command { event, who: Owner::Turn(number), cause: 0, given, outcome_hash };
        command::note(serial, out, command);
    }
    let emitted = match result {
        Ok(Performed { effects, emitted }) => {
            effects.apply(tables, serial.seq(), time_us);
            let sum = out.written.entry(first).or_default();
            *sum = sum.wrapping_add(effects.written_hash(tables, serial.seq()));
            for (place, _) in &emitted {
                out.counts[turn.procedures[*place]].committed += 1;
            }
            emitted
        }
        Err(abort) => {
            let back = given.aborted(&program, turn, &abort.public_reason());
            for (nth, (place, _)) in back.iter().enumerate() {
                let handler = turn.procedures[*place];
                out.counts[handler].aborted += 1;
                // All of them abort, and one has failed.
                if nth == 0 {
                    out.note_fault(epoch, Origin::new(root, 0, handler), &abort);
                } else if abort.is_fault() {
                    out.counts[handler].faults += 1;
                }
            }
            back
        }
    };
    for (place, events) in emitted {
        let origin = Origin::new(root, out.cause_at(root), turn.step + place);
        for (ordinal, (stream, row)) in events.iter().enumerate() {
            let origin = origin.output(ordinal as u32);
            out.builders[stream.index()].push(row, origin);
            if serial.codes.consumed[stream.index()] {
                cascade(serial, tables, epoch, out, (*stream, row), origin, &turn.procedures);
            }
        }
    }
}

/// Runs a turn on the rows as they are.
fn perform(
    program: &Program,
    tables: &dyn Rows,
    turn: &Turn,
    given: &mut Given,
    moment: &Moment<'_>,
) -> Result<Performed, Abort> {
    let mut tx = General::new(program, tables, turn.procedures[0], moment);
    let emitted = procedures(program, turn, given, &mut tx)?;
    Ok(Performed { effects: tx.effects(), emitted })
}

/// Runs the procedures of a turn one after the other, in one transaction. Each sees the writes of
/// those before it, and takes their events. Returns the events of each.
pub(super) fn procedures(
    program: &Program,
    turn: &Turn,
    given: &mut Given,
    tx: &mut General<'_>,
) -> Result<Vec<Emitted>, Abort> {
    given.begin();
    let mut emitted: Vec<Emitted> = Vec::new();
    for (place, index) in turn.procedures.iter().enumerate() {
        let procedure = &program.handlers[*index];
        let Some(batches) = given.batches(procedure, place) else { continue };
        let Body::Opaque(opaque) = procedure.body else { unreachable!("the program was checked") };
        tx.go_on(*index);
        tx.function(|tx| program.opaques[opaque].call_batch(&batches, tx))?;
        let events = tx.go_on(*index);
        for (stream, row) in &events {
            for (place, next) in turn.procedures.iter().enumerate() {
                if program.handlers[*next].inputs().any(|input| input.stream == *stream) {
                    given.add(place, *stream, row[..].into(), false);
                }
            }
        }
        emitted.push((place, events));
    }
    Ok(emitted)
}
