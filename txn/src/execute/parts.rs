//! Parts of one epoch that were executed one behind the other, as what the epoch comes to.
//!
//! A long epoch is no reason to try something for long: what is tried executes a part, and the rest goes to
//! what is expected to be the best.

use std::collections::BTreeMap;

use tidemill_core::{Batch, StreamId};

use super::output::{DerivedEvent, Origins, Output};
use super::serial::Outcome;

/// What an epoch comes to, of what its parts came to: each with the number of transactions before it.
pub(super) fn together(parts: Vec<(usize, Outcome)>) -> Outcome {
    let mut all = Outcome::default();
    let mut outputs: BTreeMap<StreamId, Vec<Output>> = BTreeMap::new();
    for (before, part) in parts {
        let (before, derived) = (before as u32, all.derived.len() as u32);
        for mut output in part.outputs {
            let origins = output.origins.of.iter_mut();
            origins.for_each(|origin| *origin = origin.behind(before, derived));
            outputs.entry(output.stream).or_default().push(output);
        }
        let later = part.derived.iter().map(|of| DerivedEvent(of.0.behind(before, derived)));
        all.derived.extend(later);
        all.counts.resize(part.counts.len(), Default::default());
        for (sum, of) in all.counts.iter_mut().zip(&part.counts) {
            sum.committed += of.committed;
            sum.aborted += of.aborted;
        }
        all.unstable.extend(part.unstable);
        for (handler, hash) in part.written {
            let sum = all.written.entry(handler).or_default();
            *sum = sum.wrapping_add(hash);
        }
        all.overdue.extend(part.overdue);
        all.commands.extend(part.commands);
        all.seq = part.seq;
    }
    all.outputs = outputs.into_values().map(one).collect();
    all
}

/// Outputs of one stream as one.
fn one(outputs: Vec<Output>) -> Output {
    let batches: Vec<&Batch> = outputs.iter().map(|output| &output.batch).collect();
    let batch = Batch::concat(&batches);
    let of = outputs.iter().flat_map(|output| &output.origins.of).copied().collect();
    Output { stream: outputs[0].stream, batch, origins: Origins { of } }
}
