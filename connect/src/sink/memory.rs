//! A sink that stores rows in memory.

use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_core::{Batch, Error, Result, Schema};

use super::{Sink, SinkPlace};

/// Creates a sink in memory, and the reader of its rows.
pub fn memory(schema: Arc<Schema>) -> (MemorySink, MemoryRows) {
    let rows = MemoryRows { batches: Arc::default() };
    let sink = MemorySink {
        schema,
        pending: Vec::new(),
        rows: rows.clone(),
        written: 0,
        committed: 0,
        finished: false,
    };
    (sink, rows)
}

/// Stores committed rows for a [`MemoryRows`].
pub struct MemorySink {
    schema: Arc<Schema>,
    pending: Vec<Batch>,
    rows: MemoryRows,
    written: u64,
    committed: u64,
    finished: bool,
}

/// The committed rows of a [`MemorySink`]. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct MemoryRows {
    batches: Arc<Mutex<Vec<Batch>>>,
}

impl MemoryRows {
    /// Returns all rows so far, in order.
    pub fn batches(&self) -> Vec<Batch> {
        self.batches.lock().clone()
    }

    /// Takes the rows since the last call.
    pub fn take(&self) -> Vec<Batch> {
        std::mem::take(&mut *self.batches.lock())
    }
}

impl Sink for MemorySink {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        super::target::check_schema("the sink in memory", &self.schema, batch)?;
        if self.finished {
            return Err(Error::internal("the sink in memory is written after its end"));
        }
        if !batch.is_empty() {
            self.pending.push(batch.clone());
            self.written += batch.len() as u64;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.rows.batches.lock().append(&mut self.pending);
        self.committed = self.written;
        Ok(())
    }

    fn place(&self) -> SinkPlace {
        SinkPlace { rows: self.written, ..SinkPlace::default() }
    }

    fn sync(&mut self) -> Result<SinkPlace> {
        Ok(SinkPlace { rows: self.committed, ..SinkPlace::default() })
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.pending.clear();
        self.written = self.committed;
        self.finished = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::{Column, DataType, Value};

    #[test]
    fn keeps_the_contract() {
        let schema = Arc::new(Schema::new(vec![Column::new("a", DataType::Int)]));
        let rows: Vec<Vec<Value>> = (0..5).map(|i| vec![Value::Int(i)]).collect();
        let batch = Batch::from_rows(schema.clone(), rows.iter().map(|r| &r[..]));
        let make = || -> super::super::contract::Made {
            let (sink, rows) = memory(schema.clone());
            let read =
                move || rows.batches().iter().flat_map(|b| b.rows().collect::<Vec<_>>()).collect();
            (Box::new(sink), Box::new(read))
        };
        super::super::contract::check(make, &batch);
    }
}
