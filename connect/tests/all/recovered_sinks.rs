//! Tests with sinks that are stopped at every possible point.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_connect::sink::contract::{check_recovery, run, Known, World};
use tidemill_connect::sink::{self, Sink, SinkPlace};
use tidemill_connect::{files, FilesSettings, Polled, SinkSettings, Source};
use tidemill_core::{Batch, Column, DataType, Result, Row, Schema, Value};
use tidemill_env::Env;
use tidemill_sim::{SimDisk, SimEnv};

use crate::{cases, schema};

fn columns() -> Arc<Schema> {
    schema(vec![Column::new("a", DataType::Int), Column::new("s", DataType::Str)])
}

/// Returns epochs of one to a few rows, with a few bytes to more than a kilobyte. The third one is
/// empty.
fn epochs() -> Vec<Batch> {
    let mut number = 0;
    (0..8)
        .map(|epoch: usize| {
            let rows = [2, 1, 0, 3, 1, 30, 2, 1][epoch];
            let rows: Vec<_> = (0..rows)
                .map(|_| {
                    number += 1;
                    [Value::Int(number), Value::str(&"x".repeat(number as usize * 7 % 90))]
                })
                .collect();
            Batch::from_rows(columns(), rows.iter().map(|r| &r[..]))
        })
        .collect()
}

struct Disk {
    env: Env,
    path: PathBuf,
}

impl Disk {
    fn new(name: &str, sim: &SimEnv) -> Disk {
        Disk { env: sim.env(), path: Path::new("/out").join(name) }
    }

    /// Returns the same world on another disk.
    fn with(&self, disk: Arc<SimDisk>) -> Disk {
        Disk { env: Env { disk, ..self.env.clone() }, path: self.path.clone() }
    }

    fn bytes(&self, path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(mut file) = self.env.disk.open_read(path) {
            file.read_to_end(&mut bytes).unwrap();
        }
        bytes
    }

    /// Returns the rows that a reader finds, up to the first error.
    fn read(&self) -> Vec<Row> {
        let mut rows = self.read_file(&self.path);
        let parts = PathBuf::from(format!("{}.parts", self.path.display()));
        for part in self.env.disk.list(&parts).unwrap_or_default() {
            let name = part.file_name().unwrap().to_string_lossy().into_owned();
            // Parts with rows that the file already has are left from merging.
            let first = name.split_once('-').and_then(|n| usize::from_str_radix(n.0, 16).ok());
            if first == Some(rows.len()) {
                rows.extend(self.read_file(&part));
            }
        }
        rows
    }

    fn read_file(&self, path: &Path) -> Vec<Row> {
        let mut rows = Vec::new();
        let settings = FilesSettings::new(path);
        let Ok(mut sources) = files::open(&settings, &columns(), &self.env) else { return rows };
        let source: &mut dyn Source = &mut *sources[0].1;
        while let Ok(Polled::Rows(chunk)) = source.poll(1) {
            if !chunk.bad.is_empty() {
                break;
            }
            rows.extend(chunk.batch.rows());
        }
        rows
    }
}

impl Disk {
    fn is_parquet(&self) -> bool {
        self.path.extension().is_some_and(|e| e == "parquet")
    }
}

impl World for Disk {
    fn open(&self, resume: Option<&SinkPlace>) -> Result<Box<dyn Sink>> {
        sink::open(&SinkSettings::new(&self.path), &columns(), &self.env, resume)
    }

    fn rows(&self) -> usize {
        let expected: Vec<Row> =
            epochs().iter().flat_map(|b| b.rows().collect::<Vec<_>>()).collect();
        let found = self.read();
        found.iter().zip(&expected).take_while(|(found, expected)| found == expected).count()
    }

    fn content(&self) -> Vec<u8> {
        let bytes = self.bytes(&self.path);
        if self.is_parquet() {
            let there = |path: &Path| self.env.disk.exists(path).unwrap();
            assert!(there(&self.path), "the parts are merged");
            let parts = PathBuf::from(format!("{}.parts", self.path.display()));
            assert!(!there(&parts), "the folder of the parts has gone");
            return format!("{:?}", self.read()).into_bytes();
        }
        if !self.path.to_string_lossy().ends_with(".gz") {
            return bytes;
        }
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
        plain
    }
}

const NAMES: [&str; 5] = ["x.csv", "x.jsonl", "x.csv.gz", "x.jsonl.gz", "x.parquet"];

/// Returns the content after a run without interruption.
fn whole(name: &str) -> Vec<u8> {
    let world = Disk::new(name, &SimEnv::new(0));
    run(&world, &epochs(), &mut |_| {}).unwrap();
    assert_eq!(world.rows(), epochs().iter().map(Batch::len).sum::<usize>());
    world.content()
}

#[test]
fn stopped_at_any_moment() {
    for name in NAMES {
        let whole = whole(name);
        let sim = SimEnv::new(1);
        let world = Disk::new(name, &sim);
        let mut states: Vec<Known> = Vec::new();
        sim.disk.record();
        run(&world, &epochs(), &mut |known| {
            sim.disk.mark(states.len() as u64);
            // Parts are also published by time.
            sim.clock.advance_us(4_000_000);
            states.push(known.clone());
        })
        .unwrap();
        for image in sim.disk.take_trace().images(2, cases(3)) {
            // Before the sink was first opened there is nothing to recover.
            let Some(mark) = image.mark else { continue };
            let at = format!("{name}, {image:?}");
            let world = world.with(image.disk);
            let recover = || {
                check_recovery(&world, &epochs(), &states[mark as usize], name.ends_with(".gz"));
                assert_eq!(world.content(), whole);
            };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(recover)).is_err() {
                panic!("{at}");
            }
        }
    }
}

