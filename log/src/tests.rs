//! Tests with segments whose checksums are right but whose contents make no sense. No write of a
//! log gives these. Still nothing may panic, take memory without bound, or return wrong records.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_core::Result;
use tidemill_env::Disk;
use tidemill_sim::{SimDisk, SimEnv};

use crate::format::{block_size, seed, Head, Header, BLOCK_HEAD_BYTES};
use crate::{read, Log, LogKind, LogSpec, Record};

const DIR: &str = "/log";

fn spec(kind: LogKind) -> LogSpec {
    LogSpec { dir: PathBuf::from(DIR), kind, app: 1, segment_bytes: 4096 }
}

fn header(first: u64) -> Header {
    Header { kind: LogKind::Input, ordinal: 0, first, chain: 0, length: 1024, app: 1 }
}

/// Creates a disk with one segment and one block.
fn disk(header: Header, len: usize, payload: &[u8], records: u32, first: u64) -> Arc<SimDisk> {
    let mut block = vec![0; block_size(payload.len() as u64) as usize];
    block[BLOCK_HEAD_BYTES..BLOCK_HEAD_BYTES + payload.len()].copy_from_slice(payload);
    let (chain, at) = (header.checksum(), header.kind.blocks_at());
    Head::seal(&mut block, payload.len() as u32, records, first, chain, seed(chain, at));
    let copies = header.kind.copies() as usize;
    let mut bytes = header.bytes().repeat(copies);
    bytes.extend(block.repeat(copies));
    bytes.resize(len, 0);
    let disk = SimEnv::new(1).disk;
    disk.create_dir_all(Path::new(DIR)).unwrap();
    let name = crate::dir::path_of(Path::new(DIR), header.first);
    disk.create(&name).unwrap().write_all(&bytes).unwrap();
    disk
}

fn read_all(disk: &Arc<SimDisk>, kind: LogKind, from: u64) -> Result<Vec<Record>> {
    let mut reader = read(disk.clone() as Arc<dyn Disk>, &spec(kind), from)?;
    let all: Result<Vec<_>> = reader.by_ref().collect();
    assert!(reader.next().is_none(), "nothing comes after an error");
    all
}

#[test]
fn a_block_made_by_hand_is_read() {
    let disk = disk(header(5), 1024, b"\x03\0\0\0\x07abc\0\0\0\0\x08", 2, 5);
    let record = |number, kind, bytes: &[u8]| Record { number, kind, bytes: bytes.to_vec() };
    let expected = [record(5, 7, b"abc"), record(6, 8, b"")];
    assert_eq!(read_all(&disk, LogKind::Input, 5).unwrap(), expected);
}

#[test]
fn records_that_do_not_fill_their_block_are_refused() {
    for (payload, records) in [
        (&b"\x03\0\0\0\x07abc"[..], 2),
        (b"\x03\0\0\0\x07abc\0\0\0\0\x08", 1),
        (b"\x03\0\0\0\x07abc\0\0\0\0\x08", 3),
        (b"\x04\0\0\0\x07abc", 1),
        (b"\x02\0\0\0\x07abc", 1),
        (b"\xff\xff\xff\xff\x07abc", 1),
        (b"\x03\0\0", 1),
        (b"", 1),
        (b"", u32::MAX),
        (b"\0\0\0\0\0", u32::MAX),
    ] {
        let disk = disk(header(5), 1024, payload, records, 5);
        let error = read_all(&disk, LogKind::Input, 5).unwrap_err();
        assert!(error.what.contains("do not fill the block"), "{error}");
    }
}

#[test]
fn a_block_that_is_another_one_is_refused() {
    let payload = b"\0\0\0\0\x08";
    for (first, records) in [(4, 1), (6, 1), (0, 1), (u64::MAX - 3, 3)] {
        let disk = disk(header(5), 1024, payload, records, first);
        let error = read_all(&disk, LogKind::Input, 5).unwrap_err();
        assert!(error.what.contains("record 5 should be here"), "{error}");
        assert_eq!(Log::open(disk, spec(LogKind::Input), 0).unwrap_err(), error);
    }
    // A block without records, or with more than there are numbers, does not count.
    for (first, records) in [(5, 0), (u64::MAX, 1), (u64::MAX - 9, u32::MAX)] {
        let disk = disk(header(5), 1024, payload, records, first);
        assert_eq!(read_all(&disk, LogKind::Input, 5).unwrap(), []);
    }
}

