//! A pass: everything that is ready, as one epoch for the executor.
//!
//! At the place of a transaction, the given rows are installed first. Then its rows here are
//! exported, and then it runs. The order of an epoch says so, and the executor obeys it in its own
//! way.

use tidemill_core::{Error, Result, TableId};
use tidemill_txn::execute::ColumnStream;
use tidemill_txn::order::{Epoch, Lane, Ranked};

use super::exports::Exports;
use super::given::Given;
use super::installs::Installs;
use super::key_list::UseOf;
use super::one_node::Way;
use super::parts::Part;
use super::uses::numbers;
use super::{ColumnEpoch, ColumnMessage, GivenRows, LentRows, Site};
use crate::node::NodeId;

/// The share of a run's events in a pass above which the run is taken as it is: one in this many.
const SPARSE: usize = 4;

/// Where the events of a run come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    Part(u32),
    Installs(TableId),
    Export(TableId),
}

/// A pass while it is prepared. Its memory is reused.
#[derive(Debug, Default)]
pub(super) struct Pass {
    order: Vec<Ranked>,
    lanes: Vec<Lane>,
    runs: Vec<Source>,
    /// The rows to be exported and to be installed, by table.
    exports: Vec<Exports>,
    installs: Vec<Installs>,
    /// The events of runs of which the pass has few, by run.
    rows: Vec<Vec<u32>>,
}

/// A run of a pass.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) from: From,
    /// The number of events in the order.
    count: usize,
    /// Whether the pass has so few of the run's events that the executor gets only these.
    is_sparse: bool,
}

impl Pass {
    /// Prepares for an epoch over so many tables, between so many nodes.
    pub(super) fn prepare(&mut self, tables: usize, nodes: usize) {
        // A pass that failed is not here any more.
        if self.exports.len() != tables {
            self.exports.resize_with(tables, || Exports::new(nodes));
            self.installs.resize_with(tables, Installs::default);
        }
    }

    /// Makes room for so many events.
    pub(super) fn reserve(&mut self, events: usize) {
        self.order.reserve(events);
    }

    /// Removes everything.
    fn clear(&mut self) {
        self.order.clear();
        self.lanes.clear();
        self.runs.clear();
        let installs = self.installs.iter_mut().filter(|installs| installs.run.is_some());
        installs.for_each(Installs::clear);
        let exports = self.exports.iter_mut().filter(|exports| exports.lane.is_some());
        exports.for_each(Exports::clear);
    }

    fn add_run(&mut self, from: From) -> u32 {
        self.runs.push(Source { from, count: 0, is_sparse: false });
        self.runs.len() as u32 - 1
    }

    fn add_lane(&mut self, run: u32, handler: u32) -> u32 {
        self.lanes.push(Lane { run, handler });
        self.lanes.len() as u32 - 1
    }

    /// Adds an event of a lane to the order.
    #[inline]
    fn push(&mut self, lane: u32, row: u32) {
        self.runs[self.lanes[lane as usize].run as usize].count += 1;
        self.order.push(Ranked { lane, row });
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
        self.push(lane, row);
    }

    /// Adds the installation of a given row.
    #[inline]
    pub(super) fn install(
        &mut self,
        number: u32,
        row: u32,
        given: &mut Given,
        [install, remove]: [u32; 2],
    ) {
        let (table, exists) = (given.table, given.exists[row as usize]);
        let at = usize::from(!exists);
        let lane = self.installs[table.index()].lanes[at].unwrap_or_else(|| {
            let run = self.installs[table.index()].run;
            let run = run.unwrap_or_else(|| self.add_run(From::Installs(table)));
            let lane = self.add_lane(run, if exists { install } else { remove });
            let installs = &mut self.installs[table.index()];
            (installs.run, installs.lanes[at]) = (Some(run), Some(lane));
            lane
        });
        let installs = &mut self.installs[table.index()];
        let nth = installs.add((number, given), row as usize, self.order.len());
        self.push(lane, nth);
    }

