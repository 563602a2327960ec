//! Runs of a simulated cluster with faults of all kinds: the outcome must always be the
//! reference's.

use crate::{check, World};
use tidemill_function::InjectedDefect;

/// Runs the cluster of a seed and checks the outcome.
fn run(seed: u64, fault: Option<InjectedDefect>, trace: bool) -> Result<(), String> {
    let mut world = World::new(seed, fault);
    world.trace = trace;
    match world.run() {
        true => check(&world),
        false => Err(format!("the run does not end: {}", world.status())),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

#[test]
fn whatever_happens_the_outcome_is_the_references() {
    let named = number("TIDEMILL_SEED");
    let seeds = named.map_or(0..number("TIDEMILL_CASES").unwrap_or(200), |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(what) = run(seed, None, named.is_some()) {
            panic!("seed {seed}: {what}\nfor a trace of the run: make seed SEED={seed}");
        }
    }
}

#[test]
fn every_injected_bug_is_found() {
    for fault in InjectedDefect::ALL {
        let finds = |seed: &u64| {
            let outcome = std::panic::catch_unwind(|| run(*seed, Some(fault), false));
            outcome.is_err() || outcome.is_ok_and(|outcome| outcome.is_err())
        };
        match (0..2_000).find(finds) {
            Some(seed) => println!("{fault:?}: seed {seed}"),
            None => panic!("no seed detects {fault:?}"),
        }
    }
}
