//! The stream beside the calls: wages, sent in batches at a share of the rate that the app takes
//! without calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use tidemill_core::{Batch, Column, DataType, Error, Result, TableId, Value};
use tidemill_engine::Mill;
use tidemill_env::{Env, Handle};
use tidemill_txn::program::{Abort, Builder, Opaque, Tx};

use super::{added, traced_added};
use crate::args::ProgramKind;

/// The stream, and the table of the paid wages.
pub(super) const WAGES: &str = "wages";
const PAID: &str = "paid";

/// The number of wages in a batch, and the number of wages that measure the app's rate.
const BATCH: u64 = 1_000;
const TRIED: u64 = 400_000;

/// The procedure that pays a wage.
struct Pay {
    paid: TableId,
}

impl Opaque for Pay {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        added(tx, self.paid, event).map(drop)
    }
}

/// Adds the stream and the table to a program.
pub(super) fn add(b: &mut Builder, kind: ProgramKind) {
    let int = |name: &str| Column::new(name, DataType::Int);
    let sum = int("sum").default(Value::Int(0));
    let paid = b.table(PAID, &["id"], vec![int("id"), sum]);
    let wages = b.stream(WAGES, vec![int("account"), int("amount")]);
    if kind == ProgramKind::Rust {
        b.opaque("pay", wages, Arc::new(Pay { paid }));
        return;
    }
    let mut h = b.handler("pay", wages);
    traced_added(&mut h, paid, "sum");
    h.done();
}

/// Returns the wage with this number.
fn wage(number: u64, accounts: usize) -> [Value; 2] {
    [Value::Int((number % accounts as u64) as i64), Value::Int(1)]
}

fn send(
    mill: &Mill,
    schema: &Arc<tidemill_core::Schema>,
    from: u64,
    accounts: usize,
) -> Result<()> {
    let rows: Vec<[Value; 2]> = (from..from + BATCH).map(|n| wage(n, accounts)).collect();
    mill.send(WAGES, Batch::from_rows(schema.clone(), rows.iter().map(|row| &row[..]))).map(drop)
}

fn schema() -> Arc<tidemill_core::Schema> {
    let int = |name: &str| Column::new(name, DataType::Int);
    Arc::new(tidemill_core::Schema::new(vec![int("account"), int("amount")]))
}

/// Returns the wages per second that an app takes while it does nothing else.
pub(super) fn most(env: &Env, mill: &Mill, accounts: usize) -> Result<f64> {
    let (schema, begun) = (schema(), env.clock.monotonic_ns());
    for from in (0..TRIED).step_by(BATCH as usize) {
        send(mill, &schema, from, accounts)?;
    }
    mill.drain()?;
    Ok(TRIED as f64 * 1e9 / (env.clock.monotonic_ns() - begun).max(1) as f64)
}

/// A thread that sends wages all the time.
pub(super) struct Payer {
    stop: Arc<AtomicBool>,
    thread: Handle,
    paid: std::sync::mpsc::Receiver<Result<u64>>,
}

impl Payer {
    /// Starts to send this many wages per second.
    pub(super) fn start(env: &Env, mill: &Arc<Mill>, per_s: f64, accounts: usize) -> Result<Payer> {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, paid) = std::sync::mpsc::channel();
        let body = {
            let (env, mill, stop) = (env.clone(), mill.clone(), stop.clone());
            // If nobody receives the result, the run has failed already.
            Box::new(move || drop(tell.send(pay(&env, &mill, per_s, accounts, &stop))))
        };
        let thread = env.threads.spawn("bench-payer", body);
        let thread = thread.map_err(|e| Error::io("starting the thread that sends wages", &e))?;
        Ok(Payer { stop, thread, paid })
    }

    /// Stops; returns the number of sent wages.
    pub(super) fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Release);
        let paid = self.paid.recv().unwrap_or(Ok(0));
        let joined = self.thread.join();
        joined.map_err(|panic| Error::internal(format!("the thread that sends wages: {panic}")))?;
        paid
    }
}

fn pay(env: &Env, mill: &Mill, per_s: f64, accounts: usize, stop: &AtomicBool) -> Result<u64> {
    let (schema, begun) = (schema(), env.clock.monotonic_ns());
    let mut paid = 0;
    while !stop.load(Ordering::Acquire) {
        let due_ns = (paid as f64 * 1e9 / per_s) as u64;
        let now_ns = env.clock.monotonic_ns() - begun;
        match due_ns > now_ns {
            true => env.clock.sleep_us((due_ns - now_ns) / 1_000 + 1),
            false => {
                send(mill, &schema, paid, accounts)?;
                paid += BATCH;
            }
        }
    }
    Ok(paid)
}

/// Whether this many wages were paid, each once.
pub(super) fn were_paid(mill: &Mill, wages: u64, accounts: usize) -> Result<bool> {
    let table = mill.table(PAID)?;
    let (ids, sums) = (table.ints(0).unwrap_or(&[]), table.ints(1).unwrap_or(&[]));
    let accounts = accounts as u64;
    let wanted = |id: u64| (wages + accounts - 1 - id) / accounts;
    let right = |(id, sum): (&i64, &i64)| *sum as u64 == wanted(*id as u64);
    Ok(ids.len() as u64 == wages.min(accounts) && ids.iter().zip(sums).all(right))
}
