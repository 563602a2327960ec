//! The end of an epoch: the writes of its transactions go to the store, and their events leave.

use super::part::Part;
use super::{Event, Node, Outbox};
use crate::message::Verdict;
use crate::order::{Path, Tid};

impl Node {
    /// Ends the epoch.
    pub(super) fn commit(&mut self, out: &mut Outbox) {
        let mut epoch = self.running.take().expect("an epoch runs");
        if let Some(last) = epoch.parts.keys().max().filter(|_| !self.answers.is_empty()) {
            // The questions of these transactions can't be asked again.
            self.answers = self.answers.split_off(&(Tid(last.0 + 1), 0));
        }
        for (table, key, versions) in epoch.versions.drain() {
            let mut versions = versions.into_iter().peekable();
            let (is_outbox, mut last) = (self.program.outboxes().contains(&table), None);
            while let Some(version) = versions.next() {
                let is_last = versions.peek().is_none_or(|next| next.tid != version.tid);
                let is_there = version.is_there(|tid| epoch.there.contains(&tid));
                if is_last && is_there {
                    last = is_outbox.then(|| version.row.clone()).or(last);
                    self.rows.apply(version.tid, table, &key, version.row);
                }
            }
            out.events.extend(last.map(|row| Event::Outbox { table, key, row }));
        }
        self.rows.end_epoch();
        let mut emitted: Vec<(Tid, Path, _, _)> = Vec::new();
        let is_final = |part: &Part| part.verdict == Some(Verdict::Commit);
        for (&tid, part) in epoch.parts.iter_mut().filter(|(_, part)| is_final(part)) {
            for (path, invocation) in std::mem::take(&mut part.runs) {
                for (ordinal, stream, row) in invocation.emits {
                    let place = path.iter().copied().chain([ordinal]).collect();
                    emitted.push((tid, place, stream, row));
                }
            }
        }
        for part in &mut epoch.declared.parts {
            for (nth, (stream, row)) in std::mem::take(&mut part.events).into_iter().enumerate() {
                emitted.push((part.tid, [nth as u32].into_iter().collect(), stream, row));
            }
        }
        emitted.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let event = |(tid, path, stream, row)| Event::Emitted { tid, path, stream, row };
        out.events.extend(emitted.into_iter().map(event));
        out.events.push(Event::Committed { epoch: epoch.number });
    }
}
