//! The expected accesses of units, which give them their places in the graph.
//!
//! For some units, the keys are in the event. All others are *discovered*: they first run on the
//! committed state, and their accesses there are taken as a hint. If no earlier transaction of the
//! graph has written these rows when their turn comes, the result of this run counts, and they do
//! not run again.
//!
//! It is only a hint: accesses beyond it are settled in the end (see [`super::settle`]). If that
//! happens too often, units wait for all earlier ones instead ([`Trust`]).

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};

use tidemill_core::{encode, DataType, Key, Row, TableId, Value};
use tidemill_table::{Layout, Table};

use super::shape::FLAGS_WORDS;
use super::unit::Unit;
use crate::execute::general::{ordered, Holder, Keys, Rows, Unsettled};
use crate::execute::work::{self, Budget};
use crate::plan::graph::Size;
use crate::program::{evaluate, key_value, Block, Body, ExprId, Footprint, Moment, Op, Program};

/// A range of keys of a table. An empty `to` is no bound.
#[derive(Clone, Debug)]
pub(crate) struct KeyRange {
    pub(crate) table: TableId,
    pub(crate) from: Key,
    pub(crate) to: Key,
}

impl KeyRange {
    pub(crate) fn has(&self, table: TableId, key: &Key) -> bool {
        self.table == table && *key >= self.from && (self.to.0.is_empty() || *key < self.to)
    }
}

/// The reads of a run.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) rows: RefCell<Vec<(TableId, Key)>>,
    pub(crate) ranges: RefCell<Vec<KeyRange>>,
}

impl Seen {
    /// Records a range while its keys are read. Only the keys that the reader takes count as seen.
    pub(crate) fn keys<'a>(
        &'a self,
        keys: Keys<'a>,
        table: TableId,
        (from, to): (&'a Key, &'a Key),
        reverse: bool,
    ) -> Keys<'a> {
        let (last, is_through) = (None, false);
        Box::new(Looking { seen: self, keys, table, from, to, reverse, last, is_through })
    }
}

/// Keys that are being read.
struct Looking<'a> {
    seen: &'a Seen,
    keys: Keys<'a>,
    table: TableId,
    from: &'a Key,
    to: &'a Key,
    reverse: bool,
    last: Option<Key>,
    is_through: bool,
}

impl<'a> Iterator for Looking<'a> {
    type Item = Cow<'a, Key>;

    fn next(&mut self) -> Option<Cow<'a, Key>> {
        let next = self.keys.next();
        match &next {
            Some(key) => self.last = Some(key.clone().into_owned()),
            None => self.is_through = true,
        }
        next
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut range =
            KeyRange { table: self.table, from: self.from.clone(), to: self.to.clone() };
        match self.last.take().filter(|_| !self.is_through) {
            // The last key itself is in the range.
            Some(last) if self.reverse => range.from = last,
            Some(last) => range.to = Key(last.0.iter().copied().chain([0]).collect()),
            None => {}
        }
        self.seen.ranges.borrow_mut().push(range);
    }
}

/// The committed state, and the reads of it.
struct Committed<'a> {
    tables: &'a [Table],
    seen: Seen,
    /// The budget, the steps so far, and whether they exceed it.
    budget: &'a Budget,
    steps: Cell<u64>,
    is_over: Cell<bool>,
}

impl Committed<'_> {
    fn count(&self) -> Result<(), Unsettled> {
        self.steps.set(self.steps.get() + work::ROW);
        self.is_over.set(self.is_over.get() || self.budget.is_over(self.steps.get()));
        if self.is_over.get() {
            Err(Unsettled)
        } else {
            Ok(())
        }
    }
}

impl Rows for Committed<'_> {
    fn row(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        self.count()?;
        self.seen.rows.borrow_mut().push((table, key.clone()));
        self.tables.row(table, key)
    }

    fn row_in_range(&self, table: TableId, key: &Key) -> Result<Option<Row>, Unsettled> {
        self.count()?;
        self.tables.row(table, key)
    }

    fn holder(&self, table: TableId, _: &Key, _: &[Value]) -> Result<Holder<'_>, Unsettled> {
        self.count()?;
        Ok(Holder::of(&self.tables[table.index()]))
    }

    fn is_unsettled(&self) -> bool {
        self.is_over.get()
    }

    fn keys<'a>(&'a self, table: TableId, from: &'a Key, to: &'a Key, reverse: bool) -> Keys<'a> {
        let keys = ordered(self.tables[table.index()].keys(from, to), reverse);
        self.seen.keys(keys, table, (from, to), reverse)
    }
}