#[test]
fn senseless_headers_are_refused() {
    let open = |header: Header, len: usize| {
        let disk = disk(header, len, b"\0\0\0\0\x08", 1, header.first);
        let error = Log::open(disk.clone(), spec(header.kind), 0).unwrap_err();
        assert_eq!(read_all(&disk, header.kind, 0).unwrap_err(), error);
        error.what
    };
    assert!(open(Header { length: 1 << 60, ..header(0) }, 1024).contains("has 1024 bytes"));
    assert!(open(Header { length: 8, ..header(0) }, 1024).contains("damaged at byte 8"));
    assert!(open(Header { length: 0, ..header(0) }, 0).contains("within its header"));
    assert!(open(header(u64::MAX), 1024).contains("so many records"));
    assert!(open(header(1 << 63), 1024).contains("so many records"));
}

/// A length beyond the file's is not believed, whatever its checksum says.
#[test]
fn a_block_longer_than_its_segment_is_none() {
    for kind in [LogKind::Input, LogKind::Cuts] {
        let header = Header { kind, ..header(0) };
        let payload = vec![0; 2000];
        let disk = disk(header, 1024, &payload, 1, 0);
        assert_eq!(read_all(&disk, kind, 0).unwrap(), []);
        let mut log = Log::open(disk.clone(), spec(kind), 0).unwrap();
        log.append(1, b"goes on").unwrap();
        log.commit().unwrap();
        assert_eq!(read_all(&disk, kind, 0).unwrap().len(), 1);
    }
}

/// A segment without blocks is continued, and so is one of any length.
#[test]
fn any_length_of_segment_goes_on() {
    for kind in [LogKind::Input, LogKind::Cuts] {
        for length in kind.blocks_at()..kind.blocks_at() + 200 {
            let header = Header { kind, length, ..header(0) };
            let disk = SimEnv::new(1).disk;
            disk.create_dir_all(Path::new(DIR)).unwrap();
            let mut bytes = header.bytes().repeat(kind.copies() as usize);
            bytes.resize(length as usize, 0);
            let name = crate::dir::path_of(Path::new(DIR), 0);
            disk.create(&name).unwrap().write_all(&bytes).unwrap();
            let mut log = Log::open(disk.clone(), spec(kind), 0).unwrap();
            for n in 0..3 {
                log.append(n, &[n; 20]).unwrap();
                log.commit().unwrap();
            }
            assert_eq!(read_all(&disk, kind, 0).unwrap().len(), 3, "{length}");
        }
    }
}

/// A copy of a log that is being written has the wanted records, and can be continued.
#[test]
fn a_copy_is_a_log() {
    for kind in [LogKind::Input, LogKind::Cuts] {
        let disk = SimEnv::new(1).disk;
        let mut log = Log::open(disk.clone(), spec(kind), 0).unwrap();
        let bytes = |number: u64| vec![number as u8; 300];
        for number in 0..40 {
            log.append(1, &bytes(number)).unwrap();
            if number % 2 == 1 {
                log.commit().unwrap();
            }
        }
        for (from, until) in [(0, 0), (0, 1), (0, 40), (7, 7), (7, 20), (39, 40), (40, 40)] {
            let to = PathBuf::from(format!("/copy/{from}-{until}"));
            let bytes_copied = crate::copy(&*disk, &spec(kind), from, until, &to).unwrap();
            let mut segments = disk.list(&to).unwrap();
            segments.retain(|path| !path.ends_with("LAST"));
            segments.sort();
            let len = |path: &PathBuf| disk.metadata(path).unwrap().len;
            assert_eq!(segments.iter().map(len).sum::<u64>(), bytes_copied);
            assert!(len(segments.last().unwrap()) < spec(kind).segment_bytes, "has spare room");
            let copied = LogSpec { dir: to, ..spec(kind) };
            let all: Vec<Record> =
                read(disk.clone(), &copied, from).unwrap().map(Result::unwrap).collect();
            assert!(all.len() as u64 >= until - from && all.len() as u64 <= until + 2 - from);
            assert!(all.iter().zip(from..).all(|(r, n)| r.number == n && r.bytes == bytes(n)));
            let mut log = Log::open(disk.clone(), copied, until).unwrap();
            log.append(1, b"more").unwrap();
            log.commit().unwrap();
        }
        let too_many = crate::copy(&*disk, &spec(kind), 0, 41, Path::new("/copy/too-many"));
        assert!(too_many.unwrap_err().what.contains("41"));
    }
}
