//! The transactions of Streaming Ledger in all forms.

use std::sync::Arc;

use tidemill_core::{Column, DataType, Error, Late, Result, StreamId, TableId, Value};
use tidemill_txn::program::{Builder, NativeTx, Opaque};
use tidemill_txn::Program;

use crate::args::ProgramKind;
use crate::shape::{self, Parts};
use crate::work::Work;
use crate::Given;

/// The reason of an abort.
pub(crate) const POOR: &str = "insufficient funds";

/// Returns the program according to the options.
pub(crate) fn ledger(kind: ProgramKind, given: Given<'_>, work: Work) -> Result<Parts> {
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) => native(work)?,
        (ProgramKind::Traced, None) => declared()?,
        (ProgramKind::Python, None) => opaque(given.opaques)?,
        (_, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
    };
    shape::find_only("Streaming Ledger", program, &begin().0.finish()?)
}

/// The names and columns of the tables.
const TABLES: [(&str, [&str; 2]); 2] =
    [("accounts", ["id", "balance"]), ("assets", ["id", "balance"])];
/// The places of the tables among the parts of the program.
pub(crate) const ACCOUNTS: usize = 0;
pub(crate) const ASSETS: usize = 1;

/// The names and columns of the streams; the first column is the time.
const DEPOSITS: (&str, &[&str]) = ("deposits", &["at", "account", "asset", "amount"]);
const TRANSFERS: (&str, &[&str]) =
    ("transfers", &["at", "src_account", "src_asset", "dst_account", "dst_asset", "amount"]);

fn stream_columns(names: &[&str]) -> Vec<Column> {
    let ty = |at: usize| if at == 0 { DataType::Timestamp } else { DataType::Int };
    names.iter().enumerate().map(|(at, name)| Column::new(name, ty(at))).collect()
}

/// Begins a program with the parts that all forms share: tables (accounts, assets) and input
/// streams (deposits, transfers).
fn begin() -> (Builder, [TableId; 2], [StreamId; 2]) {
    let mut b = Builder::new("sl");
    let tables = tables(&mut b);
    let streams = [DEPOSITS, TRANSFERS].map(|(name, columns)| {
        let stream = b.stream(name, stream_columns(columns));
        b.event_time(stream, columns[0], Late::Side);
        stream
    });
    (b, tables, streams)
}

fn tables(b: &mut Builder) -> [TableId; 2] {
    TABLES.map(|(name, [key, balance])| {
        let balance = Column::new(balance, DataType::Int).default(Value::Int(0));
        b.table(name, &[key], vec![Column::new(key, DataType::Int), balance])
    })
}

/// Adds the streams of the results of deposits and transfers, for programs that emit by name.
fn emitted(b: &mut Builder) -> [StreamId; 2] {
    ["deposit", "transfer"].map(|name| {
        let columns = ["account", "balance"].map(|c| Column::new(c, DataType::Int));
        b.emitted(name, columns.to_vec())
    })
}

/// Builds Rust closures over the words of rows.
fn native(work: Work) -> Result<Program> {
    let (mut b, [accounts, assets], [deposits, transfers]) = begin();
    let [deposited, transferred] = emitted(&mut b);
    b.native(
        "deposit",
        deposits,
        &[(accounts, &["account"]), (assets, &["asset"])],
        &[deposited],
        move |tx: &mut NativeTx<'_>| {
            let amount = tx.event(3);
            let balance = tx.get(0, 1).checked_add(amount).ok_or("overflow")?;
            let worked = work.run(balance, 0);
            tx.set(0, 1, balance);
            let asset = tx.get(1, 1).checked_add(amount).ok_or("overflow")?;
            work.run(asset, worked);
            tx.set(1, 1, asset);
            tx.emit(0, &[tx.event(1), balance]);
            Ok(())
        },
    );
    b.native(
        "transfer",
        transfers,
        &[
            (accounts, &["src_account"]),
            (assets, &["src_asset"]),
            (accounts, &["dst_account"]),
            (assets, &["dst_asset"]),
        ],
        &[transferred],
        move |tx: &mut NativeTx<'_>| {
            let amount = tx.event(5);
            let (balance, asset) = (tx.get(0, 1), tx.get(1, 1));
            let worked = work.run(asset, work.run(balance, 0));
            if balance < amount || asset < amount {
                return Err(POOR);
            }
            let balance = balance - amount;
            tx.set(0, 1, balance);
            tx.set(1, 1, asset - amount);
            let to = tx.get(2, 1).checked_add(amount).ok_or("overflow")?;
            let worked = work.run(to, worked);
            tx.set(2, 1, to);
            let to = tx.get(3, 1).checked_add(amount).ok_or("overflow")?;
            work.run(to, worked);
            tx.set(3, 1, to);
            tx.emit(0, &[tx.event(1), balance]);
            Ok(())
        },
    );
    b.finish()
}

