//! Executing cuts.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;
use tidemill_core::{Batch, Key, Late, LateRow, Row, StreamId, TableId};
use tidemill_function::{
    Call, Clock, ColumnOutcome, ColumnOutput, ColumnPlan, Counts, Event, EventPlace, Fault,
    Functions, HandlerEvents, Message, Node, NodeId, Outbox, Question, Rows, Sequencing, Stored,
    Tid,
};
use tidemill_txn::order::Newest;

use super::careful::{first_part, Verdicts};
use super::known::Known;
use super::letters::Letters;
use super::outputs::Held;
use super::ranks::Ranks;
use super::read::{Before, Item, Items, ManyEvents, Read, Task};
use super::save::Saving;
use super::{Stage, Worker};
use crate::effect::{Address, CutPlan, Effect, Packet, Piece, Span};
use crate::event_time::{EventSource, RankReport};
use crate::records::{Buffered, CutRecord, Emitted, Form, Output, Record, RequestId};
use crate::Settings;

/// The place of the event that reports a request's result: after all events of its transaction.
pub(super) const LAST: u32 = u32::MAX;
/// The approximate number of pieces with events in event time that an epoch takes of a source.
const PIECES: u64 = 4;

/// A source that this worker reads.
pub(super) struct Source {
    /// Its number.
    source: u32,
    /// The requests and events that no epoch has taken yet.
    pub items: Items,
    /// The end of the records that epochs have taken.
    pub taken: u64,
    /// The end of the records that have been read.
    pub upto: u64,
    /// The end of the source, once that has been read.
    ends_at: Option<u64>,
    /// The earlier events of each event source.
    before: Vec<Before>,
    pub is_asked: bool,
}

impl Source {
    /// Creates a source that is read from an offset on, given the newest time of each event source.
    pub fn new(source: u32, upto: u64, newest: Vec<Newest>) -> Source {
        let before = newest.into_iter().map(Before::new).collect();
        let items = Items::default();
        Source { source, items, taken: upto, upto, ends_at: None, before, is_asked: false }
    }

    /// Takes records that have been read. Returns the report for the coordinator.
    pub fn take(
        &mut self,
        records: Vec<(u64, Record)>,
        upto: u64,
        functions: &dyn Functions,
        settings: &Settings,
    ) -> Vec<Piece> {
        let (had, from) = (self.items.items.len(), self.upto);
        for (offset, record) in records {
            if record == Record::End {
                self.ends_at = Some(offset);
            }
            let Source { source, items, before, .. } = self;
            let record = (*source, offset, record);
            Read::items(record, from, &settings.event_time, functions, |item| match item {
                Item::Task(read) => items.push(Item::Task(read.known(before))),
                Item::Events(mut events) => {
                    if let Some(times) = &mut events.times {
                        before[times.event_source as usize].take_all(times);
                    }
                    items.push(Item::Events(events));
                }
            });
        }
        self.upto = upto.max(from);
        self.pieces(had, from, settings)
    }

    /// Returns all records that no epoch has taken, for a coordinator that may have missed some of
    /// them. Offsets without a request are included. Returns `None` if there are none.
    pub fn open(&self, settings: &Settings) -> Option<(u64, Vec<Piece>)> {
        (self.upto > self.taken).then(|| (self.taken, self.pieces(0, self.taken, settings)))
    }

    /// Takes everything before an offset.
    pub fn until(&mut self, upto: u64) -> Vec<Item> {
        self.taken = upto;
        std::iter::from_fn(|| self.items.next_before(upto)).collect()
    }