/// A row that a unit is expected to use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Use {
    pub(crate) row: (TableId, Key),
    /// The number by which its list is found.
    pub(crate) id: u64,
}

/// The expected accesses of a unit.
#[derive(Clone, Default)]
pub(crate) struct Hint {
    /// The rows that it writes, and then the others. Both are sorted by table and key.
    pub(crate) uses: Vec<Use>,
    pub(crate) writes: usize,
    ranges: Vec<KeyRange>,
    /// The outcome of the discovery. It counts if no earlier transaction writes what it reads.
    found: Option<Arc<Unit>>,
}

impl Hint {
    fn new(rows: BTreeMap<(TableId, Key), bool>, ranges: Vec<KeyRange>) -> Hint {
        let (written, read): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, writes)| *writes);
        let writes = written.len();
        let uses = written.into_iter().chain(read).map(|(row, _)| Use { row, id: 0 }).collect();
        Hint { uses, writes, ranges, found: None }
    }

    /// Returns the outcome on the committed state, with the ranges that were read.
    pub(crate) fn found(&self) -> Option<(&Arc<Unit>, &[KeyRange])> {
        self.found.as_ref().map(|unit| (unit, &self.ranges[..]))
    }

    /// Returns the place of a row among the uses.
    pub(crate) fn find(&self, table: TableId, key: &Key) -> Option<usize> {
        let (written, read) = self.uses.split_at(self.writes);
        let find =
            |uses: &[Use]| uses.binary_search_by(|u| (u.row.0, &u.row.1).cmp(&(table, key))).ok();
        find(written).or_else(|| find(read).map(|at| at + self.writes))
    }

    /// Returns the unit's size in the graph.
    pub(crate) fn size(&self, tables: &[Table]) -> Size {
        let words = self.uses[..self.writes].iter().map(|u| words_of(&tables[u.row.0.index()]));
        Size { vertices: 1, accesses: self.uses.len() as u32, words: words.sum() }
    }

    /// Adds the rows that other transactions write in the unit's ranges to its reads.
    fn expand(&mut self, written: &[Vec<Key>]) {
        let others = self.ranges.iter().flat_map(|range| {
            let keys = in_range(&written[range.table.index()], &range.from, &range.to);
            let keys = keys.iter().filter(|key| self.find(range.table, key).is_none());
            keys.map(|key| Use { row: (range.table, key.clone()), id: 0 })
        });
        let mut more: Vec<Use> = others.take(EXPANDED_MAX + 1).collect();
        if more.len() > EXPANDED_MAX {
            more.truncate(EXPANDED_MAX);
            // It is not checked whether others write the rest.
            self.found = None;
        }
        self.uses.extend(more);
        self.uses[self.writes..].sort_by(|a, b| a.row.cmp(&b.row));
        self.uses.dedup();
    }
}

/// The most rows that the ranges of a unit may add to its dependencies. The rest is left to
/// settling.
const EXPANDED_MAX: usize = 1024;

/// Returns the keys in a range of a table, of rows in order.
pub(crate) fn keys_between<'k, V>(
    rows: &'k BTreeMap<(TableId, Key), V>,
    table: TableId,
    from: &Key,
    to: &Key,
) -> impl DoubleEndedIterator<Item = &'k Key> {
    use std::ops::Bound::{Excluded, Included};
    let end = match to.0.is_empty() {
        true => (TableId(table.0 + 1), Key::default()),
        false => (table, to.clone()),
    };
    let begin = (table, from.clone());
    // A `BTreeMap` panics on a range that ends before it begins.
    let rows = (begin < end).then(|| rows.range((Included(begin), Excluded(end))));
    rows.into_iter().flatten().map(|((_, key), _)| key)
}

