//! The tables, and the functions in Rust.

use std::sync::Arc;

use tidemill_core::{Column, DataType, Error, Result, Row, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Builder, Opaque, Take, Tx};
use tidemill_txn::Program;

use super::{DISTRICTS, NOTE_MAX, NO_ITEM};
use crate::args::ProgramKind;
use crate::events::{int, list};
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

/// The tables with keys of several integers, and the number of these. The functions in Rust pack
/// them into one.
const KEYS: [(usize, usize); 6] = [(1, 2), (3, 2), (5, 3), (6, 3), (7, 4), (8, 2)];

/// Packs the key of a row into one integer: that of a district, an item in a stock, an order, an
/// order's line, or a row of history.
fn packed(table: usize, key: &[i64]) -> i64 {
    let district = |w: i64, d: i64| w * DISTRICTS + d - 1;
    match (table, key) {
        (1, &[w, d]) => district(w, d),
        (3, &[w, i]) => (w << 20) | i,
        (5 | 6, &[w, d, o]) => (district(w, d) << 32) | o,
        (7, &[w, d, o, n]) => (((district(w, d) << 32) | o) << 4) | n,
        (8, &[w, id]) => (w << 40) | id,
        _ => unreachable!("table {table} has no packed key"),
    }
}

/// Returns a row with a packed key, as the functions in Rust use it.
pub(super) fn packed_row(table: usize, row: Row) -> Row {
    let Some((_, columns)) = KEYS.iter().find(|(of, _)| *of == table) else { return row };
    let key: Vec<i64> = row[..*columns].iter().map(int).collect();
    let rest = row[*columns..].iter().cloned();
    [Value::Int(packed(table, &key))].into_iter().chain(rest).collect()
}

/// Returns a row with an unpacked key, as all other programs use it.
pub(super) fn unpacked_row(table: usize, row: Row) -> Row {
    if !KEYS.iter().any(|(of, _)| *of == table) {
        return row;
    }
    let key = int(&row[0]);
    let district = |packed: i64| [packed / DISTRICTS, packed % DISTRICTS + 1];
    let order = |packed: i64| {
        let [w, d] = district(packed >> 32);
        [w, d, packed & 0xFFFF_FFFF]
    };
    let key: Vec<i64> = match table {
        1 => district(key).into(),
        3 => vec![key >> 20, key & 0xF_FFFF],
        5 | 6 => order(key).into(),
        7 => [&order(key >> 4)[..], &[key & 15]].concat(),
        _ => vec![key >> 40, key & 0xFF_FFFF_FFFF],
    };
    key.into_iter().map(Value::Int).chain(row[1..].iter().cloned()).collect()
}

/// Begins a program with the parts that all programs share, except for keys.
fn frame(is_packed: bool) -> (Builder, [StreamId; 2]) {
    let int = |name: &str| Column::new(name, DataType::Int);
    let ints = |names: &[&str]| names.iter().map(|name| int(name)).collect::<Vec<_>>();
    let text = |name: &str| Column::new(name, DataType::Str);
    let mut b = Builder::new("tpcc");
    let table = |b: &mut Builder, name: &str, key: &[&str], rest: &[&str]| {
        let is_one = is_packed && key.len() > 1;
        let key = if is_one { &["key"] } else { key };
        let table = b.table(name, key, ints(&[key, rest].concat()));
        if key.len() > 1 {
            b.partition_prefix(table, 1);
        }
    };
    table(&mut b, "warehouse", &["w"], &["tax", "paid"]);
    table(&mut b, "district", &["w", "d"], &["tax", "paid", "next_order"]);
    let mut customer = ints(&["w", "d", "c"]);
    customer.extend([text("last"), int("first"), Column::new("good", DataType::Bool)]);
    customer.extend(ints(&["discount", "balance", "paid", "payments"]));
    customer.push(text("note"));
    let customer = b.table("customer", &["w", "d", "c"], customer);
    b.partition_prefix(customer, 1);
    table(&mut b, "stock", &["w", "i"], &["quantity", "sold", "orders", "remote"]);
    table(&mut b, "item", &["i"], &["price"]);
    table(&mut b, "orders", &["w", "d", "o"], &["c", "lines", "local"]);
    table(&mut b, "open_orders", &["w", "d", "o"], &[]);
    table(&mut b, "order_line", &["w", "d", "o", "n"], &["i", "supplier", "quantity", "amount"]);
    table(&mut b, "history", &["w", "id"], &["d", "cw", "cd", "c", "amount"]);
    let list = |name: &str| Column::new(name, DataType::List(Box::new(DataType::Int)));
    let mut order = ints(&["w", "d", "c"]);
    order.extend(["items", "suppliers", "quantities"].map(list));
    let order = b.stream(&format!("{NEW_ORDER}.calls"), order);
    let mut payment = ints(&["w", "d", "cw", "cd", "c"]);
    payment.extend([text("last"), int("amount"), int("id")]);
    let payment = b.stream(&format!("{PAY}.calls"), payment);
    (b, [order, payment])
}

/// Returns only the tables and streams, with unpacked keys.
pub(crate) fn plain_program() -> Program {
    frame(false).0.finish().expect("a program")
}

/// Finds the parts of a program that was made elsewhere.
pub(super) fn parts(program: Program) -> Result<Parts> {
    shape::parts("TPC-C", program, &plain_program())
}

/// Returns the program according to the options.
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
            return Err(Error::setting("--program traced: tpcc finds its rows at run time")
                .help("use --program rust or --program python"));
        }
    };
    shape::parts("TPC-C", program, &frame(kind == ProgramKind::Rust).0.finish()?)
}