    /// Returns the pieces from the `nth` item on.
    fn pieces(&self, nth: usize, from: u64, settings: &Settings) -> Vec<Piece> {
        // Pieces with events in event time are not divided. So they are small enough that an epoch
        // takes several.
        let timed_max = (settings.epoch_max / PIECES).max(1);
        let timed_columns_max = (settings.columns_max / PIECES).max(1) as usize;
        let mut pieces: Vec<Piece> = Vec::new();
        // The number of requests of each offset of the last piece, if more such offsets may follow.
        let (mut at, mut run_each) = (from, None);
        let mut times: BTreeMap<u32, Span> = BTreeMap::new();
        let push = |pieces: &mut Vec<Piece>, end: u64, requests: u64| {
            pieces.push(Piece { end, requests, by_column: false, times: [].into() });
        };
        let mut items = self.items.items.range(nth..).peekable();
        while let Some(item) = items.next() {
            let offset = item.at();
            if offset > at {
                push(&mut pieces, offset, 0);
                run_each = None;
            }
            let read = match item {
                Item::Events(events) if events.times.is_some() => {
                    let times = events.times.as_ref().expect("it has them");
                    // The number of events that have an offset, and of those of a piece.
                    let (rows, each) = (events.batch.len(), events.each as usize);
                    let one = if events.is_run { 1 } else { rows };
                    let some = (timed_columns_max / each).max(1).next_multiple_of(one);
                    let of = &settings.event_time.sources()[times.event_source as usize];
                    // The events before one that ends the run are executed.
                    let ends = of.late == Late::Error && events.is_run;
                    let (mut late, mut begin) = (times.late.iter().peekable(), 0);
                    while begin < rows {
                        let mut end = rows.min(begin + some);
                        let first = late.peek().filter(|(row, _)| (*row as usize) < end);
                        let first = first.map(|(row, bound_us)| (*row as usize, *bound_us));
                        if let Some((row, _)) = first.filter(|(row, _)| ends && *row > begin) {
                            end = row;
                        }
                        let first = first.filter(|(row, _)| *row < end);
                        while late.next_if(|(row, _)| (*row as usize) < end).is_some() {}
                        let us = &times.us[begin..end];
                        at = if events.is_run {
                            at.max(offset) + us.len() as u64
                        } else {
                            offset + 1
                        };
                        let mut span = Span::of(times.event_source, us[0]);
                        us.iter().for_each(|us| span = span.with(*us));
                        span.late = first.map(|(row, bound_us)| {
                            let offset = if events.is_run { offset + row as u64 } else { offset };
                            LateRow { offset, time_us: times.us[row], bound_us }
                        });
                        begin = end;
                        let (requests, by_column) = ((us.len() * each) as u64, true);
                        pieces.push(Piece { end: at, requests, by_column, times: [span].into() });
                    }
                    run_each = None;
                    continue;
                }
                Item::Events(events) => {
                    at = events.end();
                    let each = if events.is_run { events.each } else { events.tasks() };
                    let is_one = !events.is_run && each > 1;
                    let is_alike = |run: &&mut Piece| run.by_column && run_each == Some(each);
                    match pieces.last_mut().filter(is_alike) {
                        Some(run) => (run.end, run.requests) = (at, run.requests + events.tasks()),
                        None => {
                            let requests = events.tasks();
                            let (by_column, times) = (true, [].into());
                            pieces.push(Piece { end: at, requests, by_column, times });
                        }
                    }
                    run_each = Some(each).filter(|_| !is_one);
                    continue;
                }
                Item::Task(read) => read,
            };
            let mut record = vec![read];
            while let Some(Item::Task(more)) =
                items.next_if(|next| matches!(next, Item::Task(of) if of.at.0 == offset))
            {
                record.push(more);
            }
            let count = record.len() as u64;
            at = offset + 1;
            let is_timed = record.iter().any(|read| read.timed.is_some());
            let has_room = |run: &&mut Piece| {
                run_each == Some(1)
                    && !run.by_column
                    && count == 1
                    && run.times.is_empty() != is_timed
                    && (!is_timed || run.requests < timed_max)
            };
            match pieces.last_mut().filter(has_room) {
                Some(run) => (run.end, run.requests) = (at, run.requests + 1),
                None => {
                    times.clear();
                    push(&mut pieces, at, count);
                }
            }
            if is_timed {
                for read in record {
                    let Some((event_source, time_us)) = read.timed else { continue };
                    let one = Span::of(event_source, time_us);
                    let span = times.entry(event_source).or_insert(one);
                    *span = span.with(time_us);
                    let late = |bound_us| LateRow { offset, time_us, bound_us };
                    span.late = span.late.or(read.late_us.map(late));
                }
                let last = pieces.last_mut().expect("it was pushed");
                last.times = times.values().copied().collect();
            }
            run_each = (count == 1).then_some(1);
        }
        if let Some(end) = self.ends_at.filter(|end| (at..self.upto).contains(end)) {
            if end > at {
                push(&mut pieces, end, 0);
            }
            at = end + 1;
            push(&mut pieces, at, 0);
            let last = pieces.last_mut().expect("it was pushed");
            last.times = settings.event_time.end_of(self.source).collect();
        }
        if self.upto > at {
            push(&mut pieces, self.upto, 0);
        }
        pieces
    }
}

