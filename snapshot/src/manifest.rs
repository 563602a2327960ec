//! Manifests, which make objects a snapshot.
//!
//! All integers are little-endian; texts and bytes follow their length (u64).
//!
//! ```text
//! magic "TIDEMANI", version u16, app u128, epoch u64, writer u64, fingerprint u128,
//! input_next u64, cut_next u64, program bytes,
//! internal: name text, length u64, checksum u64
//! number of data objects u32, each: name text, length u64, root u64, level u8,
//!     live shards u64 (a bit each), bytes in each of them (in the short form of `bytes.rs`)
//! checksum u64 of all before it
//! ```

use tidemill_core::Result;
use tidemill_durable::Store;

use crate::bytes::{checksum, put_counted, Taker};
use crate::damage;
use crate::layout::DataObject;
use crate::VERSION;

const MAGIC: &[u8; 8] = b"TIDEMANI";
/// The prefix of manifests in a store.
pub(crate) const MANIFESTS: &str = "manifest/";

/// The description of a snapshot, with its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The app to which it belongs.
    pub app: u128,
    /// The engine's data about it.
    pub head: Head,
    /// The writer's number: see [`Snapshots::open`](crate::Snapshots::open).
    pub writer: u64,
    /// The data objects, in the order in which they apply.
    pub objects: Vec<DataObject>,
    /// The internal state's object.
    pub internal: Blob,
}

/// The engine's data about a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The last epoch whose effects are in it.
    pub epoch: u64,
    /// The fingerprint of program and engine.
    pub fingerprint: u128,
    /// The program, so that the data of a stopped engine can be read.
    pub program: Vec<u8>,
    /// The number of the first record of the input log that is not in it.
    pub input_next: u64,
    /// The number of the first record of the cut log that is not in it.
    pub cut_next: u64,
}

/// An object that is read as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The name in the store.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
    /// The checksum.
    pub checksum: u64,
}

impl Blob {
    pub(crate) fn of(name: &str, bytes: &[u8]) -> Blob {
        let len = bytes.len() as u64;
        Blob { name: name.to_owned(), len, checksum: checksum(&[bytes]) }
    }
}

impl Manifest {
    /// Returns the name in the store. Manifests sorted by name are sorted by epoch.
    pub fn name(&self) -> String {
        name_of(self.head.epoch)
    }

    /// Reads the internal state.
    ///
    /// # Errors
    /// `Io` if the object is missing or damaged, or can't be read.
    pub fn internal(&self, store: &dyn Store) -> Result<Vec<u8>> {
        let Blob { name, len, checksum: expected } = &self.internal;
        let bytes = store.get(name)?.ok_or_else(|| damage::missing(name, &self.name()))?;
        if bytes.len() as u64 != *len {
            return Err(damage::wrong_length(name, bytes.len() as u64, *len));
        }
        if checksum(&[&bytes]) != *expected {
            return Err(damage::damaged(name, "it fails its checksum"));
        }
        Ok(bytes)
    }

    /// Returns the names of all objects that it needs, with their lengths.
    pub(crate) fn needs(&self) -> impl Iterator<Item = (&str, u64)> {
        let data = self.objects.iter().map(|object| (&*object.name, object.len));
        data.chain([(&*self.internal.name, self.internal.len)])
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let head = &self.head;
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.app.to_le_bytes());
        out.extend_from_slice(&head.epoch.to_le_bytes());
        out.extend_from_slice(&self.writer.to_le_bytes());
        out.extend_from_slice(&head.fingerprint.to_le_bytes());
        out.extend_from_slice(&head.input_next.to_le_bytes());
        out.extend_from_slice(&head.cut_next.to_le_bytes());
        put_counted(&head.program, &mut out);
        put_counted(self.internal.name.as_bytes(), &mut out);
        out.extend_from_slice(&self.internal.len.to_le_bytes());
        out.extend_from_slice(&self.internal.checksum.to_le_bytes());
        out.extend_from_slice(&(self.objects.len() as u32).to_le_bytes());
        self.objects.iter().for_each(|object| object.put(&mut out));
        let checksum = checksum(&[&out]);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Decodes a manifest that was found under `name`.
    fn decode(name: &str, bytes: &[u8], app: u128) -> Result<Manifest> {
        let damaged = |why: &str| damage::damaged(name, why);
        let mut taker = Taker(bytes);
        if taker.bytes(MAGIC.len()) != Some(MAGIC) {
            return Err(damaged("it does not begin like a manifest"));
        }
        // This comes before the checksum, which a later version may have elsewhere.
        let version = taker.u16().ok_or_else(|| damaged("it is cut off"))?;
        if version > VERSION {
            return Err(damage::newer(name, version));
        }
        let end = bytes.len().checked_sub(8).ok_or_else(|| damaged("it is cut off"))?;
        if checksum(&[&bytes[..end]]).to_le_bytes() != bytes[end..] {
            return Err(damaged("it fails its checksum"));
        }
        let manifest = decode_fields(taker).ok_or_else(|| damaged("its fields are malformed"))?;
        if manifest.app != app {
            return Err(damage::other_app(name, manifest.app, app));
        }
        if manifest.name() != name {
            let why = format!("it is the manifest of epoch {}", manifest.head.epoch);
            return Err(damaged(&why));
        }
        Ok(manifest)
    }
}

