//! YCSB-T as a case for the harness.

use tidemill_core::digest::{streams_hash, RowsHash};
use tidemill_core::{Batch, Result, Value};
use tidemill_table::Table;

use super::events::{self, Transfer};
use super::program::{self, ABORTED};
use super::{OPENING, POOR};
use crate::args::Args;
use crate::execute::{words, Verdicts};
use crate::run::{Case, Made};
use crate::whole::Whole;
use crate::work::Work;
use crate::Given;

/// The nanoseconds per transfer above which the baseline is not tight.
const TIGHT_NS: f64 = 10.0;

/// The workload according to the options.
pub(crate) struct Transfers {
    made: Made<Vec<Transfer>>,
}

/// The baseline: balances in an array.
#[derive(Clone, Debug)]
pub(crate) struct Tight {
    balances: Vec<i64>,
    /// Whether each account was written.
    used: Vec<bool>,
}

impl Tight {
    /// Executes all transfers in order.
    #[inline(never)]
    fn run(&mut self, transfers: &[Transfer], work: Work) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for transfer in transfers {
            let Transfer { debtor, creditor, amount } = *transfer;
            let (debtor, creditor) = (debtor as usize, creditor as usize);
            let balance = self.balances[debtor];
            let worked = work.run(balance, 0);
            if balance < amount {
                // The first column, the debtor, identifies the aborted transfer.
                verdicts.abort(debtor);
                continue;
            }
            self.balances[debtor] = balance - amount;
            self.balances[creditor] += amount;
            work.run(self.balances[creditor], worked);
            (self.used[debtor], self.used[creditor]) = (true, true);
        }
        verdicts
    }
}

impl Case for Transfers {
    type Events = Vec<Transfer>;
    type Baseline = Tight;

    fn new(args: &Args, given: Given<'_>, work: Work) -> Result<Transfers> {
        let parts = program::program(args.program, given, work)?;
        Ok(Transfers { made: Made::new(args, parts, events::generate(args), work) })
    }

    fn made(&self) -> &Made<Vec<Transfer>> {
        &self.made
    }

    fn baseline(&self) -> Tight {
        Tight { balances: vec![OPENING; self.made.keys], used: vec![false; self.made.keys] }
    }

    fn run_baseline(&self, tight: &mut Tight) -> Verdicts {
        tight.run(&self.made.events, self.made.work)
    }

    fn baseline_ns_max(&self) -> f64 {
        TIGHT_NS
    }

    fn output_hash(&self, _: &Tight) -> Option<String> {
        let streams = &self.made.parts.program.streams;
        let stream = streams.iter().find(|s| *s.spec.name == *ABORTED).expect("it was made");
        let mut hash = RowsHash::default();
        let refused = self.refused();
        hash.take(&Batch::from_rows(stream.spec.schema.clone(), refused.iter().map(Vec::as_slice)));
        let hashes = (!refused.is_empty()).then_some((ABORTED, hash));
        Some(format!("{:032x}", streams_hash(hashes)))
    }

    /// Compares every account with the baseline's, and checks that only used accounts have rows.
    fn holds(&self, tight: &Tight, tables: &[Table]) -> bool {
        let accounts = self.made.table(tables, 0);
        (0..self.made.keys).all(|id| match (words(accounts, id as u32), tight.used[id]) {
            (Some(found), true) => *found == [tight.balances[id] as u64],
            (found, used) => found.is_none() && !used,
        })
    }
}

impl Transfers {
    /// Returns the refused transfers, as events, in order.
    fn refused(&self) -> Vec<Vec<Value>> {
        let mut balances = vec![OPENING; self.made.keys];
        let mut refused = Vec::new();
        for Transfer { debtor, creditor, amount } in &self.made.events {
            match balances[*debtor as usize] < *amount {
                true => {
                    let ints = [i64::from(*debtor), i64::from(*creditor), *amount].map(Value::Int);
                    refused.push(ints.into_iter().chain([Value::str(POOR)]).collect());
                }
                false => {
                    balances[*debtor as usize] -= amount;
                    balances[*creditor as usize] += amount;
                }
            }
        }
        refused
    }
}

impl Whole for Transfers {
    fn is_right(&self, tight: &Tight, tables: &[Batch]) -> bool {
        let accounts = &tables[0];
        let (Some(ids), Some(found)) = (accounts.ints(0), accounts.ints(1)) else { return false };
        let is_right = |(id, balance): (&i64, &i64)| {
            tight.used[*id as usize] && tight.balances[*id as usize] == *balance
        };
        ids.len() == tight.used.iter().filter(|used| **used).count()
            && ids.iter().zip(found).all(is_right)
    }
}
