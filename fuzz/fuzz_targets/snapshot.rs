//! Snapshots: manifests and data objects, with right checksums and any content.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidemill_fuzz::Parts;
use tidemill_durable::{MemoryStore, Store};
use tidemill_snapshot::{load, manifest_at, Snapshots};
use xxhash_rust::xxh3::xxh3_64;

const APP: u128 = 0xabc;

/// Returns a data object, and its root. Its blocks have right places, lengths and checksums, unless
/// they are wild.
fn object(parts: &mut Parts<'_>) -> (Vec<u8>, u64) {
    let mut bytes = b"TIDEDATA\x01\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&APP.to_le_bytes());
    bytes.extend_from_slice(&parts.u64().to_le_bytes());
    let mut index = Vec::new();
    for _ in 0..parts.u8() % 5 {
        let flags = parts.u8();
        let spots = match flags & 1 {
            0 => [0; 8],
            _ => [parts.u64(); 1].map(u64::to_le_bytes)[0],
        };
        let len = usize::from(parts.u8());
        let block = parts.bytes(len);
        let at = if flags & 2 != 0 { parts.u64() } else { bytes.len() as u64 };
        let len = if flags & 4 != 0 { parts.u32() } else { block.len() as u32 };
        let rows = if flags & 8 != 0 { parts.u32() } else { 1 };
        index.extend_from_slice(&spots);
        index.extend_from_slice(&at.to_le_bytes());
        index.extend_from_slice(&len.to_le_bytes());
        index.extend_from_slice(&rows.to_le_bytes());
        index.extend_from_slice(&xxh3_64(block).to_le_bytes());
        bytes.extend_from_slice(block);
    }
    let root = xxh3_64(&[&bytes[..40], &index[..]].concat());
    let index_len = if parts.u8() == 255 { parts.u64() } else { index.len() as u64 };
    bytes.extend_from_slice(&index);
    bytes.extend_from_slice(&index_len.to_le_bytes());
    bytes.extend_from_slice(&root.to_le_bytes());
    bytes.extend_from_slice(b"TIDEEND\0");
    (bytes, root)
}

/// Returns the manifest of epoch 9 with these objects.
fn manifest(parts: &mut Parts<'_>, objects: &[(Vec<u8>, u64)]) -> Vec<u8> {
    let mut out = b"TIDEMANI\x01\0".to_vec();
    out.extend_from_slice(&APP.to_le_bytes());
    out.extend_from_slice(&9_u64.to_le_bytes());
    out.extend_from_slice(
        &parts.bytes(8 + 16 + 8 + 8).iter().copied().chain([0; 40]).take(40).collect::<Vec<_>>(),
    );
    let counted = |bytes: &[u8], out: &mut Vec<u8>| {
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(bytes);
    };
    counted(b"program", &mut out);
    counted(b"internal/0", &mut out);
    out.extend_from_slice(&3_u64.to_le_bytes());
    out.extend_from_slice(&xxh3_64(b"int").to_le_bytes());
    let flags = parts.u8();
    let count = if flags & 1 != 0 { parts.u32() } else { objects.len() as u32 };
    out.extend_from_slice(&count.to_le_bytes());
    for (nth, (bytes, root)) in objects.iter().enumerate() {
        counted(format!("data/{nth}").as_bytes(), &mut out);
        let len = if flags & 2 != 0 { parts.u64() } else { bytes.len() as u64 };
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&root.to_le_bytes());
        out.push(parts.u8());
        let live = if flags & 4 != 0 { parts.u64() } else { u64::MAX };
        out.extend_from_slice(&live.to_le_bytes());
        match flags & 8 {
            0 => out.extend(std::iter::repeat_n(1, live.count_ones() as usize)),
            _ => {
                let len = parts.u8().into();
                out.extend_from_slice(parts.bytes(len));
            }
        }
    }
    let checksum = xxh3_64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let store = MemoryStore::new();
    let kind = parts.u8();
    let objects: Vec<_> = (0..kind >> 1 & 3).map(|_| object(&mut parts)).collect();
    let manifest = match kind & 1 {
        0 => manifest(&mut parts, &objects),
        _ => {
            let mut bytes = b"TIDEMANI\x01\0".to_vec();
            bytes.extend_from_slice(parts.0);
            let checksum = xxh3_64(&bytes);
            bytes.extend_from_slice(&checksum.to_le_bytes());
            bytes
        }
    };
    for (nth, (bytes, _)) in objects.iter().enumerate() {
        assert!(store.put(&format!("data/{nth}"), bytes).unwrap());
    }
    assert!(store.put("internal/0", b"int").unwrap());
    assert!(store.put("manifest/0000000000000009", &manifest).unwrap());
    let Ok(Some(found)) = manifest_at(&store, APP, 9) else { return };
    let store: Arc<dyn Store> = Arc::new(store);
    let _ = found.internal(&*store);
    let mut rows = 0;
    let _ = load(&store, &found, |row| {
        rows += row.key.len() + row.row.len();
        Ok(())
    });
    assert!(rows <= bytes.len(), "rows have more bytes than their objects");
    let _ = Snapshots::open(store, APP, 1);
});
