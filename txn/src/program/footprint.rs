//! Footprints: the rows and ranges that a handler's transactions access, as far as the program
//! says. Planners use them to decide which transactions may run in parallel.
//!
//! Rows are read and written by key. *Tokens*, one for each partition of a table, guard reads of
//! key ranges and changes in which rows exist. A transaction that reads a range reads the tokens of
//! all its partitions. A transaction that may create or remove a row writes the token of the row's
//! partition. So no row can appear or vanish in a range unnoticed by its reader.

use std::ops::BitOr;

use tidemill_core::TableId;

use super::expr::{Block, Expr, ExprId};
use super::handler::{Body, Declared, Native, Op, RowId};
use super::Program;

/// The rows and ranges that a handler's transactions access.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footprint {
    /// The rows with known keys: by [`RowId`] for a declared handler, by row number for a native
    /// one. Two of them may be the same row.
    pub rows: Vec<RowUse>,
    /// The tables of which ranges are read. Their tokens are read, and any of their rows may be.
    pub ranges: Vec<TableId>,
    /// Whether the handler finds its accesses by running. It may access anything, so the fields
    /// above are incomplete.
    pub opaque: bool,
}

/// How a handler's transactions use a row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowUse {
    /// The table.
    pub table: TableId,
    /// One expression for each key column, from the handler's expressions.
    pub key: Vec<ExprId>,
    /// Whether the key depends on the transaction's reads, and is known only once it runs.
    pub computed: bool,
    /// The kinds of access to the row.
    pub access: Access,
}

/// The ways in which a transaction may access a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Columns, or whether the row exists, are read.
    pub reads: bool,
    /// Versions before the newest are read.
    pub reads_versions: bool,
    /// The row is written. Conditional writes count.
    pub writes: bool,
    /// The row may appear or vanish. Then the token of its partition is written, if the table is
    /// ordered.
    pub comes_or_goes: bool,
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access {
            reads: self.reads | other.reads,
            reads_versions: self.reads_versions | other.reads_versions,
            writes: self.writes | other.writes,
            comes_or_goes: self.comes_or_goes | other.comes_or_goes,
        }
    }
}

impl Footprint {
    /// Returns the footprint of a program's handler.
    pub fn of(program: &Program, handler: usize) -> Footprint {
        let footprint = match &program.handlers[handler].body {
            Body::Declared(declared) => Footprint::declared(declared),
            Body::Native(native) => Footprint::native(&program.natives[*native]),
            Body::Opaque(_) => Footprint { opaque: true, ..Footprint::default() },
        };
        let opaque = footprint.opaque || program.has_hooks(handler);
        Footprint { opaque, ..footprint }
    }

    /// Whether a transaction's event decides all of its accesses before it runs.
    pub fn is_known(&self) -> bool {
        !self.opaque && !self.rows.iter().any(|row| row.computed)
    }

    /// Returns the tables of these rows and ranges.
    pub fn tables(&self) -> impl Iterator<Item = TableId> + '_ {
        self.rows.iter().map(|row| row.table).chain(self.ranges.iter().copied())
    }

    /// Whether transactions may access a table, and whether they may write it.
    pub fn touches(&self, table: TableId) -> (bool, bool) {
        let rows = || self.rows.iter().filter(|row| row.table == table);
        let touches = self.opaque || rows().next().is_some() || self.ranges.contains(&table);
        (touches, self.opaque || rows().any(|row| row.access.writes))
    }

    /// Whether transactions read the tokens of a table, and whether they may write one.
    pub fn tokens(&self, program: &Program, table: TableId) -> (bool, bool) {
        let comes_or_goes = |row: &RowUse| row.table == table && row.access.comes_or_goes;
        let writes = self.opaque || self.rows.iter().any(comes_or_goes);
        (
            self.opaque || self.ranges.contains(&table),
            writes && program.tables[table.index()].ordered,
        )
    }

    fn declared(declared: &Declared) -> Footprint {
        let mut rows: Vec<RowUse> = (declared.rows.iter())
            .map(|row| RowUse {
                table: row.table,
                key: row.key.clone(),
                computed: row.key.iter().any(|key| has_variables(&declared.exprs, *key)),
                access: Access::default(),
            })
            .collect();
        let mut ranges = Vec::new();
        for step in &declared.steps {
            ranges.extend(step.op.range());
            if let Some(RowId(row)) = step.op.row() {
                let used = &mut rows[usize::from(row)];
                used.access = used.access | access(&step.op);
            }
        }
        ranges.sort_unstable();
        ranges.dedup();
        Footprint { rows, ranges, opaque: false }
    }

    /// Returns the footprint of a closure. It reads all its rows and writes those that it may set.
    /// A row that it writes may be new.
    fn native(native: &Native) -> Footprint {
        let row = |(number, row): (usize, &super::RowRef)| {
            let writes = native.writes(number);
            let (reads, reads_versions, comes_or_goes) = (true, true, writes);
            let access = Access { reads, writes, reads_versions, comes_or_goes };
            let (table, key) = (row.table, row.key.clone());
            RowUse { table, key, computed: false, access }
        };
        let rows = native.rows.iter().enumerate().map(row).collect();
        Footprint { rows, ranges: Vec::new(), opaque: false }
    }
}

/// Returns an operation's access to its row.
fn access(op: &Op) -> Access {
    let none = Access::default();
    let reads = Access { reads: true, ..none };
    let writes = Access { writes: true, ..none };
    let comes_or_goes = Access { comes_or_goes: true, ..writes };
    match op {
        Op::Read { .. } | Op::Exists { .. } => reads,
        Op::Window { .. } => Access { reads_versions: true, ..reads },
        // A missing row is created. An existing row keeps its other columns, so it is read.
        Op::Set { .. } => reads | comes_or_goes,
        Op::Insert { .. } => reads | comes_or_goes,
        Op::Update { .. } => reads | writes,
        Op::Upsert { .. } | Op::Delete { .. } => comes_or_goes,
        Op::Range { .. } | Op::Require { .. } | Op::Emit { .. } => none,
    }
}

/// Whether an expression depends on the transaction's reads.
fn has_variables(exprs: &Block, id: ExprId) -> bool {
    match exprs.expr(id) {
        Expr::Var(_) => true,
        Expr::Const(_) | Expr::FloatBits(_) | Expr::Column(_) => false,
        Expr::Unary(_, x) => has_variables(exprs, *x),
        Expr::Binary(_, a, b) | Expr::Coalesce(a, b) => {
            has_variables(exprs, *a) || has_variables(exprs, *b)
        }
        Expr::Where(a, b, c) => [a, b, c].into_iter().any(|id| has_variables(exprs, *id)),
    }
}
