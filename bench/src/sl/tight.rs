//! The baseline of Streaming Ledger: the loop that one would write for it and for nothing else.
//!
//! One thread; open addressing in slots of 16 bytes (key, balance); the slots of the event 16
//! ahead are asked for; sufficiency is checked; no versions, no outputs, no aborts to be told.

use super::events::Event;
use super::BALANCE;
use crate::work::Work;

/// How many events ahead memory is asked for.
const AHEAD: usize = 16;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Slot {
    key: u64,
    balance: i64,
}

/// The key of a slot that is free.
const FREE: u64 = u64::MAX;

/// A table of balances, open addressing.
#[derive(Clone, Debug)]
struct Balances {
    /// A power of two of them.
    slots: Vec<Slot>,
    shift: u32,
}

impl Balances {
    fn new(keys: usize) -> Balances {
        let bits = (keys * LOAD.1 / LOAD.0).next_power_of_two().trailing_zeros().max(1);
        let slots = vec![Slot { key: FREE, balance: 0 }; 1 << bits];
        let mut balances = Balances { slots, shift: u64::BITS - bits };
        for key in 0..keys as u64 {
            let mut at = balances.home(key);
            while balances.slots[at].key != FREE {
                at = (at + 1) & (balances.slots.len() - 1);
            }
            balances.slots[at] = Slot { key, balance: BALANCE };
        }
        balances
    }

    /// Multiplicative hashing: consecutive keys fall far apart and evenly.
    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    #[inline(always)]
    fn prefetch(&self, key: u32) {
        let at = self.home(u64::from(key));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint that reads and writes nothing; `home` gives fewer than
        // 64 - `shift` bits, so the address lies within the slots.
        unsafe {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            _mm_prefetch::<_MM_HINT_T0>(self.slots.as_ptr().add(at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// The balance of a key, which is there: all are, from the beginning.
    #[inline(always)]
    fn at(&mut self, key: u32) -> *mut i64 {
        let (mask, key) = (self.slots.len() - 1, u64::from(key));
        let mut at = self.home(key);
        loop {
            // SAFETY: `at` is masked with the number of slots less one, a power of two less one.
            let slot = unsafe { self.slots.get_unchecked_mut(at & mask) };
            if slot.key == key {
                return &raw mut slot.balance;
            }
            at += 1;
        }
    }

    fn get(&self, key: u32) -> i64 {
        let mut at = self.home(u64::from(key));
        while self.slots[at].key != u64::from(key) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at].balance
    }
}

/// Keys to slots: at most this share is taken.
const LOAD: (usize, usize) = (4, 5);

/// The baseline's tables and what it has counted.
#[derive(Clone, Debug)]
pub(crate) struct Tight {
    accounts: Balances,
    assets: Balances,
    /// Transfers that found too little.
    pub(crate) aborted: u64,
    /// The sum of their times: which ones they were.
    pub(crate) aborted_times: u64,
}

impl Tight {
    /// Tables with all keys and their first balance.
    pub(crate) fn new(keys: usize) -> Tight {
        let balances = Balances::new(keys);
        Tight { accounts: balances.clone(), assets: balances, aborted: 0, aborted_times: 0 }
    }

    /// The balance of an account and that of the asset with the same key.
    pub(crate) fn get(&self, key: u32) -> (i64, i64) {
        (self.accounts.get(key), self.assets.get(key))
    }

    /// Executes all events in order.
    #[inline(never)]
    pub(crate) fn run(&mut self, events: &[Event], work: Work) {
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
        let (account, asset) = (self.accounts.at(event.account), self.assets.at(event.asset));
        // Without extra work a deposit is a transfer of nothing from its own destination: which
        // of the two comes next is not to be predicted, and a branch costs more than two
        // additions.
        // SAFETY: the places lie within the slots, which neither move nor are borrowed elsewhere
        // while they are used, and each is used before the next is asked for.
        unsafe {
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
                self.aborted += 1;
                self.aborted_times += at as u64;
                return;
            }
            *account -= taken;
            *asset -= taken;
            let (account, asset) =
                (self.accounts.at(event.to_account), self.assets.at(event.to_asset));
            let worked = work.run(*account, worked);
            *account += event.amount;
            work.run(*asset, worked);
            *asset += event.amount;
        }
    }
}
