//! The contents of the disk: those that the programs see, and those that a crash would leave.
//!
//! Every change is an [`Event`], so that a trace of events can be replayed. This part is
//! independent of handles, faults and callers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Left;
use crate::SimRandom;

/// Identifies the bytes of a file, whatever its names are. Ids are never reused.
pub(super) type Id = u64;

/// The contents of a disk. Cheap to clone: bytes are shared until one side changes them.
#[derive(Clone, Default)]
pub(super) struct State {
    /// The names that the programs see.
    pub(super) names: BTreeMap<PathBuf, Node>,
    /// The names that a crash leaves. Invariant: `durable` with `pending` applied is `names`.
    pub(super) durable: BTreeMap<PathBuf, Node>,
    pub(super) pending: Vec<NameChange>,
    files: BTreeMap<Id, Inode>,
    last_id: Id,
}

#[derive(Clone)]
pub(super) enum Node {
    Dir { modified_us: i64 },
    File(Id),
}

#[derive(Clone, Default)]
pub(super) struct Inode {
    /// The bytes that the programs see.
    pub(super) data: Arc<Vec<u8>>,
    /// The bytes that a crash leaves. Invariant until a sync fails: `synced` with `pending` applied
    /// is `data`.
    synced: Arc<Vec<u8>>,
    pending: Vec<Change>,
    pub(super) modified_us: i64,
    /// Shared with each open handle: a file without a name lives as long.
    pub(super) open: Arc<()>,
}

/// A change of a file's bytes.
#[derive(Clone)]
pub(super) enum Change {
    Write { at: usize, bytes: Arc<[u8]> },
    SetLen(usize),
}

/// A change of names that survives a crash in whole or not at all: each path with the file that it
/// names from now on.
#[derive(Clone)]
pub(super) struct NameChange(pub(super) Vec<(PathBuf, Option<Id>)>);

/// A change of the contents of the disk.
#[derive(Clone)]
pub(super) enum Event {
    /// Files created, renamed or removed.
    Names(NameChange),
    /// Directories created, durable at once.
    Directories(Vec<PathBuf>),
    SyncDir(PathBuf),
    Bytes(Id, Change),
    Sync(Id),
    /// A failed sync, which loses the bytes concerned.
    SyncFailed(Id),
    /// An outsider inverts the bits of a mask in a byte.
    Flip(Id, usize, u8),
    /// An outsider truncates a file, durably.
    Cut(Id, usize),
    /// An outsider exchanges two names, durably.
    Swap(PathBuf, PathBuf),
    /// No change: a mark that the test has set.
    Mark(u64),
}

/// The unit that a disk stores in whole or not at all, in bytes.
const SECTOR: usize = 512;

impl Change {
    fn apply(&self, data: &mut Vec<u8>) {
        match self {
            // A torn write may also be empty. Writing nothing does not extend a file.
            Change::Write { bytes, .. } if bytes.is_empty() => {}
            Change::Write { at, bytes } => {
                let end = at + bytes.len();
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[*at..end].copy_from_slice(bytes);
            }
            Change::SetLen(len) => data.resize(*len, 0),
        }
    }

    /// As [`apply`](Change::apply), but in part: a write is cut short, or some of its sectors are
    /// missing.
    fn apply_torn(&self, data: &mut Vec<u8>, random: &SimRandom) {
        let Change::Write { at, bytes } = self else { return self.apply(data) };
        let part = |from: usize, to: usize| Change::Write {
            at: at + from,
            bytes: bytes.get(from..to).unwrap_or_default().into(),
        };
        if random.below(2) == 0 {
            return part(0, random.below(bytes.len() as u64 + 1) as usize).apply(data);
        }
        let mut from = 0;
        while from < bytes.len() {
            let to = bytes.len().min((at + from) / SECTOR * SECTOR + SECTOR - at);
            if random.below(2) == 0 {
                part(from, to).apply(data);
            }
            from = to;
        }
    }
}

impl NameChange {
    pub(super) fn apply(self, names: &mut BTreeMap<PathBuf, Node>) {
        for (path, file) in self.0 {
            match file {
                Some(id) => names.insert(path, Node::File(id)),
                None => names.remove(&path),
            };
        }
    }
}

