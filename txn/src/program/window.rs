//! Windows: ranges of a row's versions that end at the transaction that reads them, and their
//! aggregates. `docs/values.md` has the rules.

use serde::{Deserialize, Serialize};
use tidemill_core::{Column, DataType, Error, History, Result, TableId, TableSpec, Value};

use super::expr::{type_of, Block, Expr, ExprId, Type};

/// A choice of a row's versions, up to the transaction at time T that reads them, its own included.
/// Sizes are in microseconds of event time, or in the unit of the time column if that is an int.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Window {
    /// The last `size_us`: times in (T - size, T].
    Sliding {
        /// The length.
        size_us: i64,
    },
    /// The newest complete window of `size_us`. It ends at B, the newest multiple of `slide_us` up
    /// to T: times in [B - size, B).
    Hopping {
        /// The length.
        size_us: i64,
        /// The distance between the ends of windows.
        slide_us: i64,
    },
    /// Since the newest multiple of `size_us`: times in [floor(T / size) * size, T].
    Tumbling {
        /// The length.
        size_us: i64,
    },
    /// Back from T while neighbours are at most `gap_us` apart, within the history that the table
    /// retains by time.
    Session {
        /// The longest time between two versions.
        gap_us: i64,
    },
    /// The last `versions` versions.
    Last {
        /// The number of versions.
        versions: u64,
    },
    /// The versions since the newest start of a window. Versions are numbered from 0, and a window
    /// starts at each multiple of `versions`.
    TumblingVersions {
        /// The most versions of a window.
        versions: u64,
    },
}

/// An aggregate of a column's values in a window or in a range of rows. All but `First` and `Last`
/// skip nulls. Without any values the count and the sum are 0, and the others null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregate {
    /// The number of values.
    Count,
    /// The sum of the values. Integers and decimals are summed exactly; only a result out of range
    /// aborts. Floats are added in the order of versions.
    Sum,
    /// The mean of the values: for integers the nearest float, for decimals rounded half to even.
    Avg,
    /// The smallest value, in the order of keys, so NaN is the largest float.
    Min,
    /// The largest value, in the order of keys.
    Max,
    /// The first value, which may be null.
    First,
    /// The last value, which may be null.
    Last,
    /// A user-defined aggregate.
    Fold(Box<Fold>),
}

/// A user-defined aggregate: a state that each version updates, in the order of versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fold {
    /// The expressions. Columns are those of the version; variable 0 is the state.
    pub exprs: Block,
    /// The initial state, a constant.
    pub start: ExprId,
    /// The next state, of the same type.
    pub step: ExprId,
}

/// A closure's window read, checked when it is made (see [`super::Builder::window_read`]).
#[derive(Clone, Debug)]
pub struct WindowRead {
    /// The table.
    pub table: TableId,
    /// The column.
    pub column: u16,
    /// The versions that it reads.
    pub window: Window,
    /// The aggregate of the versions.
    pub aggregate: Aggregate,
    /// Whether the column has integers that are never null.
    pub(crate) is_of_ints: bool,
}

impl Window {
    /// Refuses a window that the table's history does not hold, or that holds nothing.
    pub fn check(&self, table: &TableSpec) -> Result<()> {
        let name = &table.name;
        let Some(History { time_us, versions }) = table.history else {
            return Err(Error::program(format!(
                "table {name} has no history over which windows could be read"
            ))
            .help(format!("declare it with {}", self.wants())));
        };
        let positive = match *self {
            Window::Sliding { size_us } | Window::Tumbling { size_us } => size_us > 0,
            Window::Hopping { size_us, slide_us } => size_us > 0 && slide_us > 0,
            Window::Session { gap_us } => gap_us > 0,
            Window::Last { versions } | Window::TumblingVersions { versions } => versions > 0,
        };
        if !positive {
            return Err(Error::program("a window's size must be more than 0"));
        }
        let needs_us = match *self {
            Window::Sliding { size_us } | Window::Tumbling { size_us } => Some(size_us),
            Window::Hopping { size_us, slide_us } => Some(size_us.saturating_add(slide_us)),
            Window::Session { gap_us } => Some(gap_us),
            Window::Last { .. } | Window::TumblingVersions { .. } => None,
        };
        let needs_versions = match *self {
            Window::Last { versions } | Window::TumblingVersions { versions } => Some(versions),
            _ => None,
        };
        let kept = match (needs_us, needs_versions) {
            (Some(needs), _) if time_us.is_none_or(|us| us < needs) => match time_us {
                Some(us) => format!("{us} us"),
                None => "versions by count only".into(),
            },
            (_, Some(needs)) if versions.is_none_or(|kept| kept < needs) => match versions {
                Some(kept) => format!("{kept} versions of a row"),
                None => "versions by time only".into(),
            },
            _ => return Ok(()),
        };
        let needs = match (needs_us, needs_versions) {
            (Some(us), _) => format!("{us} us"),
            (_, versions) => format!("{} versions", versions.unwrap_or(0)),
        };
        Err(Error::program(format!(
            "the window needs {needs} of the history of table {name}, which retains {kept}"
        ))
        .help(format!("declare the table with {}, or take a shorter window", self.wants())))
    }

