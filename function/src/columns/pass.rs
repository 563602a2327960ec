//! A pass: everything that is ready, as one epoch for the executor.
//!
//! At the place of a transaction, the given rows are installed first. Then its rows here are
//! exported, and then it runs. The order of an epoch says so, and the executor obeys it in its own
//! way.

use tidemill_core::{Batch, Error, Result, SourceId, TableId};
use tidemill_txn::order::{Epoch, Lane, Ranked, Run};
use tidemill_txn::program::KeyValues;

use super::given::{Arrivals, Given, Slot};
use super::parts::Part;
use super::uses::NOBODY;
use super::{ColumnEpoch, ColumnMessage, GivenRows, Site};
use crate::node::NodeId;

/// The share of a run's events in a pass above which the run is taken as it is: one in this many.
const SPARSE: usize = 4;

/// Where the events of a run come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    Part(u32),
    Given(u32),
    Export(TableId),
}

/// A pass while it is prepared.
#[derive(Debug, Default)]
pub(super) struct Pass {
    order: Vec<Ranked>,
    lanes: Vec<Lane>,
    runs: Vec<From>,
    /// The number of events of each run in the order. Given rows are counted once.
    counts: Vec<usize>,
    exports: Vec<Option<Export>>,
    arrivals: Vec<Arrivals>,
}

/// Rows of a table to be exported, in the order of their places.
#[derive(Debug)]
struct Export {
    lane: u32,
    tids: Vec<u64>,
    /// The keys, if they are words.
    words: Vec<u64>,
    /// Other keys: by the number of a batch of keys, and the row there.
    rows: Vec<(u32, u32)>,
    /// The parts and the numbers of their uses that have these batches.
    batches: Vec<(u32, u32)>,
    /// The rows for each node, if there are more than two.
    to: Vec<Vec<u32>>,
}

impl Pass {
    pub(super) fn new(tables: usize) -> Pass {
        let mut pass = Pass::default();
        pass.exports.resize_with(tables, || None);
        pass.arrivals.resize_with(tables, Arrivals::default);
        pass
    }

    /// Makes room for so many events.
    pub(super) fn reserve(&mut self, events: usize) {
        self.order.reserve(events);
    }

    fn add_run(&mut self, from: From) -> u32 {
        self.runs.push(from);
        self.counts.push(0);
        self.runs.len() as u32 - 1
    }

    fn add_lane(&mut self, run: u32, handler: u32) -> u32 {
        self.lanes.push(Lane { run, handler });
        self.lanes.len() as u32 - 1
    }

    /// Adds the transaction of an event.
    #[inline]
    pub(super) fn run(&mut self, (number, row): (u32, u32), part: &mut Part, handler: u32) {
        let lane = match part.lane {
            Some(lane) => lane,
            None => {
                let run = self.add_run(From::Part(number));
                *part.lane.insert(self.add_lane(run, handler))
            }
        };
        self.counts[self.lanes[lane as usize].run as usize] += 1;
        self.order.push(Ranked { lane, row });
    }

    /// Adds the installation of a given row.
    fn install(&mut self, number: u32, row: u32, given: &mut Given, [install, remove]: [u32; 2]) {
        let exists = given.exists[row as usize];
        let (lane, other) = match exists {
            true => (given.lanes[0], given.lanes[1]),
            false => (given.lanes[1], given.lanes[0]),
        };
        let lane = lane.unwrap_or_else(|| {
            let run = match other {
                Some(other) => self.lanes[other as usize].run,
                None => self.add_run(From::Given(number)),
            };
            let lane = self.add_lane(run, if exists { install } else { remove });
            given.lanes[usize::from(!exists)] = Some(lane);
            lane
        });
        given.left -= 1;
        self.counts[self.lanes[lane as usize].run as usize] += 1;
        let arrivals = &mut self.arrivals[given.table.index()];
        arrivals.add(&given.keys, row as usize, exists, self.order.len());
        self.order.push(Ranked { lane, row });
    }

    /// Adds the export of a row to these nodes, which is a use of an event.
    fn export(
        &mut self,
        tid: u64,
        (number, part, row): (u32, &Part, u32),
        use_: usize,
        handler: u32,
        to: &[u16],
        nodes: u16,
    ) {
        let of = &part.uses[use_];
        let table = of.table.index();
        if self.exports[table].is_none() {
            let run = self.add_run(From::Export(of.table));
            let lane = self.add_lane(run, handler);
            let (tids, words, rows, batches) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let to = if nodes > 2 { vec![Vec::new(); usize::from(nodes)] } else { Vec::new() };
            self.exports[table] = Some(Export { lane, tids, words, rows, batches, to });
        }
        let export = self.exports[table].as_mut().expect("there is one now");
        let nth = export.tids.len() as u32;
        export.tids.push(tid);
        match &of.keys {
            KeyValues::Words(words) => export.words.push(words[row as usize]),
            KeyValues::Columns(_) => {
                let batch = (number, use_ as u32);
                let known = export.batches.iter().position(|of| *of == batch);
                let known = known.unwrap_or_else(|| {
                    export.batches.push(batch);
                    export.batches.len() - 1
                });
                export.rows.push((known as u32, row));
            }
        }
        if nodes > 2 {
            to.iter().for_each(|node| export.to[usize::from(*node)].push(nth));
        }
        self.counts[self.lanes[export.lane as usize].run as usize] += 1;
        self.order.push(Ranked { lane: export.lane, row: nth });
    }
}

