//! Logs of format version 1, which every later version must read.

#![allow(clippy::disallowed_methods)] // Reads files of this repository.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_env::{Disk, RealDisk};
use tidemill_log::{read, Log, LogKind, LogSpec};

use crate::common::*;

fn golden(kind: LogKind) -> PathBuf {
    let name = match kind {
        LogKind::Input => "input",
        LogKind::Cuts => "cuts",
    };
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name)
}

/// Writes the content of the golden logs.
fn write(disk: Arc<dyn Disk>, kind: LogKind, dir: &Path) -> Model {
    let spec = LogSpec { dir: dir.to_owned(), kind, app: APP, segment_bytes: 1000 };
    let mut log = Log::open(disk, spec, 0).unwrap();
    let mut model = Model::new();
    for n in 0..40_u8 {
        let bytes = (0..n * 5).map(|i| i ^ n).collect();
        append(&mut log, &mut model, (n, bytes)).unwrap();
        if n % 3 == 0 {
            log.commit().unwrap();
        }
    }
    append(&mut log, &mut model, (200, vec![0xab; 1500])).unwrap();
    log.commit().unwrap();
    append(&mut log, &mut model, (0, Vec::new())).unwrap();
    log.commit().unwrap();
    log.trim(20).unwrap();
    model
}

/// Run this only for a new version, whose number is in the directory's name.
#[test]
#[ignore = "writes into the repository"]
fn write_golden_logs() {
    for kind in KINDS {
        write(Arc::new(RealDisk::new()), kind, &golden(kind));
    }
}

#[test]
fn version_1_is_read() {
    for kind in KINDS {
        let spec = LogSpec { dir: golden(kind), kind, app: APP, segment_bytes: 1 };
        let model = write(sim_disk(1), kind, Path::new(DIR));
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
        let first = u64::from_str_radix(
            disk.list(&spec.dir).unwrap()[0].file_stem().unwrap().to_str().unwrap(),
            16,
        );
        let first = first.unwrap();
        assert!(first > 0);
        let mut reader = read(disk, &spec, first).unwrap();
        let all: Vec<_> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        assert_records(&all, &model, first);
        assert_eq!(reader.next_number(), model.len() as u64);
        assert_eq!(reader.damaged(), []);
    }
}

/// As long as this version is written, its bytes stay the same.
#[test]
fn version_1_is_written() {
    for kind in KINDS {
        let disk = sim_disk(1);
        write(disk.clone(), kind, Path::new(DIR));
        let real = RealDisk::new();
        let names = real.list(&golden(kind)).unwrap();
        let name = |path: &PathBuf| path.file_name().unwrap().to_owned();
        let expected: Vec<_> = segments(&disk).iter().map(name).collect();
        assert_eq!(names.iter().map(name).collect::<Vec<_>>(), expected);
        for path in names {
            let written = bytes(&*disk, &Path::new(DIR).join(name(&path)));
            assert!(bytes(&real, &path) == written, "{}", path.display());
        }
    }
}

/// A log of version 1 can be continued.
#[test]
fn version_1_goes_on() {
    for kind in KINDS {
        let disk = sim_disk(1);
        disk.create_dir_all(Path::new(DIR)).unwrap();
        let real = RealDisk::new();
        for path in real.list(&golden(kind)).unwrap() {
            let name = Path::new(DIR).join(path.file_name().unwrap());
            disk.create(&name).unwrap().write_all(&bytes(&real, &path)).unwrap();
        }
        let mut model = write(sim_disk(1), kind, Path::new(DIR));
        let mut log = Log::open(disk.clone(), spec(kind, 500), model.len() as u64).unwrap();
        for n in 0..20 {
            append(&mut log, &mut model, (n, vec![n; 90])).unwrap();
            log.commit().unwrap();
        }
        let all = records(&disk, &spec(kind, 1), log.first()).unwrap();
        assert_records(&all, &model, log.first());
        assert_eq!(log.first() + all.len() as u64, model.len() as u64);
    }
}