/// Emitted events by stream: the transaction of each, its place in it, and the event.
pub(super) type EmittedRows = BTreeMap<StreamId, Vec<(u64, u32, Row)>>;

/// Events of an epoch that are executed by column, if nothing else is in the epoch.
pub(super) struct EventRun {
    /// The place of the first transaction of each event, ascending, and the distance of the places
    /// of the others.
    tids: Vec<u64>,
    step: u64,
    stream: StreamId,
    /// The number of transactions of each.
    each: u64,
    batch: Batch,
    /// The place that an event comes from, and the distance of each event to it. `None` means that
    /// they follow each other from there.
    from: Option<EventPlace>,
    rows: Option<Vec<u64>>,
}

impl EventRun {
    /// Creates it from events whose first transactions have these places.
    pub fn new(
        tids: Vec<u64>,
        step: u64,
        (stream, each): (StreamId, u64),
        batch: Batch,
        (from, rows): (Option<EventPlace>, Option<Vec<u64>>),
    ) -> EventRun {
        EventRun { tids, step, stream, each, batch, from, rows }
    }

    /// Returns all transactions, each with its place.
    #[cfg(test)]
    pub fn tasks(&self, functions: &dyn Functions) -> Vec<(Tid, Task)> {
        let places = (0..self.tids.len()).flat_map(|row| (0..self.each).map(move |nth| (row, nth)));
        let task = |(row, nth): (usize, u64)| {
            let tid = Tid(self.tids[row] + nth * self.step);
            let at = self.find(tid).expect("it is one of them");
            assert_eq!(at, (row, nth as usize));
            Some((tid, self.task(at, functions)?))
        };
        places.filter_map(task).collect()
    }

    /// Returns the event and the handler of a transaction, by its place, if it is one of these.
    fn find(&self, tid: Tid) -> Option<(usize, usize)> {
        (0..self.each).find_map(|handler| {
            let first = tid.0.checked_sub(handler * self.step)?;
            Some((self.tids.binary_search(&first).ok()?, handler as usize))
        })
    }

    /// Returns some of its events.
    fn slice(&self, rows: Range<usize>) -> EventRun {
        let from = match self.rows {
            None => self.from.as_ref().map(|from| from.after(rows.start as u64)),
            Some(_) => self.from.clone(),
        };
        EventRun {
            tids: self.tids[rows.clone()].to_vec(),
            batch: self.batch.slice(rows.start, rows.len()),
            from,
            rows: self.rows.as_ref().map(|all| all[rows.clone()].to_vec()),
            ..*self
        }
    }

    /// Divides it among parts: `nth` is the part of a transaction. Events with a judged transaction,
    /// and those with transactions in several parts, become tasks.
    pub fn divide(
        &self,
        nth: &dyn Fn(Tid) -> usize,
        is_judged: &dyn Fn(&Tid) -> bool,
        functions: &dyn Functions,
        parts: &mut [PartWork],
    ) {
        let tids = |row: usize| (0..self.each).map(move |of| Tid(self.tids[row] + of * self.step));
        let part = |row: usize| {
            let last = Tid(self.tids[row] + (self.each - 1) * self.step);
            let part = nth(Tid(self.tids[row]));
            (part == nth(last) && !tids(row).any(|tid| is_judged(&tid))).then_some(part)
        };
        let mut from = 0;
        while from < self.tids.len() {
            let Some(of) = part(from) else {
                for (handler, tid) in tids(from).enumerate() {
                    let task = self.task((from, handler), functions);
                    parts[nth(tid)].tasks.extend(task.map(|task| (tid, task)));
                }
                from += 1;
                continue;
            };
            let more = (from + 1..self.tids.len()).take_while(|row| part(*row) == Some(of)).count();
            parts[of].runs.push(self.slice(from..from + 1 + more));
            from += 1 + more;
        }
    }

    /// Returns the task of a transaction.
    fn task(&self, (row, handler): (usize, usize), functions: &dyn Functions) -> Option<Task> {
        let handler_of = *functions.by_column(self.stream)?.get(handler)?;
        Some(Task {
            id: RequestId::from([]),
            call: functions.handler_call(handler_of, &self.batch.row(row)),
            place: self.place(row),
            is_first: handler == 0,
        })
    }

