//! Leaderboard Maintenance as a case for the harness.

use serde_json::{Map, Value as Json};
use tidemill_core::{Batch, Key, Result};
use tidemill_env::Env;
use tidemill_table::{row_hash, Table};

use super::straight::Straight;
use super::tight::Tight;
use super::votes::{self, Votes};
use super::{files, program, Show};
use crate::args::Args;
use crate::execute::Verdicts;
use crate::report::Report;
use crate::run::{self, Case, Made};
use crate::whole::{self, Whole};
use crate::work::Work;
use crate::Given;

/// The nanoseconds per vote above which the baseline is not tight.
const TIGHT_NS: f64 = 100.0;

/// Runs the workload. Votes are pushed into the whole engine. Without durability and rate, the
/// executor gets epochs instead.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let case: Leaderboard = run::made(args, &env, given, progress)?;
    if let Some(path) = &args.write_source {
        files::write(&env, &case, path, progress)?;
    }
    whole::run(args, &env, &case, progress)
}

/// The workload according to the options.
pub(crate) struct Leaderboard {
    pub(super) made: Made<Votes>,
    pub(super) show: Show,
    pub(super) straight: Straight,
}

impl Leaderboard {
    /// Whether the baseline and the straight loop agree.
    pub(super) fn is_tight_right(&self, tight: &Tight) -> bool {
        let stands = tight.stands.iter().filter(|candidate| **candidate != 0).count();
        let accepted = ("accepted", tight.accepted as usize);
        self.straight.removed == tight.removed
            && self.straight.boards() == tight.boards()
            && self.straight.numbers().contains(&accepted)
            && self.straight.numbers().contains(&("standing", stands))
    }
}

impl Case for Leaderboard {
    type Events = Votes;
    type Baseline = Tight;

    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Leaderboard> {
        let show = Show::of(args)?;
        let parts = program::program(args.program, given, show.every)?;
        let votes = votes::generate(&show, args);
        let straight = Straight::run(&votes, show.every);
        // Tables grow as votes arrive.
        let made = Made { keys: show.candidates, ..Made::new(args, parts, votes, work) };
        Ok(Leaderboard { made, show, straight })
    }

    fn made(&self) -> &Made<Votes> {
        &self.made
    }

    /// Each candidate stands in one transaction. A refused vote is one transaction, and an accepted
    /// one three.
    fn transactions(&self) -> usize {
        let [(_, accepted), (_, refused), ..] = self.straight.numbers();
        self.show.candidates + refused + 3 * accepted
    }

    fn baseline(&self) -> Tight {
        Tight::new(&self.show)
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.made.events, self.show.every)
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    /// Compares every row of every table, and the baseline, with the straight loop.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let mut scratch = Vec::new();
        let is_right = |(number, (name, rows)): (usize, (&str, Vec<Vec<_>>))| {
            let table = self.made.table(tables, number);
            let hashes = rows.iter().map(|row| row_hash(name, row, &mut scratch));
            table.len() == rows.len()
                && table.state_hash() == hashes.fold(0, |sum: u128, hash| sum.wrapping_add(hash))
        };
        self.is_tight_right(tight) && self.straight.tables().into_iter().enumerate().all(is_right)
    }

    fn output_hash(&self, _: &Tight) -> Option<String> {
        Some(self.straight.output_hash(&self.made.parts.program))
    }

    fn details(&self, _: &Tight) -> Map<String, Json> {
        let numbers = self.straight.numbers().into_iter();
        numbers.map(|(name, number)| (name.to_string(), number.into())).collect()
    }
}

impl Whole for Leaderboard {
    /// Candidates stand before the first vote.
    fn prepared(&self) -> usize {
        self.made.events.candidates
    }

    /// Compares every row of every table, and the baseline, with the straight loop.
    fn is_right(&self, tight: &Tight, tables: &[Batch]) -> bool {
        let wanted = self.straight.tables();
        let mut both = wanted.iter().zip(tables);
        self.is_tight_right(tight)
            && both.all(|((_, rows), table)| {
                let mut found: Vec<_> = table.rows().map(Vec::from).collect();
                found.sort_by_key(|row| Key::of(row));
                found == *rows
            })
    }
}
