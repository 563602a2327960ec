//! Publishing a snapshot: objects first, the manifest last.

use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_durable::name_taken;

use crate::data::{DataWriter, Written};
use crate::delta::{Delta, Sorter};
use crate::layout::{occupied, DataObject};
use crate::manifest::{check_objects, manifest_at, Blob, Head, Manifest};
use crate::shard::SHARDS;
use crate::snapshots::Snapshots;
use crate::{DATA, INTERNAL};

impl Snapshots {
    /// Publishes the state after one cut: that of the newest snapshot with the changes of `delta`,
    /// and the internal state as a whole. When this returns, the snapshot survives a crash of the
    /// machine, and is the newest.
    ///
    /// It sorts and writes about as many bytes as the delta has. Besides it holds one shard's
    /// sorting words and one block. Adopted merges become part of the snapshot; a running one is
    /// not waited for.
    ///
    /// # Errors
    /// If the store fails or is full. Then nothing has changed here, the delta still belongs to the
    /// caller, and it is *not* part of any snapshot that counts. Publish it again for the same
    /// epoch, or add later changes to it and publish for a later one. (If only the answer was lost,
    /// the snapshot exists. It is complete then, and harmless.)
    ///
    /// `Resource` if another process has published this epoch, `Internal` if the epoch is not above
    /// the newest one.
    pub fn publish(&mut self, head: Head, internal: &[u8], delta: &Delta) -> Result<Arc<Manifest>> {
        if self.newest.as_ref().is_some_and(|newest| head.epoch <= newest.head.epoch) {
            return Err(Error::internal(format!("epoch {} is in a snapshot already", head.epoch)));
        }
        let mut objects = if delta.is_whole() { Vec::new() } else { self.layout.clone() };

        let data = self.names.claim(DATA);
        if let Some(written) = self.write_delta(data.name(), head.epoch, delta, &objects)? {
            objects.push(DataObject::new(data.name(), 0, &written));
        }
        let state = self.names.claim(INTERNAL);
        if !self.store.put(state.name(), internal)? {
            return Err(name_taken(state.name()));
        }
        let internal = Blob::of(state.name(), internal);

        let manifest = Manifest { app: self.app, head, writer: self.writer, objects, internal };
        let manifest = match self.store.put(&manifest.name(), &manifest.encode())? {
            true => manifest,
            false => self.published_before(&manifest)?,
        };
        let manifest = Arc::new(manifest);
        self.layout.clone_from(&manifest.objects);
        self.newest = Some(manifest.clone());
        Ok(manifest)
    }

    /// Writes the rows of a delta on top of `below`. Returns `None` if there are none.
    fn write_delta(
        &self,
        name: &str,
        epoch: u64,
        delta: &Delta,
        below: &[DataObject],
    ) -> Result<Option<Written>> {
        let below = occupied(below);
        let mut sorter = Sorter::default();
        let mut writer: Option<DataWriter> = None;
        for shard in 0..SHARDS {
            let bare = below >> shard & 1 == 0;
            delta.sorted(shard, &mut sorter).each(|spot, deleted, row| {
                // There is nothing that the deletion could delete.
                if deleted && bare {
                    return Ok(());
                }
                match &mut writer {
                    Some(writer) => writer.push(spot, row),
                    None => {
                        let new = DataWriter::create(&*self.store, name, self.app, epoch)?;
                        writer.insert(new).push(spot, row)
                    }
                }
            })?;
        }
        writer.map(DataWriter::finish).transpose()
    }

    /// Returns the existing manifest of this epoch, if it is from an earlier attempt whose answer
    /// was lost.
    fn published_before(&self, wanted: &Manifest) -> Result<Manifest> {
        let found = manifest_at(&*self.store, self.app, wanted.head.epoch)?;
        match found {
            Some(found) if found.writer == self.writer && found.head == wanted.head => {
                check_objects(&*self.store, &found)?;
                Ok(found)
            }
            _ => Err(Error::resource(format!(
                "another process has published the snapshot {}",
                wanted.name()
            ))
            .help("another process writes to the same data: stop one of them")),
        }
    }
}