    /// Returns the place that an event comes from.
    fn place(&self, row: usize) -> Option<EventPlace> {
        let distance = self.rows.as_ref().map_or(row as u64, |rows| rows[row]);
        self.from.as_ref().map(|from| from.after(distance))
    }
}

/// Returns the events of runs for each handler, with the places of its transactions.
fn by_handler(runs: &[EventRun], functions: &dyn Functions) -> Vec<HandlerEvents> {
    let mut all: BTreeMap<usize, Vec<(&EventRun, u64)>> = BTreeMap::new();
    for run in runs.iter().filter(|run| !run.tids.is_empty()) {
        let handlers = functions.by_column(run.stream).unwrap_or_default();
        for (place, handler) in (0..).zip(handlers) {
            all.entry(*handler).or_default().push((run, place * run.step));
        }
    }
    let mut found = Vec::new();
    for (handler, mut runs) in all {
        // Runs of one source follow each other, and so do their places. Those of other sources are
        // between them.
        runs.sort_by_key(|(run, more)| (run.tids[0] % run.step, run.tids[0] + more));
        let are_joined = |a: &(&EventRun, u64), b: &(&EventRun, u64)| {
            a.0.tids[a.0.tids.len() - 1] + a.1 < b.0.tids[0] + b.1
        };
        for joined in runs.chunk_by(are_joined) {
            let batches: Vec<&Batch> = joined.iter().map(|(run, _)| &run.batch).collect();
            let of_run = |(run, more): &(&EventRun, u64)| {
                let more = *more;
                run.tids.iter().map(move |first| first + more).collect::<Vec<u64>>()
            };
            let tids = joined.iter().flat_map(of_run).collect();
            let batch = match &batches[..] {
                [one] => (*one).clone(),
                _ => Batch::concat(&batches),
            };
            found.push(HandlerEvents { handler, tids, batch });
        }
    }
    found
}

/// The work of a part of an epoch.
#[derive(Default)]
pub(super) struct PartWork {
    pub tasks: Vec<(Tid, Task)>,
    pub runs: Vec<EventRun>,
}

/// The requests of a cut.
enum Coming {
    /// Some have not been read yet.
    Later,
    /// All have been read.
    All(Vec<PartWork>),
    /// There are more than the cut has places for.
    TooMany,
}

/// A generation that executes.
pub(super) struct Running {
    pub form: Arc<Form>,
    /// Its node.
    pub own: NodeId,
    pub node: Node,
    pub inputs: BTreeMap<u32, Source>,
    /// The buffered events, if streams are in event time.
    pub ranks: Option<Ranks>,
    /// The tasks that this worker received and that have not ended.
    open: HashMap<Tid, Task, FixedState>,
    /// The counts of those that have ended since the last epoch, and the first fault among them that
    /// no client learns of.
    counts: Counts,
    fault: Option<(Tid, Fault)>,
    /// Cuts to be executed.
    pub cuts: VecDeque<(Arc<CutRecord>, CutPlan)>,
    /// The cut that is being executed. `parts` has its parts that have not begun, each with its
    /// number.
    pub current: Option<(Arc<CutRecord>, CutPlan)>,
    pub parts: VecDeque<(u64, PartWork)>,
    /// The events of the part that runs.
    runs: Vec<EventRun>,
    /// The last epoch in the rows. `durable` is the last epoch whose cut is durable, and `released`
    /// the last one of these whose outputs may leave.
    pub executed: u64,
    pub durable: u64,
    pub released: u64,
    /// The last epoch that was recorded before this generation, once that is known.
    pub recorded: Option<u64>,
    /// Events that transactions of the epoch that runs have emitted.
    emitted: EmittedRows,
    /// The dead letters of derived streams in the next epoch. They leave with its last part: no output
    /// of a later transaction leaves before one that may have a verdict.
    letters: EmittedRows,
    /// Outputs that wait for their epoch to be released.
    pub held: VecDeque<(u64, Held)>,
    /// Questions to the outside that wait for the cuts of their epochs.
    pub questions: VecDeque<(u64, Question)>,
    /// Rows of outboxes that have changed since the last report, at first all of them, and those that
    /// the epoch that runs has changed. `tells_outbox` says whether there was a report.
    pub outbox: BTreeMap<(TableId, Key), Stored>,
    outbox_now: BTreeMap<(TableId, Key), Stored>,
    pub tells_outbox: bool,
    /// The rows of outboxes in the last report.
    pub outside: BTreeSet<(TableId, Key)>,
    /// The outputs that left before.
    pub known: Known,
    /// The number of outputs of each epoch that are being appended.
    pub appending: BTreeMap<u64, usize>,
    /// The end of the outputs of each source, as far as this worker knows.
    pub ends: Vec<u64>,
    /// For each source, an offset after the outputs that had left when it went back to the
    /// snapshot.
    pub loaded_ends: Vec<u64>,
    /// The bases after the epochs whose outputs may not have been appended completely.
    /// `reported_base` is the last base in a report to the coordinator.
    pub bases: VecDeque<(u64, u64)>,
    pub reported_base: Option<u64>,
    pub saving: Option<Saving>,
    pub verdicts: Verdicts,
    /// The last transaction whose output had left when it went back to the snapshot.
    pub left: Tid,
    /// The part of a careful epoch in the last report to the coordinator, and whether it has answered.
    pub trial: Option<(u64, u64, bool)>,
}

