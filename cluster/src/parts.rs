//! Parts of snapshots in a store: writing, loading and merging them. These calls wait for the
//! store, so drivers make them on threads of their own.
//!
//! The objects are those of `tidemill_snapshot`, so a part of a node has the same format as a
//! snapshot of an engine in one process.

use std::sync::Arc;

use tidemill_core::{Error, Key, Result, TableId, TableSpec};
use tidemill_durable::Store;
use tidemill_function::{Rows, TakenRows};
use tidemill_place::PartitionSet;
use tidemill_snapshot::{put_rows, shards, DataObject, Delta, LoadedChange, Loader, Part};
use tidemill_table::Loading;

/// Rows of a snapshot.
#[derive(Clone, Debug)]
pub struct LoadedRows {
    /// The rows.
    pub rows: Rows,
    /// Rows that the last one of the objects to have them has removed.
    pub removed: Vec<(TableId, Key)>,
}

/// Puts the changed rows and versions of a node as an object of a program and an epoch. Returns
/// `None` if there are none.
///
/// # Errors
/// If the store fails or is full; `Resource` if there is an object of this name.
pub fn put_part(
    store: &dyn Store,
    of: (u128, u64),
    name: &str,
    TakenRows { tables, changes }: &TakenRows,
) -> Result<Option<DataObject>> {
    let mut delta = Delta::new();
    for (number, changed) in changes {
        let of = |part: Part| part.number(*tables);
        let (rows, versions) = (of(Part::Row(number.index())), of(Part::Version(number.index())));
        changed.for_each(|partition, key, row| delta.push(rows, partition, key, row));
        changed.for_each_version(|partition, key, version| {
            delta.push(versions, partition, key, version);
        });
    }
    put_rows(store, of, name, &delta)
}

/// Loads the rows of some partitions from objects of a program, which apply in this order. The seed
/// is that of the tables ([`Rows::new`]).
///
/// # Errors
/// If the store fails; `Io` if an object is missing or damaged.
pub fn load_rows(
    store: &Arc<dyn Store>,
    program: u128,
    objects: &[DataObject],
    partitions: &PartitionSet,
    (tables, seed): (&[TableSpec], u64),
) -> Result<LoadedRows> {
    let loader = Loader::of(store, program, objects)?;
    let mut loaded = LoadedRows { rows: Rows::new(tables, seed), removed: Vec::new() };
    let mut loading = loaded.rows.loading();
    loader.changes(shards(partitions), |LoadedChange { table, partition, key, row }| {
        let part = Part::of(table, tables.len());
        let (Part::Row(number) | Part::Version(number)) = part;
        let of = loading
            .get_mut(number)
            .ok_or_else(|| Error::internal("a snapshot has a table that the program has not"))?;
        match (part, row) {
            _ if !partitions.contains(partition) => {}
            (Part::Row(_), Some(row)) => of.row(key, row)?,
            (Part::Row(_), None) => loaded.removed.push((table, Key(key.into()))),
            // Versions are loaded from all objects together. So a removed one is just not there.
            (Part::Version(_), None) => {}
            (Part::Version(_), Some(version)) => of.version(key, version)?,
        }
        Ok(())
    })?;
    loading.into_iter().try_for_each(Loading::finish)?;
    Ok(loaded)
}
