//! Loading the rows of a snapshot.

use std::ops::Range;
use std::sync::Arc;

use tidemill_core::{Result, TableId};
use tidemill_durable::Store;
use tidemill_place::Partition;

use crate::data::{Cursor, DataReader};
use crate::layout::DataObject;
use crate::manifest::Manifest;
use crate::merge::{window, Merger};
use crate::shard::{shards_in, ShardSet, SHARDS};

/// A row of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedRow<'a> {
    /// The table.
    pub table: TableId,
    /// The partition.
    pub partition: Partition,
    /// The key.
    pub key: &'a [u8],
    /// The row itself.
    pub row: &'a [u8],
}

/// A row of some data objects, or its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedChange<'a> {
    /// The table.
    pub table: TableId,
    /// The partition.
    pub partition: Partition,
    /// The key.
    pub key: &'a [u8],
    /// The row itself, or `None` if it is deleted.
    pub row: Option<&'a [u8]>,
}

/// A snapshot open for reading, with the verified indexes of its data objects. Several threads may
/// load pieces of it at the same time.
pub struct Loader {
    objects: Vec<(Arc<DataReader>, DataObject)>,
}

/// Some neighbouring shards, to be loaded by one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece(Range<usize>);

impl Loader {
    /// Reads the indexes of all data objects.
    ///
    /// # Errors
    /// If the store fails. `Io` if an object is missing, damaged, or not the one that the manifest
    /// names. `Setting` if one belongs to another app or a later version.
    pub fn open(store: &Arc<dyn Store>, manifest: &Manifest) -> Result<Loader> {
        Loader::of(store, manifest.app, &manifest.objects)
    }

    /// Reads the indexes of these data objects, which apply in this order.
    ///
    /// # Errors
    /// As [`Loader::open`].
    pub fn of(store: &Arc<dyn Store>, app: u128, objects: &[DataObject]) -> Result<Loader> {
        let open = |object: &DataObject| {
            let DataObject { name, len, root, .. } = object;
            let reader = DataReader::open(store.clone(), name, app, *len, *root)?;
            Ok((Arc::new(reader), object.clone()))
        };
        Ok(Loader { objects: objects.iter().map(open).collect::<Result<_>>()? })
    }

    /// Returns an upper bound on the number of rows, to reserve memory for them.
    pub fn rows_max(&self) -> u64 {
        self.objects.iter().map(|(reader, _)| reader.rows()).sum()
    }

    /// Divides all rows into at most `count` pieces of about the same number of bytes. A partition
    /// is in one piece only.
    pub fn pieces(&self, count: usize) -> Vec<Piece> {
        let bytes = |shard: usize| self.objects.iter().map(|(_, o)| o.shards[shard]).sum::<u64>();
        let total: u64 = (0..SHARDS).map(bytes).sum();
        let share = (total / count.clamp(1, SHARDS) as u64).max(1);
        let mut pieces = Vec::new();
        let (mut from, mut before) = (0, 0);
        for shard in 0..SHARDS {
            before += bytes(shard);
            // The number of pieces so far reaches the share of the shards up to here.
            if before >= share * (pieces.len() as u64 + 1) && pieces.len() + 1 < count {
                pieces.push(Piece(from..shard + 1));
                from = shard + 1;
            }
        }
        if from < SHARDS {
            pieces.push(Piece(from..SHARDS));
        }
        pieces
    }

    /// Calls `visit` with each row of a piece once, in the order of shard, table, partition and
    /// key. Reads a window of each object (32 MiB together, or a block each where that is more).
    ///
    /// # Errors
    /// If the store fails; `Io` if an object is damaged; the error of `visit`. The rows visited
    /// before were right.
    pub fn load(
        &self,
        piece: &Piece,
        mut visit: impl FnMut(LoadedRow<'_>) -> Result<()>,
    ) -> Result<()> {
        self.changes(piece.0.clone(), |LoadedChange { table, partition, key, row }| match row {
            Some(row) => visit(LoadedRow { table, partition, key, row }),
            None => Ok(()),
        })
    }

    /// Calls `visit` with each row and each deletion in some shards once, as
    /// [`load`](Loader::load) does.
    ///
    /// # Errors
    /// As [`load`](Loader::load).
    pub fn changes(
        &self,
        shards: impl Iterator<Item = usize>,
        mut visit: impl FnMut(LoadedChange<'_>) -> Result<()>,
    ) -> Result<()> {
        let inside = shards.fold(0, |set: ShardSet, shard| set | 1 << shard);
        let live = self.objects.iter().map(|(reader, o)| (reader, o.live() & inside));
        let live: Vec<_> = live.filter(|(_, live)| *live != 0).collect();
        let window = window(live.len());
        let cursors =
            live.iter().map(|(reader, live)| Cursor::new((*reader).clone(), window, *live));
        let mut merger = Merger::new(cursors.collect());
        for shard in shards_in(inside) {
            merger.begin(shard, |number| live[number].1 >> shard & 1 == 1)?;
            while let Some(cursor) = merger.next()? {
                let (spot, key, row) = (cursor.spot(), cursor.key(), cursor.row());
                let (table, partition) = (spot.table(), spot.partition());
                visit(LoadedChange { table, partition, key, row })?;
            }
        }
        Ok(())
    }
}

/// Calls `visit` with each row of a snapshot once.
///
/// # Errors
/// As [`Loader::open`] and [`Loader::load`].
pub fn load(
    store: &Arc<dyn Store>,
    manifest: &Manifest,
    mut visit: impl FnMut(LoadedRow<'_>) -> Result<()>,
) -> Result<()> {
    let loader = Loader::open(store, manifest)?;
    loader.pieces(1).iter().try_for_each(|piece| loader.load(piece, &mut visit))
}