impl Running {
    pub fn new(
        form: Arc<Form>,
        node: NodeId,
        rows: Rows,
        known: Known,
        functions: Arc<dyn Functions>,
        settings: &Settings,
    ) -> Running {
        let manifest = form.manifest.clone();
        let of = |offsets: &[u64], source: u32| offsets.get(source as usize).copied().unwrap_or(0);
        let own = (0..settings.sources).filter(|s| form.assignment.reader(*s, settings) == node);
        let source = |source| {
            let upto = of(&manifest.inputs, source);
            let newest = settings.event_time.newest(&manifest.times);
            (source, Source::new(source, upto, newest))
        };
        let inputs = own.map(source).collect();
        let ends = (0..settings.sources).map(|source| of(&manifest.outputs, source)).collect();
        let owners = form.assignment.owners.clone();
        let left = known.last().unwrap_or(Tid(0));
        let mut outbox = BTreeMap::new();
        let (from, to) = (Key::of([]), Key::of([]).prefix_end());
        for &table in functions.outboxes() {
            rows.range(table, &from, &to, false, &mut |key, row| {
                outbox.insert((table, key.clone()), Some(row.clone()));
                true
            });
        }
        Running {
            node: Node::new(node, functions, owners, settings.function, rows),
            inputs,
            ranks: None,
            open: HashMap::default(),
            counts: Counts::default(),
            fault: None,
            cuts: VecDeque::new(),
            current: None,
            parts: VecDeque::new(),
            runs: Vec::new(),
            executed: manifest.epoch,
            durable: manifest.epoch,
            released: manifest.epoch,
            recorded: None,
            emitted: BTreeMap::new(),
            letters: BTreeMap::new(),
            held: VecDeque::new(),
            questions: VecDeque::new(),
            outbox,
            outbox_now: BTreeMap::new(),
            tells_outbox: false,
            outside: BTreeSet::new(),
            known,
            appending: BTreeMap::new(),
            ends,
            loaded_ends: Vec::new(),
            bases: VecDeque::new(),
            reported_base: None,
            saving: None,
            verdicts: Verdicts::default(),
            left,
            trial: None,
            own: node,
            form,
        }
    }

    /// Notes a fault that no client learns of.
    fn note_fault(&mut self, tid: Tid, fault: Fault) {
        let first = self.fault.take().filter(|(of, _)| *of <= tid);
        self.fault = first.or(Some((tid, fault)));
    }

    /// Returns the epoch of the last cut that has arrived.
    pub fn last_cut(&self) -> u64 {
        let waiting = self.cuts.back().or(self.current.as_ref());
        waiting.map_or(self.executed, |(cut, _)| cut.epoch)
    }

    /// Returns the buffered events, and the memory of tables.
    pub fn buffered(&self) -> Buffered {
        let buffered = self.ranks.as_ref().map_or_else(Buffered::default, Ranks::buffered);
        let tables = self.node.rows().tables().iter().map(|table| table.bytes() as u64).sum();
        Buffered { tables, ..buffered }
    }

