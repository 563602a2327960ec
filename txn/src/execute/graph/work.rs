//! Execution of operations: their input rows, their results, and the notification of readers of a
//! change.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidemill_core::{Key, TableId};
use tidemill_table::Table;

use super::branch::Branches;
use super::hint::Seen;
use super::natives::Frames;
use super::plan::{Stretch, UNIT};
use super::shape::{Kind, Part, Shape, FLAGS_WORDS, PASSES, POISON, PRESENT, WRITTEN};
use super::state::States;
use super::unit::{Ran, Unit};
use super::view::{Missed, View};
use crate::execute::words::{Frame, Stop, WordCode};
use crate::execute::work::{self, Budget, Usual};
use crate::plan::graph::{Graph, Lists, RowPlace, Vertex};
use crate::program::{Moment, Program};
use crate::schedule::Walk;

/// The columns of each lane's events. A column that is not of words is empty.
pub(crate) type LaneColumns<'a> = Vec<Vec<&'a [u64]>>;

/// A graph that is being executed. The tables do not change: new versions are in the graph.
pub(crate) struct Work<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) shapes: &'a [Option<Shape>],
    pub(crate) program: &'a Program,
    pub(crate) tables: &'a [Table],
    pub(crate) stretch: Stretch<'a>,
    pub(crate) lists: &'a [Lists],
    pub(crate) states: &'a States,
    /// The versions. Relaxed order is enough, because a thread that may have read too early is
    /// notified.
    pub(crate) words: &'a [AtomicU64],
    /// The note of each transaction's closure: see [`super::natives`].
    pub(crate) notes: &'a [AtomicU64],
    /// The outcome of each transaction that was run on the general path. Empty if transactions are
    /// sliced.
    pub(crate) units: &'a [Mutex<Option<Ran>>],
    /// The versions of rows over which windows were read.
    pub(crate) branches: &'a Branches,
    /// The budget of the whole graph. Once it is spent, nothing more is executed.
    pub(crate) budget: &'a Budget,
    /// Whether each transaction is one operation.
    pub(crate) is_whole: bool,
    /// Whether aborts are handled at once, and not put aside.
    pub(crate) at_once: bool,
}

/// The working data of one thread.
pub(crate) struct Hand<'a> {
    pub(crate) thread: usize,
    /// The registers, by handler.
    pub(crate) frames: Vec<Frame>,
    /// The operations to be executed again, in stamp order.
    again: BinaryHeap<Reverse<u32>>,
    /// The operations that were put aside.
    aside: Vec<u32>,
    /// The transactions that have missed, and why.
    pub(crate) missed: Vec<(u32, Missed)>,
    pub(crate) natives: Frames<'a>,
    /// The counted work since the budget was last charged.
    work: u64,
}

/// The counted work after which the budget is charged.
const CHARGE_EVERY: u64 = 256;

impl Hand<'_> {
    pub(crate) fn new(thread: usize, shapes: &[Option<Shape>]) -> Self {
        let frame = |shape: &Option<Shape>| {
            let mut frame = [0; 256];
            if let Some(Shape { kind: Kind::Words(code), .. }) = shape {
                code.prepare(&mut frame);
            }
            frame
        };
        Hand {
            thread,
            frames: shapes.iter().map(frame).collect(),
            again: BinaryHeap::new(),
            aside: Vec::new(),
            missed: Vec::new(),
            natives: Frames::default(),
            work: 0,
        }
    }

    /// Charges the budget with the work so far.
    pub(crate) fn spend(&mut self, budget: &Budget) {
        budget.spend(std::mem::take(&mut self.work));
    }
}

/// The columns of a row as an operation sees them.
#[derive(Clone, Copy)]
pub(crate) enum Columns<'a> {
    Version(&'a [AtomicU64]),
    Slot(&'a [u64]),
}

impl Columns<'_> {
    #[inline(always)]
    pub(crate) fn word(&self, at: usize) -> u64 {
        match self {
            Columns::Version(words) => words[at].load(Ordering::Relaxed),
            Columns::Slot(words) => words[at],
        }
    }
}

/// A row as an operation sees it.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) columns: Columns<'a>,
    /// Whether the row exists. If not, its columns have their defaults.
    pub(crate) is_present: bool,
}

