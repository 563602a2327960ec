//! The targets of events: memory, sinks, and hashes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidemill_connect::Sink;
use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::{Batch, Column, DataType, Result, Schema};
use tidemill_txn::program::{Origin, Program};

use crate::internal::{OutletFacts, SinkFacts};
use crate::requests;
use crate::spec::SinkDecl;

/// The columns of dead-letter streams.
pub(crate) fn dead_schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![
        Column::new("source", DataType::Str),
        Column::new("offset", DataType::Int),
        Column::new("origin", DataType::Str),
        Column::new("line", DataType::Int),
        Column::new("reason", DataType::Str),
        Column::new("raw", DataType::Str),
    ]))
}

/// Returns the identities of sinks: stream, and path or topic.
///
/// # Errors
/// When a declaration is wrong.
pub(crate) fn sink_keys(sinks: &[SinkDecl]) -> Result<BTreeSet<(String, String)>> {
    let key = |decl: &SinkDecl| Ok((decl.stream.clone(), decl.target()?.name()));
    sinks.iter().map(key).collect()
}

/// A sink and the path or topic that names it.
pub(crate) struct NamedSink {
    pub(crate) path: String,
    pub(crate) sink: Box<dyn Sink>,
}

/// The output of one stream.
pub(crate) struct Outlet {
    pub(crate) schema: Arc<Schema>,
    pub(crate) sinks: Vec<NamedSink>,
    /// Whether events are retained in memory.
    pub(crate) keep: bool,
    /// Whether it is an output of transactions, which counts in the output hash.
    pub(crate) hashed: bool,
    hash: RowsHash,
    dirty: bool,
}

impl Outlet {
    pub(crate) fn new(schema: Arc<Schema>, hashed: bool) -> Outlet {
        let hash = RowsHash::default();
        Outlet { schema, sinks: Vec::new(), keep: false, hashed, hash, dirty: false }
    }

    /// The events as readers see them: those of calls without the engine's own columns.
    fn shown<'b>(&self, batch: &'b Batch) -> Cow<'b, Batch> {
        let columns = batch.columns();
        match self.schema.len() {
            count if count < columns.len() => {
                let columns = columns[..count].to_vec();
                Cow::Owned(Batch::new(self.schema.clone(), columns, batch.len()))
            }
            _ => Cow::Borrowed(batch),
        }
    }

    /// Whether the events themselves are needed.
    pub(crate) fn is_wanted(&self) -> bool {
        self.keep || !self.sinks.is_empty()
    }
}

/// All outputs, by name of the stream.
#[derive(Default)]
pub(crate) struct Outlets {
    pub(crate) by_name: BTreeMap<String, Outlet>,
}

/// Events in memory, by stream.
#[derive(Default)]
pub(crate) struct RetainedBatches {
    pub(crate) batches: BTreeMap<String, Vec<Batch>>,
    pub(crate) bytes: usize,
}

impl Outlets {
    /// Creates the outputs of all streams, without any sinks.
    pub(crate) fn of(program: &Program) -> Outlets {
        let mut by_name = BTreeMap::new();
        for stream in &program.streams {
            let (name, schema) = (stream.spec.name.to_string(), stream.spec.schema.clone());
            match stream.origin {
                Origin::Input | Origin::Derived { .. } => {
                    let schema = requests::without_own(schema);
                    by_name.insert(format!("{name}.late"), Outlet::new(schema.clone(), false));
                    by_name.insert(format!("{name}.dead"), Outlet::new(dead_schema(), false));
                    by_name.insert(name, Outlet::new(schema, false));
                }
                _ => {
                    by_name.insert(name, Outlet::new(schema, true));
                }
            }
        }
        Outlets { by_name }
    }

    /// Counts and hashes events of an epoch, in stamp order.
    pub(crate) fn count(&mut self, stream: &str, batch: &Batch) {
        let Some(outlet) = self.by_name.get_mut(stream) else { return };
        match outlet.hashed {
            true => outlet.hash.take(batch),
            false => outlet.hash.rows += batch.len() as u64,
        }
    }

    /// Writes events of an epoch whose cut is durable.
    pub(crate) fn write(&mut self, stream: &str, batch: &Batch) -> Result<()> {
        let Some(outlet) = self.by_name.get_mut(stream) else { return Ok(()) };
        if outlet.sinks.is_empty() {
            return Ok(());
        }
        let batch = outlet.shown(batch).into_owned();
        outlet.dirty = true;
        outlet.sinks.iter_mut().try_for_each(|sink| sink.sink.write(&batch))
    }

    /// Retains such events in memory, where they are needed.
    pub(crate) fn keep(&self, stream: &str, batch: Batch, retained: &mut RetainedBatches) {
        if let Some(outlet) = self.by_name.get(stream).filter(|outlet| outlet.keep) {
            let batch = outlet.shown(&batch).into_owned();
            retained.bytes += batch.bytes();
            retained.batches.entry(stream.to_string()).or_default().push(batch);
        }
    }

    /// Commits the epochs so far, whose rows may be visible now.
    pub(crate) fn commit(&mut self) -> Result<()> {
        for outlet in self.by_name.values_mut().filter(|o| o.dirty) {
            outlet.sinks.iter_mut().try_for_each(|s| s.sink.commit())?;
            outlet.dirty = false;
        }
        Ok(())
    }

    fn sinks(&mut self) -> impl Iterator<Item = &mut NamedSink> {
        self.by_name.values_mut().flat_map(|o| &mut o.sinks)
    }

    /// Notes that all rows to rewrite have been written.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.sinks().try_for_each(|s| s.sink.settle())
    }

    /// Makes everything committed durable.
    pub(crate) fn sync(&mut self) -> Result<Vec<SinkFacts>> {
        let mut facts = Vec::new();
        for (stream, outlet) in &mut self.by_name {
            for NamedSink { path, sink } in &mut outlet.sinks {
                let place = sink.sync()?;
                facts.push(SinkFacts { stream: stream.clone(), path: path.clone(), place });
            }
        }
        Ok(facts)
    }

    /// Completes the outputs, because nothing more will come.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.sinks().try_for_each(|s| s.sink.finish())
    }

    /// The rows of each output stream.
    pub(crate) fn rows(&self) -> BTreeMap<String, u64> {
        let hashed = self.by_name.iter().filter(|(_, o)| o.hashed);
        hashed.map(|(name, outlet)| (name.clone(), outlet.hash.rows)).collect()
    }

    /// The hash of all outputs. It does not depend on the cuts.
    pub(crate) fn hash(&self) -> u128 {
        let hashed = self.by_name.iter().filter(|(_, o)| o.hashed);
        streams_hash(hashed.map(|(name, outlet)| (&**name, outlet.hash)))
    }

    /// The counts of outputs, for a snapshot.
    pub(crate) fn facts(&self) -> BTreeMap<String, OutletFacts> {
        let facts = |outlet: &Outlet| OutletFacts {
            rows: outlet.hash.rows,
            hash: format!("{:032x}", outlet.hash.sum),
        };
        self.by_name.iter().map(|(name, outlet)| (name.clone(), facts(outlet))).collect()
    }

    /// Continues the counts of a snapshot.
    pub(crate) fn resume(&mut self, facts: &BTreeMap<String, OutletFacts>) {
        for (name, facts) in facts {
            if let Some(outlet) = self.by_name.get_mut(name) {
                let sum = u128::from_str_radix(&facts.hash, 16).unwrap_or_default();
                outlet.hash = RowsHash { sum, rows: facts.rows };
            }
        }
    }
}