    /// Takes the requests of a cut that this worker received, each with its place. If there are
    /// streams in event time, others must know of them first. Then `tells` gets the report for
    /// them.
    fn requests(
        &mut self,
        cut: &CutRecord,
        settings: &Settings,
        functions: &dyn Functions,
        tells: &mut Option<RankReport>,
    ) -> Coming {
        let sources = settings.sources;
        let order = Sequencing { sources, base: cut.base };
        let upto = |source: u32| cut.upto[source as usize];
        let mut letters = Letters::new(functions, order);
        if self.inputs.iter().any(|(&source, input)| input.upto < upto(source)) {
            return Coming::Later;
        }
        let parts = match &mut self.ranks {
            None => {
                let mut part = PartWork::default();
                for (&source, input) in &mut self.inputs {
                    let own = input.until(upto(source));
                    if own.iter().map(Item::tasks).sum::<u64>() > cut.count {
                        return Coming::TooMany;
                    }
                    letters.add(source, &own);
                    let mut nth = 0;
                    for item in own {
                        let (tid, tasks) = (order.tid(source, nth), item.tasks());
                        match item {
                            Item::Task(read) => part.tasks.push((tid, read.task)),
                            Item::Events(events) => {
                                let step = u64::from(sources);
                                let ManyEvents { stream, from, each, batch, .. } = events;
                                let distance = step * each;
                                let tids =
                                    (0..batch.len() as u64).map(|row| tid.0 + row * distance);
                                let (tids, of) = (tids.collect(), (stream, each));
                                part.runs.push(EventRun::new(tids, step, of, batch, (from, None)));
                            }
                        }
                        nth += tasks;
                    }
                }
                letters.emit(&mut self.letters, &mut self.counts);
                vec![part]
            }
            Some(ranks) => {
                let form = &self.form;
                let is_own =
                    |of: &EventSource| form.assignment.reader(of.source, settings) == self.own;
                if !ranks.has_own() {
                    let read = |(&source, input): (&u32, &mut Source)| {
                        let own = input.until(upto(source));
                        letters.add(source, &own);
                        own.into_iter().map(move |item| (source, item))
                    };
                    let read = self.inputs.iter_mut().flat_map(read).collect();
                    letters.emit(&mut self.letters, &mut self.counts);
                    let is_alone = settings.event_time.sources().iter().all(is_own);
                    *tells = Some(ranks.take(cut, read, is_alone, functions));
                }
                let others = form.assignment.members.len() - 1;
                let most = (settings.epoch_max * u64::from(sources), settings.columns_max);
                match ranks.places(cut.epoch, order, others, most, functions) {
                    None => return Coming::Later,
                    Some((_, places)) if places > cut.count => return Coming::TooMany,
                    Some((parts, _)) => parts,
                }
            }
        };
        Coming::All(parts)
    }
}

impl Worker {
    /// Executes epochs as long as it can. Other nodes wait for the messages that end an epoch, so
    /// these leave before the next one begins.
    pub(super) fn go_on(&mut self, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &self.stage else { return };
        if running.form.assignment.members.len() == 1 || effects.is_empty() {
            return self.begin_all(effects);
        }
        let has_work = !running.parts.is_empty() || !running.cuts.is_empty();
        if has_work && !running.node.is_running() && !self.goes_on {
            self.goes_on = true;
            effects.push(Effect::GoOn);
        }
    }

    /// Begins all epochs that it can. A node without others ends an epoch as it begins it.
    pub(super) fn begin_all(&mut self, effects: &mut Vec<Effect>) {
        while self.begin_next(effects) {
            let Stage::Running(running) = &self.stage else { return };
            // It must send beats meanwhile. The next tick begins the rest.
            if running.form.assignment.members.len() == 1 && !running.parts.is_empty() {
                return;
            }
        }
    }

