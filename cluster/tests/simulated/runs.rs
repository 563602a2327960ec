//! Runs of a simulated cluster with faults of all kinds: the outcome must always be the
//! reference's.

use crate::{check, World};

/// Runs the cluster of a seed and checks the outcome. Returns the number of verdicts on requests that
/// end workers, and of cuts that were withdrawn because of a fault.
fn run(seed: u64, trace: bool) -> Result<[usize; 2], String> {
    let mut world = World::new(seed);
    world.trace = trace;
    match world.run() {
        true => check(&world).map(|()| [world.verdicts(), world.log.withdrawals()]),
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
    let (mut verdicts, mut withdrawals) = (0, 0);
    for seed in seeds {
        match run(seed, named.is_some()) {
            Ok([ended, failed]) => {
                (verdicts, withdrawals) = (verdicts + ended, withdrawals + failed)
            }
            Err(what) => {
                panic!("seed {seed}: {what}\nfor a trace of the run: make seed SEED={seed}")
            }
        }
    }
    assert!(named.is_some() || verdicts > 0, "no request has ended workers");
    assert!(named.is_some() || withdrawals > 0, "no function has failed");
}