fn functions() -> Result<Program> {
    let (mut b, [order, payment]) = frame(true);
    let by_name = b.index("customer.by_name", CUSTOMER, &["w", "d", "last", "first"], false);
    assert_eq!(by_name, BY_NAME);
    let reply = || vec![Column::new("reply", DataType::Int)];
    b.returning(NEW_ORDER, order, reply(), |replies| Arc::new(TakesOrders { replies }));
    b.returning(PAY, payment, reply(), |replies| Arc::new(TakesPayments { replies }));
    b.finish()
}

/// Reads a row of integers, which must exist.
fn existing<const N: usize>(
    tx: &mut dyn Tx,
    table: TableId,
    name: &str,
    key: i64,
) -> std::result::Result<[i64; N], Abort> {
    tx.ints(table, key)?.ok_or_else(|| Abort::refused(format!("there is no such {name}")))
}

fn customer_of(tx: &mut dyn Tx, key: [i64; 3]) -> std::result::Result<Row, Abort> {
    let customer = tx.get(CUSTOMER, &key.map(Value::Int))?;
    customer.ok_or_else(|| Abort::refused("there is no such customer"))
}

struct TakesOrders {
    replies: StreamId,
}

impl Opaque for TakesOrders {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> std::result::Result<(), Abort> {
        let [w, d, c] = [0, 1, 2].map(|at| int(&event[at]));
        let [items, suppliers, quantities] = [3, 4, 5].map(|at| list(&event[at]));
        let [key, tax, paid, order] = existing(tx, DISTRICT, "district", packed(1, &[w, d]))?;
        let mut prices = smallvec::SmallVec::<[i64; 15]>::new();
        for item in items {
            let price: Option<[i64; 2]> = tx.ints(ITEM, int(item))?;
            let [_, price] = price.ok_or_else(|| Abort::refused(NO_ITEM))?;
            prices.push(price);
        }
        let [_, warehouse_tax, _] = existing(tx, WAREHOUSE, "warehouse", w)?;
        let discount = int(&customer_of(tx, [w, d, c])?[6]);
        tx.put_ints(DISTRICT, &[key, tax, paid, order + 1])?;
        let is_local = suppliers.iter().all(|supplier| int(supplier) == w);
        let lines = items.len() as i64;
        let key = packed(5, &[w, d, order]);
        tx.put_ints(ORDERS, &[key, c, lines, is_local.into()])?;
        tx.put_ints(OPEN_ORDERS, &[key])?;
        let mut total = 0;
        for (n, price) in prices.into_iter().enumerate() {
            let [i, supplier, quantity] =
                [items, suppliers, quantities].map(|column| int(&column[n]));
            let [stock, left, sold, orders, remote] =
                existing(tx, STOCK, "stock", packed(3, &[supplier, i]))?;
            let left = if left - quantity >= 10 { left - quantity } else { left - quantity + 91 };
            let remote = remote + i64::from(supplier != w);
            tx.put_ints(STOCK, &[stock, left, sold + quantity, orders + 1, remote])?;
            let amount = quantity * price;
            total += amount;
            let line = packed(7, &[w, d, order, n as i64 + 1]);
            tx.put_ints(ORDER_LINE, &[line, i, supplier, quantity, amount])?;
        }
        let total = total * (10_000 - discount) / 10_000;
        let total = total * (10_000 + warehouse_tax + tax) / 10_000;
        tx.emit_ints(self.replies, &[total])
    }
}

struct TakesPayments {
    replies: StreamId,
}

impl Opaque for TakesPayments {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> std::result::Result<(), Abort> {
        let [w, d, cw, cd, c] = [0, 1, 2, 3, 4].map(|at| int(&event[at]));
        let (amount, id) = (int(&event[6]), int(&event[7]));
        let [_, tax, paid] = existing(tx, WAREHOUSE, "warehouse", w)?;
        tx.put_ints(WAREHOUSE, &[w, tax, paid + amount])?;
        let [district, tax, paid, order] = existing(tx, DISTRICT, "district", packed(1, &[w, d]))?;
        tx.put_ints(DISTRICT, &[district, tax, paid + amount, order])?;
        let mut c = c;
        if c == 0 {
            let named = [Value::Int(cw), Value::Int(cd), event[5].clone()];
            let found = tx.find(BY_NAME, &named, Take::ALL)?;
            let Some(middle) = found.len().checked_sub(1) else {
                return Err(Abort::refused("there is no such customer"));
            };
            c = int(found[middle / 2].last().expect("entries end with the key"));
        }
        let mut customer = customer_of(tx, [cw, cd, c])?;
        let balance = int(&customer[7]) - amount;
        customer[7] = Value::Int(balance);
        customer[8] = Value::Int(int(&customer[8]) + amount);
        customer[9] = Value::Int(int(&customer[9]) + 1);
        if customer[5] == Value::Bool(false) {
            let Value::Str(before) = &customer[10] else { unreachable!("a note is a text") };
            customer[10] = Value::Str(note(before, [c, cd, cw, d, w, amount]).into());
        }
        tx.put(CUSTOMER, &customer)?;
        tx.put_ints(HISTORY, &[packed(8, &[w, id]), d, cw, cd, c, amount])?;
        tx.emit_ints(self.replies, &[balance])
    }
}

/// Returns a customer's note with a payment prepended.
pub(crate) fn note(before: &str, payment: [i64; 6]) -> String {
    let [c, cd, cw, d, w, amount] = payment;
    let mut note = format!("{c} {cd} {cw} {d} {w} {amount}|{before}");
    note.truncate(NOTE_MAX);
    note
}