fn decode_fields(mut taker: Taker<'_>) -> Option<Manifest> {
    let app = taker.u128()?;
    let (epoch, writer) = (taker.u64()?, taker.u64()?);
    let fingerprint = taker.u128()?;
    let (input_next, cut_next) = (taker.u64()?, taker.u64()?);
    let program = taker.counted()?.to_vec();
    let internal = Blob { name: taker.text()?, len: taker.u64()?, checksum: taker.u64()? };
    let objects = (0..taker.u32()?).map(|_| DataObject::take(&mut taker.0));
    let objects = objects.collect::<Option<Vec<_>>>()?;
    let head = Head { epoch, fingerprint, program, input_next, cut_next };
    // The checksum follows.
    (taker.0.len() == 8).then_some(Manifest { app, head, writer, objects, internal })
}

pub(crate) fn name_of(epoch: u64) -> String {
    format!("{MANIFESTS}{epoch:016x}")
}

/// Returns the epoch whose manifest has this name; `None` if it is not the name of a manifest.
pub(crate) fn epoch_of(name: &str) -> Option<u64> {
    let epoch = u64::from_str_radix(name.strip_prefix(MANIFESTS)?, 16).ok()?;
    (name_of(epoch) == name).then_some(epoch)
}

/// Returns the epochs of all snapshots in a store, in order. Reads names only.
///
/// # Errors
/// If the store fails; `Io` if an object among the manifests is not one.
pub fn epochs(store: &dyn Store) -> Result<Vec<u64>> {
    let objects = store.list(MANIFESTS)?;
    let epochs = objects.iter().map(|object| {
        epoch_of(&object.name).ok_or_else(|| {
            // It may be the newest one under another name, so it must not be ignored.
            damage::damaged(&object.name, "its name is not that of a manifest")
        })
    });
    epochs.collect()
}

/// Returns the manifest of a snapshot, if there is one: for an operator, or for reading beside a
/// running engine. Does not check the objects that it names.
///
/// # Errors
/// If the store fails. `Io` if it is damaged; `Setting` if it belongs to another app or a later
/// version.
pub fn manifest_at(store: &dyn Store, app: u128, epoch: u64) -> Result<Option<Manifest>> {
    let name = name_of(epoch);
    store.get(&name)?.map(|bytes| Manifest::decode(&name, &bytes, app)).transpose()
}

/// Checks that all objects of a manifest exist, with the right length. Reads names only: reading
/// the objects verifies their bytes.
pub(crate) fn check_objects(store: &dyn Store, manifest: &Manifest) -> Result<()> {
    let mut there = store.list(super::DATA)?;
    there.extend(store.list(super::INTERNAL)?);
    for (name, len) in manifest.needs() {
        let Some(object) = there.iter().find(|object| object.name == name) else {
            return Err(damage::missing(name, &manifest.name()));
        };
        if object.len != len {
            return Err(damage::wrong_length(name, object.len, len));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::Kind;

    fn manifest() -> Manifest {
        let mut shards = [0; crate::SHARDS];
        (shards[3], shards[63]) = (100, 1);
        let object =
            |name: &str| DataObject { name: name.into(), len: 200, root: 7, level: 2, shards };
        Manifest {
            app: 5,
            head: Head {
                epoch: 0xab,
                fingerprint: 9,
                program: b"program".to_vec(),
                input_next: 11,
                cut_next: 12,
            },
            writer: 4,
            objects: vec![object("data/a"), object("data/b")],
            internal: Blob::of("internal/c", b"state"),
        }
    }

    #[test]
    fn a_manifest_comes_back_or_is_refused_by_name() {
        let manifest = manifest();
        let (name, bytes) = (manifest.name(), manifest.encode());
        assert_eq!(name, "manifest/00000000000000ab");
        assert_eq!(Manifest::decode(&name, &bytes, 5).as_ref(), Ok(&manifest));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = Manifest::decode(&name, &flipped, 5).unwrap_err();
            assert!(error.what.contains(&name) && !error.help.is_empty(), "{error}");
        }
        for cut in 0..bytes.len() {
            let error = Manifest::decode(&name, &bytes[..cut], 5).unwrap_err();
            assert!(error.what.contains(&name), "{error}");
        }
        let other = Manifest::decode(&name, &bytes, 6).unwrap_err();
        assert_eq!(other.kind, Kind::Setting);
        let renamed = Manifest::decode(&name_of(0xac), &bytes, 5).unwrap_err();
        assert!(renamed.what.contains("epoch 171"), "{renamed}");
    }

    #[test]
    fn the_format_is_that_of_the_golden_store() {
        let bytes = include_bytes!("../tests/golden/v1/manifest/000000000000000a");
        let manifest = Manifest::decode("manifest/000000000000000a", bytes, 0xabc).unwrap();
        assert_eq!(manifest.encode(), bytes, "a change of format: raise VERSION");
    }

    #[test]
    fn what_is_no_manifest_is_not_passed_over() {
        let store = tidemill_durable::MemoryStore::new();
        for epoch in [1, 0xffff_ffff_ffff, 2] {
            assert!(store.put(&name_of(epoch), b"").unwrap());
        }
        assert_eq!(epochs(&store).unwrap(), [1, 2, 0xffff_ffff_ffff]);
        assert!(store.put("manifest/2", b"").unwrap());
        assert!(epochs(&store).unwrap_err().what.contains("manifest/2"));
    }
}
