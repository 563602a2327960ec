//! Publishing a snapshot: objects first, the manifest last.

use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_durable::{name_taken, Store};

use crate::data::DataWriter;
use crate::delta::{Delta, Sorter};
use crate::layout::{occupied, DataObject};
use crate::manifest::{check_objects, manifest_at, Blob, Head, Manifest};
use crate::shard::{ShardSet, SHARDS};
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
        let of = (self.app, head.epoch);
        let below = occupied(&objects);
        objects.extend(put_delta(&*self.store, of, data.name(), delta, below)?);
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

/// Puts the rows of a delta as a data object of an app and an epoch, for callers that have their own
/// manifests. Returns `None` if it has none.
///
/// # Errors
/// If the store fails or is full; `Resource` if there is an object of this name.
pub fn put_rows(
    store: &dyn Store,
    of: (u128, u64),
    name: &str,
    delta: &Delta,
) -> Result<Option<DataObject>> {
    // Deletions may delete rows of earlier objects.
    put_delta(store, of, name, delta, ShardSet::MAX)
}

/// Puts the rows of a delta. In shards that are not `occupied` by earlier objects, there is nothing
/// that a deletion could delete.
fn put_delta(
    store: &dyn Store,
    (app, epoch): (u128, u64),
    name: &str,
    delta: &Delta,
    occupied: ShardSet,
) -> Result<Option<DataObject>> {
    let mut sorter = Sorter::default();
    let mut writer: Option<DataWriter> = None;
    for shard in 0..SHARDS {
        let is_bare = occupied >> shard & 1 == 0;
        delta.sorted(shard, &mut sorter).each(|spot, deleted, row| {
            if deleted && is_bare {
                return Ok(());
            }
            match &mut writer {
                Some(writer) => writer.push(spot, row),
                None => writer.insert(DataWriter::create(store, name, app, epoch)?).push(spot, row),
            }
        })?;
    }
    let written = writer.map(DataWriter::finish).transpose()?;
    Ok(written.map(|written| DataObject::new(name, 0, &written)))
}
