//! GrepSum as a case for the harness.

use serde_json::{json, Map};
use tidemill_core::{Result, Value};
use tidemill_table::Table;

use super::tight::Tight;
use super::{events, program, record, Form};
use crate::args::Args;
use crate::execute::{fill, words, Verdicts};
use crate::run::{Case, Made};
use crate::work::Work;
use crate::Given;

/// The nanoseconds per record above which the baseline is not tight. Most of the time is cache
/// misses: 100,000 records are 16 MB.
const TIGHT_NS: f64 = 5.0;

/// The workload according to the options.
pub(crate) struct GrepSum {
    pub(super) made: Made<events::Made>,
    form: Form,
}

impl Case for GrepSum {
    type Events = events::Made;
    type Baseline = Tight;

    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<GrepSum> {
        let form = Form::of(args)?;
        let parts = program::program(args.program, form, given, work)?;
        Ok(GrepSum { made: Made::new(args, parts, events::Made::new(args, form), work), form })
    }

    fn made(&self) -> &Made<events::Made> {
        &self.made
    }

    fn fill(&self, tables: &mut [Table]) {
        let records = &mut tables[self.made.parts.tables[0].index()];
        fill(records, self.made.keys, |key| record(key as u64).map(Value::Int));
    }

    fn baseline(&self) -> Tight {
        Tight::new(self.form)
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(self.form, &self.made.events, self.made.work)
    }

    fn details(&self, tight: &Tight) -> Map<String, serde_json::Value> {
        let versions = tight.versions_read().map(|mean| ("window_versions".into(), json!(mean)));
        versions.into_iter().collect()
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS * self.form.length as f64
    }

    /// Compares every record with the baseline's.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let records = self.made.table(tables, 0);
        let is_same = |key: u32| {
            let Some(found) = words(records, key) else { return false };
            found.iter().map(|word| *word as i64).eq(tight.get(key)[1..].iter().copied())
        };
        records.len() == self.form.keys && (0..self.form.keys as u32).all(is_same)
    }
}
