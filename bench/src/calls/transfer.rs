//! YCSB-T: a transfer takes money from one account and calls the other.

use std::sync::Arc;

use tidemill_core::{Column, DataType, Row, TableId, Value};
use tidemill_function::{Activation, Call, Context, Functions, Step, Stop, Target};
use tidemill_txn::program::{Abort, Builder};
use tidemill_txn::Program;

use super::Graphs;
use crate::args::Args;
use crate::events::int;
use crate::rng::Rng;
use crate::zipf::Zipf;

const ACCOUNTS: TableId = TableId(0);
const OPENING: i64 = 1_000_000;
const TRANSFER: Target = Target::Function(0);
const ADD: Target = Target::Function(1);

/// Transfers: debtor, creditor, amount.
pub(super) struct Transfers {
    keys: usize,
    transfers: Vec<[i64; 3]>,
}

impl Transfers {
    pub fn new(args: &Args, count: usize) -> Transfers {
        let mut rng = Rng::new(args.seed);
        let keys = args.keys;
        let creditors = Zipf::new(keys, args.skew, rng.next_u64());
        let transfer = |_| {
            let debtor = rng.below(keys as u64) as i64;
            let creditor = std::iter::repeat_with(|| i64::from(creditors.draw(&mut rng)))
                .find(|creditor| *creditor != debtor);
            [debtor, creditor.expect("there are two"), 1]
        };
        Transfers { keys, transfers: (0..count).map(transfer).collect() }
    }
}

fn call(target: Target, key: i64, args: &[i64]) -> Call {
    let ints = |ints: &[i64]| ints.iter().map(|&i| Value::Int(i)).collect();
    Call { target, table: ACCOUNTS, key: ints(&[key]), args: ints(args) }
}

fn row(id: i64, balance: i64) -> (TableId, Row) {
    (ACCOUNTS, [Value::Int(id), Value::Int(balance)].into())
}

impl Graphs for Transfers {
    fn functions(&self, _: bool) -> Arc<dyn Functions> {
        let mut b = Builder::new("ycsb-t");
        let columns = ["id", "balance"].map(|name| Column::new(name, DataType::Int));
        b.table("account", &["id"], columns.to_vec());
        Arc::new(Accounts(b.finish().expect("a program")))
    }

    fn rows(&self) -> Vec<(TableId, Row)> {
        (0..self.keys as i64).map(|id| row(id, OPENING)).collect()
    }

    fn requests(&self) -> Vec<Call> {
        self.transfers.iter().map(|[from, to, n]| call(TRANSFER, *from, &[*to, *n])).collect()
    }

    fn straight(&self) -> Vec<(TableId, Row)> {
        let mut balances = vec![OPENING; self.keys];
        for [from, to, amount] in &self.transfers {
            if balances[*from as usize] >= *amount {
                balances[*from as usize] -= amount;
                balances[*to as usize] += amount;
            }
        }
        balances.into_iter().enumerate().map(|(id, n)| row(id as i64, n)).collect()
    }
}

struct Accounts(Program);

impl Functions for Accounts {
    fn program(&self) -> &Program {
        &self.0
    }

    fn begin(&self, call: &Call) -> Result<Box<dyn Activation>, Abort> {
        Ok(Box::new(OnAccount(call.clone())))
    }
}

struct OnAccount(Call);

impl Activation for OnAccount {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let (id, args) = (self.0.key[0].clone(), &self.0.args);
        let held = context.get(ACCOUNTS, &self.0.key)?;
        let balance = held.map_or(OPENING, |row| int(&row[1]));
        if self.0.target == ADD {
            context.put(ACCOUNTS, &[id, Value::Int(balance + int(&args[0]))])?;
            return Ok(Step::Done(Value::Null));
        }
        let [to, amount] = [0, 1].map(|at| int(&args[at]));
        if balance < amount {
            return Err(Abort::refused("insufficient funds").into());
        }
        context.put(ACCOUNTS, &[id, Value::Int(balance - amount)])?;
        context.call(call(ADD, to, &[amount]), false)?;
        Ok(Step::Done(Value::Null))
    }
}
