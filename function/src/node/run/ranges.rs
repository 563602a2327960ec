//! Rows and ranges of rows, wherever they live.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Key, TableId, Value};
use tidemill_txn::program::Take;

use super::Turn;
use crate::gate::Access;
use crate::node::NodeId;
use crate::program::{Activation, Bounds, Call, Context, Step, Stop, Target};

impl Turn<'_> {
    /// Returns the first or last rows within bounds.
    pub(super) fn rows(
        &mut self,
        table: TableId,
        bounds: Bounds,
        (from, to): (Vec<Value>, Vec<Value>),
        take: Take,
    ) -> Result<Vec<Arc<[Value]>>, Stop> {
        let leading = match bounds {
            Bounds::Leading => &from[..],
            Bounds::Between => {
                &from[..from.iter().zip(&to).take_while(|(from, to)| from == to).count()]
            }
        };
        let owner = self.owners.of_key(self.functions.program(), table, leading);
        let is_asked = self.is_on_row();
        let (to_node, target) = match (owner, self.invocation.call.target) {
            (Some(owner), _) if owner != self.me => (owner, Target::Find(bounds, take)),
            (None, Target::Gather(..)) if is_asked => {
                return self.gather(table, bounds, (&from, &to), take);
            }
            (None, target) if !(is_asked && matches!(target, Target::Find(..))) => {
                // This is one access, as with one owner. So places are the same for any number of
                // nodes.
                (self.me, Target::Gather(bounds, take))
            }
            _ => {
                let from = Key::of(&from);
                let to = match bounds {
                    Bounds::Between if !to.is_empty() => Key::of(&to),
                    Bounds::Between => Key::of(&to).prefix_end(),
                    Bounds::Leading => from.prefix_end(),
                };
                let saw = self.read(Access::Range(table, from, to), take)?;
                return Ok(saw.into_iter().flatten().collect());
            }
        };
        let nth = self.reach(to_node, target, table, &from, &to)?;
        Ok(listed_rows(self.answer(nth)?))
    }

    /// Returns the rows of all nodes, each of which has a part of them.
    fn gather(
        &mut self,
        table: TableId,
        bounds: Bounds,
        (from, to): (&[Value], &[Value]),
        take: Take,
    ) -> Result<Vec<Arc<[Value]>>, Stop> {
        let mut asked = Vec::new();
        for node in 0..self.owners.nodes() {
            let target = Target::Find(bounds, take);
            let call = Call { target, table, key: from.into(), args: to.into() };
            asked.push(self.make(call, NodeId(node), true)?);
        }
        let columns = &self.functions.program().tables[table.index()].key;
        let mut found = BTreeMap::new();
        for nth in asked {
            for row in listed_rows(self.answer(nth)?) {
                found.insert(Key::of(columns.iter().map(|column| &row[*column])), row);
            }
        }
        Ok(take.of(found.into_values()))
    }
}

/// Returns the rows of a list of lists.
fn listed_rows(value: &Value) -> Vec<Arc<[Value]>> {
    match value {
        Value::List(rows) => rows.iter().filter_map(row).collect(),
        other => unreachable!("rows came back as {other}"),
    }
}

/// Returns a row as a value. `row` converts it back.
fn listed(row: &Arc<[Value]>) -> Value {
    Value::List(row.clone())
}

pub(super) fn row(value: &Value) -> Option<Arc<[Value]>> {
    match value {
        Value::List(row) => Some(row.clone()),
        _ => None,
    }
}

/// A call that is no function, executed where the row lives.
pub(super) struct OnRow(pub Call);

impl Activation for OnRow {
    fn resume(&mut self, context: &mut dyn Context) -> Result<Step, Stop> {
        let Call { target, table, key, args } = &self.0;
        Ok(Step::Done(match target {
            Target::Get => context.get(*table, key)?.as_ref().map_or(Value::Null, listed),
            Target::Find(bounds, take) | Target::Gather(bounds, take) => {
                let rows = match bounds {
                    Bounds::Leading => context.find(*table, key, *take)?,
                    Bounds::Between => context.range(*table, key, args, *take)?,
                };
                Value::List(rows.iter().map(listed).collect())
            }
            Target::Put => {
                context.put(*table, args)?;
                Value::Null
            }
            Target::Delete => {
                context.delete(*table, key)?;
                Value::Null
            }
            Target::Write => {
                context.write(*table, key, Some(args))?;
                Value::Null
            }
            Target::Remove => {
                context.write(*table, key, None)?;
                Value::Null
            }
            Target::Function(_) => unreachable!("a function is the program's"),
        }))
    }
}
