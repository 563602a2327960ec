//! Reservations: which rows a share uses, as a filter of bits. Rows that share a bit are taken for one;
//! then a transaction is put off in vain.

use crate::schedule::sync::{AtomicU64, Ordering};

/// Bits for each row that a share may use: one row in so many is taken for another one.
const BITS: usize = 128;

/// The rows that a share uses. Its thread writes them; others look at them when it is done.
#[derive(Debug)]
pub(super) struct Reserved {
    used: Box<[AtomicU64]>,
    /// Empty when all rows that are used are written.
    written: Box<[AtomicU64]>,
}

impl Reserved {
    /// How many words of bits are good for so many rows.
    pub(super) fn words_for(rows: usize) -> usize {
        (rows * BITS).next_power_of_two().clamp(1 << 12, 1 << 22) / 64
    }

    /// With so many words of bits, and those of rows that are only read apart if any are.
    pub(super) fn new(words: usize, reads: bool) -> Reserved {
        let bits = |words: usize| (0..words).map(|_| AtomicU64::new(0)).collect();
        Reserved { used: bits(words), written: bits(if reads { words } else { 0 }) }
    }

    /// How many words of bits there are: a power of two.
    pub(super) fn words(&self) -> usize {
        self.used.len()
    }

    /// Nothing is reserved.
    pub(super) fn clear(&self) {
        let words = self.used.iter().chain(&self.written);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Reserves a row. Only the share's own thread does.
    #[inline(always)]
    pub(super) fn reserve<const READS: bool>(&self, bit: u32, writes: bool) {
        set(&self.used, bit);
        if READS && writes {
            set(&self.written, bit);
        }
    }

    /// Whether a transaction that uses this row meets what is reserved.
    pub(super) fn meets<const READS: bool>(&self, bit: u32, writes: bool) -> bool {
        let taken = if READS && !writes { &self.written } else { &self.used };
        taken[word_of(bit, taken.len())].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1
    }

    /// Takes back what was reserved of a row, and of those that share its word. Where few are reserved that is
    /// sooner done than clearing all.
    pub(super) fn free(&self, bit: u32) {
        for words in [&self.used, &self.written].into_iter().filter(|words| !words.is_empty()) {
            words[word_of(bit, words.len())].store(0, Ordering::Relaxed);
        }
    }
}

/// Where a bit's word is among so many, which are a power of two.
#[inline(always)]
fn word_of(bit: u32, words: usize) -> usize {
    (bit as usize / 64) & (words - 1)
}

#[inline(always)]
fn set(words: &[AtomicU64], bit: u32) {
    let word = &words[word_of(bit, words.len())];
    // Nobody else writes it.
    word.store(word.load(Ordering::Relaxed) | 1 << (bit % 64), Ordering::Relaxed);
}

/// What a thread must keep away from: what earlier shares use, and what is put off.
#[derive(Debug, Default)]
pub(super) struct Taken {
    used: Vec<u64>,
    written: Vec<u64>,
}

impl Taken {
    /// All that these use.
    pub(super) fn gather<'r>(&mut self, reserved: impl Iterator<Item = &'r Reserved>) {
        for (number, reserved) in reserved.enumerate() {
            let words = [(&mut self.used, &reserved.used), (&mut self.written, &reserved.written)];
            for (all, of) in words {
                let of = of.iter().map(|word| word.load(Ordering::Relaxed));
                match number {
                    0 => {
                        all.clear();
                        all.extend(of);
                    }
                    _ => all.iter_mut().zip(of).for_each(|(all, of)| *all |= of),
                }
            }
        }
    }

    /// Whether a transaction that uses this row meets another one: 1 or 0 in the lowest bit. A
    /// number, and no choice between two ways: nobody can guess it.
    #[inline(always)]
    pub(super) fn meets<const READS: bool>(&self, bit: u32, writes: bool) -> u64 {
        let taken = if READS && !writes { &self.written } else { &self.used };
        taken[word_of(bit, taken.len())] >> (bit % 64)
    }

    /// A transaction that uses this row is put off.
    pub(super) fn take<const READS: bool>(&mut self, bit: u32, writes: bool) {
        let at = bit as usize / 64;
        self.used[at] |= 1 << (bit % 64);
        if READS && writes {
            self.written[at] |= 1 << (bit % 64);
        }
    }
}
