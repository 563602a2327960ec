//! GrepSum, ready to run.

use std::sync::Arc;

use serde_json::{json, Map};
use tidemill_core::{Result, Value};
use tidemill_env::Env;
use tidemill_table::Table;
use tidemill_txn::Program;

use super::events::Made;
use super::tight::Tight;
use super::{program, record, Form};
use crate::args::Args;
use crate::events::{Events, Input};
use crate::execute::{empty_tables, fill, words, Verdicts};
use crate::report::Report;
use crate::run::{self, Case};
use crate::shape::Parts;
use crate::work::Work;
use crate::Given;

/// Above this many nanoseconds a record the baseline is not tight. Most of it is cache misses: 100,000
/// records are 16 MB.
const TIGHT_NS: f64 = 5.0;

/// Runs the workload.
pub(crate) fn run(args: &Args, given: Given<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let env = Env::real();
    let case = GrepSum::new(args, given, Work::calibrated(&env, args.udf_ns))?;
    progress(&format!("gs: {} events over {} keys", args.events(), args.keys));
    run::run(args, &env, &case, progress)
}

/// The workload as the options want it.
pub(super) struct GrepSum {
    pub(super) parts: Parts,
    pub(super) made: Made,
    form: Form,
    seed: u64,
    work: Work,
}

impl GrepSum {
    pub(super) fn new(args: &Args, given: Given<'_>, work: Work) -> Result<GrepSum> {
        let form = Form::of(args)?;
        let parts = program::program(args.program, form, given, work)?;
        Ok(GrepSum { parts, made: Made::new(args, form), form, seed: args.seed, work })
    }
}

impl Case for GrepSum {
    type Baseline = Tight;

    fn program(&self) -> &Arc<Program> {
        &self.parts.program
    }

    fn inputs(&self) -> &[Input] {
        &self.parts.inputs
    }

    fn events(&self) -> &(impl Events + ?Sized) {
        &self.made
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = empty_tables(&self.parts.program, self.form.keys, self.seed);
        let records = &mut tables[self.parts.tables[0].index()];
        fill(records, self.form.keys, |key| record(key as u64).map(Value::Int));
        tables
    }

    fn baseline(&self) -> Tight {
        Tight::new(self.form)
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(self.form, &self.made, self.work)
    }

    fn details(&self, tight: &Tight) -> Map<String, serde_json::Value> {
        let versions = tight.versions_read().map(|mean| ("window_versions".into(), json!(mean)));
        versions.into_iter().collect()
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS * self.form.length as f64
    }

    /// Every record is the baseline's.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let records = &tables[self.parts.tables[0].index()];
        let is_same = |key: u32| {
            let Some(found) = words(records, key) else { return false };
            found.iter().map(|word| *word as i64).eq(tight.get(key)[1..].iter().copied())
        };
        records.len() == self.form.keys && (0..self.form.keys as u32).all(is_same)
    }
}
