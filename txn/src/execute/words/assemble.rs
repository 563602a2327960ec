//! Generates machine code from compiled code, by Cranelift: one function for each handler, called
//! once a transaction.
//!
//! Values stay in the processor's registers from the columns and slots that they are loaded from.
//! Only written and emitted values go to the frame.
//!
//! The ledger's transfer takes 2 ns, and 8-10 ns with the interpreter.

use std::fmt;
use std::sync::{Mutex, OnceLock};

use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F64, I64};
use cranelift_codegen::ir::{
    AbiParam, Block, Function, InstBuilder, MemFlagsData, Signature, Value,
};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::Context;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{default_libcall_names, Linkage, Module};
use tidemill_table::RowAt;

use super::{Frame, Ins, Stop, WordCode};
use crate::execute::closure::Columns;

/// The signature of the code: rows, columns, the event's place in each column, and the frame. It
/// returns a verdict.
type Entry = unsafe extern "C" fn(*const RowAt, *const *const u64, usize, *mut u64) -> u64;

/// The verdicts. From [`ABORT`] on the transaction aborts, and the rest is the number of the
/// reason.
const DONE: i64 = 0;
const TRAP: i64 = 1;
const ABORT: i64 = 2;

/// The machine code of a handler.
pub(crate) struct Machine {
    entry: Entry,
    /// The owner of the memory of the code. It is not used before the end.
    module: Mutex<Option<Box<JITModule>>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine({:p})", self.entry as *const ())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let module = self.module.get_mut().map_or(None, Option::take);
        if let Some(module) = module {
            // SAFETY: only methods of `self` call the entry, which ends with it.
            unsafe { module.free_memory() };
        }
    }
}

impl Machine {
    /// Generates machine code, or returns the reason why that is impossible.
    pub(crate) fn assemble(code: &WordCode) -> Result<Machine, String> {
        let isa = host()?;
        let mut module = JITModule::new(JITBuilder::with_isa(isa, default_libcall_names()));
        let mut signature = module.make_signature();
        signature.params = vec![AbiParam::new(I64); 4];
        signature.returns = vec![AbiParam::new(I64)];
        let id = module
            .declare_function("decide", Linkage::Local, &signature)
            .map_err(|e| e.to_string())?;
        let mut context = Context::for_function(function(code, signature));
        module.define_function(id, &mut context).map_err(|e| e.to_string())?;
        module.finalize_definitions().map_err(|e| e.to_string())?;
        let entry = module.get_finalized_function(id);
        // SAFETY: the function has this signature and the host's calling convention, and its memory
        // lives as long as `entry`.
        let entry = unsafe { std::mem::transmute::<*const u8, Entry>(entry) };
        Ok(Machine { entry, module: Mutex::new(Some(Box::new(module))) })
    }

    /// Decides a transaction. Its written and emitted values are in the frame afterwards.
    ///
    /// # Safety
    /// As for [`WordCode::decide`], of the code that this was generated from.
    #[inline(always)]
    pub(crate) unsafe fn run(
        &self,
        rows: &[RowAt],
        columns: &Columns<'_>,
        event: usize,
        frame: &mut Frame,
    ) -> Result<(), Stop> {
        // SAFETY: the code reads what the caller guarantees: each row's address, and the words of
        // rows and columns that it was compiled for. It writes to registers of the frame, whose
        // numbers have 8 bits.
        let verdict =
            unsafe { (self.entry)(rows.as_ptr(), columns.pointers(), event, frame.as_mut_ptr()) };
        match verdict as i64 {
            DONE => Ok(()),
            TRAP => Err(Stop::Trap),
            abort => Err(Stop::Abort((abort - ABORT) as u16)),
        }
    }
}

/// Returns the processor that this process runs on.
fn host() -> Result<OwnedTargetIsa, String> {
    static HOST: OnceLock<Result<OwnedTargetIsa, String>> = OnceLock::new();
    let find = || {
        let mut flags = settings::builder();
        let set = [
            ("opt_level", "speed"),
            ("is_pic", "false"),
            ("use_colocated_libcalls", "false"),
            // Large frames touch the stack page by page, without a helper function.
            ("probestack_strategy", "inline"),
        ];
        for (name, value) in set {
            flags.set(name, value).map_err(|e| e.to_string())?;
        }
        let builder = cranelift_native::builder()?;
        builder.finish(settings::Flags::new(flags)).map_err(|e| e.to_string())
    };
    HOST.get_or_init(find).clone()
}

