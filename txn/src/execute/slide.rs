//! The slide of a window that is ended by time, as a transaction of its own, on the general path.

use tidemill_table::Table;

use super::command::{self, Command, Owner};
use super::general::{Effects, General, Rows};
use super::output::{DerivedEvent, Origin, NO_ROOT};
use super::serial::{cascade, is_overdue, AbortedSlide, Serial, Unstable};
use super::sink::Sink;
use crate::order::Epoch;
use crate::program::inside::Transaction;
use crate::program::{firing, Abort, Moment, WindowId};

/// Executes the slide and everything that it triggers.
pub(super) fn run(
    serial: &mut Serial,
    tables: &mut [Table],
    epoch: &Epoch,
    out: &mut Sink,
    window: WindowId,
    edge: i64,
) {
    serial.advance(1);
    let program = serial.codes.program.clone();
    let owner = program.windows[window.index()].owner.index();
    out.round = out.derived.len() as u32;
    out.derived.push(DerivedEvent::Fired(window, edge, out.next));
    let cause = out.derived.len() as u32;
    out.fired = Some((window, edge, cause));
    let (event, stamp) = (firing::event_of_slide(window, edge), firing::stamp(window, edge));
    let moment = Moment::at(epoch, stamp.clone(), owner);
    let perform = |tables: &dyn Rows, is_quiet: bool| -> Result<Effects, Abort> {
        let mut tx = General::new(&program, tables, owner, &moment);
        tx.function(|tx| tx.slide_in_time(window, is_quiet))?;
        Ok(tx.effects())
    };
    let result = serial.call(event, out, || perform(&&*tables, false));
    if serial.is_compared() && !is_overdue(&result) {
        let again = perform(&&*tables, false);
        let same = match (&result, &again) {
            (Ok(a), Ok(b)) => a.same_outcome(b),
            (Err(a), Err(b)) => a == b,
            _ => false,
        };
        if !same && !is_overdue(&again) {
            out.unstable.push(Unstable { handler: owner, stamp });
        }
    }
    if serial.commands.is_on() {
        let result = result.as_ref().map(|effects| (effects, &[][..]));
        let outcome_hash = command::hash(result, tables, serial.seq());
        let who = Owner::Window(window.index());
        command::note(serial, out, || Command {
            event,
            who,
            cause: 0,
            given: Vec::new(),
            outcome_hash,
        });
    }
    let effects = match result {
        Ok(effects) => {
            out.counts[owner].committed += 1;
            effects
        }
        Err(abort) => {
            out.counts[owner].aborted += 1;
            out.note_fault(epoch, Origin::new(NO_ROOT, cause, owner), &abort);
            let before = out.next as usize;
            out.aborted_slides.push(AbortedSlide { window, ends_us: edge, abort, before });
            perform(&&*tables, true).expect("a slide without triggers can't abort")
        }
    };
    effects.apply(tables, serial.seq(), edge);
    let sum = out.written.entry(owner).or_default();
    *sum = sum.wrapping_add(effects.written_hash(tables, serial.seq()));
    let origin = Origin::new(NO_ROOT, cause, owner);
    for (ordinal, (stream, row)) in effects.emitted.iter().enumerate() {
        let origin = origin.output(ordinal as u32);
        out.builders[stream.index()].push(row, origin);
        if serial.codes.consumed[stream.index()] {
            cascade(serial, tables, epoch, out, (*stream, row), origin, &[]);
        }
    }
    match serial.commands.are_followed() {
        true => command::follow_cause(serial, tables, epoch, out, NO_ROOT, 0),
        false => serial.turns(tables, epoch, NO_ROOT, out),
    }
    out.fired = None;
}
