//! Rows and events whose columns are all integers. Rust functions that only count and add need no
//! [`Value`]s with them. Here they are converted from and to values; transactions that store rows
//! as words do this faster.

use smallvec::SmallVec;
use tidemill_core::{StreamId, TableId, Value};

use super::handler::{Abort, AbortKind, Tx};
use super::reasons;

impl dyn Tx + '_ {
    /// Returns the row with this integer key, or `None` if it is missing. Aborts if the row has not
    /// `N` columns or one that is not an integer.
    pub fn ints<const N: usize>(
        &mut self,
        table: TableId,
        key: i64,
    ) -> Result<Option<[i64; N]>, Abort> {
        let mut row = [0; N];
        Ok(self.get_ints(table, key, &mut row)?.then_some(row))
    }
}

/// Implements [`Tx::get_ints`].
pub(crate) fn get(
    tx: &mut (impl Tx + ?Sized),
    table: TableId,
    key: i64,
    row: &mut [i64],
) -> Result<bool, Abort> {
    let Some(held) = tx.get(table, &[Value::Int(key)])? else { return Ok(false) };
    if held.len() != row.len() {
        return Err(reasons::wrong_shape("the row", held.len(), row.len()));
    }
    for (int, value) in row.iter_mut().zip(&held) {
        *int = match value {
            Value::Int(value) => *value,
            other => {
                let reason = format!("{other} was read as an integer, which it is not");
                return Err(Abort { kind: AbortKind::Fault, reason });
            }
        };
    }
    Ok(true)
}

/// Implements [`Tx::put_ints`].
pub(crate) fn put(tx: &mut (impl Tx + ?Sized), table: TableId, row: &[i64]) -> Result<(), Abort> {
    tx.put(table, &values(row))
}

/// Implements [`Tx::emit_ints`].
pub(crate) fn emit(
    tx: &mut (impl Tx + ?Sized),
    stream: StreamId,
    row: &[i64],
) -> Result<(), Abort> {
    tx.emit(stream, &values(row))
}

fn values(row: &[i64]) -> SmallVec<[Value; 8]> {
    row.iter().copied().map(Value::Int).collect()
}
