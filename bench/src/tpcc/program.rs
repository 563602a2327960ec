//! The tables, and the functions in Rust.

use std::sync::Arc;

use tidemill_core::{Column, DataType, Error, Result, Row, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Builder, Opaque, Tx};
use tidemill_txn::Program;

use super::{NOTE_MAX, NO_ITEM};
use crate::args::ProgramKind;
use crate::shape::{self, Parts};
use crate::Given;

/// The tables, by their places.
pub(super) const TABLES: [&str; 9] = [
    "warehouse",
    "district",
    "customer",
    "stock",
    "item",
    "orders",
    "open_orders",
    "order_line",
    "history",
];
const WAREHOUSE: TableId = TableId(0);
const DISTRICT: TableId = TableId(1);
const CUSTOMER: TableId = TableId(2);
const STOCK: TableId = TableId(3);
const ITEM: TableId = TableId(4);
const ORDERS: TableId = TableId(5);
const OPEN_ORDERS: TableId = TableId(6);
const ORDER_LINE: TableId = TableId(7);
const HISTORY: TableId = TableId(8);
const BY_NAME: TableId = TableId(9);

/// The streams of calls.
pub(super) const NEW_ORDER: &str = "district.new_order";
pub(super) const PAY: &str = "warehouse.pay";

/// What all programs have in common.
fn frame() -> (Builder, [StreamId; 2]) {
    let int = |name: &str| Column::new(name, DataType::Int);
    let ints = |names: &[&str]| names.iter().map(|name| int(name)).collect::<Vec<_>>();
    let text = |name: &str| Column::new(name, DataType::Str);
    let mut b = Builder::new("tpcc");
    b.table("warehouse", &["w"], ints(&["w", "tax", "paid"]));
    b.table("district", &["w", "d"], ints(&["w", "d", "tax", "paid", "next_order"]));
    let mut customer = ints(&["w", "d", "c"]);
    customer.extend([text("last"), int("first"), Column::new("good", DataType::Bool)]);
    customer.extend(ints(&["discount", "balance", "paid", "payments"]));
    customer.push(text("note"));
    b.table("customer", &["w", "d", "c"], customer);
    b.table("stock", &["w", "i"], ints(&["w", "i", "quantity", "sold", "orders", "remote"]));
    b.table("item", &["i"], ints(&["i", "price"]));
    b.table("orders", &["w", "d", "o"], ints(&["w", "d", "o", "c", "lines", "local"]));
    b.table("open_orders", &["w", "d", "o"], ints(&["w", "d", "o"]));
    let line = ints(&["w", "d", "o", "n", "i", "supplier", "quantity", "amount"]);
    b.table("order_line", &["w", "d", "o", "n"], line);
    b.table("history", &["w", "id"], ints(&["w", "id", "d", "cw", "cd", "c", "amount"]));
    for table in [1, 2, 3, 5, 6, 7, 8] {
        b.partition_prefix(TableId(table), 1);
    }
    let list = |name: &str| Column::new(name, DataType::List(Box::new(DataType::Int)));
    let mut order = ints(&["w", "d", "c"]);
    order.extend(["items", "suppliers", "quantities"].map(list));
    let order = b.stream(&format!("{NEW_ORDER}.calls"), order);
    let mut payment = ints(&["w", "d", "cw", "cd", "c"]);
    payment.extend([text("last"), int("amount"), int("id")]);
    let payment = b.stream(&format!("{PAY}.calls"), payment);
    (b, [order, payment])
}

/// The program as the options want it.
pub(super) fn program(kind: ProgramKind, given: Given<'_>) -> Result<Parts> {
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) => functions()?,
        (ProgramKind::Python, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
        (ProgramKind::Python, None) => {
            return Err(Error::setting("--program python: its functions were not given")
                .help("use the command line of the Python package: tidemill bench tpcc"));
        }
        (ProgramKind::Traced, _) => {
            return Err(Error::setting("--program traced: tpcc finds its rows by running")
                .help("say --program rust or --program python"));
        }
    };
    shape::parts("TPC-C", program, &frame().0.finish()?)
}

fn functions() -> Result<Program> {
    let (mut b, [order, payment]) = frame();
    let by_name = b.index("customer.by_name", CUSTOMER, &["w", "d", "last", "first"], false);
    assert_eq!(by_name, BY_NAME);
    let reply = || vec![Column::new("reply", DataType::Int)];
    b.returning(NEW_ORDER, order, reply(), |replies| Arc::new(TakesOrders { replies }));
    b.returning(PAY, payment, reply(), |replies| Arc::new(TakesPayments { replies }));
    b.finish()
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        other => unreachable!("{other} is where an integer is"),
    }
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::List(items) => items,
        other => unreachable!("{other} is where a list is"),
    }
}

fn there(
    tx: &mut dyn Tx,
    table: TableId,
    name: &str,
    key: &[i64],
) -> std::result::Result<Row, Abort> {
    let key = key.iter().map(|&i| Value::Int(i)).collect::<smallvec::SmallVec<[Value; 3]>>();
    tx.get(table, &key)?.ok_or_else(|| Abort::refused(format!("there is no such {name}")))
}

