//! Helpers of all tests of the log.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::test_runner::Config;
use tidemill_core::Result;
use tidemill_env::Disk;
use tidemill_log::{read, Log, LogKind, LogSpec, Record};
use tidemill_sim::{SimDisk, SimEnv, SimRandom};

pub const DIR: &str = "/data/log";
/// The file that says which segment is the last.
pub const LAST: &str = "LAST";
pub const APP: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
pub const KINDS: [LogKind; 2] = [LogKind::Input, LogKind::Cuts];

/// The appended records, by number.
pub type Model = Vec<(u8, Vec<u8>)>;

pub fn spec(kind: LogKind, segment_bytes: u64) -> LogSpec {
    LogSpec { dir: PathBuf::from(DIR), kind, app: APP, segment_bytes }
}

pub fn sim_disk(seed: u64) -> Arc<SimDisk> {
    SimEnv::new(seed).disk
}

/// Returns the number of random cases, `default` in a build. `TIDEMILL_CASES` sets the number, of
/// which tests with long cases run one in `weight`.
pub fn config(default: u32, weight: u32) -> Config {
    let cases: Option<u32> = std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok());
    let cases = cases.map_or(default, |cases| (cases / weight).max(1));
    Config { failure_persistence: None, ..Config::with_cases(cases) }
}

/// Returns a random record, which differs from any other one in all likelihood.
pub fn random_record(random: &SimRandom, longest: u64) -> (u8, Vec<u8>) {
    let len = random.below(random.below(longest) + 1);
    let kind = random.below(256) as u8;
    let byte = random.below(256) as u8;
    // Long runs of zeros, and bytes that look like the log's own, are as valid as any.
    let bytes = match random.below(3) {
        0 => vec![0; len as usize],
        1 => b"TIDB".iter().copied().cycle().take(len as usize).collect(),
        _ => (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(byte)).collect(),
    };
    (kind, bytes)
}

pub fn append(log: &mut Log, model: &mut Model, record: (u8, Vec<u8>)) -> Result<()> {
    let number = log.append(record.0, &record.1)?;
    assert_eq!(number, model.len() as u64, "numbers count on");
    model.push(record);
    assert_eq!(log.next(), model.len() as u64);
    Ok(())
}

/// Returns all records from `from` on, without writing.
pub fn records(disk: &Arc<SimDisk>, spec: &LogSpec, from: u64) -> Result<Vec<Record>> {
    let before = disk.used();
    let records = read(disk.clone() as Arc<dyn Disk>, spec, from)?.collect();
    assert_eq!(disk.used(), before);
    records
}

/// Checks that records are those of the model from `from` on, without a gap.
#[track_caller]
pub fn assert_records(records: &[Record], model: &Model, from: u64) {
    assert!(from as usize + records.len() <= model.len(), "more records than were appended");
    for (i, record) in records.iter().enumerate() {
        let number = from + i as u64;
        assert_eq!(record.number, number);
        let (kind, bytes) = &model[number as usize];
        assert_eq!((record.kind, &record.bytes), (*kind, bytes), "record {number}");
    }
}

/// Returns another disk with the same files.
pub fn copy(disk: &SimDisk) -> Arc<SimDisk> {
    disk.record();
    let trace = disk.take_trace();
    let image = trace.images(1, 0).nth(1).expect("an image with everything");
    image.disk
}

/// Returns the segments of the log, in order.
pub fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let mut paths = disk.list(Path::new(DIR)).unwrap();
    paths.retain(|path| !path.ends_with(LAST));
    assert!(paths.iter().all(|path| path.extension().unwrap() == "log"), "{paths:?}");
    paths
}

pub fn len(disk: &dyn Disk, path: &Path) -> u64 {
    disk.metadata(path).unwrap().len
}

pub fn bytes(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    disk.open_read(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Creates a log of several segments with two or three records per block, all committed.
pub fn small_log(kind: LogKind, segment_bytes: u64, blocks: u64) -> (Arc<SimDisk>, LogSpec, Model) {
    let (disk, spec) = (sim_disk(1), spec(kind, segment_bytes));
    let mut log = Log::open(disk.clone(), spec.clone(), 0).unwrap();
    let mut model = Model::new();
    for block in 0..blocks {
        for i in 0..2 + block % 2 {
            append(&mut log, &mut model, (block as u8, vec![i as u8 + 1; 9 + i as usize])).unwrap();
        }
        assert_eq!(log.commit().unwrap(), model.len() as u64);
    }
    (disk, spec, model)
}

/// Returns the places where the blocks of a whole segment begin, and where the last one ends, by
/// `format.rs`.
pub fn block_places(kind: LogKind, segment: &[u8]) -> Vec<usize> {
    let copies = if kind == LogKind::Cuts { 2 } else { 1 };
    let mut places = vec![64 * copies];
    while let Some(head) = places.last().and_then(|at| segment.get(*at..at + 40)) {
        if head[8..12] != *b"TIDB" {
            break;
        }
        let payload = u32::from_le_bytes(head[16..20].try_into().unwrap()) as usize;
        places.push(places[places.len() - 1] + copies * (40 + payload).next_multiple_of(8));
    }
    places
}

/// Checks that zeros follow the last block of a log.
#[track_caller]
pub fn assert_clean_end(disk: &SimDisk, kind: LogKind) {
    let last = bytes(disk, segments(disk).last().unwrap());
    let end = *block_places(kind, &last).last().unwrap();
    let dirty = last[end..].iter().rposition(|byte| *byte != 0);
    assert_eq!(dirty, None, "behind the end at {end} of {}", last.len());
}