/// Translates code to a function.
fn function(code: &WordCode, signature: Signature) -> Function {
    let mut function = Function::with_name_signature(Default::default(), signature);
    let entry = function.dfg.make_block();
    let [rows, columns, event, frame] =
        [(); 4].map(|()| function.dfg.append_block_param(entry, I64));
    let trap = function.dfg.make_block();
    let mut cursor = FuncCursor::new(&mut function);
    cursor.insert_block(entry);
    let mut translator =
        Translator { at: cursor, registers: [None; 256], trap, aborts: Vec::new() };
    let t = &mut translator;
    for (register, word) in &code.constants {
        let word = t.at.ins().iconst(I64, *word as i64);
        t.set(*register, word);
    }
    let mut slots = Vec::new();
    for row in 0..code.rows.len() {
        let at = row * size_of::<RowAt>() + RowAt::WORDS;
        slots.push(t.load(rows, at));
    }
    // Values are read before any is written, so two rows must not be the same.
    for (a, b) in &code.pairs {
        let (a, b) = (slots[usize::from(*a)], slots[usize::from(*b)]);
        let same = t.at.ins().icmp(IntCC::Equal, a, b);
        t.trap_if(same);
    }
    let event = t.at.ins().ishl_imm_u(event, 3);
    for (column, (_, register)) in code.columns.iter().enumerate() {
        let words = t.load(columns, column * 8);
        let place = t.at.ins().iadd(words, event);
        let word = t.load(place, 0);
        t.set(*register, word);
    }
    for load in &code.loads {
        let word = t.load(slots[usize::from(load.row)], usize::from(load.word) * 8);
        t.set(load.register, word);
    }
    for ins in &code.code {
        t.ins(*ins);
    }
    let written = code.stores.iter().map(|store| store.register);
    let emitted = code.emits.iter().flat_map(|emit| emit.registers.iter().copied());
    let mut left: Vec<u8> = written.chain(emitted).collect();
    left.sort_unstable();
    left.dedup();
    // The frame has its constants already.
    left.retain(|register| code.constants.iter().all(|(constant, _)| constant != register));
    for register in left {
        let word = t.word(register);
        let at = i32::from(register) * 8;
        t.at.ins().store(MemFlagsData::trusted(), word, frame, at);
    }
    t.verdict(DONE);
    t.exits();
    function
}

struct Translator<'f> {
    at: FuncCursor<'f>,
    /// The content of each register: a word, a float, or the byte that a comparison returns.
    registers: [Option<Value>; 256],
    trap: Block,
    /// The blocks where transactions abort, with the number of the reason.
    aborts: Vec<(Block, u16)>,
}