/// Builds declared transactions, as the tracer makes them of the Python program.
fn declared() -> Result<Program> {
    let (mut b, [accounts, assets], [deposits, transfers]) = begin();
    let mut h = b.handler("deposit", deposits);
    let [account, asset, amount] = ["account", "asset", "amount"].map(|c| h.column(c));
    let (a, s) = (h.row(accounts, &[account]), h.row(assets, &[asset]));
    let mut balance = account;
    for (index, row) in [a, s].into_iter().enumerate() {
        let old = h.read(row, "balance");
        let new = h.add(old, amount);
        h.set(row, "balance", new);
        if index == 0 {
            balance = new;
        }
    }
    h.output(&[("account", account), ("balance", balance)]);
    h.done();

    let mut h = b.handler("transfer", transfers);
    let keys = ["src_account", "src_asset", "dst_account", "dst_asset"].map(|c| h.column(c));
    let amount = h.column("amount");
    let tables = [accounts, assets, accounts, assets];
    let rows = [0, 1, 2, 3].map(|i| h.row(tables[i], &[keys[i]]));
    let olds = [0, 1].map(|i| {
        let old = h.read(rows[i], "balance");
        let enough = h.ge(old, amount);
        h.require(enough, POOR);
        old
    });
    let mut left = olds[0];
    for i in 0..2 {
        let new = h.sub(olds[i], amount);
        h.set(rows[i], "balance", new);
        if i == 0 {
            left = new;
        }
    }
    for row in &rows[2..] {
        let old = h.read(*row, "balance");
        let new = h.add(old, amount);
        h.set(*row, "balance", new);
    }
    h.output(&[("account", keys[0]), ("balance", left)]);
    h.done();
    b.finish()
}

/// The stream that fills the tables: each event gives the account and the asset of one key their
/// first balance. It has no outputs, so that outputs equal those of a run in memory.
pub(crate) const OPENINGS: (&str, &[&str]) = ("openings", &["at", "id", "balance"]);

/// Returns the program with the stream [`OPENINGS`] and its handler.
pub(crate) fn with_openings(ledger: &Parts) -> Result<(Program, StreamId)> {
    let mut b = Builder::new("openings");
    let tables = tables(&mut b);
    let openings = b.stream(OPENINGS.0, stream_columns(OPENINGS.1));
    b.event_time(openings, OPENINGS.1[0], Late::Side);
    let mut h = b.handler("open", openings);
    let (id, balance) = (h.column("id"), h.column("balance"));
    for table in tables {
        let row = h.row(table, &[id]);
        h.set(row, "balance", balance);
    }
    h.done();
    shape::with_opening(ledger, b.finish()?)
}

/// Builds the program with opaque functions: one for deposits, one for transfers. They emit into
/// [`OPAQUE_OUTPUTS`].
fn opaque(functions: Vec<Arc<dyn Opaque>>) -> Result<Program> {
    let Ok([deposit, transfer]) = <[Arc<dyn Opaque>; 2]>::try_from(functions) else {
        return Err(Error::setting("--program python: its two functions were not given")
            .help("use the command line of the Python package: tidemill bench sl"));
    };
    let (mut b, _, [deposits, transfers]) = begin();
    let outputs = emitted(&mut b);
    debug_assert_eq!(outputs, OPAQUE_OUTPUTS);
    b.opaque("deposit", deposits, deposit);
    b.opaque("transfer", transfers, transfer);
    b.finish()
}

/// The output streams of the functions of [`opaque`].
pub(crate) const OPAQUE_OUTPUTS: [StreamId; 2] = [StreamId(2), StreamId(3)];