fn put(tx: &mut dyn Tx, table: TableId, row: &[i64]) -> std::result::Result<(), Abort> {
    tx.put_ints(table, row)
}

struct TakesOrders {
    replies: StreamId,
}

impl Opaque for TakesOrders {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> std::result::Result<(), Abort> {
        let [w, d, c] = [0, 1, 2].map(|at| int(&event[at]));
        let [items, suppliers, quantities] = [3, 4, 5].map(|at| list(&event[at]));
        let mut district = there(tx, DISTRICT, "district", &[w, d])?;
        let mut prices = smallvec::SmallVec::<[i64; 15]>::new();
        for item in items {
            let price: Option<[i64; 2]> = tx.ints(ITEM, int(item))?;
            let [_, price] = price.ok_or_else(|| Abort::refused(NO_ITEM))?;
            prices.push(price);
        }
        let warehouse: Option<[i64; 3]> = tx.ints(WAREHOUSE, w)?;
        let [_, warehouse_tax, _] =
            warehouse.ok_or_else(|| Abort::refused("there is no such warehouse"))?;
        let customer = there(tx, CUSTOMER, "customer", &[w, d, c])?;
        let (discount, district_tax) = (int(&customer[6]), int(&district[2]));
        let order = int(&district[4]);
        district[4] = Value::Int(order + 1);
        tx.put(DISTRICT, &district)?;
        let is_local = suppliers.iter().all(|supplier| int(supplier) == w);
        let lines = items.len() as i64;
        put(tx, ORDERS, &[w, d, order, c, lines, is_local.into()])?;
        put(tx, OPEN_ORDERS, &[w, d, order])?;
        let mut total = 0;
        for (n, price) in prices.into_iter().enumerate() {
            let [i, supplier, quantity] =
                [items, suppliers, quantities].map(|column| int(&column[n]));
            let mut stock = there(tx, STOCK, "stock", &[supplier, i])?;
            let left = int(&stock[2]) - quantity;
            let left = if left >= 10 { left } else { left + 91 };
            stock[2] = Value::Int(left);
            stock[3] = Value::Int(int(&stock[3]) + quantity);
            stock[4] = Value::Int(int(&stock[4]) + 1);
            stock[5] = Value::Int(int(&stock[5]) + i64::from(supplier != w));
            tx.put(STOCK, &stock)?;
            let amount = quantity * price;
            total += amount;
            let n = n as i64 + 1;
            put(tx, ORDER_LINE, &[w, d, order, n, i, supplier, quantity, amount])?;
        }
        let total = total * (10_000 - discount) / 10_000;
        let total = total * (10_000 + warehouse_tax + district_tax) / 10_000;
        tx.emit(self.replies, &[Value::Int(total)])
    }
}

struct TakesPayments {
    replies: StreamId,
}

impl Opaque for TakesPayments {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> std::result::Result<(), Abort> {
        let [w, d, cw, cd, c] = [0, 1, 2, 3, 4].map(|at| int(&event[at]));
        let (amount, id) = (int(&event[6]), int(&event[7]));
        let warehouse: Option<[i64; 3]> = tx.ints(WAREHOUSE, w)?;
        let [_, tax, paid] =
            warehouse.ok_or_else(|| Abort::refused("there is no such warehouse"))?;
        tx.put_ints(WAREHOUSE, &[w, tax, paid + amount])?;
        let mut district = there(tx, DISTRICT, "district", &[w, d])?;
        district[3] = Value::Int(int(&district[3]) + amount);
        tx.put(DISTRICT, &district)?;
        let mut c = c;
        if c == 0 {
            let named = [Value::Int(cw), Value::Int(cd), event[5].clone()];
            let found = tx.find(BY_NAME, &named, usize::MAX)?;
            let Some(middle) = found.len().checked_sub(1) else {
                return Err(Abort::refused("there is no such customer"));
            };
            c = int(found[middle / 2].last().expect("entries end with the key"));
        }
        let mut customer = there(tx, CUSTOMER, "customer", &[cw, cd, c])?;
        let balance = int(&customer[7]) - amount;
        customer[7] = Value::Int(balance);
        customer[8] = Value::Int(int(&customer[8]) + amount);
        customer[9] = Value::Int(int(&customer[9]) + 1);
        if customer[5] == Value::Bool(false) {
            let Value::Str(before) = &customer[10] else { unreachable!("a note is a text") };
            customer[10] = Value::Str(note(before, [c, cd, cw, d, w, amount]).into());
        }
        tx.put(CUSTOMER, &customer)?;
        put(tx, HISTORY, &[w, id, d, cw, cd, c, amount])?;
        tx.emit(self.replies, &[Value::Int(balance)])
    }
}

/// A customer's note with a payment before it.
pub(super) fn note(before: &str, payment: [i64; 6]) -> String {
    let [c, cd, cw, d, w, amount] = payment;
    let mut note = format!("{c} {cd} {cw} {d} {w} {amount}|{before}");
    note.truncate(NOTE_MAX);
    note
}