impl Translator<'_> {
    fn set(&mut self, register: u8, value: Value) {
        self.registers[usize::from(register)] = Some(value);
    }

    fn get(&self, register: u8) -> Value {
        self.registers[usize::from(register)].expect("a register is assigned before it is read")
    }

    fn load(&mut self, from: Value, bytes: usize) -> Value {
        let bytes = i32::try_from(bytes).expect("a slot has at most 65,536 words");
        self.at.ins().load(I64, MemFlagsData::trusted(), from, bytes)
    }

    fn word(&mut self, register: u8) -> Value {
        let value = self.get(register);
        match self.at.func.dfg.value_type(value) {
            I64 => value,
            F64 => self.at.ins().bitcast(I64, MemFlagsData::new(), value),
            _ => self.at.ins().uextend(I64, value),
        }
    }

    fn float(&mut self, register: u8) -> Value {
        let value = self.get(register);
        if self.at.func.dfg.value_type(value) == F64 {
            return value;
        }
        let word = self.word(register);
        self.at.ins().bitcast(F64, MemFlagsData::new(), word)
    }

    /// Continues if the condition does not hold. Otherwise continues at `exit`.
    fn leave_if(&mut self, condition: Value, exit: Block) {
        let next = self.at.func.dfg.make_block();
        self.at.ins().brif(condition, exit, &[], next, &[]);
        self.at.insert_block(next);
    }

    fn trap_if(&mut self, condition: Value) {
        self.leave_if(condition, self.trap);
    }

    fn abort_if(&mut self, condition: Value, reason: u16) {
        let exit = self.at.func.dfg.make_block();
        self.aborts.push((exit, reason));
        self.leave_if(condition, exit);
    }

    fn verdict(&mut self, verdict: i64) {
        let verdict = self.at.ins().iconst(I64, verdict);
        self.at.ins().return_(&[verdict]);
    }

    /// Adds the exits, away from the straight path.
    fn exits(&mut self) {
        let mut exits = vec![(self.trap, TRAP)];
        exits.extend(self.aborts.iter().map(|(exit, reason)| (*exit, ABORT + i64::from(*reason))));
        for (exit, verdict) in exits {
            self.at.insert_block(exit);
            self.at.func.layout.set_cold(exit);
            self.verdict(verdict);
        }
    }

    /// Adds an operation whose overflow is a trap.
    fn checked(
        &mut self,
        d: u8,
        a: u8,
        b: u8,
        op: impl Fn(&mut FuncCursor<'_>, Value, Value) -> (Value, Value),
    ) {
        let (a, b) = (self.word(a), self.word(b));
        let (value, overflow) = op(&mut self.at, a, b);
        self.trap_if(overflow);
        self.set(d, value);
    }

    fn words(
        &mut self,
        d: u8,
        a: u8,
        b: u8,
        op: impl Fn(&mut FuncCursor<'_>, Value, Value) -> Value,
    ) {
        let (a, b) = (self.word(a), self.word(b));
        let value = op(&mut self.at, a, b);
        self.set(d, value);
    }

    fn floats(
        &mut self,
        d: u8,
        a: u8,
        b: u8,
        op: impl Fn(&mut FuncCursor<'_>, Value, Value) -> Value,
    ) {
        let (a, b) = (self.float(a), self.float(b));
        let value = op(&mut self.at, a, b);
        self.set(d, value);
    }

    /// Returns an integer that is not the least one. The least integer has no negative and is a
    /// trap.
    fn word_but_least(&mut self, register: u8) -> Value {
        let word = self.word(register);
        let is_least = self.at.ins().icmp_imm_s(IntCC::Equal, word, i64::MIN);
        self.trap_if(is_least);
        word
    }

    /// Returns two integers of which the second is not 0. A 0 is a trap.
    fn divided(&mut self, a: u8, b: u8) -> (Value, Value) {
        let (a, b) = (self.word(a), self.word(b));
        let is_zero = self.at.ins().icmp_imm_s(IntCC::Equal, b, 0);
        self.trap_if(is_zero);
        (a, b)
    }

    /// Returns whether a remainder of the division by `b` is not 0 and has another sign than `b`.
    fn is_beyond(&mut self, rest: Value, b: Value) -> Value {
        let is_some = self.at.ins().icmp_imm_s(IntCC::NotEqual, rest, 0);
        let signs = self.at.ins().bxor(rest, b);
        let differ = self.at.ins().icmp_imm_s(IntCC::SignedLessThan, signs, 0);
        self.at.ins().band(is_some, differ)
    }

    fn floor_div(&mut self, d: u8, a: u8, b: u8) {
        let (a, b) = self.divided(a, b);
        // The least integer divided by -1 overflows.
        let is_least = self.at.ins().icmp_imm_s(IntCC::Equal, a, i64::MIN);
        let is_minus_one = self.at.ins().icmp_imm_s(IntCC::Equal, b, -1);
        let overflow = self.at.ins().band(is_least, is_minus_one);
        self.trap_if(overflow);
        let quotient = self.at.ins().sdiv(a, b);
        let product = self.at.ins().imul(quotient, b);
        let rest = self.at.ins().isub(a, product);
        let beyond = self.is_beyond(rest, b);
        let beyond = self.at.ins().uextend(I64, beyond);
        let value = self.at.ins().isub(quotient, beyond);
        self.set(d, value);
    }

    fn floor_mod(&mut self, d: u8, a: u8, b: u8) {
        let (a, b) = self.divided(a, b);
        let rest = self.at.ins().srem(a, b);
        let beyond = self.is_beyond(rest, b);
        let moved = self.at.ins().iadd(rest, b);
        let value = self.at.ins().select(beyond, moved, rest);
        self.set(d, value);
    }

    fn compare(&mut self, d: u8, a: u8, b: u8, how: IntCC) {
        let (a, b) = (self.word(a), self.word(b));
        let value = self.at.ins().icmp(how, a, b);
        self.set(d, value);
    }

    fn compare_floats(&mut self, d: u8, a: u8, b: u8, how: FloatCC) {
        let (a, b) = (self.float(a), self.float(b));
        let value = self.at.ins().fcmp(how, a, b);
        self.set(d, value);
    }

    fn ins(&mut self, ins: Ins) {
        match ins {
            Ins::AddInt(d, a, b) => self.checked(d, a, b, |at, a, b| at.ins().sadd_overflow(a, b)),
            Ins::SubInt(d, a, b) => self.checked(d, a, b, |at, a, b| at.ins().ssub_overflow(a, b)),
            Ins::MulInt(d, a, b) => self.checked(d, a, b, |at, a, b| at.ins().smul_overflow(a, b)),
            Ins::FloorDivInt(d, a, b) => self.floor_div(d, a, b),
            Ins::ModInt(d, a, b) => self.floor_mod(d, a, b),
            Ins::NegInt(d, a) => {
                let a = self.word_but_least(a);
                let value = self.at.ins().ineg(a);
                self.set(d, value);
            }
            Ins::AbsInt(d, a) => {
                let a = self.word_but_least(a);
                let value = self.at.ins().iabs(a);
                self.set(d, value);
            }
            Ins::AddFloat(d, a, b) => self.floats(d, a, b, |at, a, b| at.ins().fadd(a, b)),
            Ins::SubFloat(d, a, b) => self.floats(d, a, b, |at, a, b| at.ins().fsub(a, b)),
            Ins::MulFloat(d, a, b) => self.floats(d, a, b, |at, a, b| at.ins().fmul(a, b)),
            Ins::DivFloat(d, a, b) => {
                let (divisor, zero) = (self.float(b), self.at.ins().f64const(0.0));
                let is_zero = self.at.ins().fcmp(FloatCC::Equal, divisor, zero);
                self.trap_if(is_zero);
                self.floats(d, a, b, |at, a, b| at.ins().fdiv(a, b));
            }
            Ins::NegFloat(d, a) => {
                let a = self.float(a);
                let value = self.at.ins().fneg(a);
                self.set(d, value);
            }
            Ins::AbsFloat(d, a) => {
                let a = self.float(a);
                let value = self.at.ins().fabs(a);
                self.set(d, value);
            }
            Ins::Canonical(d, a) => {
                let (a, nan) = (self.float(a), self.at.ins().f64const(f64::NAN));
                let is_nan = self.at.ins().fcmp(FloatCC::Unordered, a, a);
                let value = self.at.ins().select(is_nan, nan, a);
                self.set(d, value);
            }
            Ins::IntToFloat(d, a) => {
                let a = self.word(a);
                let value = self.at.ins().fcvt_from_sint(F64, a);
                self.set(d, value);
            }
            Ins::Not(d, a) => {
                let a = self.word(a);
                let value = self.at.ins().bxor_imm_u(a, 1);
                self.set(d, value);
            }
            Ins::And(d, a, b) => self.words(d, a, b, |at, a, b| at.ins().band(a, b)),
            Ins::Or(d, a, b) => self.words(d, a, b, |at, a, b| at.ins().bor(a, b)),
            Ins::EqInt(d, a, b) => self.compare(d, a, b, IntCC::Equal),
            Ins::NeInt(d, a, b) => self.compare(d, a, b, IntCC::NotEqual),
            Ins::LtInt(d, a, b) => self.compare(d, a, b, IntCC::SignedLessThan),
            Ins::LeInt(d, a, b) => self.compare(d, a, b, IntCC::SignedLessThanOrEqual),
            Ins::EqFloat(d, a, b) => self.compare_floats(d, a, b, FloatCC::Equal),
            Ins::NeFloat(d, a, b) => self.compare_floats(d, a, b, FloatCC::NotEqual),
            Ins::LtFloat(d, a, b) => self.compare_floats(d, a, b, FloatCC::LessThan),
            Ins::LeFloat(d, a, b) => self.compare_floats(d, a, b, FloatCC::LessThanOrEqual),
            Ins::Select(d, c, a, b) => {
                let (condition, x, y) = (self.word(c), self.get(a), self.get(b));
                let (x, y) = match self.at.func.dfg.value_type(x) == self.at.func.dfg.value_type(y)
                {
                    true => (x, y),
                    false => (self.word(a), self.word(b)),
                };
                let value = self.at.ins().select(condition, x, y);
                self.set(d, value);
            }
            Ins::Require(c, reason) => {
                let c = self.word(c);
                let fails = self.at.ins().icmp_imm_s(IntCC::Equal, c, 0);
                self.abort_if(fails, reason);
            }
            Ins::RequireLeInt(a, b, reason) => {
                let (a, b) = (self.word(a), self.word(b));
                let fails = self.at.ins().icmp(IntCC::SignedGreaterThan, a, b);
                self.abort_if(fails, reason);
            }
        }
    }
}