impl<'a> Work<'a> {
    pub(crate) fn shape(&self, vertex: Vertex) -> &'a Shape {
        let shape = self.shapes[usize::from(vertex.handler)].as_ref();
        shape.expect("only handlers with a shape are in graphs")
    }

    /// Returns the columns of the transaction's event, and its row there.
    #[inline(always)]
    pub(crate) fn event(&self, txn: u32) -> (&'a [&'a [u64]], usize) {
        let ranked = self.stretch.epoch.order[self.stretch.from + txn as usize];
        (&self.stretch.columns[ranked.lane as usize], ranked.row as usize)
    }

    /// Returns the row of an access as it was before its transaction.
    ///
    /// Returns `None` if the row is not known yet, or if it is missing and a column has no default.
    #[inline(always)]
    pub(crate) fn find(&self, access: u32, table: usize) -> Option<Found<'a>> {
        let table = &self.tables[table];
        let missing = || {
            let columns = Columns::Slot(table.missing()?);
            Some(Found { columns, is_present: false })
        };
        let mut from = self.graph.access(access).from();
        loop {
            match from {
                RowPlace::Access(before) | RowPlace::Same(before) => {
                    let before_access = self.graph.access(before);
                    let is_write = matches!(from, RowPlace::Access(_));
                    let txn = self.graph.vertex(before_access.vertex()).txn;
                    if !is_write || self.states.is_aborted(txn) {
                        from = before_access.from();
                        continue;
                    }
                    let words = &self.words[before_access.at as usize..];
                    let flags = words[0].load(Ordering::Relaxed);
                    if flags & PRESENT == 0 {
                        match flags & (PASSES | POISON) {
                            0 => return missing(),
                            PASSES => from = before_access.from(),
                            _ => return None,
                        }
                        continue;
                    }
                    let words = &words[FLAGS_WORDS..FLAGS_WORDS + table.layout().body_words()];
                    return Some(Found { columns: Columns::Version(words), is_present: true });
                }
                RowPlace::Slot(slot) => {
                    let base = slot as usize * table.layout().slot_words();
                    if !table.is_present(base) {
                        return missing();
                    }
                    return Some(Found {
                        columns: Columns::Slot(table.body(base)),
                        is_present: true,
                    });
                }
                RowPlace::Missing => return missing(),
            }
        }
    }

    /// Loads the event columns that some code uses.
    #[inline(always)]
    pub(crate) fn load_event(&self, code: &WordCode, txn: u32, frame: &mut Frame) {
        let (columns, row) = self.event(txn);
        for (column, register) in &code.columns {
            frame[usize::from(*register)] = columns[usize::from(*column)][row];
        }
    }

    /// Computes an operation of compiled code. Returns whether its version has changed, or why it
    /// stops.
    fn compute(
        &self,
        at: Vertex,
        part: &Part,
        code: &WordCode,
        frame: &mut Frame,
    ) -> Result<bool, Stop> {
        let shape = self.shape(at);
        self.load_event(code, at.txn, frame);
        let find = |access: usize| {
            let (table, _) = shape.rows[usize::from(part.touches[access].row)];
            let found = self.find(at.access + access as u32, table);
            // If the result depends on missing rows, the general path must decide.
            found.filter(|found| found.is_present || !code.asks).ok_or(Stop::Trap)
        };
        const NEAR: usize = 4;
        let mut near: [Option<Found<'_>>; NEAR] = [None; NEAR];
        for (near, access) in near.iter_mut().zip(0..part.touches.len()) {
            *near = Some(find(access)?);
        }
        if code.asks {
            (NEAR..part.touches.len()).try_for_each(|access| find(access).map(|_| ()))?;
        }
        let found = |access: usize| match access < NEAR {
            true => near[access].ok_or(Stop::Trap),
            false => find(access),
        };
        for load in &part.loads {
            let row = found(usize::from(load.access))?;
            frame[usize::from(load.register)] = row.columns.word(usize::from(load.word));
        }
        code.run(frame)?;
        let mut changed = false;
        let mut stores = &part.stores[..];
        for (access, touch) in part.touches.iter().enumerate().take_while(|(_, t)| t.words > 0) {
            let row = found(access)?;
            let version = &self.words[self.graph.access(at.access + access as u32).at as usize..];
            let mut set = |at: usize, word: u64| {
                changed |= version[at].load(Ordering::Relaxed) != word;
                version[at].store(word, Ordering::Relaxed);
            };
            set(0, PRESENT | WRITTEN);
            for word in 0..touch.words as usize - FLAGS_WORDS {
                // Stores are in the order of rows and words.
                let stored = stores.first().filter(|store| {
                    (usize::from(store.access), usize::from(store.word)) == (access, word)
                });
                let value = match stored {
                    Some(store) => {
                        stores = &stores[1..];
                        frame[usize::from(store.register)]
                    }
                    None => row.columns.word(word),
                };
                set(FLAGS_WORDS + word, value);
            }
        }
        Ok(changed)
    }

    /// Marks all readers of an operation's writes to be executed again, if they were executed
    /// already.
    fn notify_readers(&self, vertex: u32, hand: &mut Hand<'_>) {
        let stands = |write: &crate::plan::graph::Access| {
            !self.states.is_aborted(self.graph.vertex(write.vertex()).txn)
        };
        for access in self.graph.accesses_of(vertex) {
            if !self.graph.access(access).writes() {
                return;
            }
            self.graph.after(access, stands, |next| {
                let next = self.graph.access(next).vertex();
                if self.states.again(next) {
                    match self.at_once {
                        true => hand.again.push(Reverse(next)),
                        false => hand.aside.push(next),
                    }
                }
            });
        }
    }

    /// Executes an operation until it has seen the newest input.
    fn run(&self, vertex: u32, hand: &mut Hand<'a>) {
        let at = self.graph.vertex(vertex);
        if self.budget.is_over(hand.work) {
            return self.leave(vertex);
        }
        if hand.work > CHARGE_EVERY && self.budget.has_end() {
            hand.spend(self.budget);
        }
        if at.part == UNIT {
            self.states.begin(vertex);
            self.unit_at(at, hand);
            // All its input is there. A notification that it has changed would be too late.
            while !self.states.end(vertex) {
                self.states.begin(vertex);
            }
            return;
        }
        let shape = self.shape(at);
        let part = &shape.parts[usize::from(at.part)];
        let is_first = self.states.begin(vertex);
        loop {
            let rows = self.graph.accesses_of(vertex);
            hand.work += work::TRANSACTION + work::ROW * rows.len() as u64;
            let computed = match (&part.code, &shape.kind) {
                (Some(code), _) => {
                    self.compute(at, part, code, &mut hand.frames[usize::from(at.handler)])
                }
                (None, Kind::Native(code, body, _)) => {
                    self.native(at, shape, code, &**body, hand).map(|()| true)
                }
                (None, Kind::Words(_)) => unreachable!("compiled parts have code"),
            };
            // All its input is there, so the general path may decide here.
            let computed = match computed {
                Err(Stop::Trap) if self.is_whole => {
                    self.unit_at(at, hand);
                    Ok(true)
                }
                computed => computed,
            };
            let (changed, fails) = (computed == Ok(true), computed.is_err());
            let is_overturned = self.states.stop(vertex, at.txn, fails);
            if is_overturned {
                // The head of the transaction handles all of it.
                for sibling in self.graph.operations(at.txn) {
                    self.notify_readers(sibling, hand);
                }
            } else if changed && !is_first {
                // No reader begins before this operation has been executed for the first time. The
                // fence is as in `States::stop`.
                fence(Ordering::SeqCst);
                self.notify_readers(vertex, hand);
            }
            if self.states.end(vertex) {
                return;
            }
            self.states.begin(vertex);
        }
    }
}

