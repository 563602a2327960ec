//! TPC-C: an order reads the prices of its items from any owner, and calls the stock of each. A
//! payment calls the district and the customer.

use std::sync::Arc;

use tidemill_core::{Result, Row, TableId, Value};
use tidemill_function::{Activation, Call, Context, Functions, Handle, Step, Stop, Target};
use tidemill_txn::program::Abort;
use tidemill_txn::Program;

use super::Graphs;
use crate::args::Args;
use crate::events::{int, list};
use crate::tpcc::{self, Made};

const NEW_ORDER: Target = Target::Function(0);
const TAKE: Target = Target::Function(1);
const PAY: Target = Target::Function(2);
const OWE: Target = Target::Function(3);
const EARN: Target = Target::Function(4);

const WAREHOUSE: TableId = TableId(0);
const DISTRICT: TableId = TableId(1);
const CUSTOMER: TableId = TableId(2);
const STOCK: TableId = TableId(3);
const ITEM: TableId = TableId(4);
const ORDERS: TableId = TableId(5);
const OPEN_ORDERS: TableId = TableId(6);
const ORDER_LINE: TableId = TableId(7);
const HISTORY: TableId = TableId(8);

pub(super) struct Orders(Made);

impl Orders {
    pub fn new(args: &Args, count: usize) -> Result<Orders> {
        Ok(Orders(Made::new(args, count)?.by_number()))
    }
}

impl Graphs for Orders {
    fn functions(&self, prefix: bool) -> Arc<dyn Functions> {
        let mut program = tpcc::plain_program();
        if !prefix {
            program.tables.iter_mut().for_each(|table| table.partition_prefix = None);
        }
        Arc::new(Shop(program))
    }

    fn rows(&self) -> Vec<(TableId, Row)> {
        self.0.begin()
    }

    fn requests(&self) -> Vec<Call> {
        let request = |(stream, event): (usize, Row)| {
            let (target, table, keys) = match stream {
                0 => (NEW_ORDER, DISTRICT, 2),
                _ => (PAY, WAREHOUSE, 1),
            };
            let (key, args) = event.split_at(keys);
            Call { target, table, key: key.into(), args: args.into() }
        };
        self.0.events().into_iter().map(request).collect()
    }

    fn straight(&self) -> Vec<(TableId, Row)> {
        self.0.end()
    }
}

struct Shop(Program);

impl Functions for Shop {
    fn program(&self) -> &Program {
        &self.0
    }

    fn begin(&self, call: &Call) -> std::result::Result<Box<dyn Activation>, Abort> {
        Ok(Box::new(Running { call: call.clone(), made: Vec::new() }))
    }
}

/// A running function, and the calls that it waits for.
struct Running {
    call: Call,
    made: Vec<Handle>,
}

fn ints(ints: &[i64]) -> Vec<Value> {
    ints.iter().map(|&i| Value::Int(i)).collect()
}

fn call(target: Target, table: TableId, key: &[i64], args: &[i64]) -> Call {
    Call { target, table, key: ints(key).into(), args: ints(args).into() }
}

fn existing(context: &mut dyn Context, table: TableId, key: &[Value]) -> Result<Vec<Value>, Stop> {
    let row = context.get(table, key)?;
    Ok(row.ok_or_else(|| Abort::refused("there is no such row"))?.to_vec())
}

/// Adds to columns of a row.
fn add(row: &mut [Value], columns: &[(usize, i64)]) {
    for (column, more) in columns {
        row[*column] = Value::Int(int(&row[*column]) + more);
    }
}

