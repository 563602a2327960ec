//! Expressions: a small arena of nodes per handler, evaluated over an event and the variables that
//! earlier reads have set.

use serde::{Deserialize, Serialize};
use tidemill_core::rules::{self, Binary, Fault, Unary};
use tidemill_core::{DataType, Error, Result, Schema, Value};

use super::handler::VarId;

/// The place of a node in a [`Block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExprId(pub u32);

impl ExprId {
    /// Returns the place as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The computation of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expr {
    /// A constant.
    Const(Value),
    /// A float constant by its bits: JSON has no NaN and no infinities.
    FloatBits(u64),
    /// A column of the event.
    Column(u16),
    /// The value that an earlier read of this transaction set.
    Var(VarId),
    /// An operator with one operand.
    Unary(Unary, ExprId),
    /// An operator with two operands.
    Binary(Binary, ExprId, ExprId),
    /// The second operand where the first is true, else the third. Only the chosen one is
    /// evaluated.
    Where(ExprId, ExprId, ExprId),
    /// The first operand unless it is null, else the second.
    Coalesce(ExprId, ExprId),
}

/// An expression with the user's line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The expression. Its operands are nodes before this one.
    pub expr: Expr,
    /// The user's line, as `file:line`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
}

/// The nodes of one handler or stage. Operands come before the nodes that use them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Block {
    /// The nodes by [`ExprId`].
    pub nodes: Vec<Node>,
}

/// The type of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Type {
    /// The type; `None` for the constant null, which fits every type.
    pub ty: Option<DataType>,
    /// Whether the value may be null.
    pub nullable: bool,
}

impl Block {
    /// Appends a node.
    pub fn push(&mut self, expr: Expr) -> ExprId {
        self.nodes.push(Node { expr, at: String::new() });
        ExprId(self.nodes.len() as u32 - 1)
    }

    /// Returns a node's expression.
    pub fn expr(&self, id: ExprId) -> &Expr {
        &self.nodes[id.index()].expr
    }

    /// Returns the types of all nodes, given the event's schema and the types of the variables. The
    /// first error carries the user's line.
    pub fn types(&self, event: &Schema, vars: &[Type]) -> Result<Vec<Type>> {
        let mut types: Vec<Type> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let of = |id: &ExprId| {
                types.get(id.index()).cloned().ok_or_else(|| {
                    Error::program(format!("expression {} is used before it is computed", id.0))
                })
            };
            let ty = (|| match &node.expr {
                Expr::Const(value) => Ok(Type { ty: type_of(value), nullable: value.is_null() }),
                Expr::FloatBits(_) => Ok(Type { ty: Some(DataType::Float), nullable: false }),
                Expr::Column(column) => event
                    .columns
                    .get(usize::from(*column))
                    .map(|c| Type { ty: Some(c.ty.clone()), nullable: c.nullable })
                    .ok_or_else(|| Error::program(format!("the event has no column {column}"))),
                Expr::Var(var) => vars
                    .get(var.index())
                    .cloned()
                    .ok_or_else(|| Error::program(format!("there is no variable {}", var.0))),
                Expr::Unary(op, x) => unary(op, of(x)?),
                Expr::Binary(op, l, r) => binary(*op, of(l)?, of(r)?),
                Expr::Where(c, a, b) => {
                    let condition = of(c)?;
                    if condition.ty.is_some_and(|ty| ty != DataType::Bool) {
                        return Err(Error::program("the condition of tm.where is not a bool"));
                    }
                    let (a, b) = (of(a)?, of(b)?);
                    let nullable = a.nullable || b.nullable;
                    Ok(Type { ty: common(a.ty, b.ty)?, nullable })
                }
                Expr::Coalesce(a, b) => {
                    let (a, b) = (of(a)?, of(b)?);
                    Ok(Type { ty: common(a.ty, b.ty)?, nullable: a.nullable && b.nullable })
                }
            })()
            .map_err(|e: Error| e.at(node.at.clone()))?;
            types.push(ty);
        }
        Ok(types)
    }
}

