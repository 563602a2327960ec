//! The mix of a run's events: the same throughout, or in phases.

use std::collections::BTreeMap;

use crate::args::Args;
use crate::run::PhaseShape;

/// A stretch of events of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mix {
    pub(crate) skew: f64,
    /// The percentage of deposits.
    pub(crate) deposits: f64,
    /// The share of transfers that must abort.
    pub(crate) abort: f64,
    pub(crate) events: usize,
}

impl Mix {
    pub(crate) fn shape(self) -> PhaseShape {
        let shape = [("skew", self.skew), ("deposits", self.deposits), ("abort", self.abort)];
        PhaseShape { shape: BTreeMap::from(shape), events: self.events }
    }
}

/// The number of phases of the dynamic form.
pub(crate) const PHASES: usize = 13;

/// Returns one mix according to the options, or the phases of the dynamic form. These begin with
/// many deposits over uniform keys. Then skew rises by 0.2 per step, deposits fall in steps of 20
/// points to none, and aborts rise in steps of 20 points.
pub(crate) fn mixes(args: &Args) -> Vec<Mix> {
    if !args.dynamic {
        let Args { skew, deposits, abort, .. } = *args;
        return vec![Mix { skew, deposits, abort, events: args.events() }];
    }
    let upto = |phase: usize| args.events() * phase / PHASES;
    let phase = |phase: usize| {
        // There are four steps of each kind, one kind after the other.
        let steps = |from: usize| phase.saturating_sub(from).min(4) as f64;
        Mix {
            skew: steps(0) / 5.0,
            deposits: 80.0 - 20.0 * steps(4),
            abort: steps(8) / 5.0,
            events: upto(phase + 1) - upto(phase),
        }
    };
    (0..PHASES).map(phase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_change_one_thing_at_a_time() {
        let json = r#"{"workload":"sl","dynamic":true,"events":1000}"#;
        let mixes = mixes(&Args::from_json(json).unwrap());
        assert_eq!(mixes.len(), PHASES);
        assert_eq!(mixes.iter().map(|m| m.events).sum::<usize>(), 1000);
        let figures = |m: &Mix| (m.skew, m.deposits, m.abort);
        assert_eq!(figures(&mixes[0]), (0.0, 80.0, 0.0));
        assert_eq!(figures(&mixes[4]), (0.8, 80.0, 0.0));
        assert_eq!(figures(&mixes[8]), (0.8, 0.0, 0.0));
        assert_eq!(figures(&mixes[12]), (0.8, 0.0, 0.8));
        for pair in mixes.windows(2) {
            let same = [
                pair[0].skew == pair[1].skew,
                pair[0].deposits == pair[1].deposits,
                pair[0].abort == pair[1].abort,
            ];
            assert_eq!(same.iter().filter(|same| **same).count(), 2, "{pair:?}");
        }
    }
}
