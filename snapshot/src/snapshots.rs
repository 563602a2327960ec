//! The snapshots of an app, for their writer: opening.
//!
//! Each operation on them has its own file: `publish.rs`, `compact.rs`, `retain.rs`, `load.rs`.

use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_durable::Store;

use crate::layout::DataObject;
use crate::manifest::{check_objects, epoch_of, epochs, manifest_at, Manifest, MANIFESTS};
use crate::names::Names;
use crate::{DATA, INTERNAL};

/// The snapshots of an app, open for writing. It has one user at a time. A [`Merge`](crate::Merge)
/// does the long work beside publishing, on another thread.
pub struct Snapshots {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) app: u128,
    pub(crate) names: Arc<Names>,
    pub(crate) writer: u64,
    pub(crate) newest: Option<Arc<Manifest>>,
    /// The objects of the next manifest, except its own delta: those of the newest one, with the
    /// merges since.
    pub(crate) layout: Vec<DataObject>,
}

impl Snapshots {
    /// Opens the snapshots of an app, at the newest one: [`newest`](Snapshots::newest).
    ///
    /// There is one writer at a time: the caller has made sure that an earlier one has ended.
    /// `writer` is a number that no other writer has or has had, from `env.random`. It keeps names
    /// apart even if the caller is wrong.
    ///
    /// # Errors
    /// If the store fails. `Io` if the newest manifest is damaged, or names objects that are
    /// missing or have another length. An older one never replaces it, unless an operator decides
    /// so ([`discard_after`]). `Setting` if it belongs to another app or a later version.
    pub fn open(store: Arc<dyn Store>, app: u128, writer: u64) -> Result<Snapshots> {
        let newest = newest(&*store, app)?;
        let mut there = store.list(DATA)?;
        there.extend(store.list(INTERNAL)?);
        let names = Names::new(writer, there.iter().map(|object| &*object.name));
        let layout = newest.as_ref().map(|manifest| manifest.objects.clone()).unwrap_or_default();
        Ok(Snapshots { store, app, names, writer, newest: newest.map(Arc::new), layout })
    }

    /// Returns the newest snapshot, if there is one.
    pub fn newest(&self) -> Option<&Arc<Manifest>> {
        self.newest.as_ref()
    }
}

/// Returns the newest manifest, if there is one; all objects that it names exist. Changes nothing:
/// for reading the data of a stopped engine.
///
/// # Errors
/// As [`Snapshots::open`].
pub fn newest(store: &dyn Store, app: u128) -> Result<Option<Manifest>> {
    let Some(epoch) = epochs(store)?.pop() else { return Ok(None) };
    open_at(store, app, epoch).map(Some)
}

/// Returns the manifest of a certain snapshot; all objects that it names exist. Changes nothing.
///
/// # Errors
/// As [`Snapshots::open`]; `Setting` if there is no snapshot of that epoch.
pub fn open_at(store: &dyn Store, app: u128, epoch: u64) -> Result<Manifest> {
    let Some(manifest) = manifest_at(store, app, epoch)? else {
        let there: Vec<String> = epochs(store)?.iter().map(u64::to_string).collect();
        let help = match &there[..] {
            [] => "there are no snapshots".to_owned(),
            _ => format!("there are snapshots of the epochs {}", there.join(", ")),
        };
        return Err(Error::setting(format!("there is no snapshot of epoch {epoch}")).help(help));
    };
    check_objects(store, &manifest)?;
    Ok(manifest)
}

/// Removes the manifests of all snapshots after `epoch`, so that its own is the newest. For an
/// operator who has decided to lose their content, for example when one of them is damaged.
///
/// # Errors
/// If the store fails, or as [`open_at`]: nothing is removed if the new newest one can't be opened.
pub fn discard_after(store: &dyn Store, app: u128, epoch: u64) -> Result<()> {
    open_at(store, app, epoch)?;
    // An object with another name is removed, too: it may be a later manifest that was renamed.
    let is_kept = |name: &str| epoch_of(name).is_some_and(|found| found <= epoch);
    for object in store.list(MANIFESTS)?.iter().rev() {
        if !is_kept(&object.name) {
            store.delete(&object.name)?;
        }
    }
    Ok(())
}
