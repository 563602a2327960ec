//! What a commit costs on the disk of this machine:
//! `cargo test --release -p tidemill-log --test log -- --ignored --nocapture price`

use std::sync::Arc;

use tidemill_env::Env;
use tidemill_log::{Log, LogSpec};

use crate::common::*;

#[test]
#[ignore = "measures"]
fn price_of_a_commit() {
    let env = Env::real();
    let dir = tempfile::tempdir().unwrap();
    println!("median, 99 of 100, slowest and mean, in microseconds");
    for kind in KINDS {
        for (bytes, times) in [(64, 5000), (4096, 3000), (64 << 10, 1000), (1 << 20, 200)] {
            let dir = dir.path().join(format!("{kind:?}{bytes}"));
            let spec = LogSpec { dir, kind, app: APP, segment_bytes: 64 << 20 };
            let mut log = Log::open(Arc::clone(&env.disk), spec, 0).unwrap();
            let record = vec![7; bytes];
            let mut took: Vec<u64> = (0..times)
                .map(|_| {
                    let start = env.clock.monotonic_ns();
                    log.append(1, &record).unwrap();
                    log.commit().unwrap();
                    (env.clock.monotonic_ns() - start) / 1000
                })
                .collect();
            took.sort_unstable();
            let mean = took.iter().sum::<u64>() / times;
            let at = |percent: usize| took[took.len() * percent / 100];
            let (median, late, last) = (at(50), at(99), took[took.len() - 1]);
            println!("{kind:?} {bytes:8}: {median:6} {late:6} {last:6} {mean:6}");
        }
    }
    let dir = dir.path().join(format!("{:?}{}", KINDS[0], 64 << 10));
    let spec = LogSpec { dir, kind: KINDS[0], app: APP, segment_bytes: 64 << 20 };
    let start = env.clock.monotonic_ns();
    let log = Log::open(env.disk.clone(), spec, 1000).unwrap();
    let opened = (env.clock.monotonic_ns() - start) / 1000;
    let all = log.read(0).unwrap().map(|record| record.unwrap().bytes.len()).sum::<usize>();
    let read = (env.clock.monotonic_ns() - start) / 1000 - opened;
    println!("opened in {opened}; {all} bytes read in {read}");
}
