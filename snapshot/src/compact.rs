//! Merging of data objects in the background.
//!
//! [`Snapshots::plan`] gives a [`Merge`] that is independent of the [`Snapshots`]. Another thread
//! runs it, in steps, while snapshots continue. The result is passed to [`Snapshots::adopt`], and
//! counts from the next snapshot on. A merge that is dropped leaves only an unused object.

use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_durable::Store;

use crate::data::{Cursor, DataReader, DataWriter};
use crate::layout::{plan, replace, DataObject, Work};
use crate::merge::{window, Merger};
use crate::names::Claim;
use crate::shard::shards_in;
use crate::snapshots::Snapshots;
use crate::DATA;

/// Data objects that are being merged.
///
/// It reads a window of each (32 MiB together, or a block each where that is more), and holds one
/// block of its output.
pub struct Merge {
    store: Arc<dyn Store>,
    app: u128,
    epoch: u64,
    work: Work,
    name: String,
    claim: Option<Claim>,
    is_done: bool,
    /// The merger; `None` before the first step.
    merger: Option<Merger>,
    writer: Option<DataWriter>,
    /// The remaining shards, the last one first.
    shards: Vec<usize>,
    /// The shard in which the merger is.
    shard: Option<usize>,
}

/// The result of a [`Merge`], for [`Snapshots::adopt`].
pub struct Merged {
    work: Work,
    /// The new object; `None` if no row was left.
    object: Option<DataObject>,
    _claim: Option<Claim>,
}

impl Snapshots {
    /// Returns the next merge that pays off, if there is one. Reads nothing.
    ///
    /// Run one at a time. If a merge or its result is dropped, it can be planned again.
    pub fn plan(&self) -> Option<Merge> {
        let work = plan(&self.layout)?;
        let claim = self.names.claim(DATA);
        let epoch = self.newest.as_ref().map_or(0, |newest| newest.head.epoch);
        let merge = Merge::new(&self.store, (self.app, epoch), claim.name(), work);
        Some(Merge { claim: Some(claim), ..merge })
    }

    /// Takes the result of a merge into the next snapshot. Returns `false`, and changes nothing, if
    /// the result is out of date: through another merge of the same objects, or a snapshot of the
    /// whole state.
    pub fn adopt(&mut self, merged: Merged) -> bool {
        replace(&mut self.layout, &merged.work, merged.object)
    }
}

impl Merge {
    /// Creates a merge into a new object of an app and an epoch.
    fn new(store: &Arc<dyn Store>, (app, epoch): (u128, u64), name: &str, work: Work) -> Merge {
        let mut shards: Vec<usize> = shards_in(work.shards()).collect();
        shards.reverse();
        Merge {
            store: store.clone(),
            app,
            epoch,
            work,
            name: name.to_owned(),
            claim: None,
            is_done: false,
            merger: None,
            writer: None,
            shards,
            shard: None,
        }
    }

    /// Returns the number of bytes that it will read.
    pub fn bytes(&self) -> u64 {
        let of = |(object, shards): &(DataObject, u64)| -> u64 {
            shards_in(*shards).map(|shard| object.shards[shard]).sum()
        };
        self.work.inputs.iter().map(of).sum()
    }

    /// Merges until it has read about `bytes_max` more bytes. Returns the result when it is
    /// complete.
    ///
    /// # Errors
    /// If the store fails; `Io` if an object is damaged. The merge is of no use any more then.
    pub fn step(&mut self, bytes_max: u64) -> Result<Option<Merged>> {
        let mut left = bytes_max;
        loop {
            if !self.enter_shard()? {
                return self.finish().map(Some);
            }
            if !self.merge_shard(&mut left)? {
                return Ok(None);
            }
            self.shard = None;
        }
    }

    /// Merges to the end.
    ///
    /// # Errors
    /// As [`step`](Merge::step).
    pub fn run(mut self) -> Result<Merged> {
        loop {
            if let Some(merged) = self.step(u64::MAX)? {
                return Ok(merged);
            }
        }
    }

    /// Makes sure that the merger is in a shard. Returns `false` if none is left.
    fn enter_shard(&mut self) -> Result<bool> {
        if self.shard.is_some() {
            return Ok(true);
        }
        let Some(shard) = self.shards.pop() else { return Ok(false) };
        if self.merger.is_none() {
            self.merger = Some(self.open()?);
        }
        let merger = self.merger.as_mut().expect("it is open");
        merger.begin(shard, |number| self.work.inputs[number].1 >> shard & 1 == 1)?;
        self.shard = Some(shard);
        Ok(true)
    }

    fn open(&self) -> Result<Merger> {
        let window = window(self.work.inputs.len());
        let cursors = self.work.inputs.iter().map(|(object, shards)| {
            let DataObject { name, len, root, .. } = object;
            let reader = DataReader::open(self.store.clone(), name, self.app, *len, *root)?;
            Ok(Cursor::new(Arc::new(reader), window, *shards))
        });
        Ok(Merger::new(cursors.collect::<Result<_>>()?))
    }

    /// Writes rows of the shard while there are bytes left. Returns `true` at the end of the shard.
    fn merge_shard(&mut self, left: &mut u64) -> Result<bool> {
        let merger = self.merger.as_mut().expect("it has entered a shard");
        let based = self.shard.is_some_and(|shard| self.work.based >> shard & 1 == 1);
        while *left > 0 {
            let Some(cursor) = merger.next()? else { return Ok(true) };
            *left = left.saturating_sub(cursor.encoded().len() as u64);
            if based && cursor.row().is_none() {
                continue;
            }
            let writer = match &mut self.writer {
                Some(writer) => writer,
                none => {
                    let new = DataWriter::create(&*self.store, &self.name, self.app, self.epoch)?;
                    none.insert(new)
                }
            };
            writer.push(cursor.spot(), cursor.encoded())?;
        }
        Ok(false)
    }

    fn finish(&mut self) -> Result<Merged> {
        if std::mem::replace(&mut self.is_done, true) {
            return Err(Error::internal("a merge was continued after its end"));
        }
        let written = self.writer.take().map(DataWriter::finish).transpose()?;
        let object = written.map(|w| DataObject::new(&self.name, self.work.level, &w));
        Ok(Merged { work: self.work.clone(), object, _claim: self.claim.take() })
    }
}

/// Merges data objects into a new one of this name, for callers that have their own manifests.
/// Returns `None` if no row was left.
///
/// # Errors
/// As [`Merge::step`].
pub fn merge(
    store: &Arc<dyn Store>,
    of: (u128, u64),
    name: &str,
    work: &Work,
) -> Result<Option<DataObject>> {
    Merge::new(store, of, name, work.clone()).run().map(|merged| merged.object)
}