impl<'a> Work<'a> {
    /// Skips an operation of a graph that will be thrown away. Its dependents need not wait, and
    /// find nothing there.
    fn leave(&self, vertex: u32) {
        for access in self.graph.accesses_of(vertex).map(|access| self.graph.access(access)) {
            if access.writes() {
                self.words[access.at as usize].store(POISON, Ordering::Relaxed);
            }
        }
        self.states.begin(vertex);
        while !self.states.end(vertex) {
            self.states.begin(vertex);
        }
    }

    /// Returns the counted work that the first `until` transactions would have taken in serial
    /// execution. It also updates the usual work.
    pub(crate) fn taken(&self, until: u32, known: &[Option<u64>], usual: &mut Usual) -> u64 {
        let mut all = 0;
        for txn in 0..until {
            let handler = self.stretch.handler(txn as usize);
            match (known[handler], self.unit(txn)) {
                (None, Some(unit)) => {
                    usual.learn(handler, 1, unit.work);
                    all += unit.work;
                }
                (known, _) => all += known.unwrap_or(0),
            }
        }
        all
    }

    /// Runs a transaction on the general path, as a unit.
    fn unit_at(&self, at: Vertex, hand: &mut Hand<'a>) {
        let view = View::new(self, at, None);
        if let Some((unit, ranges)) = view.found() {
            hand.work += view.steps.get();
            self.publish(at, Some(unit));
            let ran = Ran { unit: unit.clone(), rows: Vec::new(), ranges: ranges.to_vec() };
            *self.units[at.txn as usize].lock().expect("no thread has panicked here") = Some(ran);
            return;
        }
        // A panic on rows that the function would never see does not count. It counts only if the
        // final run has it, too.
        let unit = catch_unwind(AssertUnwindSafe(|| self.run_unit(at, &view)));
        hand.work += view.steps.get() + unit.as_ref().map_or(0, |unit| unit.work);
        let unit = unit.ok().filter(|_| view.missed.get().is_none());
        let mut writes: Vec<_> = self.writes(at).into_iter().map(|(_, row)| row).collect();
        writes.sort_unstable();
        let is_expected = |row: &(TableId, Key)| writes.binary_search(row).is_ok();
        let unit = unit.filter(|unit| unit.written().all(is_expected));
        self.publish(at, unit.as_ref());
        match unit {
            Some(unit) => {
                let Seen { rows, ranges } = view.seen;
                let (rows, ranges) = (rows.into_inner(), ranges.into_inner());
                let ran = Ran { unit: Arc::new(unit), rows, ranges };
                *self.units[at.txn as usize].lock().expect("no thread has panicked here") =
                    Some(ran);
            }
            None => hand.missed.push((at.txn, view.missed.get().unwrap_or(Missed::Itself))),
        }
    }