    /// Begins the next epoch, or the next part of one, if it can.
    fn begin_next(&mut self, effects: &mut Vec<Effect>) -> bool {
        let Stage::Running(running) = &mut self.stage else { return false };
        if running.node.is_running() || (running.current.is_none() && !self.take_next(effects)) {
            return false;
        }
        if !self.may_begin(effects) {
            return false;
        }
        let Stage::Running(running) = &mut self.stage else { return false };
        let Some((number, part)) = running.parts.pop_front() else { return false };
        let PartWork { mut tasks, runs } = part;
        let (verdicts, functions) = (&running.verdicts, &*self.functions);
        let call = |(tid, task): &mut (Tid, Task)| (*tid, verdicts.call(*tid, task, functions));
        let requests: Vec<(Tid, Call)> = tasks.iter_mut().map(call).collect();
        running.open.extend(tasks);
        let events = by_handler(&runs, &*self.functions);
        running.runs = runs;
        let now_us = running.current.as_ref().map_or(0, |(cut, _)| cut.clock_us);
        let current = running.current.as_ref();
        let plan = ColumnPlan { executes: current.and_then(|(_, plan)| plan.executes) };
        let marks_us = running.ranks.as_ref().map_or_else(|| [].into(), Ranks::marks_us);
        let mut out = Outbox::default();
        running.node.begin(number, Clock { now_us, marks_us }, requests, (events, plan), &mut out);
        self.take(out, effects);
        true
    }

    /// Takes the next cut, if all of its requests have been read.
    fn take_next(&mut self, effects: &mut Vec<Effect>) -> bool {
        let Stage::Running(running) = &mut self.stage else { return false };
        let Some((cut, _)) = running.cuts.front() else { return false };
        let cut = cut.clone();
        let mut tells = None;
        let coming = running.requests(&cut, &self.settings, &*self.functions, &mut tells);
        if let Some(ranks) = tells {
            let (generation, from, epoch) = (self.generation, running.own, cut.epoch);
            for member in running.form.assignment.members.iter().filter(|of| **of != self.me) {
                let ranks = ranks.clone();
                let packet = Packet::Ranks { generation, from, epoch, ranks };
                effects.push(Effect::Send { to: Address::Worker(*member), packet });
            }
        }
        let parts = match coming {
            Coming::All(parts) => parts,
            Coming::Later => {
                self.ask(effects);
                return false;
            }
            Coming::TooMany => {
                // Other sources have the places after these, so two requests would have the same
                // place.
                let why = "a cut in the log has more requests than were counted when it was made: \
                           this version reads them differently, or the log has been changed";
                effects.push(Effect::Stop { why });
                return false;
            }
        };
        running.current = running.cuts.pop_front();
        running.bases.push_back((cut.epoch, cut.next_base()));
        let begins = running.current.as_ref().map_or_else(Arc::default, |of| of.1.parts.clone());
        let parts = running.divide(parts, &begins, &*self.functions);
        running.parts = (first_part(&cut)..).zip(parts).collect();
        true
    }

    /// Takes a message of another node.
    pub(super) fn receive(&mut self, from: NodeId, message: Message, effects: &mut Vec<Effect>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let mut out = Outbox::default();
        running.node.receive(from, message, &mut out);
        self.take(out, effects);
        self.go_on(effects);
    }

