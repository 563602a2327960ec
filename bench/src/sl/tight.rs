//! The baseline of Streaming Ledger: the loop that one would write for this workload only.
//!
//! It uses one thread, and open addressing in slots of 16 bytes (key, balance). It prefetches the
//! slots of the event 16 ahead, and checks sufficiency. There are no versions, no outputs and no
//! reports of aborts.

use super::events::Event;
use super::BALANCE;
use crate::execute::Verdicts;
use crate::slots::{Slot, Slots, AHEAD, FREE};
use crate::work::Work;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Account {
    key: u64,
    balance: i64,
}

impl Slot for Account {
    const FREE: Account = Account { key: FREE, balance: 0 };

    #[inline(always)]
    fn key(&self) -> u64 {
        self.key
    }
}

/// The baseline's tables and counts.
#[derive(Clone, Debug)]
pub(crate) struct Tight {
    accounts: Slots<Account>,
    assets: Slots<Account>,
    /// The transfers with insufficient funds.
    verdicts: Verdicts,
}

impl Tight {
    /// Returns tables with all keys and their first balance.
    pub(crate) fn new(keys: usize) -> Tight {
        let balances = Slots::new(keys, |key| Account { key, balance: BALANCE });
        Tight { accounts: balances.clone(), assets: balances, verdicts: Verdicts::default() }
    }

    /// Returns the balance of an account, and that of the asset with the same key.
    pub(crate) fn get(&self, key: u32) -> (i64, i64) {
        (self.accounts.get(key).balance, self.assets.get(key).balance)
    }

    /// Executes all events in order.
    #[inline(never)]
    pub(crate) fn run(&mut self, events: &[Event], work: Work) -> Verdicts {
        for event in &events[..AHEAD.min(events.len())] {
            self.prefetch(event);
        }
        let ahead = events.get(AHEAD..).unwrap_or(&[]);
        let last = ahead.len();
        for (at, (event, next)) in events.iter().zip(ahead).enumerate() {
            self.prefetch(next);
            self.execute(at, event, work);
        }
        for (at, event) in (last..).zip(&events[last..]) {
            self.execute(at, event, work);
        }
        self.verdicts
    }

    #[inline(always)]
    fn prefetch(&self, event: &Event) {
        self.accounts.prefetch(event.account);
        self.assets.prefetch(event.asset);
        self.accounts.prefetch(event.to_account);
        self.assets.prefetch(event.to_asset);
    }

    #[inline(always)]
    fn execute(&mut self, at: usize, event: &Event, work: Work) {
        let account = &mut self.accounts.at(event.account).balance;
        let asset = &mut self.assets.at(event.asset).balance;
        // Without extra work, a deposit is executed as a transfer of 0 from its own destination.
        // Deposits and transfers alternate unpredictably, and a mispredicted branch costs more than
        // two additions.
        if work.is_some() && event.is_deposit() {
            let worked = work.run(*account, 0);
            *account += event.amount;
            work.run(*asset, worked);
            *asset += event.amount;
            return;
        }
        let taken = if event.is_deposit() { 0 } else { event.amount };
        let worked = work.run(*asset, work.run(*account, 0));
        if (*account < taken) | (*asset < taken) {
            self.verdicts.abort(at);
            return;
        }
        *account -= taken;
        *asset -= taken;
        let account = &mut self.accounts.at(event.to_account).balance;
        let asset = &mut self.assets.at(event.to_asset).balance;
        let worked = work.run(*account, worked);
        *account += event.amount;
        work.run(*asset, worked);
        *asset += event.amount;
    }
}
