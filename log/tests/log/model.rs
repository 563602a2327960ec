//! Tests random lives of a log, with crashes, killed processes, failing calls and full disks at any
//! moment, including during recovery.

use std::io::ErrorKind;
use std::sync::Arc;

use proptest::prelude::*;
use tidemill_core::{Kind, Result};
use tidemill_env::Disk;
use tidemill_log::{Log, LogSpec};
use tidemill_sim::{SimDisk, SimRandom};

use crate::common::*;

struct Life {
    disk: Arc<SimDisk>,
    random: SimRandom,
    spec: LogSpec,
    longest: u64,
    model: Model,
    /// The number of records that a commit has acknowledged.
    durable: u64,
    /// Records below this number are no longer needed.
    trimmed: u64,
}

impl Life {
    fn new(seed: u64) -> Life {
        let random = SimRandom::new(seed);
        let kind = KINDS[random.below(2) as usize];
        // Some logs are so long that room is made in steps and blocks are large.
        let (segment_bytes, longest) = match random.below(12) {
            0 => (1 << 20, 200_000),
            _ => (random.below(3000), [30, 400, 2000][random.below(3) as usize]),
        };
        let disk = sim_disk(seed);
        disk.set_short_writes(random.below(4) == 0);
        let spec = spec(kind, segment_bytes);
        Life { disk, random, spec, longest, model: Model::new(), durable: 0, trimmed: 0 }
    }

    /// Plans faults from some call on.
    fn trouble(&self) {
        let nth = 1 + self.random.below(30);
        match self.random.below(8) {
            0 => self.disk.fail_from(None, nth, ErrorKind::Other),
            1 => self.disk.fail_nth(None, nth, ErrorKind::Other),
            2 => self.disk.fail_nth(None, nth, ErrorKind::StorageFull),
            3 => self.disk.set_capacity(Some(self.disk.used() + self.random.below(5000))),
            _ => {}
        }
    }

    /// Stops the process or the machine.
    fn end(&self) {
        match self.random.below(3) {
            0 => self.disk.crash(),
            1 => self.disk.crash_torn(),
            _ => self.disk.kill(),
        }
        self.disk.set_capacity(None);
    }

    /// Opens the log, with crashes in between, and checks its content.
    fn open(&mut self) -> Log {
        loop {
            self.check_read_only();
            if self.random.below(2) == 0 {
                self.trouble();
            }
            let needed = if self.random.below(2) == 0 { self.durable } else { 0 };
            match Log::open(self.disk.clone(), self.spec.clone(), needed) {
                Ok(log) => {
                    self.disk.clear_faults();
                    self.check(&log);
                    return log;
                }
                Err(error) => {
                    assert!(is_trouble(&error.what), "{error}");
                    self.end();
                }
            }
        }
    }

    fn check(&mut self, log: &Log) {
        let end = log.durable();
        assert!(end >= self.durable, "{end} of {}", self.durable);
        assert!(end <= self.model.len() as u64);
        assert!(log.first() <= self.trimmed);
        self.model.truncate(end as usize);
        self.durable = end;
        let all: Vec<_> = log.read(log.first()).unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(log.first() + all.len() as u64, end);
        assert_records(&all, &self.model, log.first());
        assert_eq!(records(&self.disk, &self.spec, log.first()).unwrap(), all, "again the same");
    }

    /// Checks the log before it is opened for writing.
    fn check_read_only(&self) {
        let dir = match self.disk.exists(&self.spec.dir) {
            Ok(true) => self.disk.list(&self.spec.dir).unwrap(),
            _ => return,
        };
        let logs =
            dir.iter().filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let first = logs.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).next();
        let first = first.map_or(0, |first| u64::from_str_radix(&first, 16).unwrap());
        let all = records(&self.disk, &self.spec, first).unwrap();
        assert!(first + all.len() as u64 >= self.durable);
        assert_records(&all, &self.model, first);
    }

    /// Works until a fault occurs.
    fn work(&mut self, log: &mut Log) -> Result<()> {
        for _ in 0..self.random.below(40) {
            match self.random.below(10) {
                0..=4 => {
                    let record = random_record(&self.random, self.longest);
                    append(log, &mut self.model, record)?;
                }
                5..=7 => match log.commit() {
                    Ok(durable) => {
                        assert_eq!(durable, self.model.len() as u64);
                        self.durable = durable;
                    }
                    Err(error) if error.kind == Kind::Resource => {
                        assert!(error.what.contains("no room"), "{error}");
                        assert!(log.durable() >= self.durable);
                        self.durable = log.durable();
                        if self.random.below(3) == 0 {
                            self.disk.set_capacity(None);
                        }
                    }
                    Err(error) => return Err(error),
                },
                8 => {
                    let below = self.random.below(self.durable + 1);
                    self.trimmed = self.trimmed.max(below);
                    log.trim(below)?;
                }
                _ => self.trouble(),
            }
        }
        Ok(())
    }
}

/// Whether the test has ordered this error; everything else is the log's fault.
fn is_trouble(what: &str) -> bool {
    what.contains("simulated fault") || what.contains("no room")
}

fn live(seed: u64) {
    let mut life = Life::new(seed);
    for _ in 0..6 {
        let mut log = life.open();
        if let Err(error) = life.work(&mut log) {
            assert!(is_trouble(&error.what), "{error}");
        }
        life.end();
    }
    life.open();
}

proptest! {
    #![proptest_config(config(200, 1))]

    #[test]
    fn what_was_committed_is_there_after_anything(seed: u64) {
        live(seed);
    }
}
