//! The transfer in all forms.

use tidemill_core::rules::Binary;
use tidemill_core::{Column, DataType, Error, Result, StreamId, TableId, Value};
use tidemill_txn::program::{Builder, NativeTx};
use tidemill_txn::Program;

use super::{OPENING, POOR};
use crate::args::ProgramKind;
use crate::shape::{self, Parts};
use crate::work::Work;
use crate::Given;

const TRANSFER: &str = "account.transfer";
/// The stream of refused transfers.
pub(super) const ABORTED: &str = "account.transfer.aborted";

/// Returns the program according to the options.
pub(super) fn program(kind: ProgramKind, given: Given<'_>, work: Work) -> Result<Parts> {
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) => native(work)?,
        (ProgramKind::Traced, None) => declared()?,
        (ProgramKind::Python, None) => {
            return Err(Error::setting("--program python: its functions were not given")
                .help("use the command line of the Python package: tidemill bench ycsb-t"));
        }
        (_, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
    };
    parts(program)
}

/// Finds the parts of a program that was made elsewhere.
pub(super) fn parts(program: Program) -> Result<Parts> {
    // Such a program may have more handlers: functions of an entity also call each other.
    shape::parts("YCSB-T", program, &begin().0.finish()?)
}

/// Begins a program with the parts that all forms share: the accounts and the calls.
fn begin() -> (Builder, TableId, StreamId) {
    let mut b = Builder::new("ycsb-t");
    let int = |name: &str| Column::new(name, DataType::Int);
    let balance = int("balance").default(Value::Int(OPENING));
    let accounts = b.table("account", &["id"], vec![int("id"), balance]);
    let calls = b.stream(&format!("{TRANSFER}.calls"), ["id", "to", "amount"].map(int).to_vec());
    (b, accounts, calls)
}

/// Builds a Rust closure over the words of rows.
fn native(work: Work) -> Result<Program> {
    let (mut b, accounts, calls) = begin();
    let body = move |tx: &mut NativeTx<'_>| {
        let (balance, amount) = (tx.get(0, 1), tx.event(2));
        let worked = work.run(balance, 0);
        if balance < amount {
            return Err(POOR);
        }
        tx.set(0, 1, balance - amount);
        let balance = tx.get(1, 1).checked_add(amount).ok_or("overflow")?;
        work.run(balance, worked);
        tx.set(1, 1, balance);
        Ok(())
    };
    b.native(TRANSFER, calls, &[(accounts, &["id"]), (accounts, &["to"])], &[], body);
    b.finish()
}

/// Builds a declared transaction, as the tracer makes it of a Python transaction.
fn declared() -> Result<Program> {
    let (mut b, accounts, calls) = begin();
    let mut h = b.handler(TRANSFER, calls);
    let [id, to, amount] = ["id", "to", "amount"].map(|c| h.column(c));
    let (debtor, creditor) = (h.row(accounts, &[id]), h.row(accounts, &[to]));
    let balance = h.read(debtor, "balance");
    let is_there = h.binary(Binary::Ge, balance, amount);
    h.require(is_there, POOR);
    let left = h.sub(balance, amount);
    h.set(debtor, "balance", left);
    let balance = h.read(creditor, "balance");
    let sum = h.add(balance, amount);
    h.set(creditor, "balance", sum);
    h.done();
    b.finish()
}
