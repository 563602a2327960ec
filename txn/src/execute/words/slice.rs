//! Compiled transactions in slices: for each written row, the instructions that its new version
//! needs. So each slice can run by itself.
//!
//! Whatever may stop a transaction (a requirement, an overflow) is in at least one slice. If no
//! slice stops, the whole would not have stopped. If one does, running the whole gives the reason.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::{Ins, WordCode};

impl Ins {
    /// Returns the register that it sets, and those that it reads.
    fn registers(&self) -> (Option<u8>, [Option<u8>; 3]) {
        match *self {
            Ins::AddInt(d, a, b)
            | Ins::SubInt(d, a, b)
            | Ins::MulInt(d, a, b)
            | Ins::FloorDivInt(d, a, b)
            | Ins::ModInt(d, a, b)
            | Ins::AddFloat(d, a, b)
            | Ins::SubFloat(d, a, b)
            | Ins::MulFloat(d, a, b)
            | Ins::DivFloat(d, a, b)
            | Ins::And(d, a, b)
            | Ins::Or(d, a, b)
            | Ins::EqInt(d, a, b)
            | Ins::NeInt(d, a, b)
            | Ins::LtInt(d, a, b)
            | Ins::LeInt(d, a, b)
            | Ins::EqFloat(d, a, b)
            | Ins::NeFloat(d, a, b)
            | Ins::LtFloat(d, a, b)
            | Ins::LeFloat(d, a, b) => (Some(d), [Some(a), Some(b), None]),
            Ins::NegInt(d, a)
            | Ins::AbsInt(d, a)
            | Ins::NegFloat(d, a)
            | Ins::AbsFloat(d, a)
            | Ins::Canonical(d, a)
            | Ins::IntToFloat(d, a)
            | Ins::Not(d, a) => (Some(d), [Some(a), None, None]),
            Ins::Select(d, c, a, b) => (Some(d), [Some(c), Some(a), Some(b)]),
            Ins::Require(c, _) => (None, [Some(c), None, None]),
            Ins::RequireLeInt(a, b, _) => (None, [Some(a), Some(b), None]),
        }
    }

    /// Whether it may stop the transaction.
    fn may_stop(&self) -> bool {
        matches!(
            self,
            Ins::Require(..)
                | Ins::RequireLeInt(..)
                | Ins::AddInt(..)
                | Ins::SubInt(..)
                | Ins::MulInt(..)
                | Ins::FloorDivInt(..)
                | Ins::ModInt(..)
                | Ins::NegInt(..)
                | Ins::AbsInt(..)
                | Ins::DivFloat(..)
        )
    }
}

impl WordCode {
    /// Returns the slices: one for each row that is written, or the whole if there is none. They
    /// have its rows and registers, and emit nothing.
    pub(crate) fn slices(&self) -> Vec<WordCode> {
        let written: Vec<u8> = self.written_rows().collect();
        if written.len() < 2 {
            return vec![self.whole()];
        }
        let mut taken: Vec<BTreeSet<usize>> = Vec::new();
        for row in &written {
            let mut needed = BTreeSet::new();
            for store in self.stores.iter().filter(|store| store.row == *row) {
                self.need(store.register, &mut needed);
            }
            taken.push(needed);
        }
        for (at, ins) in self.code.iter().enumerate() {
            if ins.may_stop() && !taken.iter().any(|taken| taken.contains(&at)) {
                let mut needed = BTreeSet::from([at]);
                ins.registers().1.into_iter().flatten().for_each(|r| self.need(r, &mut needed));
                // The instruction goes to the slice that reads the fewest additional rows for it.
                // An operation waits for the writers of the rows that it reads.
                let rows = self.rows_of(&needed);
                let more = |slice: usize| {
                    let mut has = self.rows_of(&taken[slice]);
                    has.insert(written[slice]);
                    rows.difference(&has).count()
                };
                let best = (0..taken.len()).min_by_key(|slice| more(*slice)).expect("two or more");
                taken[best].extend(needed);
            }
        }
        let slices = written.iter().zip(&taken);
        slices.map(|(row, taken)| self.slice(1 << row, taken)).collect()
    }

    /// Returns all of it as one slice.
    pub(crate) fn whole(&self) -> WordCode {
        self.slice(self.written, &(0..self.code.len()).collect())
    }

    /// Adds the instructions that compute a register.
    fn need(&self, register: u8, needed: &mut BTreeSet<usize>) {
        let sets = |ins: &Ins| ins.registers().0 == Some(register);
        if let Some(at) = self.code.iter().position(sets) {
            if needed.insert(at) {
                let from = self.code[at].registers().1;
                from.into_iter().flatten().for_each(|r| self.need(r, needed));
            }
        }
    }

    /// Returns the rows that some instructions load.
    fn rows_of(&self, taken: &BTreeSet<usize>) -> BTreeSet<u8> {
        let used: BTreeSet<u8> =
            taken.iter().flat_map(|at| self.code[*at].registers().1).flatten().collect();
        self.loads.iter().filter(|l| used.contains(&l.register)).map(|l| l.row).collect()
    }

    /// Returns the part that writes these rows and has these instructions.
    fn slice(&self, written: u64, taken: &BTreeSet<usize>) -> WordCode {
        let code: Vec<Ins> = taken.iter().map(|at| self.code[*at]).collect();
        let stores: Vec<_> =
            self.stores.iter().filter(|store| written >> store.row & 1 == 1).copied().collect();
        let mut used: BTreeSet<u8> =
            code.iter().flat_map(|ins| ins.registers().1).flatten().collect();
        used.extend(stores.iter().map(|store| store.register));
        let loads = self.loads.iter().filter(|load| used.contains(&load.register));
        let columns = self.columns.iter().filter(|(_, register)| used.contains(register));
        WordCode {
            rows: self.rows.clone(),
            asks: self.asks,
            pairs: Vec::new(),
            loads: loads.copied().collect(),
            written,
            stores,
            columns: columns.copied().collect(),
            emits: Vec::new(),
            streams: Vec::new(),
            consumed: false,
            reasons: self.reasons.clone(),
            constants: self.constants.clone(),
            code,
            machine: OnceLock::new(),
        }
    }
}
