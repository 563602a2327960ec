//! The events of an epoch: those that the node received, and those that other nodes sent.

use tidemill_core::{Error, Result, SourceId};
use tidemill_txn::order::Run;

use super::uses::{numbers, Uses};
use super::{Exchange, HandlerEvents};
use crate::node::NodeId;

/// This node runs the transaction of the event.
pub(super) const HERE: u8 = 1;
/// The transaction also has rows of other owners.
pub(super) const CROSSES: u8 = 2;
/// This node reports the transaction.
pub(super) const REPORTS: u8 = 4;

/// Events of one handler that one node received.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) handler: usize,
    /// The events. `None` while a pass has them.
    pub(super) run: Option<Run>,
    /// The rows that their transactions mention. There are none if there is one node.
    pub(super) uses: Uses,
    /// The marks of each event.
    pub(super) flags: Vec<u8>,
    /// The lane in the pass that is being prepared.
    pub(super) lane: Option<u32>,
}

/// An event whose transaction this node runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) tid: u64,
    pub(super) part: u32,
    pub(super) row: u32,
}

impl Part {
    /// Creates a part from events that another node sent, or that this node received. This node may
    /// run all transactions of the epoch.
    pub(super) fn new(
        exchange: &Exchange,
        number: usize,
        events: HandlerEvents,
        (from, runs_all): (Option<NodeId>, bool),
    ) -> Result<Part> {
        let HandlerEvents { handler, tids, batch } = events;
        let wrong = |what: String| Error::internal(format!("events of handler {handler}: {what}"));
        let Some(of) = exchange.program.handler(handler) else {
            return Err(wrong("its transactions are not executed by column".into()));
        };
        let batch = batch.with_schema(&of.schema).map_err(wrong)?;
        if tids.len() != batch.len() {
            return Err(wrong(format!("{} places for {} events", tids.len(), batch.len())));
        }
        if !tids.is_sorted_by(|a, b| a < b) {
            return Err(wrong("their places do not rise".into()));
        }
        let (uses, flags) = match exchange.owners.nodes() {
            1 => (Uses::default(), vec![HERE | REPORTS; tids.len()]),
            _ => {
                let tables = &exchange.program.program().tables;
                let owners = (&exchange.owners, exchange.me.0);
                let uses = Uses::of(&of.rows, tables, owners, &batch);
                let flags = match runs_all {
                    true => vec![HERE | REPORTS; tids.len()],
                    false => flags(&uses, tids.len(), from.is_none()),
                };
                (uses, flags)
            }
        };
        if from.is_some() && flags.iter().any(|flags| flags & HERE == 0) {
            return Err(wrong("a transaction has no row here".into()));
        }
        let run = Run {
            stream: of.input,
            source: SourceId(number as u32 | 1 << 31),
            batch,
            times: tids.iter().map(|tid| *tid as i64).collect(),
            offsets: tids,
            admitted: None,
        };
        Ok(Part { handler, run: Some(run), uses, flags, lane: None })
    }

    /// Returns the events.
    pub(super) fn run(&self) -> &Run {
        self.run.as_ref().expect("no pass has them")
    }

    /// Adds the events that other nodes take part in to what is sent to each.
    pub(super) fn send(&self, to: &mut [Vec<HandlerEvents>]) {
        if to.len() == 1 {
            return;
        }
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); to.len()];
        for event in 0..self.flags.len() {
            for nth in numbers(self.uses.given(event)) {
                let rows = &mut rows[usize::from(self.uses.owner(event, nth))];
                if rows.last() != Some(&(event as u32)) {
                    rows.push(event as u32);
                }
            }
        }
        let Run { batch, offsets, .. } = self.run();
        for (to, rows) in to.iter_mut().zip(rows).filter(|(_, rows)| !rows.is_empty()) {
            let (batch, tids) = match rows.len() == offsets.len() {
                true => (batch.clone(), offsets.clone()),
                false => {
                    let tids = rows.iter().map(|row| offsets[*row as usize]).collect();
                    (batch.take(&rows), tids)
                }
            };
            to.push(HandlerEvents { handler: self.handler, tids, batch });
        }
    }

    /// Returns the number of transactions that this node reports.
    pub(super) fn reported(&self) -> u64 {
        self.flags.iter().filter(|flags| **flags & REPORTS != 0).count() as u64
    }
}

/// Returns the marks of each event. This node received them if `is_home` is set.
fn flags(uses: &Uses, events: usize, is_home: bool) -> Vec<u8> {
    let of = |event: usize| {
        let (own, given) = (uses.own(event), uses.given(event));
        let first = (own | given).trailing_zeros();
        let is_homeless = is_home && own | given == 0;
        let is_here = own != 0 || is_homeless;
        let reports = is_homeless || own.checked_shr(first).unwrap_or(0) & 1 == 1;
        let mark = |flag: u8, is_set: bool| flag * u8::from(is_set);
        mark(HERE, is_here) | mark(REPORTS, reports) | mark(CROSSES, is_here && given != 0)
    };
    (0..events).map(of).collect()
}

/// Returns the events whose transactions this node runs, in the order of their places.
pub(super) fn items(parts: &[Part]) -> Result<Vec<Item>> {
    let none = Item { tid: 0, part: 0, row: 0 };
    let mut items = vec![none; parts.iter().map(|part| part.flags.len()).sum()];
    let mut len = 0;
    for (number, part) in parts.iter().enumerate() {
        for (row, (tid, flags)) in part.run().offsets.iter().zip(&part.flags).enumerate() {
            items[len] = Item { tid: *tid, part: number as u32, row: row as u32 };
            // Without a branch, because nothing foretells which events are here.
            len += usize::from(flags & HERE != 0);
        }
    }
    items.truncate(len);
    if parts.len() > 1 {
        // The events of each part are in order, which this sort makes use of.
        items.sort_by_key(|item| item.tid);
    }
    match items.windows(2).find(|pair| pair[0].tid == pair[1].tid) {
        None => Ok(items),
        Some(pair) => {
            Err(Error::internal(format!("two transactions have the place {}", pair[0].tid)))
        }
    }
}