/// Returns the common type of the branches of `where` or `coalesce`, which must be equal. Nothing
/// converts silently, so a value does not depend on the branch that gave the *type*.
fn common(a: Option<DataType>, b: Option<DataType>) -> Result<Option<DataType>> {
    match (a, b) {
        (Some(a), Some(b)) if a == b => Ok(Some(a)),
        (Some(a), Some(b)) => {
            Err(Error::program(format!("the two branches have the types {a} and {b}"))
                .help("convert them to one type with tm.cast(x, type)"))
        }
        (a, b) => Ok(a.or(b)),
    }
}

fn unary(op: &Unary, x: Type) -> Result<Type> {
    let nullable = false; // A null operand aborts, so a result is never null.
    match (&x.ty, op) {
        (_, Unary::IsNull) => Ok(Type { ty: Some(DataType::Bool), nullable }),
        (None, _) => Err(Error::program("this operation is not defined for null")),
        (Some(ty), op) => rules::unary_type(op, ty)
            .map(|ty| Type { ty: Some(ty), nullable })
            .map_err(Error::program),
    }
}

fn binary(op: Binary, l: Type, r: Type) -> Result<Type> {
    let nullable = false;
    match (&l.ty, &r.ty) {
        (Some(l), Some(r)) => rules::binary_type(op, l, r)
            .map(|ty| Type { ty: Some(ty), nullable })
            .map_err(Error::program),
        _ if matches!(op, Binary::Eq | Binary::Ne) => {
            Ok(Type { ty: Some(DataType::Bool), nullable })
        }
        _ => Err(Error::program(format!("{} is not defined for null", rules::symbol(op)))
            .help("compare with == None, or use tm.coalesce(x, default)")),
    }
}

/// Returns the type of a value; `None` for null and for empty lists.
pub fn type_of(value: &Value) -> Option<DataType> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(_) => DataType::Bool,
        Value::Int(_) => DataType::Int,
        Value::Float(_) => DataType::Float,
        Value::Str(_) => DataType::Str,
        Value::Bytes(_) => DataType::Bytes,
        Value::Timestamp(_) => DataType::Timestamp,
        Value::Decimal(_, scale) => DataType::Decimal(*scale),
        Value::List(items) => DataType::List(Box::new(items.iter().find_map(type_of)?)),
        Value::Any(_) => DataType::Any,
    })
}

/// The columns and variables of an evaluation.
pub trait Scope {
    /// Returns a column of the event.
    fn column(&self, column: u16) -> Value;
    /// Returns a variable; null before its read has run.
    fn var(&self, var: VarId) -> Value;
}

impl Scope for [Value] {
    fn column(&self, column: u16) -> Value {
        self[usize::from(column)].clone()
    }

    fn var(&self, _: VarId) -> Value {
        Value::Null
    }
}

/// Returns the value of a node. It walks the tree, which is obvious and slow.
pub fn evaluate<S: Scope + ?Sized>(block: &Block, id: ExprId, scope: &S) -> Result<Value, Fault> {
    let eval = |id: ExprId| evaluate(block, id, scope);
    match block.expr(id) {
        Expr::Const(value) => Ok(value.clone()),
        Expr::FloatBits(bits) => Ok(Value::Float(f64::from_bits(*bits))),
        Expr::Column(column) => Ok(scope.column(*column)),
        Expr::Var(var) => Ok(scope.var(*var)),
        Expr::Unary(op, x) => rules::unary(op, &eval(*x)?),
        Expr::Binary(op, l, r) => rules::binary(*op, &eval(*l)?, &eval(*r)?),
        Expr::Where(c, a, b) => match eval(*c)? {
            Value::Bool(true) => eval(*a),
            Value::Bool(false) => eval(*b),
            _ => Err(Fault::NULL),
        },
        Expr::Coalesce(a, b) => match eval(*a)? {
            Value::Null => eval(*b),
            value => Ok(value),
        },
    }
}
