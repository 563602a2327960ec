//! The hash of all output events: xxh3 of each stream's rows in order, in the canonical encoding,
//! and over the streams' names and hashes by name. Where epochs were cut does not matter.

use std::collections::BTreeMap;

use tidemill_core::{encode, Batch, Value};
use tidemill_txn::execute::Output;
use tidemill_txn::Program;
use xxhash_rust::xxh3::Xxh3;

/// Hashes output events as they come.
pub(crate) struct OutputHash<'a> {
    program: &'a Program,
    streams: BTreeMap<&'a str, Xxh3>,
    bytes: Vec<u8>,
}

impl<'a> OutputHash<'a> {
    pub(crate) fn new(program: &'a Program) -> OutputHash<'a> {
        OutputHash { program, streams: BTreeMap::new(), bytes: Vec::new() }
    }

    /// Takes the outputs of an epoch.
    pub(crate) fn add(&mut self, outputs: &[Output]) {
        for output in outputs {
            let name = &*self.program.streams[output.stream.index()].spec.name;
            let hash = self.streams.entry(name).or_default();
            let batch = &output.batch;
            for from in (0..batch.len()).step_by(ROWS) {
                self.bytes.clear();
                encode_rows(batch, from, (from + ROWS).min(batch.len()), &mut self.bytes);
                hash.update(&self.bytes);
            }
        }
    }

    /// The hash of all of them, in hexadecimal.
    pub(crate) fn finish(self) -> String {
        let mut bytes = Vec::new();
        for (name, hash) in self.streams {
            encode::value(&Value::str(name), &mut bytes);
            bytes.extend_from_slice(&hash.digest128().to_be_bytes());
        }
        format!("{:032x}", encode::hash128(&bytes))
    }
}

/// Rows encoded at once: few, so that the runs measured in between keep their caches.
const ROWS: usize = 256;

fn encode_rows(batch: &Batch, from: usize, to: usize, bytes: &mut Vec<u8>) {
    let columns = &batch.schema().columns;
    let ints: Option<Vec<&[i64]>> = (0..columns.len()).map(|c| batch.ints(c)).collect();
    for row in from..to {
        match &ints {
            Some(ints) => {
                for (column, ints) in columns.iter().zip(ints) {
                    encode::word(&column.ty, ints[row] as u64, bytes);
                }
            }
            None => batch.row(row).iter().for_each(|value| encode::value(value, bytes)),
        }
    }
}