/// Returns the keys in a range, from sorted keys.
pub(crate) fn in_range<'k>(keys: &'k [Key], from: &Key, to: &Key) -> &'k [Key] {
    let begin = keys.partition_point(|key| key < from);
    let end = match to.0.is_empty() {
        true => keys.len(),
        false => keys.partition_point(|key| key < to),
    };
    &keys[begin..end.max(begin)]
}

/// Whether the versions of a table's rows are words in the graph. Other versions are with the units
/// that write them.
pub(crate) fn is_words(table: &Table) -> bool {
    is_words_layout(table.layout(), table.spec())
}

pub(crate) fn is_words_layout(layout: &Layout, spec: &tidemill_core::TableSpec) -> bool {
    let is_float = spec.schema.columns[spec.key[0]].ty == DataType::Float;
    layout.word_key && layout.values == 0 && !is_float
}

/// Returns the number of words of a version in the graph.
pub(crate) fn words_of(table: &Table) -> u32 {
    let body = if is_words(table) { table.layout().body_words() } else { 0 };
    (FLAGS_WORDS + body) as u32
}

/// Returns the word of a key, in a table whose keys are words.
pub(crate) fn key_word(table: &Table, key: &Key) -> Option<u64> {
    let spec = table.spec();
    encode::decode_word(&spec.schema.columns[spec.key[0]].ty, &mut &key.0[..])?
}

/// The hints of the units of a graph.
#[derive(Default)]
pub(crate) struct Hints {
    /// The hints by transaction. A transaction without one is not a unit. Empty if there are no
    /// units.
    pub(crate) of: Vec<Option<Hint>>,
    /// The numbers of rows in tables whose keys are not words.
    ids: HashMap<(TableId, Key), u64, foldhash::fast::FixedState>,
    pub(crate) rows: Vec<(TableId, Key)>,
    /// The keys that are expected to be written, in order, by ordered table.
    pub(crate) written: OnceLock<Vec<Vec<Key>>>,
}

impl Hints {
    pub(crate) fn get(&self, txn: usize) -> Option<&Hint> {
        self.of.get(txn)?.as_ref()
    }

    /// Returns the number by which a row's list is found, if it can have a list.
    pub(crate) fn id(&self, tables: &[Table], row: &(TableId, Key)) -> Option<u64> {
        let table = &tables[row.0.index()];
        match is_words(table) {
            true => key_word(table, &row.1),
            false => self.ids.get(row).copied(),
        }
    }

    /// Whether any unit reads a range.
    pub(crate) fn have_ranges(&self) -> bool {
        self.of.iter().flatten().any(|hint| !hint.ranges.is_empty())
    }

    /// Adds the dependencies that follow from ranges.
    pub(crate) fn expand(&mut self, budget: &Budget) {
        let Some(written) = self.written.get() else { return };
        for hint in self.of.iter_mut().flatten().filter(|hint| !hint.ranges.is_empty()) {
            let before = hint.uses.len();
            hint.expand(written);
            budget.spend(work::STEP * (hint.uses.len() - before) as u64);
            if budget.is_over(0) {
                return;
            }
        }
    }

    /// Returns the counted work of planning.
    pub(crate) fn work(&self) -> u64 {
        let uses: usize = self.of.iter().flatten().map(|hint| hint.uses.len()).sum();
        work::STEP * (self.of.len() + uses) as u64
    }

    /// Numbers the rows, so that their lists can be found.
    pub(crate) fn number(&mut self, tables: &[Table]) {
        for used in self.of.iter_mut().flatten().flat_map(|hint| &mut hint.uses) {
            let table = &tables[used.row.0.index()];
            used.id = match is_words(table) {
                true => key_word(table, &used.row.1).expect("the encoding of a key"),
                false => *self.ids.entry(used.row.clone()).or_insert_with(|| {
                    self.rows.push(used.row.clone());
                    self.rows.len() as u64 - 1
                }),
            };
        }
    }
}

/// The source of the hints of a handler's units.
pub(crate) enum Source {
    /// The event has all keys: the expressions, and the table, key and kind of each access. A kind
    /// of `true` is a write.
    Event(Block, Vec<(TableId, Vec<ExprId>, bool)>),
    Discovery,
}