#[test]
fn calls_that_fail() {
    for name in NAMES {
        let whole = whole(name);
        for nth in 1.. {
            let sim = SimEnv::new(nth);
            let world = Disk::new(name, &sim);
            let mut last = None;
            sim.disk.fail_nth(None, nth, ErrorKind::Other);
            let done = run(&world, &epochs(), &mut |known| last = Some(known.clone()));
            sim.disk.clear_faults();
            match nth % 3 {
                0 => sim.disk.crash(),
                1 => sim.disk.crash_torn(),
                _ => {}
            }
            if done.is_ok() {
                assert!(nth > 10, "{name}: calls are made");
                break;
            }
            if let Some(known) = last {
                check_recovery(&world, &epochs(), &known, name.ends_with(".gz"));
                assert_eq!(world.content(), whole, "{name}, call {nth}");
            }
        }
    }
}

#[test]
fn stopped_again_while_recovering() {
    for name in NAMES {
        let whole = whole(name);
        for nth in 1..cases(40) as u64 {
            let sim = SimEnv::new(nth);
            let world = Disk::new(name, &sim);
            let mut last = Known::default();
            sim.disk.fail_from(None, 10 + nth % 11, ErrorKind::Other);
            let _ = run(&world, &epochs(), &mut |known| last = known.clone());
            sim.disk.crash_torn();
            // A recovery that is interrupted by a crash.
            sim.disk.fail_from(None, nth, ErrorKind::Other);
            let (first, place) = last.snapshot.clone();
            if let Ok(mut sink) = world.open(Some(&place)) {
                for epoch in first..last.cuts {
                    let done = sink.write(&epochs()[epoch]).and_then(|()| sink.commit());
                    let _ = done.and_then(|()| sink.settle());
                }
            }
            sim.disk.crash_torn();
            check_recovery(&world, &epochs(), &last, name.ends_with(".gz"));
            assert_eq!(world.content(), whole, "{name}, call {nth}");
        }
    }
}

#[test]
fn other_files_are_refused() {
    for name in NAMES {
        let sim = SimEnv::new(1);
        let world = Disk::new(name, &sim);
        let mut last = Known::default();
        run(&world, &epochs(), &mut |known| last = known.clone()).unwrap();
        let place = last.snapshot.1;
        let Some(end) = place.end else { continue };
        let len = end.len;
        let refused = |why: &str| {
            let error = world.open(Some(&place)).map(|_| ()).unwrap_err();
            assert!(error.what.contains(why) && error.what.contains(name), "{error}");
            assert!(error.help.contains("--fresh"), "{error}");
        };
        sim.disk.flip_bit(&world.path, 8 * (len - 1)).unwrap();
        refused("was changed");
        sim.disk.truncate(&world.path, len - 1).unwrap();
        refused("bytes instead of");
        world.env.disk.remove(&world.path).unwrap();
        refused("was removed");
    }
    let sim = SimEnv::new(1);
    let world = Disk::new("x.csv.gz", &sim);
    let mut sink = world.open(None).unwrap();
    sink.write(&epochs()[0]).unwrap();
    sink.commit().unwrap();
    let place = sink.place();
    assert_eq!(place.end, None, "within a member there is no place");
    assert!(world.open(Some(&place)).is_err());
}

#[test]
fn other_parquet_files_are_refused() {
    let sim = SimEnv::new(1);
    let world = Disk::new("x.parquet", &sim);
    let mut sink = world.open(None).unwrap();
    let mut places = Vec::new();
    for epoch in epochs() {
        sink.write(&epoch).unwrap();
        sink.commit().unwrap();
        places.push(sink.sync().unwrap());
    }
    let parts = Path::new("/out/x.parquet.parts");
    let names = world.env.disk.list(parts).unwrap();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(
        names.iter().map(name).collect::<Vec<_>>()[..3],
        ["0000000000000000-2.parquet", "0000000000000002-1.parquet", "0000000000000003-3.parquet"]
    );
    let refused = |place: &SinkPlace, why: &str| {
        let error = world.open(Some(place)).map(|_| ()).unwrap_err();
        assert!(error.what.contains(why), "{error}");
        assert!(error.help.contains("--fresh"), "{error}");
    };
    drop(world.open(Some(&places[2])).unwrap());
    let mut early = world.open(Some(&places[2])).unwrap();
    assert!(early.settle().unwrap_err().what.contains("40 rows, and 3 were"), "nobody wrote them");
    let error = world.open(None).map(|_| ()).unwrap_err();
    assert!(error.what.contains("has files already"), "{error}");

    sim.disk.swap(&names[1], &names[2]).unwrap();
    refused(&places[2], "should go on with row 2");
    sim.disk.swap(&names[1], &names[2]).unwrap();
    sim.disk.truncate(&names[1], 50).unwrap();
    refused(&places[2], "damaged");
    world.env.disk.remove(&names[1]).unwrap();
    refused(&places[2], "should go on with row 2");
    for name in &names[1..] {
        let _ = world.env.disk.remove(name);
    }
    refused(&places[2], "have 2 rows");

    let settings = SinkSettings { overwrite: true, ..SinkSettings::new(&world.path) };
    let mut sink = sink::open(&settings, &columns(), &world.env, None).unwrap();
    sink.finish().unwrap();
    assert_eq!(world.read(), [] as [Row; 0]);
    assert!(world.env.disk.exists(&world.path).unwrap(), "a file without rows");
}
