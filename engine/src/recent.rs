//! The execution of the last epochs, for queries.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde_json::{json, Value};
use tidemill_txn::execute::Ran;

/// The number of epochs that are remembered.
const EPOCHS: usize = 16;

/// The last epochs.
#[derive(Default)]
pub(crate) struct Recent(Mutex<VecDeque<Epoch>>);

struct Epoch {
    number: u64,
    transactions: usize,
    ns: u64,
    ran: Ran,
}

impl Recent {
    /// Notes the execution of an epoch and its time.
    pub(crate) fn note(&self, number: u64, transactions: usize, ns: u64, ran: &Ran) {
        if transactions == 0 {
            return;
        }
        let mut epochs = self.0.lock();
        if epochs.len() == EPOCHS {
            epochs.pop_front();
        }
        epochs.push_back(Epoch { number, transactions, ns, ran: ran.clone() });
    }

    /// Describes the epochs, newest last. Times are nanoseconds a transaction.
    pub(crate) fn report(&self) -> Vec<Value> {
        let told = |epoch: &Epoch| {
            let Epoch { number, transactions, ns, ran } = epoch;
            let mut told = json!({
                "epoch": number, "transactions": transactions, "strategy": ran.strategy.to_string(),
                "why": ran.why, "in_parallel": ran.in_parallel,
                "transaction_ns": (*ns as f64 / *transactions as f64).round(),
            });
            if let Some((seen, expected, among)) = &ran.chosen {
                let rounded = |x: f64| (x * 100.0).round() / 100.0;
                told["seen"] = json!({
                    "rows": rounded(seen.rows), "shared": rounded(seen.shared),
                    "aborts": rounded(seen.aborts),
                });
                let among = among.iter().map(|arm| (arm.name(), expected.of(*arm).round().into()));
                told["expected_ns"] =
                    Value::Object(among.map(|(k, v)| (k.to_string(), v)).collect());
            }
            told
        };
        self.0.lock().iter().map(told).collect()
    }
}
