//! The compiler of declared handlers whose columns are all words.

use std::collections::HashMap;
use std::sync::OnceLock;

use tidemill_core::rules::{Binary, Unary};
use tidemill_core::{DataType, Schema, Value};
use tidemill_table::{Layout, Place, HEADER_WORDS};

use super::{Ins, KeyFrom, Move, WordCode, WordEmit, WordRow, ROWS_MAX};
use crate::execute::closure::STREAMS_MAX;
use crate::execute::native::same_table_pairs;
use crate::program::{Body, Declared, Expr, ExprId, Op, Program, RowId, VarId};

/// Compiles a handler, or returns the reason why words can't execute it.
pub(crate) fn compile(
    program: &Program,
    layouts: &[Layout],
    handler: usize,
) -> Result<WordCode, String> {
    let handler = &program.handlers[handler];
    let Body::Declared(declared) = &handler.body else {
        return Err("it is not declared".into());
    };
    let event = &program.streams[handler.input.index()].spec.schema;
    let types = program.declared_types(declared, event).map_err(|e| e.to_string())?;
    let types = types.into_iter().map(|t| t.ty).collect();
    let mut compiler = Compiler {
        program,
        layouts,
        declared,
        event,
        types,
        next: 0,
        constants: HashMap::new(),
        columns: HashMap::new(),
        vars: HashMap::new(),
        done: HashMap::new(),
        held: vec![HashMap::new(); declared.rows.len()],
        original: vec![HashMap::new(); declared.rows.len()],
        written: vec![false; declared.rows.len()],
        code: Vec::new(),
        emits: Vec::new(),
        reasons: Vec::new(),
        asks: false,
    };
    for step in &declared.steps {
        if step.when.is_some() {
            return Err("a step depends on a condition".into());
        }
        compiler.step(&step.op)?;
    }
    compiler.finish()
}

struct Compiler<'a> {
    program: &'a Program,
    layouts: &'a [Layout],
    declared: &'a Declared,
    event: &'a Schema,
    types: Vec<Option<DataType>>,
    next: usize,
    constants: HashMap<u64, u8>,
    columns: HashMap<u16, u8>,
    vars: HashMap<VarId, u8>,
    done: HashMap<ExprId, u8>,
    /// The current register of each column, by row.
    held: Vec<HashMap<u16, u8>>,
    /// The register that each column was loaded into, by row.
    original: Vec<HashMap<u16, u8>>,
    written: Vec<bool>,
    code: Vec<Ins>,
    emits: Vec<WordEmit>,
    reasons: Vec<String>,
    asks: bool,
}