    /// Runs a transaction on the general path with everything that it triggers.
    pub(crate) fn run_unit(&self, at: Vertex, view: &View<'_, 'a>) -> Unit {
        let epoch = self.stretch.epoch;
        let ranked = epoch.order[self.stretch.from + at.txn as usize];
        let run = epoch.lanes[ranked.lane as usize].run;
        let event = epoch.runs[run as usize].batch.row(ranked.row as usize);
        Unit::run(self.program, view, &event, &Moment::of(epoch, ranked))
    }
}

impl<'a> Walk for Work<'a> {
    type Hand = Hand<'a>;

    #[inline]
    fn execute(&self, vertex: u32, hand: &mut Hand<'a>) {
        self.run(vertex, hand);
        while let Some(Reverse(vertex)) = hand.again.pop() {
            self.run(vertex, hand);
        }
    }

    #[inline]
    fn prefetch(&self, vertex: u32) {
        let at = self.graph.vertex(vertex);
        if at.part == UNIT {
            return;
        }
        let part = &self.shape(at).parts[usize::from(at.part)];
        for (access, touch) in (at.access..).zip(&part.touches) {
            let access = self.graph.access(access);
            match access.from() {
                RowPlace::Slot(slot) => {
                    let (table, _) = self.shape(at).rows[usize::from(touch.row)];
                    let table = &self.tables[table];
                    table.prefetch_at(slot as usize * table.layout().slot_words());
                }
                RowPlace::Access(before) => {
                    let before = self.graph.access(before).at as usize;
                    tidemill_table::prefetch_address(&raw const self.words[before]);
                }
                RowPlace::Missing | RowPlace::Same(_) => {}
            }
            if touch.words > 0 {
                tidemill_table::prefetch_address(&raw const self.words[access.at as usize]);
            }
        }
    }

    #[inline(always)]
    fn is_executed(&self, vertex: u32) -> bool {
        self.states.is_executed(vertex)
    }

    fn redo(&self, hand: &mut Hand<'a>) {
        loop {
            hand.again.extend(hand.aside.drain(..).map(Reverse));
            let Some(Reverse(vertex)) = hand.again.pop() else { return };
            self.run(vertex, hand);
        }
    }

    fn aside(&self, hand: &Hand<'a>) -> usize {
        hand.aside.len()
    }
}
