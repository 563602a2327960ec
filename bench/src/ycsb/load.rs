//! YCSB-T over several processes.

use tidemill_core::{Result, Row, Value};
use tidemill_place::PARTITIONS;
use tidemill_txn::Program;

use super::events::{self, Transfer};
use super::{program, OPENING};
use crate::args::Args;
use crate::cluster::{partition_of, Ended, Load, Wanted};
use crate::rng::Rng;
use crate::shape::Parts;
use crate::zipf::Zipf;

/// The largest number of draws of a creditor in the wanted process.
const DRAWS: usize = 10_000;

struct Transfers {
    parts: Parts,
    keys: usize,
    transfers: Vec<Transfer>,
}

/// Returns the workload according to the options. `multi` is the share of transfers between two
/// processes, and the number of processes.
pub(crate) fn load(
    args: &Args,
    program: Program,
    multi: Option<(f64, usize)>,
) -> Result<Box<dyn Load>> {
    let parts = program::parts(program)?;
    let mut transfers = events::generate(args);
    if let Some((share, processes)) = multi {
        spread(args, &parts, &mut transfers, share, processes);
    }
    Ok(Box::new(Transfers { parts, keys: args.keys, transfers }))
}

/// Draws creditors again until this share of them is in another process than their debtors.
fn spread(args: &Args, parts: &Parts, transfers: &mut [Transfer], share: f64, processes: usize) {
    let process = |id: u32| {
        let key = [Value::Int(id.into())];
        let partition = partition_of(&parts.program, parts.tables[0], &key);
        usize::from(partition) * processes / usize::from(PARTITIONS)
    };
    let processes: Vec<usize> = (0..args.keys as u32).map(process).collect();
    let mut rng = Rng::new(args.seed ^ 0x6d75_6c74_6921);
    let creditors = Zipf::new(args.keys, args.skew, rng.next_u64());
    for transfer in transfers {
        let is_multi = rng.unit() < share;
        let Transfer { debtor, creditor, .. } = transfer;
        for _ in 0..DRAWS {
            let is_other = processes[*debtor as usize] != processes[*creditor as usize];
            if debtor != creditor && is_other == is_multi {
                break;
            }
            *creditor = creditors.draw(&mut rng);
        }
    }
}

impl Load for Transfers {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    /// An unused account has the initial balance, without a row.
    fn opening(&self, _: usize) -> Vec<Row> {
        Vec::new()
    }

    fn calls(&self) -> Vec<(usize, Row)> {
        let call = |it: &Transfer| -> (usize, Row) {
            (0, [it.debtor.into(), it.creditor.into(), it.amount].map(Value::Int).into())
        };
        self.transfers.iter().map(call).collect()
    }

    fn end(&self, order: &[usize]) -> Ended {
        let mut balances: Vec<Option<i64>> = vec![None; self.keys];
        let mut aborts = 0;
        for nth in order {
            let Transfer { debtor, creditor, amount } = self.transfers[*nth];
            let left = balances[debtor as usize].unwrap_or(OPENING) - amount;
            if left < 0 {
                aborts += 1;
                continue;
            }
            balances[debtor as usize] = Some(left);
            *balances[creditor as usize].get_or_insert(OPENING) += amount;
        }
        let row = |(id, balance): (usize, Option<i64>)| {
            let key = Value::Int(id as i64);
            let row = balance.map(|balance| [key.clone(), Value::Int(balance)].into());
            Wanted { table: 0, key: vec![key], row }
        };
        Ended { wanted: balances.into_iter().enumerate().map(row).collect(), aborts }
    }
}