    /// Sends the messages of a node, and handles its events.
    pub(super) fn take(&mut self, out: Outbox, effects: &mut Vec<Effect>) {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return };
        let from = running.form.assignment.node_of(self.me).expect("it is a member");
        for (to, message) in out.messages {
            let to = Address::Worker(running.form.assignment.members[usize::from(to.0)]);
            let packet = Packet::Node { generation, from, message };
            effects.push(Effect::Send { to, packet });
        }
        let mut has_committed = false;
        let epoch = running.current.as_ref().map_or(0, |(cut, _)| cut.epoch);
        for event in out.events {
            let output = match event {
                Event::Replied { tid, outcome } => {
                    let of_event = |runs: &[EventRun]| {
                        let of = |run: &EventRun| run.task(run.find(tid)?, &*self.functions);
                        runs.iter().find_map(of)
                    };
                    let task = running.open.remove(&tid).or_else(|| of_event(&running.runs));
                    let Task { id, call, place, is_first } = task.expect("it came in here");
                    let event = (place.as_ref(), is_first);
                    let fault = self.functions.count(&call, &outcome, event, &mut running.counts);
                    fault.into_iter().for_each(|fault| running.note_fault(tid, fault));
                    let copies = self.settings.copies_outputs;
                    let result = copies.then(|| self.functions.result_event(&call, &outcome));
                    if let Some((stream, row)) = result.flatten() {
                        running.emitted.entry(stream).or_default().push((tid.0, LAST, row));
                    }
                    if id.is_empty() {
                        continue;
                    }
                    Output::Reply { tid, id, outcome }
                }
                Event::Emitted { tid, path, stream, row } => {
                    self.functions.count_emitted(stream, &row, &mut running.counts);
                    if let [ordinal] = path[..] {
                        running.emitted.entry(stream).or_default().push((tid.0, ordinal, row));
                        continue;
                    }
                    Output::Event { tid, path, stream, row }
                }
                Event::Columns(ColumnOutcome { outputs, counts, results, .. }) => {
                    let events: usize = running.runs.iter().map(|run| run.batch.len()).sum();
                    running.counts.events += events as u64;
                    match counts.is_empty() {
                        false => {
                            self.functions.count_columns(&counts, &outputs, &mut running.counts);
                        }
                        true => {
                            let Running { runs, open, counts, .. } = &mut **running;
                            let place = |tid: Tid| {
                                let of_run = |run: &EventRun| run.place(run.find(tid)?.0);
                                let of_task = || open.get(&tid)?.place.clone();
                                runs.iter().find_map(of_run).or_else(of_task)
                            };
                            let fault =
                                self.functions.count_sole(&results, &outputs, &place, counts);
                            fault.into_iter().for_each(|(tid, of)| running.note_fault(tid, of));
                            for handler in &results.unstable {
                                let handler = &self.functions.program().handlers[*handler];
                                *self.unstable.entry(handler.name.clone()).or_default() += 1;
                            }
                        }
                    }
                    for ColumnOutput { stream, tids, ordinals, batch } in outputs {
                        let is_reported = ordinals.first() != Some(&LAST)
                            || (self.settings.copies_outputs && self.functions.is_copied(stream));
                        if is_reported {
                            let emitted = Emitted { stream, tids, ordinals, batch };
                            running.held.push_back((epoch, Held::Many(emitted)));
                        }
                    }
                    continue;
                }
                Event::Failed => {
                    let why = "another worker has sent columns that do not fit the program";
                    return effects.push(Effect::Stop { why });
                }
                Event::Committed { .. } => {
                    has_committed = true;
                    continue;
                }
                Event::Outbox { table, key, row } => {
                    running.outbox_now.insert((table, key), row);
                    continue;
                }
                Event::Asked(question) => {
                    running.questions.push_back((epoch, question));
                    continue;
                }
                Event::NotDeterministic { call, .. } => {
                    let name = self.functions.function_name(&call);
                    *self.unstable.entry(name).or_default() += 1;
                    continue;
                }
            };
            running.held.push_back((epoch, Held::One(output)));
        }
        if has_committed && running.parts.is_empty() {
            for (stream, letters) in std::mem::take(&mut running.letters) {
                running.emitted.entry(stream).or_default().extend(letters);
            }
        }
        if has_committed {
            for (stream, mut rows) in std::mem::take(&mut running.emitted) {
                rows.sort_by_key(|(tid, ordinal, _)| (*tid, *ordinal));
                let schema = self.functions.program().streams[stream.index()].spec.schema.clone();
                let batch = Batch::from_rows(schema, rows.iter().map(|(.., row)| &row[..]));
                let ids = rows.iter().map(|(tid, ordinal, _)| (*tid, *ordinal));
                let (tids, ordinals) = ids.unzip();
                let emitted = Emitted { stream, tids, ordinals, batch };
                running.held.push_back((epoch, Held::Many(emitted)));
            }
        }
        let is_whole = has_committed && running.parts.is_empty();
        self.let_out(effects);
        self.ask_outside(effects);
        if is_whole {
            self.executed(epoch, effects);
        }
    }

    /// Notes that an epoch has been executed.
    fn executed(&mut self, epoch: u64, effects: &mut Vec<Effect>) {
        let generation = self.generation;
        let Stage::Running(running) = &mut self.stage else { return };
        running.executed = epoch;
        let changed = std::mem::take(&mut running.outbox_now);
        running.outbox.extend(changed);
        let (buffered, counts) = (running.buffered(), std::mem::take(&mut running.counts));
        let fault = running.fault.take();
        let unstable = std::mem::take(&mut self.unstable).into_iter().collect();
        let current = running.current.take();
        if let Some((cut, _)) = current.filter(|(_, plan)| plan.takes_snapshot) {
            self.save(&cut, effects);
        }
        self.report_outbox(effects);
        self.report_changes(epoch, effects);
        self.send(
            Packet::Executed { generation, epoch, buffered, counts, fault, unstable },
            effects,
        );
        self.report_outputs(effects);
    }
}
