//! The check of reads: transactions that read what the order does not give must run again.

use super::part::Part;
use super::run::look::{look, look_at};
use super::{running, Node, Settings};
use crate::gate::Access;
use crate::message::{Mode, Verdict};
use crate::order::Tid;
use crate::program::RowAt;

/// The findings of a node.
pub(super) struct Checked {
    /// The transactions that must run again, each with its mode.
    pub again: Vec<(Tid, Mode)>,
    /// Reads of what another transaction wrote: the reader, the writer, and the reader's mode if
    /// the writer runs again.
    pub reads: Vec<(Tid, Tid, Mode)>,
    /// The number of transactions that run again because of a clock's verdict.
    pub judged: u32,
}

impl Node {
    /// Finds the transactions that must run again, as far as this node can tell, and how. These are
    /// transactions that it received and that did not run to the end. They are also those that read
    /// rows of this node which the order now gives differently. For the others it finds which have
    /// read what another transaction of the epoch wrote.
    pub(super) fn check(&mut self) -> Checked {
        let Settings { cache, rounds_max, .. } = self.settings;
        let epoch = running!(self);
        let (mut again, mut read_from, mut judged) = (Vec::new(), Vec::new(), 0);
        for tid in epoch.run.keys() {
            let Some(home) = epoch.homes.get(tid) else { continue };
            if let Some(Verdict::Missed(mode)) = home.verdict {
                again.push((*tid, mode));
                judged += u32::from(home.judged);
            }
        }
        // When transactions run one at a time, speed does not matter.
        let is_slow = epoch.round + 1 >= rounds_max;
        let is_there = |tid: Tid| epoch.there.contains(&tid);
        // All transactions before the first open one are final.
        let first = epoch.unsettled.first_key_value().map_or(Tid(0), |(&tid, _)| tid);
        let open = epoch.parts.iter().filter(|(&tid, _)| tid >= first);
        let mut open: Vec<(Tid, &Part)> = open.map(|(&tid, part)| (tid, part)).collect();
        open.sort_unstable_by_key(|(tid, _)| *tid);
        for (tid, part) in open {
            let mut mode = None;
            let mut writers: Vec<Tid> = Vec::new();
            let by_others = match &part.verdict {
                _ if part.mode == Mode::Sequential => Mode::Sequential,
                Some(Verdict::Commit) if cache && !is_slow && !part.has_missed => Mode::Cached,
                _ => Mode::Fresh,
            };
            let reads =
                part.runs.iter().flat_map(|(path, i)| i.reads.iter().map(move |r| (path, r)));
            for (path, read) in reads {
                let is_touched = match &read.what {
                    Access::Row(table, key) => epoch.versions.touched(*table, key),
                    Access::Range(..) => true,
                };
                if !is_touched {
                    continue;
                }
                let mut place = path.clone();
                place.push(read.ordinal);
                let (what, place) = (&read.what, (tid, &place[..]));
                if look(&self.rows, &epoch.versions, place, what, read.take, &is_there) == read.saw
                {
                    epoch.versions.writers(what, place, is_there, &mut writers);
                    continue;
                }
                // If it has written there itself, one of its own calls was too late or too early.
                let is_own = epoch.versions.has_own(what, place);
                // Calls that were repeated all at once disturbed each other. A run that waits for
                // its calls avoids this.
                mode = mode.max(Some(match (is_own, part.mode) {
                    (true, Mode::Cached) => Mode::Fresh,
                    (true, _) => Mode::Sequential,
                    (false, _) => by_others,
                }));
            }
            if let Some(mode) = mode {
                let is_sequential = part.mode == Mode::Sequential;
                again.push((tid, if is_sequential { part.mode } else { mode }));
            } else {
                writers.sort_unstable();
                writers.dedup();
                read_from.extend(writers.into_iter().map(|writer| (tid, writer, by_others)));
            }
        }
        for part in epoch.declared.parts.iter().filter(|part| part.tid >= first) {
            let (mut is_so, mut writers) = (true, Vec::new());
            let touched =
                part.reads(self.me).filter(|(row, _)| epoch.versions.touched(row.table, &row.key));
            for (RowAt { table, key, .. }, saw) in touched {
                let place = (part.tid, &[][..]);
                is_so &=
                    look_at(&self.rows, &epoch.versions, place, *table, key, &is_there) == *saw;
                let what = Access::Row(*table, key.clone());
                epoch.versions.writers(&what, place, is_there, &mut writers);
            }
            match is_so {
                false => again.push((part.tid, Mode::Fresh)),
                true => {
                    let read = |writer| (part.tid, writer, Mode::Fresh);
                    read_from.extend(writers.into_iter().map(read));
                }
            }
        }
        Checked { again, reads: read_from, judged }
    }
}