/// Whether this is the top of all absolute paths, or of all relative ones.
fn is_top(path: &Path) -> bool {
    path.parent().is_none()
}

impl State {
    /// Returns the node at a path, or `None` for a top directory, which always exists.
    pub(super) fn node(&self, path: &Path) -> io::Result<Option<&Node>> {
        if is_top(path) {
            return Ok(None);
        }
        if let Some(node) = self.names.get(path) {
            return Ok(Some(node));
        }
        // A file in the place of a directory is another error than a missing path.
        let in_the_way = path.ancestors().skip(1).find_map(|above| self.names.get(above));
        Err(match in_the_way {
            Some(Node::File(_)) => ErrorKind::NotADirectory.into(),
            _ => ErrorKind::NotFound.into(),
        })
    }

    pub(super) fn id(&self, path: &Path) -> io::Result<Id> {
        match self.node(path)? {
            Some(Node::File(id)) => Ok(*id),
            _ => Err(ErrorKind::IsADirectory.into()),
        }
    }

    /// Returns a file that is named or open.
    pub(super) fn file(&self, id: Id) -> &Inode {
        &self.files[&id]
    }

    #[cfg(test)]
    pub(super) fn files_held(&self) -> usize {
        self.files.len()
    }

    pub(super) fn check_dir(&self, path: &Path) -> io::Result<()> {
        match self.node(path)? {
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            _ => Ok(()),
        }
    }

    /// Returns the id of the next new file.
    pub(super) fn next_id(&self) -> Id {
        self.last_id + 1
    }

    /// Returns the total bytes of all files.
    pub(super) fn used(&self) -> u64 {
        let len = |node: &Node| match node {
            Node::Dir { .. } => 0,
            Node::File(id) => self.file(*id).data.len() as u64,
        };
        self.names.values().map(len).sum()
    }

    /// Applies an event. The caller has checked it.
    pub(super) fn apply(&mut self, event: &Event, now_us: i64) {
        match event {
            Event::Names(change) => {
                for id in change.0.iter().filter_map(|(_, id)| *id) {
                    let new = || Inode { modified_us: now_us, ..Inode::default() };
                    self.files.entry(id).or_insert_with(new);
                    self.last_id = self.last_id.max(id);
                }
                change.clone().apply(&mut self.names);
                self.pending.push(change.clone());
            }
            Event::Directories(missing) => {
                for dir in missing {
                    // Syncing the parent stores the directory, and also the parent's other names.
                    if let Some(parent) = dir.parent() {
                        self.sync_names(parent);
                    }
                    let node = Node::Dir { modified_us: now_us };
                    self.names.insert(dir.clone(), node.clone());
                    self.durable.insert(dir.clone(), node);
                }
            }
            Event::SyncDir(dir) => {
                self.sync_names(dir);
                self.forget_unnamed();
            }
            Event::Bytes(id, change) => {
                let Some(file) = self.files.get_mut(id) else { return };
                change.apply(Arc::make_mut(&mut file.data));
                file.pending.push(change.clone());
                file.modified_us = now_us;
            }
            Event::Sync(id) => {
                let Some(file) = self.files.get_mut(id) else { return };
                file.store();
            }
            Event::SyncFailed(id) => {
                // As on Linux: the bytes count as written, whether or not the disk has them.
                let Some(file) = self.files.get_mut(id) else { return };
                file.pending.clear();
            }
            Event::Flip(id, byte, mask) => {
                let Some(file) = self.files.get_mut(id) else { return };
                file.flip(*byte, *mask);
            }
            Event::Cut(id, len) => {
                let Some(file) = self.files.get_mut(id) else { return };
                file.store();
                Arc::make_mut(&mut file.data).truncate(*len);
                Arc::make_mut(&mut file.synced).truncate(*len);
            }
            Event::Swap(a, b) => {
                for change in std::mem::take(&mut self.pending) {
                    change.apply(&mut self.durable);
                }
                for names in [&mut self.names, &mut self.durable] {
                    if let (Some(at_a), Some(at_b)) = (names.remove(a), names.remove(b)) {
                        names.insert(a.clone(), at_b);
                        names.insert(b.clone(), at_a);
                    }
                }
            }
            Event::Mark(_) => {}
        }
    }