impl Source {
    /// Returns the source of a handler's hints.
    pub(crate) fn of(program: &Program, handler: usize) -> Source {
        let (spec, footprint) = (&program.handlers[handler], Footprint::of(program, handler));
        let is_taken = |stream| program.handlers_on(stream).next().is_some();
        let (exprs, emits) = match &spec.body {
            Body::Declared(declared) => {
                let stream = |step: &crate::program::Step| match step.op {
                    Op::Emit { stream, .. } => Some(stream),
                    _ => None,
                };
                (&declared.exprs, declared.steps.iter().filter_map(stream).any(is_taken))
            }
            Body::Native(native) => {
                let native = &program.natives[*native];
                (&native.exprs, native.emits.iter().copied().any(is_taken))
            }
            Body::Opaque(_) => return Source::Discovery,
        };
        let is_known = footprint.is_known() && footprint.ranges.is_empty();
        if !is_known || emits || is_taken(spec.aborted) {
            return Source::Discovery;
        }
        let rows = footprint.rows.into_iter().map(|row| (row.table, row.key, row.access.writes));
        Source::Event(exprs.clone(), rows.collect())
    }

    /// Returns the expected accesses of an event's unit.
    pub(crate) fn hint(
        &self,
        program: &Program,
        tables: &[Table],
        event: &[Value],
        moment: &Moment<'_>,
        budget: &Budget,
    ) -> Hint {
        let mut rows = BTreeMap::new();
        if let Source::Event(exprs, keys) = self {
            for (table, key, writes) in keys {
                let spec = &program.tables[table.index()];
                let value = |id: &ExprId| key_value(evaluate(exprs, *id, event).ok()?, spec).ok();
                // An expression that can't be computed would abort the transaction when it runs.
                let Some(key) = key.iter().map(value).collect::<Option<Vec<Value>>>() else {
                    continue;
                };
                *rows.entry((*table, Key::of(&key))).or_insert(false) |= writes;
            }
            return Hint::new(rows, Vec::new());
        }
        let (steps, is_over) = (Cell::new(0), Cell::new(false));
        let committed = Committed { tables, seen: Seen::default(), budget, steps, is_over };
        let run = || Unit::run(program, &committed, event, moment);
        // A function that panics here may succeed when its turn comes.
        let (unit, is_whole) = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(unit) => (unit, true),
            Err(_) => (Unit::default(), false),
        };
        let Committed { seen, steps, is_over, .. } = committed;
        budget.spend(unit.work.max(steps.get()));
        // The result of a run that was cut short does not count.
        let is_whole = is_whole && !is_over.get();
        // A transaction that aborts would have written some of the rows that it has read, if it had
        // continued.
        let aborts = |table: TableId| {
            let mut aborted = unit.steps.iter().filter(|step| step.result.is_err());
            aborted.any(|step| Footprint::of(program, step.handler).touches(table).1)
        };
        for row in seen.rows.into_inner() {
            let may_write = aborts(row.0);
            rows.insert(row, may_write);
        }
        rows.extend(unit.written().map(|row| (row.clone(), true)));
        let found = is_whole.then(|| Arc::new(unit));
        Hint { found, ..Hint::new(rows, seen.ranges.into_inner()) }
    }
}

/// The reliability of a handler's discoveries, from their results so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trust {
    tried: u32,
    missed: u32,
}

impl Trust {
    /// Whether to discover, instead of waiting for all earlier transactions. That is expected to be
    /// cheaper as long as less than a quarter of discoveries miss.
    pub(crate) fn is_there(&self) -> bool {
        self.missed * 4 <= self.tried + ENOUGH
    }

    pub(crate) fn learn(&mut self, tried: usize, missed: usize) {
        self.tried += tried as u32;
        self.missed += missed as u32;
        if self.tried > FORGET {
            (self.tried, self.missed) = (self.tried / 2, self.missed / 2);
        }
    }

    /// Forgets some misses after an epoch without discoveries, so that they are tried again in
    /// time.
    pub(crate) fn forget(&mut self) {
        self.missed -= self.missed.div_ceil(16);
    }
}

/// The number of discoveries before which their reliability is unknown.
const ENOUGH: u32 = 64;
/// The number of discoveries after which older ones count half.
const FORGET: u32 = 4096;
