//! Appending outputs in stamp order, and counting transactions.

use std::slice::Iter;

use tidemill_table::Seq;

use super::natives::Log;
use super::post::{Item, Posted};
use super::unit::{Step, Unit};
use super::view::{Extra, View};
use super::work::Work;
use crate::execute::output::{DerivedEvent, Origin};
use crate::execute::segment::Reason;
use crate::execute::serial::{Serial, Unstable};
use crate::execute::sink::Sink;
use crate::program::Body;

/// The destination of a graph's outcome.
pub(crate) struct Appending<'a, 'w> {
    pub(crate) work: &'w Work<'a>,
    pub(crate) extra: &'w Extra,
    pub(crate) logs: &'w [Log],
    pub(crate) serial: &'w mut Serial,
    pub(crate) out: &'w mut Sink,
    /// The number of each transaction.
    pub(crate) numbers: Vec<Seq>,
}

impl Appending<'_, '_> {
    fn handler(&self, txn: u32) -> usize {
        self.work.stretch.handler(txn as usize)
    }

    fn origin(&self, txn: u32) -> Origin {
        Origin::new((self.work.stretch.from + txn as usize) as u32, 0, self.handler(txn))
    }

    fn begin(&mut self) {
        self.serial.advance(1);
        self.numbers.push(self.serial.seq());
    }

    fn commit(&mut self, txn: u32) {
        self.begin();
        let handler = self.handler(txn);
        self.out.counts[handler].committed += 1;
    }

    fn abort(&mut self, txn: u32, reason: Reason) {
        self.begin();
        let (handler, origin) = (self.handler(txn), self.origin(txn));
        self.out.counts[handler].aborted += 1;
        let aborted = self.work.program.handlers[handler].aborted;
        self.out.builders[aborted.index()].note_abort(origin, reason);
    }

    /// Appends the outcome of transactions, up to one that the general path must decide. Returns
    /// that one.
    pub(crate) fn append(&mut self, posted: &Posted) -> Option<u32> {
        let logs = self.logs;
        let mut words = &posted.words[..];
        for item in &posted.items {
            match *item {
                Item::Commits(txn) => self.commit(txn),
                Item::Emits { txn, stream, ordinal, width } => {
                    let (event, rest) = words.split_at(width as usize);
                    words = rest;
                    let origin = self.origin(txn).output(ordinal);
                    let builder = &mut self.out.builders[usize::from(stream)];
                    builder.push_words(origin, event.len(), |column| event[column]);
                }
                Item::Aborts(txn, reason) => self.abort(txn, Reason::Number(reason)),
                Item::Refuses { txn, thread, at } => {
                    self.abort(txn, Reason::Text(logs[usize::from(thread)].reason(at as usize)));
                }
                Item::Unit(txn) => {
                    let unit = self.work.unit(txn).expect("it has been run");
                    let first = self.serial.seq() + 1;
                    self.numbers.push(first);
                    self.compare(txn, &unit);
                    let (origin, mut steps) = (self.origin(txn), unit.steps.iter());
                    self.replay(&mut steps, origin);
                }
                Item::Trap(txn) => return Some(txn),
            }
        }
        None
    }

    /// Appends the next transaction of a unit, with its cascade.
    fn replay(&mut self, steps: &mut Iter<'_, Step>, origin: Origin) {
        self.serial.advance(1);
        let (program, seq) = (self.work.program, self.serial.seq());
        let step = steps.next().expect("a transaction for everybody who takes an event");
        match &step.result {
            Ok(effects) => {
                self.out.counts[step.handler].committed += 1;
                if let Body::Opaque(_) = program.handlers[step.handler].body {
                    let sum = self.out.written.entry(step.handler).or_default();
                    *sum = sum.wrapping_add(effects.written_hash(&[], seq));
                }
            }
            Err(_) => {
                self.out.counts[step.handler].aborted += 1;
                if let Some(fault) = &step.fault {
                    self.out.note_fault(self.work.stretch.epoch, origin, fault);
                }
            }
        }
        for (ordinal, (stream, row)) in step.emitted(program).enumerate() {
            let origin = origin.output(ordinal as u32);
            self.out.builders[stream.index()].push(row, origin);
            let mut taking = program.handlers_on(stream).peekable();
            if taking.peek().is_none() {
                continue;
            }
            self.out.derived.push(DerivedEvent::Emitted(origin));
            let cause = self.out.derived.len() as u32;
            for handler in taking {
                self.replay(steps, Origin::new(origin.root(), cause, handler));
            }
        }
    }

    /// Runs a unit again if it is the turn of one of its functions to be compared.
    fn compare(&mut self, txn: u32, unit: &Unit) {
        let work = self.work;
        let is_opaque =
            |step: &&Step| matches!(work.program.handlers[step.handler].body, Body::Opaque(_));
        let calls = unit.steps.iter().filter(is_opaque).count();
        let due: Vec<bool> = (0..calls).map(|_| self.serial.is_compared()).collect();
        if !due.contains(&true) {
            return;
        }
        let at = work.graph.vertex(work.graph.operations(txn).start);
        // Everything is settled. So the work of this run is no reason any more to give up the
        // graph.
        let view = View { is_bounded: false, ..View::new(work, at, Some(self.extra)) };
        let again = work.run_unit(at, &view);
        let functions = unit.steps.iter().enumerate().filter(|(_, step)| is_opaque(step));
        for ((number, step), _) in functions.zip(due).filter(|(_, due)| *due) {
            let is_same = again.steps.get(number).is_some_and(|again| step.is_same(again));
            if !is_same {
                let ranked = work.stretch.epoch.order[work.stretch.from + txn as usize];
                let stamp = work.stretch.epoch.stamp(ranked);
                self.out.unstable.push(Unstable { handler: step.handler, stamp });
            }
        }
    }
}
