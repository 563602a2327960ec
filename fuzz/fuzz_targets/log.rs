//! Segments of logs: any bytes, or blocks with right checksums and any content.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidemill_env::Disk;
use tidemill_fuzz::Parts;
use tidemill_log::{copy, read, Log, LogKind, LogSpec};
use tidemill_sim::SimEnv;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Returns a segment whose header, and whose blocks, have right checksums.
fn sealed(parts: &mut Parts<'_>, kind: LogKind, first: u64, chain: u64, ordinal: u32) -> Vec<u8> {
    let copies = if kind == LogKind::Cuts { 2 } else { 1 };
    let mut header = b"TIDELOG\0\x01\0".to_vec();
    header.extend_from_slice(&(copies as u16).to_le_bytes());
    header.extend_from_slice(&ordinal.to_le_bytes());
    header.extend_from_slice(&first.to_le_bytes());
    header.extend_from_slice(&chain.to_le_bytes());
    let wild = parts.u8();
    header.extend_from_slice(&if wild == 255 { parts.u64() } else { 4096 }.to_le_bytes());
    header.extend_from_slice(&5_u128.to_le_bytes());
    let seed = xxh3_64(&header);
    header.extend_from_slice(&seed.to_le_bytes());
    let mut bytes = header.repeat(copies);
    let (mut number, mut prev) = (first, seed);
    for _ in 0..wild & 3 {
        let flags = parts.u8();
        let mut payload = Vec::new();
        let mut records = 0;
        for _ in 0..flags & 7 {
            let (len, kind) = (parts.u8(), parts.u8());
            let record = parts.bytes(len.into());
            payload.extend_from_slice(&(record.len() as u32).to_le_bytes());
            payload.push(kind);
            payload.extend_from_slice(record);
            records += 1;
        }
        if flags & 8 != 0 {
            let at = usize::from(parts.u8());
            payload.splice(at.min(payload.len()).., parts.bytes(9).iter().copied());
        }
        let len = if flags & 16 != 0 { parts.u32() } else { payload.len() as u32 };
        let count = if flags & 32 != 0 { parts.u32() } else { records };
        let mut block = vec![0; 8];
        block.extend_from_slice(b"TIDB\0\0\0\0");
        block.extend_from_slice(&len.to_le_bytes());
        block.extend_from_slice(&count.to_le_bytes());
        block.extend_from_slice(&if flags & 64 != 0 { parts.u64() } else { number }.to_le_bytes());
        block.extend_from_slice(&if flags & 128 != 0 { parts.u64() } else { prev }.to_le_bytes());
        block.extend_from_slice(&payload);
        block.resize(block.len().next_multiple_of(8), 0);
        let seed = seed.wrapping_add(bytes.len() as u64);
        let check = xxh3_64_with_seed(&block[16..40], seed) as u32;
        block[12..16].copy_from_slice(&check.to_le_bytes());
        prev = xxh3_64_with_seed(&block[8..], seed);
        block[..8].copy_from_slice(&prev.to_le_bytes());
        number = number.wrapping_add(records.into());
        bytes.extend_from_slice(&block.repeat(copies));
    }
    bytes.resize(bytes.len().max(4096), 0);
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Parts(bytes);
    let flags = parts.u8();
    let kind = if flags & 1 == 0 { LogKind::Input } else { LogKind::Cuts };
    let disk: Arc<dyn Disk> = SimEnv::new(0).env().disk;
    let dir = Path::new("/log");
    disk.create_dir_all(dir).unwrap();
    let spec = LogSpec { dir: dir.to_owned(), kind, app: 5, segment_bytes: 4096 };
    let segment = match flags & 2 {
        0 => sealed(&mut parts, kind, 0, 0, 0),
        _ => parts.bytes(1 << 14).to_vec(),
    };
    let put = |name: &str, bytes: &[u8]| {
        let mut file = disk.create(&dir.join(name)).unwrap();
        file.write_all(bytes).unwrap();
        file.sync().unwrap();
        disk.sync_dir(dir).unwrap();
    };
    put("0000000000000000.log", &segment);
    if flags & 4 != 0 {
        let first = u64::from(parts.u8() & 3);
        let (chain, ordinal) = (parts.u64(), parts.u8().into());
        let segment = sealed(&mut parts, kind, first, chain, ordinal);
        put(&format!("{first:016x}.log"), &segment);
    }
    if flags & 8 != 0 {
        put("LAST", parts.bytes(48));
    }
    let records = |from| read(disk.clone(), &spec, from).map(|reader| reader.collect::<Vec<_>>());
    let before = records(0);
    let _ = copy(&*disk, &spec, 0, 1, Path::new("/copy"));
    // A log that opens goes on with the next number, and keeps its records.
    let Ok(mut log) = Log::open(disk.clone(), spec.clone(), 0) else { return };
    let next = log.next();
    let kept: Result<Vec<_>, _> = log.read(log.first()).expect("it is open").collect();
    let before = before.and_then(|before| before.into_iter().collect::<Result<Vec<_>, _>>());
    // Opening checks the last segment only.
    let Ok(kept) = kept else { return assert!(before.is_err(), "it was read before") };
    assert!(kept.iter().zip(log.first()..).all(|(record, number)| record.number == number));
    assert_eq!(kept.len() as u64, next - log.first());
    if let Ok(before) = before {
        assert_eq!(before, kept);
    }
    let Ok(number) = log.append(9, b"more") else { return };
    assert_eq!(number, next);
    log.commit().expect("the disk takes it");
    let last = log.read(number).unwrap().next().unwrap().unwrap();
    assert_eq!((last.number, last.kind, &last.bytes[..]), (number, 9, &b"more"[..]));
});
