//! The snapshots of an app, to whom writes them: opening.
//!
//! What is done with them has a file for each verb: `publish.rs`, `compact.rs`, `retain.rs`,
//! `load.rs`.

use std::sync::Arc;

use tidemill_core::{Error, Result};

use crate::layout::DataObject;
use crate::manifest::{check_objects, epoch_of, epochs, manifest_at, Manifest, MANIFESTS};
use crate::names::Names;
use crate::store::Store;
use crate::{DATA, INTERNAL};

/// The snapshots of an app, open for writing. Has one user at a time; what takes long beside
/// publishing is done by a [`Merge`](crate::Merge), on another thread.
pub struct Snapshots {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) app: u128,
    pub(crate) names: Arc<Names>,
    pub(crate) writer: u64,
    pub(crate) newest: Option<Arc<Manifest>>,
    /// What the next manifest names, but for its own delta: the newest one's objects, and what has
    /// been merged since.
    pub(crate) layout: Vec<DataObject>,
}

impl Snapshots {
    /// Opens the snapshots of an app, at the newest one: [`newest`](Snapshots::newest).
    ///
    /// There is one writer at a time: whoever opens has made sure that an earlier one has ended.
    /// `writer` is a number that no other writer has or has had, from `env.random`: it keeps names
    /// apart even so.
    ///
    /// # Errors
    /// When the store fails. `Io` when the newest manifest is damaged, or names what is missing or
    /// has another length: an older one is never taken in its place, unless somebody decides so
    /// ([`discard_after`]). `Setting` when it is of another app or of a version to come.
    pub fn open(store: Arc<dyn Store>, app: u128, writer: u64) -> Result<Snapshots> {
        let newest = newest(&*store, app)?;
        let mut there = store.list(DATA)?;
        there.extend(store.list(INTERNAL)?);
        let names = Names::new(writer, there.iter().map(|object| &*object.name));
        let layout = newest.as_ref().map(|manifest| manifest.objects.clone()).unwrap_or_default();
        Ok(Snapshots { store, app, names, writer, newest: newest.map(Arc::new), layout })
    }

    /// The newest snapshot, if there is any.
    pub fn newest(&self) -> Option<&Arc<Manifest>> {
        self.newest.as_ref()
    }
}

/// The newest manifest, if there is any; all that it names is there. Changes nothing: for reading
/// what a stopped engine has left.
///
/// # Errors
/// As [`Snapshots::open`].
pub fn newest(store: &dyn Store, app: u128) -> Result<Option<Manifest>> {
    let Some(epoch) = epochs(store)?.pop() else { return Ok(None) };
    open_at(store, app, epoch).map(Some)
}

/// The manifest of a certain snapshot; all that it names is there. Changes nothing.
///
/// # Errors
/// As [`Snapshots::open`]; `Setting` when there is no snapshot of that epoch.
pub fn open_at(store: &dyn Store, app: u128, epoch: u64) -> Result<Manifest> {
    let Some(manifest) = manifest_at(store, app, epoch)? else {
        let there: Vec<String> = epochs(store)?.iter().map(u64::to_string).collect();
        let help = match &there[..] {
            [] => "there is none at all".to_owned(),
            _ => format!("there are those of the epochs {}", there.join(", ")),
        };
        return Err(Error::setting(format!("there is no snapshot of epoch {epoch}")).help(help));
    };
    check_objects(store, &manifest)?;
    Ok(manifest)
}

/// Removes the manifests of all snapshots after `epoch`, so that its own is the newest. For an
/// operator who has decided to lose what they hold, as when one of them is damaged.
///
/// # Errors
/// When the store fails, or as [`open_at`]: nothing is removed when what would become the newest
/// can't be opened.
pub fn discard_after(store: &dyn Store, app: u128, epoch: u64) -> Result<()> {
    open_at(store, app, epoch)?;
    // What is no name of a manifest goes as well: it may be a later one, renamed.
    let is_kept = |name: &str| epoch_of(name).is_some_and(|found| found <= epoch);
    for object in store.list(MANIFESTS)?.iter().rev() {
        if !is_kept(&object.name) {
            store.delete(&object.name)?;
        }
    }
    Ok(())
}