    fn wants(&self) -> String {
        match self {
            Window::Last { versions } | Window::TumblingVersions { versions } => {
                format!("history={versions}")
            }
            _ => "a history=\"...\" at least as long as the window".into(),
        }
    }
}

impl Aggregate {
    /// Returns the type of the aggregate of a table's column, or why there is none.
    pub fn result(&self, table: &TableSpec, column: u16) -> Result<Type> {
        let Some(spec) = table.schema.columns.get(usize::from(column)) else {
            return Err(Error::program(format!("table {} has no column {column}", table.name)));
        };
        match self {
            Aggregate::Fold(fold) => fold.result(table),
            _ => self.of_column(spec, &format!("table {}", table.name)),
        }
    }

    /// Returns the type of the aggregate of a column of `whose`. Folds are excluded, because they
    /// need a table.
    pub(super) fn of_column(&self, column: &Column, whose: &str) -> Result<Type> {
        let ty = &column.ty;
        let refuse = |what: &str| {
            Err(Error::program(format!(
                "column '{}' of {whose} is {ty}: it has no {what}",
                column.name
            )))
        };
        let known = |ty: DataType, nullable| Ok(Type { ty: Some(ty), nullable });
        match self {
            Aggregate::Count => known(DataType::Int, false),
            Aggregate::Sum if ty.is_number() => known(ty.clone(), false),
            Aggregate::Sum => refuse("sum"),
            Aggregate::Avg if *ty == DataType::Int => known(DataType::Float, true),
            Aggregate::Avg if ty.is_number() => known(ty.clone(), true),
            Aggregate::Avg => refuse("mean"),
            Aggregate::Min | Aggregate::Max if ty.is_ordered() => known(ty.clone(), true),
            Aggregate::Min | Aggregate::Max => refuse("order"),
            Aggregate::First | Aggregate::Last => known(ty.clone(), true),
            Aggregate::Fold(_) => Ok(Type { ty: None, nullable: false }),
        }
    }
}

impl Fold {
    /// Returns the initial state.
    pub fn start(&self) -> Value {
        match self.exprs.nodes.get(self.start.index()).map(|node| &node.expr) {
            Some(Expr::Const(value)) => value.clone(),
            Some(Expr::FloatBits(bits)) => Value::Float(f64::from_bits(*bits)),
            _ => Value::Null,
        }
    }

    fn result(&self, table: &TableSpec) -> Result<Type> {
        let start = self.start();
        let Some(ty) = type_of(&start) else {
            return Err(Error::program("a fold must begin with a constant that is not null")
                .help("give one of the state's type, for example 0"));
        };
        let state = Type { ty: Some(ty.clone()), nullable: false };
        let types = self.exprs.types(&table.schema, std::slice::from_ref(&state))?;
        match types.get(self.step.index()) {
            Some(Type { ty: Some(step), nullable: false }) if *step == ty => Ok(state),
            Some(Type { ty: Some(step), nullable }) => Err(Error::program(format!(
                "a fold begins with {ty}, but its step gives {}{step}",
                if *nullable { "nullable " } else { "" }
            ))
            .help("convert both to one type with tm.cast(x, type), and nulls with tm.coalesce")),
            _ => Err(Error::program("a fold's step gives null")),
        }
    }
}