    /// Adds the export of a row, which is a use of an event, to these nodes.
    #[inline]
    pub(super) fn export(&mut self, tid: u64, of: UseOf<'_>, handler: u32, to: &[u16]) {
        let id = of.part.uses.rows[of.nth].table;
        let table = id.index();
        let lane = self.exports[table].lane.unwrap_or_else(|| {
            let run = self.add_run(From::Export(id));
            let lane = self.add_lane(run, handler);
            self.exports[table].lane = Some(lane);
            lane
        });
        let row = self.exports[table].add(tid, of, to);
        self.push(lane, row);
    }

    /// Leaves out the events of runs of which the pass has few, for a copy of these.
    fn make_sparse(&mut self, parts: &[Part]) {
        let mut has_sparse = false;
        for run in 0..self.runs.len() {
            let Source { from, count, .. } = self.runs[run];
            let From::Part(part) = from else { continue };
            let is_sparse = count * SPARSE < parts[part as usize].flags.len();
            self.runs[run].is_sparse = is_sparse;
            has_sparse |= is_sparse;
        }
        if !has_sparse {
            return;
        }
        self.rows.resize_with(self.runs.len().max(self.rows.len()), Vec::new);
        self.rows.iter_mut().for_each(Vec::clear);
        for ranked in &mut self.order {
            let run = self.lanes[ranked.lane as usize].run as usize;
            if self.runs[run].is_sparse {
                let rows = &mut self.rows[run];
                rows.push(ranked.row);
                ranked.row = rows.len() as u32 - 1;
            }
        }
    }

    /// Returns the row in its part of an event in a run.
    #[inline]
    pub(super) fn original(&self, run: usize, row: u32) -> u32 {
        match self.runs[run].is_sparse {
            true => self.rows[run][row as usize],
            false => row,
        }
    }

    /// Returns the source of a run.
    #[inline]
    pub(super) fn from(&self, run: usize) -> From {
        self.runs[run].from
    }
}