impl Export {
    /// Returns the run of the keys.
    fn run(&self, table: TableId, parts: &[Part], site: &Site<'_>) -> Run {
        let of = site.exchange.program.table(table).expect("a use of it is exported");
        let batch = match of.has_word_keys {
            true => {
                let (schema, len) = (of.keys_schema.clone(), self.words.len());
                Batch::of_words(schema, vec![self.words.clone()], len)
            }
            false => {
                let keys = |(part, use_): &(u32, u32)| match &parts[*part as usize].uses
                    [*use_ as usize]
                    .keys
                {
                    KeyValues::Columns(batch) => batch,
                    KeyValues::Words(_) => unreachable!("keys of a table are of one kind"),
                };
                let batches: Vec<&Batch> = self.batches.iter().map(keys).collect();
                Batch::interleave(&batches, &self.rows)
            }
        };
        Run {
            stream: of.keys,
            source: SourceId(u32::from(table.0) | 1 << 30),
            batch,
            times: self.tids.iter().map(|tid| *tid as i64).collect(),
            offsets: self.tids.clone(),
            admitted: None,
        }
    }
}

impl ColumnEpoch {
    /// Adds a transaction that is put off to a pass, as far as it can go: its rows here are exported
    /// once nothing blocks it, and it runs when it has all rows.
    pub(super) fn advance(&mut self, number: u32, pass: &mut Pass, site: &Site<'_>) {
        let of = &mut self.waiting.put_offs[number as usize];
        let (tid, part, row, slots) = (of.tid, of.part, of.row, of.slots as usize);
        let (runs, exports) = (of.missing == 0, of.crosses && !of.is_exported);
        of.is_exported |= exports;
        if runs && of.crosses {
            let given = self.parts[part as usize].given(self.me, row as usize).count();
            for slot in slots..slots + given {
                let Slot::Some((message, row)) = self.given.slots[slot] else {
                    unreachable!("no row is missing")
                };
                let given = &mut self.given.all[message as usize];
                let of = site.exchange.program.table(given.table).expect("it was checked");
                pass.install(message, row, given, [of.install, of.remove]);
            }
        }
        if exports {
            self.export(tid, part, row, pass, site);
        }
        if runs {
            let of = &mut self.parts[part as usize];
            let handler =
                site.exchange.program.handler(of.handler).expect("it was checked").handler;
            pass.run((part, row), of, handler);
            self.waiting.ends(number);
        }
    }

    /// Adds the exports of a transaction's rows here to a pass.
    pub(super) fn export(&self, tid: u64, part: u32, row: u32, pass: &mut Pass, site: &Site<'_>) {
        let of = &self.parts[part as usize];
        let nodes = site.exchange.owners.nodes();
        let mut to = smallvec::SmallVec::<[u16; 8]>::new();
        if nodes > 2 {
            for owner in of.uses.iter().map(|of| of.owners[row as usize]) {
                if owner != self.me.0 && owner != NOBODY && !to.contains(&owner) {
                    to.push(owner);
                }
            }
        }
        for (number, use_) in of.uses.iter().enumerate() {
            if use_.is_first_of(self.me.0, row as usize) {
                let table = site.exchange.program.table(use_.table).expect("it is used");
                pass.export(tid, (part, of, row), number, table.export, &to, nodes);
            }
        }
    }