impl Activation for Running {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        match self.call.target {
            NEW_ORDER => self.new_order(context),
            PAY => self.pay(context),
            TAKE => {
                let [quantity, from] = [0, 1].map(|at| int(&self.call.args[at]));
                let mut stock = existing(context, STOCK, &self.call.key)?;
                let left = int(&stock[2]) - quantity;
                stock[2] = Value::Int(if left >= 10 { left } else { left + 91 });
                let remote = i64::from(int(&stock[0]) != from);
                add(&mut stock, &[(3, quantity), (4, 1), (5, remote)]);
                context.put(STOCK, &stock)?;
                Ok(Step::Done(Value::Null))
            }
            EARN => {
                let mut district = existing(context, DISTRICT, &self.call.key)?;
                add(&mut district, &[(3, int(&self.call.args[0]))]);
                context.put(DISTRICT, &district)?;
                Ok(Step::Done(Value::Null))
            }
            _ => {
                let [w, d, amount] = [0, 1, 2].map(|at| int(&self.call.args[at]));
                let [cw, cd, c] = [0, 1, 2].map(|at| int(&self.call.key[at]));
                let mut customer = existing(context, CUSTOMER, &self.call.key)?;
                add(&mut customer, &[(7, -amount), (8, amount), (9, 1)]);
                if customer[5] == Value::Bool(false) {
                    let Value::Str(before) = &customer[10] else { unreachable!("a text") };
                    let note = tpcc::note(before, [c, cd, cw, d, w, amount]);
                    customer[10] = Value::Str(note.into());
                }
                context.put(CUSTOMER, &customer)?;
                Ok(Step::Done(customer[7].clone()))
            }
        }
    }
}

impl Running {
    fn new_order(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let (key, args) = (&self.call.key, &self.call.args);
        let [w, d, c] = [&key[0], &key[1], &args[0]].map(int);
        let [items, suppliers, quantities] = [1, 2, 3].map(|at| list(&args[at]));
        if self.made.is_empty() {
            for item in items {
                let get = call(Target::Get, ITEM, &[int(item)], &[]);
                self.made.push(context.call(get, true)?);
            }
            return Ok(Step::Wait(self.made.clone()));
        }
        let mut prices = Vec::with_capacity(items.len());
        for made in &self.made {
            match context.reply(*made) {
                Some(Value::List(item)) => prices.push(int(&item[1])),
                _ => return Err(Abort::refused("item number is not valid").into()),
            }
        }
        let tax = int(&existing(context, WAREHOUSE, &ints(&[w]))?[1]);
        let discount = int(&existing(context, CUSTOMER, &ints(&[w, d, c]))?[6]);
        let mut district = existing(context, DISTRICT, key)?;
        let (order, district_tax) = (int(&district[4]), int(&district[2]));
        add(&mut district, &[(4, 1)]);
        context.put(DISTRICT, &district)?;
        let is_local = suppliers.iter().all(|supplier| int(supplier) == w);
        let lines = items.len() as i64;
        context.put(ORDERS, &ints(&[w, d, order, c, lines, is_local.into()]))?;
        context.put(OPEN_ORDERS, &ints(&[w, d, order]))?;
        let mut total = 0;
        for (n, price) in prices.into_iter().enumerate() {
            let [i, supplier, quantity] =
                [items, suppliers, quantities].map(|column| int(&column[n]));
            context.call(call(TAKE, STOCK, &[supplier, i], &[quantity, w]), false)?;
            let (n, amount) = (n as i64 + 1, quantity * price);
            total += amount;
            let line = ints(&[w, d, order, n, i, supplier, quantity, amount]);
            context.put(ORDER_LINE, &line)?;
        }
        let total = total * (10_000 - discount) / 10_000;
        Ok(Step::Done(Value::Int(total * (10_000 + tax + district_tax) / 10_000)))
    }

    fn pay(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let w = int(&self.call.key[0]);
        let [d, cw, cd, c] = [0, 1, 2, 3].map(|at| int(&self.call.args[at]));
        let [amount, id] = [5, 6].map(|at| int(&self.call.args[at]));
        let Some(&owes) = self.made.first() else {
            let mut warehouse = existing(context, WAREHOUSE, &self.call.key)?;
            add(&mut warehouse, &[(2, amount)]);
            context.put(WAREHOUSE, &warehouse)?;
            context.call(call(EARN, DISTRICT, &[w, d], &[amount]), false)?;
            context.put(HISTORY, &ints(&[w, id, d, cw, cd, c, amount]))?;
            self.made =
                vec![context.call(call(OWE, CUSTOMER, &[cw, cd, c], &[w, d, amount]), true)?];
            return Ok(Step::Wait(self.made.clone()));
        };
        Ok(Step::Done(context.reply(owes).expect("it was waited for").clone()))
    }
}
