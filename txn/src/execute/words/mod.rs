//! Declared transactions whose columns are all words, compiled to a small register machine.
//!
//! A frame of 256 words has the constants, the event's columns, the columns that are read, and the
//! computed values. Registers are assigned once, so a read after a write only needs the right
//! register. Nothing is written to tables before the verdict. So the code may leave any case
//! undecided (an overflow, two keys that turn out equal, a missing row without defaults). This is a
//! *trap*: the general path runs the transaction instead and decides.
//!
//! | file | content |
//! | --- | --- |
//! | `compile` | the compiler of handlers |
//! | `interpret` | the interpreter of the code, one instruction after the other |
//! | `slice` | the division of the code into one piece for each row that it writes |
//! | `assemble` | the generator of machine code, which is called once a transaction |
//!
//! Interpreted code and machine code have the same results.

use std::sync::OnceLock;

use tidemill_core::StreamId;
use tidemill_table::RowAt;

use super::closure::Columns;

#[cfg(all(feature = "compiled", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod assemble;
mod compile;
mod interpret;
mod slice;
#[cfg(all(test, feature = "compiled", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;

#[cfg(all(feature = "compiled", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use assemble::Machine;
pub(crate) use compile::compile;
#[cfg(not(all(feature = "compiled", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(crate) use without::Machine;

/// The most rows of a handler that is compiled.
pub(crate) const ROWS_MAX: usize = 64;

/// The registers of one handler.
pub(crate) type Frame = [u64; 256];

/// The source of a row's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyFrom {
    /// A column of the event.
    Column(u16),
    /// A constant.
    Const(u64),
}

/// A row that the code works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordRow {
    pub(crate) table: usize,
    pub(crate) key: KeyFrom,
}

/// A word that moves from a row's slot to a register, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Move {
    pub(crate) row: u8,
    pub(crate) register: u8,
    /// The index of the word, from the slot's first word.
    pub(crate) word: u16,
}

/// An event that the code emits.
#[derive(Debug)]
pub(crate) struct WordEmit {
    pub(crate) stream: StreamId,
    pub(crate) registers: Vec<u8>,
}

/// A compiled declared transaction.
#[derive(Debug)]
pub(crate) struct WordCode {
    pub(crate) rows: Vec<WordRow>,
    /// Whether it tests if a row exists. If so, it only handles rows that exist.
    pub(crate) asks: bool,
    /// The pairs of rows of one table, which with equal keys would be one row.
    pub(crate) pairs: Vec<(u8, u8)>,
    /// The words that move from slots to registers before the code runs.
    pub(crate) loads: Vec<Move>,
    /// A bit for each row of which a new version begins after the run, and the words that are
    /// written.
    pub(crate) written: u64,
    pub(crate) stores: Vec<Move>,
    /// The event columns and their registers.
    pub(crate) columns: Vec<(u16, u8)>,
    pub(crate) emits: Vec<WordEmit>,
    /// The stream of each emitted event.
    pub(crate) streams: Vec<usize>,
    /// Whether a handler takes events of a stream that it emits to.
    pub(crate) consumed: bool,
    pub(crate) reasons: Vec<String>,
    constants: Vec<(u8, u64)>,
    code: Vec<Ins>,
    /// The machine code, generated when it first runs. `None` if that is impossible.
    machine: OnceLock<Option<Machine>>,
}

/// The reason why the machine stopped before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A requirement failed, with the number of its reason.
    Abort(u16),
    /// The general path must decide.
    Trap,
}

#[derive(Clone, Copy, Debug)]
enum Ins {
    AddInt(u8, u8, u8),
    SubInt(u8, u8, u8),
    MulInt(u8, u8, u8),
    FloorDivInt(u8, u8, u8),
    ModInt(u8, u8, u8),
    NegInt(u8, u8),
    AbsInt(u8, u8),
    AddFloat(u8, u8, u8),
    SubFloat(u8, u8, u8),
    MulFloat(u8, u8, u8),
    DivFloat(u8, u8, u8),
    NegFloat(u8, u8),
    AbsFloat(u8, u8),
    /// The one NaN for every NaN, as in every stored float.
    Canonical(u8, u8),
    IntToFloat(u8, u8),
    Not(u8, u8),
    And(u8, u8, u8),
    Or(u8, u8, u8),
    EqInt(u8, u8, u8),
    NeInt(u8, u8, u8),
    LtInt(u8, u8, u8),
    LeInt(u8, u8, u8),
    EqFloat(u8, u8, u8),
    NeFloat(u8, u8, u8),
    LtFloat(u8, u8, u8),
    LeFloat(u8, u8, u8),
    /// The destination, the condition, and the two values that it chooses between.
    Select(u8, u8, u8, u8),
    Require(u8, u16),
    /// The requirement `a <= b`, and its reason.
    RequireLeInt(u8, u8, u16),
}

impl WordCode {
    /// Returns the rows of which a new version begins.
    pub(crate) fn written_rows(&self) -> impl Iterator<Item = u8> {
        let written = self.written;
        (0..64).filter(move |row| written >> row & 1 == 1)
    }

    /// Writes the constants into a frame. Once is enough.
    pub(crate) fn prepare(&self, frame: &mut Frame) {
        for (register, word) in &self.constants {
            frame[usize::from(*register)] = *word;
        }
    }

    /// Returns the machine code, if this machine has some. It is generated at the first call.
    pub(crate) fn machine(&self) -> Option<&Machine> {
        self.machine.get_or_init(|| Machine::assemble(self).ok()).as_ref()
    }

    /// Interprets this code, even if machine code could be generated.
    pub(crate) fn interpreted(self) -> WordCode {
        WordCode { machine: OnceLock::from(None), ..self }
    }

    /// Decides a transaction. Its written and emitted values are in the frame afterwards.
    ///
    /// # Safety
    /// The machine belongs to this code. There are as many rows and columns as the code has, of the
    /// tables and with the words that it was compiled for. The rows can be used, and each column
    /// has the event.
    #[inline(always)]
    pub(crate) unsafe fn decide(
        &self,
        machine: Option<&Machine>,
        rows: &[RowAt],
        columns: &Columns<'_>,
        event: usize,
        frame: &mut Frame,
    ) -> Result<(), Stop> {
        // SAFETY: as the caller guarantees.
        unsafe {
            match machine {
                Some(machine) => machine.run(rows, columns, event, frame),
                None => self.interpret(rows, columns, event, frame),
            }
        }
    }
}

/// The stand-in for the generator, in a build without machine code.
#[cfg(not(all(feature = "compiled", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod without {
    use super::{Columns, Frame, RowAt, Stop, WordCode};

    #[derive(Debug)]
    pub(crate) enum Machine {}

    impl Machine {
        pub(crate) fn assemble(_: &WordCode) -> Result<Machine, String> {
            Err("this build interprets".into())
        }

        pub(crate) unsafe fn run(
            &self,
            _: &[RowAt],
            _: &Columns<'_>,
            _: usize,
            _: &mut Frame,
        ) -> Result<(), Stop> {
            match *self {}
        }
    }
}
