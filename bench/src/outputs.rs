//! The hash of all output events, computed as in the engine: [`streams_hash`] of [`RowsHash`]es.

use std::collections::BTreeMap;

use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_txn::execute::Output;
use tidemill_txn::Program;

/// Hashes output events one epoch after the other.
pub(crate) struct OutputHash<'a> {
    program: &'a Program,
    streams: BTreeMap<&'a str, RowsHash>,
}

impl<'a> OutputHash<'a> {
    pub(crate) fn new(program: &'a Program) -> OutputHash<'a> {
        OutputHash { program, streams: BTreeMap::new() }
    }

    /// Adds the outputs of an epoch.
    pub(crate) fn add(&mut self, outputs: &[Output]) {
        for output in outputs {
            let name = &*self.program.streams[output.stream.index()].spec.name;
            self.streams.entry(name).or_default().take(&output.batch);
        }
    }

    /// Returns the hash of all outputs, in hexadecimal.
    pub(crate) fn finish(self) -> String {
        format!("{:032x}", streams_hash(self.streams))
    }
}

/// Returns the hash of no outputs.
pub(crate) fn none() -> String {
    format!("{:032x}", streams_hash([]))
}