    /// Executes a pass, and sends what it exports.
    pub(super) fn execute(&mut self, mut pass: Pass, site: &mut Site<'_>) -> Result<()> {
        if pass.order.is_empty() {
            return Ok(());
        }
        self.passes += 1;
        self.admit(&mut pass, site);
        // Runs of which the pass has few events give these only.
        let lens: Vec<usize> = pass.runs.iter().map(|from| self.len_of(*from, &pass)).collect();
        let is_sparse = |(count, len): (&usize, &usize)| count * SPARSE < *len;
        let sparse: Vec<bool> = pass.counts.iter().zip(&lens).map(is_sparse).collect();
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); lens.len()];
        if sparse.contains(&true) {
            for ranked in &mut pass.order {
                let run = pass.lanes[ranked.lane as usize].run as usize;
                if sparse[run] {
                    rows[run].push(ranked.row);
                    ranked.row = rows[run].len() as u32 - 1;
                }
            }
        }
        let mut runs = Vec::with_capacity(lens.len());
        for ((from, rows), sparse) in pass.runs.iter().zip(&rows).zip(&sparse) {
            let whole = match from {
                From::Part(part) => &mut self.parts[*part as usize].run,
                From::Given(given) => &mut self.given.all[*given as usize].run,
                From::Export(table) => {
                    let export = pass.exports[table.index()].as_ref().expect("it has rows");
                    runs.push(export.run(*table, &self.parts, site));
                    continue;
                }
            };
            runs.push(match (sparse, &*whole) {
                (true, Some(run)) => run.take(rows),
                _ => whole.take().expect("no other pass has it"),
            });
        }
        let Pass { order, lanes, .. } = pass;
        let mut epoch = Epoch { runs, lanes, order, ..Epoch::default() };
        let (tables, _) = site.rows.tables_mut();
        let outcome = site.exchange.executor.run(site.pool, tables, &epoch)?;
        self.seq = outcome.seq;
        let mut to: Vec<Vec<GivenRows>> = vec![Vec::new(); site.exchange.owners.nodes().into()];
        for output in outcome.outputs {
            let program = &site.exchange.program;
            match program.stream(output.stream) {
                Some(of) => {
                    let original = |run: usize, row: u32| match sparse[run] {
                        true => rows[run][row as usize],
                        false => row,
                    };
                    let (from, parts) = (&pass.runs, &self.parts);
                    self.outputs.collect(of, output, &epoch, from, parts, original);
                }
                None => {
                    let is_it = |table: &&usize| {
                        let of = program.table(TableId(**table as u16));
                        of.is_some_and(|of| of.exported == output.stream)
                    };
                    let found = (0..pass.exports.len()).collect::<Vec<_>>();
                    let table = found.iter().find(is_it);
                    let export = table.and_then(|table| pass.exports[*table].take());
                    let (Some(table), Some(export)) = (table, export) else {
                        return Err(Error::internal("a row of another owner was refused"));
                    };
                    let table = TableId(*table as u16);
                    send(table, export, output.batch, self.me, &mut to)?;
                }
            }
        }
        // The runs go back to where they are from.
        for (nth, run) in epoch.runs.drain(..).enumerate() {
            match pass.runs[nth] {
                From::Part(part) => {
                    let part = &mut self.parts[part as usize];
                    part.lane = None;
                    part.run.get_or_insert(run);
                }
                From::Given(given) => {
                    let given = &mut self.given.all[given as usize];
                    given.lanes = [None; 2];
                    match given.left {
                        0 => given.run = None,
                        _ => drop(given.run.get_or_insert(run)),
                    }
                }
                From::Export(_) => {}
            }
        }
        for (node, rows) in (0..).zip(to).filter(|(_, rows)| !rows.is_empty()) {
            site.out.push((NodeId(node), ColumnMessage::Rows(rows)));
        }
        Ok(())
    }

    /// Admits the rows of other owners that a pass installs. Leaves out the removal of those that
    /// are not here.
    fn admit(&mut self, pass: &mut Pass, site: &mut Site<'_>) {
        let mut is_less = false;
        for (table, arrivals) in pass.arrivals.iter().enumerate() {
            self.guests.admit(site.rows, table, arrivals, |place| {
                let ranked = &mut pass.order[place];
                pass.counts[pass.lanes[ranked.lane as usize].run as usize] -= 1;
                ranked.lane = u32::MAX;
                is_less = true;
            });
        }
        if is_less {
            pass.order.retain(|ranked| ranked.lane != u32::MAX);
        }
    }

    /// Returns the number of events of a run.
    fn len_of(&self, from: From, pass: &Pass) -> usize {
        match from {
            From::Part(part) => self.parts[part as usize].flags.len(),
            From::Given(given) => self.given.all[given as usize].exists.len(),
            From::Export(table) => {
                pass.exports[table.index()].as_ref().map_or(0, |export| export.tids.len())
            }
        }
    }
}

/// Adds exported rows to what is sent to each node.
fn send(
    table: TableId,
    export: Export,
    batch: Batch,
    me: NodeId,
    to: &mut [Vec<GivenRows>],
) -> Result<()> {
    if batch.len() != export.tids.len() {
        return Err(Error::internal("a row of this owner was not exported"));
    }
    if let [_, _] = to {
        to[usize::from(1 - me.0)].push(GivenRows { table, tids: export.tids, batch });
        return Ok(());
    }
    for (to, rows) in to.iter_mut().zip(&export.to).filter(|(_, rows)| !rows.is_empty()) {
        let tids = rows.iter().map(|row| export.tids[*row as usize]).collect();
        to.push(GivenRows { table, tids, batch: batch.take(rows) });
    }
    Ok(())
}