impl ColumnEpoch {
    /// Adds a transaction that is put off to a pass, as far as it can go: its rows here are
    /// exported once nothing blocks it, and it runs when it has all rows.
    pub(super) fn advance(&mut self, number: u32, pass: &mut Pass, site: &Site<'_>) {
        let tid = self.waiting.tid(number);
        let of = &mut self.waiting.put_offs[number as usize];
        let (part, row, slots, crosses) = (of.part, of.row, of.slots as usize, of.crosses);
        let (runs, exports) = (of.missing == 0, crosses && !of.is_exported);
        of.is_exported |= exports;
        if runs && crosses {
            let given = self.parts[part as usize].uses.given(row as usize).count_ones() as usize;
            for slot in slots..slots + given {
                let (message, row) = self.waiting.given(slot);
                let given = &mut self.given[message as usize];
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
        let event = row as usize;
        let mut to = smallvec::SmallVec::<[u16; 8]>::new();
        if site.exchange.owners.nodes() > 2 {
            for owner in numbers(of.uses.given(event)).map(|nth| of.uses.owner(event, nth)) {
                if !to.contains(&owner) {
                    to.push(owner);
                }
            }
        }
        for nth in numbers(of.uses.exported(event)) {
            let table = site.exchange.program.table(of.uses.rows[nth].table).expect("it is used");
            let of = UseOf { number: part, part: of, event, nth };
            pass.export(tid, of, table.export, &to);
        }
    }

    /// Executes a pass, and sends what it exports. Leaves nothing in it but memory.
    pub(super) fn execute(&mut self, pass: &mut Pass, site: &mut Site<'_>) -> Result<()> {
        let nodes = usize::from(site.exchange.owners.nodes());
        if pass.order.is_empty() {
            return match self.way {
                Way::Here(_) => self.give_back(Vec::new(), vec![Vec::new(); nodes], site),
                _ => Ok(()),
            };
        }
        self.passes += 1;
        self.admit(pass, site);
        pass.make_sparse(&self.parts);
        let mut runs = Vec::with_capacity(pass.runs.len());
        for (nth, Source { from, is_sparse, .. }) in pass.runs.iter().enumerate() {
            runs.push(match from {
                From::Part(part) => {
                    let whole = &mut self.parts[*part as usize].run;
                    match (is_sparse, &*whole) {
                        (true, Some(run)) => run.take(&pass.rows[nth]),
                        _ => whole.take().expect("no other pass has it"),
                    }
                }
                From::Installs(id) => {
                    let table = site.exchange.program.table(*id).expect("it was checked");
                    pass.installs[id.index()].run(*id, table, &self.given)
                }
                From::Export(id) => {
                    let table = site.exchange.program.table(*id).expect("it was checked");
                    pass.exports[id.index()].run(*id, table, &self.parts)
                }
            });
        }
        let (order, lanes) = (std::mem::take(&mut pass.order), std::mem::take(&mut pass.lanes));
        let mut epoch = Epoch { runs, lanes, order, ..Epoch::default() };
        let (tables, _) = site.rows.tables_mut();
        let outcome = site.exchange.executor.run(site.pool, tables, &epoch)?;
        self.seq = outcome.seq;
        let mut to: Vec<Vec<GivenRows>> = vec![Vec::new(); nodes];
        let mut exported = Vec::new();
        for output in outcome.outputs {
            match site.exchange.program.stream(output.stream) {
                ColumnStream::Whole(stream, are_aborted) => {
                    let of = (stream, are_aborted);
                    self.outputs.collect(of, output, &epoch, pass, &self.parts);
                }
                ColumnStream::Exported(table) => {
                    let export = &pass.exports[table.index()];
                    if let Way::Here(_) = self.way {
                        exported.push((table, output.batch.clone()));
                    }
                    export.send(table, output.batch, self.me, &mut to)?;
                }
                ColumnStream::Own => {
                    return Err(Error::internal("a row of another owner was refused"));
                }
            }
        }
        // The runs go back to where they are from.
        for (nth, run) in epoch.runs.drain(..).enumerate() {
            match pass.runs[nth].from {
                From::Part(part) => {
                    let part = &mut self.parts[part as usize];
                    part.lane = None;
                    part.run.get_or_insert(run);
                }
                From::Installs(table) => {
                    for message in pass.installs[table.index()].messages() {
                        self.given[*message as usize].pass();
                    }
                }
                From::Export(_) => {}
            }
        }
        (pass.order, pass.lanes) = (epoch.order, epoch.lanes);
        pass.clear();
        if let Way::Here(_) = self.way {
            let lent = |GivenRows { table, batch, .. }: GivenRows| LentRows { table, batch };
            let to = to.into_iter().map(|rows| rows.into_iter().map(lent).collect());
            return self.give_back(exported, to.collect(), site);
        }
        for (node, rows) in (0..).zip(to).filter(|(_, rows)| !rows.is_empty()) {
            site.out.push((NodeId(node), ColumnMessage::Rows(rows)));
        }
        Ok(())
    }

    /// Admits the rows of other owners that a pass installs. Leaves out the removal of those that
    /// are not here.
    fn admit(&mut self, pass: &mut Pass, site: &mut Site<'_>) {
        let Pass { order, lanes, runs, installs, .. } = pass;
        let mut is_less = false;
        for (table, installs) in installs.iter().enumerate() {
            self.guests.admit(site.rows, table, installs, |place| {
                let ranked = &mut order[place];
                runs[lanes[ranked.lane as usize].run as usize].count -= 1;
                ranked.lane = u32::MAX;
                is_less = true;
            });
        }
        if is_less {
            order.retain(|ranked| ranked.lane != u32::MAX);
        }
    }
}