impl Compiler<'_> {
    fn register(&mut self) -> Result<u8, String> {
        self.next += 1;
        u8::try_from(self.next - 1).map_err(|_| "it needs more than 256 registers".into())
    }

    fn constant(&mut self, word: u64) -> Result<u8, String> {
        if let Some(register) = self.constants.get(&word) {
            return Ok(*register);
        }
        let register = self.register()?;
        self.constants.insert(word, register);
        Ok(register)
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Read { row, column, var } => {
                let register = self.read(*row, *column)?;
                self.vars.insert(*var, register);
            }
            Op::Exists { var, .. } => {
                // The code then requires that the row exists, and leaves a missing row to the
                // general path.
                self.asks = true;
                let register = self.constant(1)?;
                self.vars.insert(*var, register);
            }
            Op::Require { cond, reason } => self.require(*cond, *reason)?,
            Op::Set { row, column, value } => {
                let spec = &self.program.tables[self.declared.rows[row.index()].table.index()];
                let column_spec = &spec.schema.columns[usize::from(*column)];
                if column_spec.nullable {
                    return Err(format!("column '{}' is nullable", column_spec.name));
                }
                let register = self.store(*value, &column_spec.ty)?;
                self.body_word(*row, *column)?;
                self.held[row.index()].insert(*column, register);
                self.written[row.index()] = true;
            }
            Op::Emit { stream, values } => {
                let schema = self.program.streams[stream.index()].spec.schema.clone();
                let mut registers = Vec::new();
                for (value, column) in values.iter().zip(&schema.columns) {
                    if !column.ty.is_word() || column.nullable {
                        return Err(format!("output column '{}' is not a plain word", column.name));
                    }
                    registers.push(self.store(*value, &column.ty)?);
                }
                self.emits.push(WordEmit { stream: *stream, registers });
            }
            Op::Window { .. } | Op::Range { .. } => return Err("it reads windows or ranges".into()),
            Op::Insert { .. } | Op::Update { .. } | Op::Upsert { .. } | Op::Delete { .. } => {
                return Err("it inserts or deletes rows".into());
            }
        }
        Ok(())
    }

    fn layout(&self, row: RowId) -> &Layout {
        &self.layouts[self.declared.rows[row.index()].table.index()]
    }

    /// Returns the word of the slot's body that has a column.
    fn body_word(&self, row: RowId, column: u16) -> Result<u16, String> {
        let layout = self.layout(row);
        match layout.places[usize::from(column)] {
            Place::Word { word, null_bit: None } => Ok((layout.null_words + word) as u16),
            _ => Err("a column is not a plain word".into()),
        }
    }

    fn read(&mut self, row: RowId, column: u16) -> Result<u8, String> {
        if let Some(register) = self.held[row.index()].get(&column) {
            return Ok(*register);
        }
        if self.layout(row).places[usize::from(column)] == Place::Key {
            let key = self.declared.rows[row.index()].key[0];
            return self.expr(key);
        }
        self.body_word(row, column)?;
        let register = self.register()?;
        self.held[row.index()].insert(column, register);
        self.original[row.index()].insert(column, register);
        Ok(register)
    }

    fn require(&mut self, cond: ExprId, reason: ExprId) -> Result<(), String> {
        let Expr::Const(Value::Str(text)) = self.declared.exprs.expr(reason) else {
            return Err("a reason is computed".into());
        };
        self.reasons.push(text.to_string());
        let number = self.reasons.len() as u16 - 1;
        // A comparison of integers and its requirement are one instruction.
        if let Expr::Binary(op @ (Binary::Ge | Binary::Le), l, r) = self.declared.exprs.expr(cond) {
            if !self.done.contains_key(&cond) && self.ints(*l, *r) {
                let (l, r) = (self.expr(*l)?, self.expr(*r)?);
                let (small, large) = if *op == Binary::Le { (l, r) } else { (r, l) };
                self.code.push(Ins::RequireLeInt(small, large, number));
                return Ok(());
            }
        }
        let cond = self.expr(cond)?;
        self.code.push(Ins::Require(cond, number));
        Ok(())
    }

    fn ty(&self, id: ExprId) -> Result<&DataType, String> {
        self.types[id.index()].as_ref().ok_or_else(|| "it has a null".into())
    }

    /// Whether both are compared as plain integers: they have the same type and scale.
    fn ints(&self, l: ExprId, r: ExprId) -> bool {
        let int = |id: ExprId| match &self.types[id.index()] {
            Some(DataType::Int | DataType::Timestamp) => Some(0),
            Some(DataType::Decimal(scale)) => Some(*scale),
            _ => None,
        };
        int(l).is_some() && int(l) == int(r)
    }

    /// Converts a value to the form in which a column of type `to` stores it.
    fn store(&mut self, value: ExprId, to: &DataType) -> Result<u8, String> {
        let from = self.ty(value)?.clone();
        let register = self.expr(value)?;
        match (&from, to) {
            (DataType::Float, DataType::Float) => {
                self.emit1(Ins::Canonical as fn(u8, u8) -> Ins, register)
            }
            (DataType::Int, DataType::Float) => self.emit1(Ins::IntToFloat, register),
            (DataType::Int, DataType::Decimal(scale)) => self.scale(register, 0, *scale),
            (DataType::Decimal(s), DataType::Decimal(t)) => self.scale(register, *s, *t),
            (from, to) if from == to => Ok(register),
            _ => Err(format!("{from} is converted to {to}")),
        }
    }

    fn scale(&mut self, register: u8, from: u8, to: u8) -> Result<u8, String> {
        if from > to {
            return Err("a decimal is rounded".into());
        }
        if from == to {
            return Ok(register);
        }
        let factor = self.constant(10u64.pow(u32::from(to - from)))?;
        self.emit2(Ins::MulInt, register, factor)
    }

    fn emit1(&mut self, ins: fn(u8, u8) -> Ins, a: u8) -> Result<u8, String> {
        let d = self.register()?;
        self.code.push(ins(d, a));
        Ok(d)
    }

    fn emit2(&mut self, ins: fn(u8, u8, u8) -> Ins, a: u8, b: u8) -> Result<u8, String> {
        let d = self.register()?;
        self.code.push(ins(d, a, b));
        Ok(d)
    }

    /// Returns the register of an expression.
    ///
    /// Both branches of a condition are computed. A fault in the branch that is not taken is a
    /// trap, and the general path decides.
    fn expr(&mut self, id: ExprId) -> Result<u8, String> {
        if let Some(register) = self.done.get(&id) {
            return Ok(*register);
        }
        if !self.ty(id)?.is_word() {
            return Err(format!("it has a {}", self.ty(id)?));
        }
        let expr = self.declared.exprs.expr(id).clone();
        let register = match expr {
            Expr::Const(value) => self.constant(value.word().ok_or("it has a null")?)?,
            Expr::FloatBits(bits) => self.constant(bits)?,
            Expr::Column(column) => self.column(column)?,
            Expr::Var(var) => *self.vars.get(&var).ok_or("a variable is read later")?,
            Expr::Unary(op, x) => self.unary(&op, x)?,
            Expr::Binary(op, l, r) => self.binary(op, l, r)?,
            Expr::Where(c, a, b) => {
                let (c, a, b) = (self.expr(c)?, self.expr(a)?, self.expr(b)?);
                let d = self.register()?;
                self.code.push(Ins::Select(d, c, a, b));
                d
            }
            // Nothing is null here, so the result is the first operand.
            Expr::Coalesce(a, _) => self.expr(a)?,
        };
        self.done.insert(id, register);
        Ok(register)
    }

    fn column(&mut self, column: u16) -> Result<u8, String> {
        if self.event.columns[usize::from(column)].nullable {
            return Err("an event column is nullable".into());
        }
        if let Some(register) = self.columns.get(&column) {
            return Ok(*register);
        }
        let register = self.register()?;
        self.columns.insert(column, register);
        Ok(register)
    }

    fn unary(&mut self, op: &Unary, x: ExprId) -> Result<u8, String> {
        let ty = self.ty(x)?.clone();
        let a = self.expr(x)?;
        let is_float = ty == DataType::Float;
        match op {
            Unary::Neg => self.emit1(if is_float { Ins::NegFloat } else { Ins::NegInt }, a),
            Unary::Abs => self.emit1(if is_float { Ins::AbsFloat } else { Ins::AbsInt }, a),
            Unary::Not => self.emit1(Ins::Not, a),
            Unary::IsNull => self.constant(0),
            Unary::Cast(to) if *to == ty => Ok(a),
            Unary::Cast(to) => match (&ty, to) {
                (DataType::Int | DataType::Bool, DataType::Int)
                | (DataType::Int, DataType::Timestamp)
                | (DataType::Timestamp, DataType::Int) => Ok(a),
                (DataType::Int, DataType::Float) => self.emit1(Ins::IntToFloat, a),
                (DataType::Int, DataType::Decimal(scale)) => self.scale(a, 0, *scale),
                (DataType::Decimal(s), DataType::Decimal(t)) => self.scale(a, *s, *t),
                _ => Err(format!("{ty} is converted to {to}")),
            },
            _ => Err(format!("it has {op:?}")),
        }
    }

    fn binary(&mut self, op: Binary, l: ExprId, r: ExprId) -> Result<u8, String> {
        use DataType::*;
        let (lt, rt) = (self.ty(l)?.clone(), self.ty(r)?.clone());
        let (mut a, mut b) = (self.expr(l)?, self.expr(r)?);
        let is_float = match (&lt, &rt) {
            (Float, Float) => true,
            // The exact comparison of an integer beyond 2^53 with a float is left to the general
            // path.
            (Float, Int) | (Int, Float) => {
                if !matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div) {
                    return Err("an int is compared with a float".into());
                }
                if lt == Int {
                    a = self.emit1(Ins::IntToFloat, a)?;
                } else {
                    b = self.emit1(Ins::IntToFloat, b)?;
                }
                true
            }
            _ => false,
        };
        if is_float {
            return match op {
                Binary::Add => self.emit2(Ins::AddFloat, a, b),
                Binary::Sub => self.emit2(Ins::SubFloat, a, b),
                Binary::Mul => self.emit2(Ins::MulFloat, a, b),
                Binary::Div => self.emit2(Ins::DivFloat, a, b),
                Binary::Eq => self.emit2(Ins::EqFloat, a, b),
                Binary::Ne => self.emit2(Ins::NeFloat, a, b),
                Binary::Lt => self.emit2(Ins::LtFloat, a, b),
                Binary::Le => self.emit2(Ins::LeFloat, a, b),
                Binary::Gt => self.emit2(Ins::LtFloat, b, a),
                Binary::Ge => self.emit2(Ins::LeFloat, b, a),
                Binary::Min => self.choose(Ins::LtFloat, b, a),
                Binary::Max => self.choose(Ins::LtFloat, a, b).map(|d| self.swap_last(d)),
                _ => Err(format!("it has {op:?} of floats")),
            };
        }
        if op != Binary::Mul {
            // Decimals and integers are converted to the larger scale.
            let scale = |ty: &DataType| if let Decimal(s) = ty { *s } else { 0 };
            let (s, t) = (scale(&lt), scale(&rt));
            let (from, to) = (s.min(t), s.max(t));
            if s < t {
                a = self.scale(a, from, to)?;
            } else {
                b = self.scale(b, from, to)?;
            }
        }
        match op {
            Binary::Add => self.emit2(Ins::AddInt, a, b),
            Binary::Sub => self.emit2(Ins::SubInt, a, b),
            Binary::Mul => self.emit2(Ins::MulInt, a, b),
            Binary::FloorDiv => self.emit2(Ins::FloorDivInt, a, b),
            Binary::Mod => self.emit2(Ins::ModInt, a, b),
            Binary::Eq => self.emit2(Ins::EqInt, a, b),
            Binary::Ne => self.emit2(Ins::NeInt, a, b),
            Binary::Lt => self.emit2(Ins::LtInt, a, b),
            Binary::Le => self.emit2(Ins::LeInt, a, b),
            Binary::Gt => self.emit2(Ins::LtInt, b, a),
            Binary::Ge => self.emit2(Ins::LeInt, b, a),
            Binary::And => self.emit2(Ins::And, a, b),
            Binary::Or => self.emit2(Ins::Or, a, b),
            Binary::Min => self.choose(Ins::LtInt, b, a),
            Binary::Max => self.choose(Ins::LtInt, a, b).map(|d| self.swap_last(d)),
            _ => Err(format!("it has {op:?}")),
        }
    }

    /// Returns `x` where `x < y`, or else `y`.
    fn choose(&mut self, less: fn(u8, u8, u8) -> Ins, x: u8, y: u8) -> Result<u8, String> {
        let c = self.emit2(less, x, y)?;
        let d = self.register()?;
        self.code.push(Ins::Select(d, c, x, y));
        Ok(d)
    }

    /// Exchanges the branches of the last selection.
    fn swap_last(&mut self, d: u8) -> u8 {
        if let Some(Ins::Select(_, _, x, y)) = self.code.last_mut() {
            std::mem::swap(x, y);
        }
        d
    }

    fn finish(self) -> Result<WordCode, String> {
        if self.declared.rows.len() > ROWS_MAX {
            return Err(format!("it has more than {ROWS_MAX} rows"));
        }
        let mut rows = Vec::new();
        let (mut loads, mut stores, mut written) = (Vec::new(), Vec::new(), 0u64);
        for (index, row) in self.declared.rows.iter().enumerate() {
            let layout = &self.layouts[row.table.index()];
            let spec = &self.program.tables[row.table.index()];
            if !layout.word_key || layout.values > 0 {
                return Err(format!("rows of table {} are not plain words", spec.name));
            }
            let key_ty = &spec.schema.columns[spec.key[0]].ty;
            let key = match self.declared.exprs.expr(row.key[0]) {
                _ if *key_ty == DataType::Float => return Err("a key is a float".into()),
                Expr::Column(c) if !self.event.columns[usize::from(*c)].nullable => {
                    KeyFrom::Column(*c)
                }
                Expr::Const(value) => KeyFrom::Const(value.word().ok_or("a key is null")?),
                _ => return Err("a key is computed".into()),
            };
            let id = RowId(index as u16);
            let slot_word = |column: u16| -> Result<u16, String> {
                Ok(HEADER_WORDS as u16 + self.body_word(id, column)?)
            };
            let number = index as u8;
            for (column, register) in &self.original[index] {
                let word = slot_word(*column)?;
                loads.push(Move { row: number, register: *register, word });
            }
            if self.written[index] {
                written |= 1 << index;
                let before = stores.len();
                for (column, register) in &self.held[index] {
                    if self.original[index].get(column) != Some(register) {
                        let word = slot_word(*column)?;
                        stores.push(Move { row: number, register: *register, word });
                    }
                }
                if stores.len() == before {
                    return Err("a column is set to itself".into());
                }
            }
            rows.push(WordRow { table: row.table.index(), key });
        }
        loads.sort_unstable();
        stores.sort_unstable();
        let pairs = same_table_pairs(rows.iter().map(|r| r.table));
        let mut columns: Vec<(u16, u8)> = self.columns.into_iter().collect();
        columns.sort_unstable();
        if self.emits.len() > STREAMS_MAX {
            return Err(format!("it emits more than {STREAMS_MAX} events"));
        }
        let streams = self.emits.iter().map(|emit| emit.stream.index()).collect();
        let taken = |emit: &WordEmit| self.program.handlers_on(emit.stream).next().is_some();
        let consumed = self.emits.iter().any(taken);
        let constants = self.constants.into_iter().map(|(word, register)| (register, word));
        Ok(WordCode {
            rows,
            asks: self.asks,
            pairs,
            loads,
            written,
            stores,
            columns,
            emits: self.emits,
            consumed,
            streams,
            reasons: self.reasons,
            constants: constants.collect(),
            code: self.code,
            machine: OnceLock::new(),
        })
    }
}