    /// Stores the changes of names in a directory, with all changes elsewhere that concern the same
    /// paths. So a rename is stored on both sides, after the changes before it.
    fn sync_names(&mut self, dir: &Path) {
        let mut paths: Vec<PathBuf> = Vec::new();
        let mut stored = vec![false; self.pending.len()];
        loop {
            let mut grown = false;
            for (change, stored) in self.pending.iter().zip(&mut stored) {
                let concerned = |(path, _): &(PathBuf, Option<Id>)| {
                    path.parent() == Some(dir) || paths.contains(path)
                };
                if !*stored && change.0.iter().any(concerned) {
                    *stored = true;
                    grown = true;
                    paths.extend(change.0.iter().map(|(path, _)| path.clone()));
                }
            }
            if !grown {
                break;
            }
        }
        let pending = std::mem::take(&mut self.pending);
        for (change, stored) in pending.into_iter().zip(stored) {
            if stored {
                change.apply(&mut self.durable);
            } else {
                self.pending.push(change);
            }
        }
    }

    /// Drops files that no name, no pending change of names and no open handle refers to.
    fn forget_unnamed(&mut self) {
        let names = self.names.values().chain(self.durable.values());
        let named = names.filter_map(|node| match node {
            Node::File(id) => Some(*id),
            Node::Dir { .. } => None,
        });
        let pending = self.pending.iter().flat_map(|change| &change.0);
        let led_to: BTreeSet<Id> = named.chain(pending.filter_map(|(_, id)| *id)).collect();
        self.files.retain(|id, file| led_to.contains(id) || Arc::strong_count(&file.open) > 1);
    }

    /// Returns the contents after the machine has stopped here and started again.
    pub(super) fn after_crash(&self, left: Left) -> State {
        let random = match left {
            Left::Chance(seed) => Some(SimRandom::new(seed)),
            Left::Synced | Left::Written => None,
        };
        // File systems log changes of names and store them in order, so a prefix survives.
        let changes = match (left, &random) {
            (Left::Synced, _) => 0,
            (_, Some(random)) => random.below(self.pending.len() as u64 + 1) as usize,
            _ => self.pending.len(),
        };
        let mut names = self.durable.clone();
        for change in self.pending.iter().take(changes) {
            change.clone().apply(&mut names);
        }
        // The share of surviving writes varies from few to all, so that long chains of writes break
        // anywhere.
        let quarters = random.as_ref().map_or(0, |random| random.below(5));
        let mut files = BTreeMap::new();
        for node in names.values() {
            let Node::File(id) = node else { continue };
            let old = self.file(*id);
            let mut data = old.synced.clone();
            if left != Left::Synced && !old.pending.is_empty() {
                let data = Arc::make_mut(&mut data);
                for change in &old.pending {
                    match &random {
                        None => change.apply(data),
                        Some(random) if random.below(4) >= quarters => {}
                        Some(random) if random.below(2) == 0 => change.apply(data),
                        Some(random) => change.apply_torn(data, random),
                    }
                }
            }
            let modified_us = old.modified_us;
            let file = Inode { synced: data.clone(), data, modified_us, ..Inode::default() };
            files.insert(*id, file);
        }
        State { durable: names.clone(), names, pending: Vec::new(), files, last_id: self.last_id }
    }
}

impl Inode {
    /// Stores all written bytes.
    fn store(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(Arc::make_mut(&mut self.synced));
        }
    }

    fn flip(&mut self, byte: usize, mask: u8) {
        for data in [&mut self.data, &mut self.synced] {
            if let Some(byte) = Arc::make_mut(data).get_mut(byte) {
                *byte ^= mask;
            }
        }
        for change in &mut self.pending {
            let Change::Write { at, bytes } = change else { continue };
            let mut new = bytes.to_vec();
            if let Some(byte) = byte.checked_sub(*at).and_then(|i| new.get_mut(i)) {
                *byte ^= mask;
                *bytes = new.into();
            }
        }
    }
}
