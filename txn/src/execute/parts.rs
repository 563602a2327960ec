//! Parts of one epoch that were executed one behind the other, as what the epoch comes to.
//!
//! A long epoch is no reason to try something for long: what is tried executes a part, and the rest goes to
//! what is expected to be the best.

use tidemill_table::Seq;

use super::output::DerivedEvent;
use super::serial::Outcome;

impl Outcome {
    /// With what the part of the epoch behind its first `transactions` came to.
    pub(super) fn then(mut self, transactions: usize, part: Outcome) -> Outcome {
        let (before, derived) = (transactions as u32, self.derived.len() as u32);
        let seq: Seq = part.seq;
        for mut output in part.outputs {
            match self.outputs.iter_mut().find(|of| of.stream == output.stream) {
                Some(of) => of.then(&output, before, derived),
                None => {
                    let origins = output.origins.of.iter_mut();
                    origins.for_each(|origin| *origin = origin.behind(before, derived));
                    self.outputs.push(output);
                }
            }
        }
        self.outputs.sort_by_key(|output| output.stream);
        let later = part.derived.iter().map(|of| DerivedEvent(of.0.behind(before, derived)));
        self.derived.extend(later);
        for (sum, of) in self.counts.iter_mut().zip(&part.counts) {
            sum.committed += of.committed;
            sum.aborted += of.aborted;
        }
        self.unstable.extend(part.unstable);
        for (handler, hash) in part.written {
            let sum = self.written.entry(handler).or_default();
            *sum = sum.wrapping_add(hash);
        }
        self.overdue.extend(part.overdue);
        self.commands.extend(part.commands);
        Outcome { seq, ..self }
    }
}
