//! The hash of all output events, as the engine has it: [`streams_hash`] of [`RowsHash`]es.

use std::collections::BTreeMap;

use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_txn::execute::Output;
use tidemill_txn::Program;

/// Hashes output events as they come.
pub(crate) struct OutputHash<'a> {
    program: &'a Program,
    streams: BTreeMap<&'a str, RowsHash>,
}

impl<'a> OutputHash<'a> {
    pub(crate) fn new(program: &'a Program) -> OutputHash<'a> {
        OutputHash { program, streams: BTreeMap::new() }
    }

    /// Takes the outputs of an epoch.
    pub(crate) fn add(&mut self, outputs: &[Output]) {
        for output in outputs {
            let name = &*self.program.streams[output.stream.index()].spec.name;
            self.streams.entry(name).or_default().take(&output.batch);
        }
    }

    /// The hash of all of them, in hexadecimal.
    pub(crate) fn finish(self) -> String {
        format!("{:032x}", streams_hash(self.streams))
    }
}

/// The hash where nothing comes out.
pub(crate) fn none() -> String {
    format!("{:032x}", streams_hash([]))
}
