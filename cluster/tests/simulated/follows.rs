//! The changes of tables that clients follow: with them, the rows after an epoch follow from those
//! before it.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_cluster::{Effect, POISON};
use tidemill_core::{Key, TableId};
use tidemill_function::{Stored, TableChanges};

use super::check::Tables;
use super::world::World;

/// Checks the changes that each coordinator has passed on. `states` has the rows after each epoch.
pub fn check(world: &World, states: &[Tables]) -> Result<(), String> {
    let mut of: BTreeMap<_, Vec<&Effect>> = BTreeMap::new();
    for (coordinator, effect) in &world.followed {
        of.entry(*coordinator).or_default().push(effect);
    }
    // A coordinator does not know what an earlier one has passed on, and may still give a verdict on
    // a transaction in it. Clients of the earlier one get a reset.
    let is_verdict = |asked, answer: &[u8]| asked == POISON || answer.starts_with(b"overdue");
    let has_verdicts = world.log.answers().any(|(_, asked, answer)| is_verdict(asked, answer));
    let last = of.keys().next_back().copied();
    let counts = |coordinator| !has_verdicts || Some(coordinator) == last;
    of.iter().filter(|of| counts(*of.0)).try_for_each(|(_, effects)| follows(effects, states))
}

fn follows(effects: &[&Effect], states: &[Tables]) -> Result<(), String> {
    let (mut since, mut last): (BTreeMap<TableId, u64>, Option<u64>) = (BTreeMap::new(), None);
    for effect in effects {
        match effect {
            Effect::Follows { table, since: epoch } => {
                if last.is_some_and(|last| last > *epoch) {
                    return Err(format!("follows: after epoch {epoch}, but {last:?} has passed"));
                }
                since.insert(*table, *epoch);
            }
            Effect::Changed { epoch, changes } => {
                let unknown = changes.iter().filter(|of| of.rows.is_none());
                let unknown: Vec<TableId> = unknown.map(|of| of.table).collect();
                let is_next = match last {
                    Some(last) => *epoch == last + 1,
                    None => since.values().all(|since| *epoch <= since + 1),
                };
                if !is_next && unknown.len() < since.len() {
                    return Err(format!("follows: epoch {epoch} comes after {last:?}"));
                }
                last = Some(*epoch);
                since.extend(unknown.into_iter().map(|table| (table, *epoch)));
                for (&table, _) in since.iter().filter(|(_, since)| *since < epoch) {
                    compare((table, *epoch), changes, states)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Compares the changes of a table by an epoch with its rows before and after.
fn compare(
    (table, epoch): (TableId, u64),
    changes: &[TableChanges],
    states: &[Tables],
) -> Result<(), String> {
    let state = |epoch: u64| states.get(epoch as usize).map(|tables| &tables[table.index()]);
    let (Some(before), Some(after)) = (state(epoch - 1), state(epoch)) else {
        return Err(format!("follows: there is no epoch {epoch}"));
    };
    let of = changes.iter().filter(|of| of.table == table).filter_map(|of| of.rows.as_ref());
    let changed: BTreeMap<&Key, &Stored> = of.flatten().map(|(key, row)| (key, row)).collect();
    let keys: BTreeSet<&Key> =
        before.keys().chain(after.keys()).chain(changed.keys().copied()).collect();
    for key in keys {
        let (was, is) = (before.get(key), after.get(key));
        let is_right = match changed.get(key) {
            Some(row) => row.as_ref() == is,
            None => was == is,
        };
        if !is_right {
            let found = changed.get(key);
            return Err(format!(
                "follows: epoch {epoch} changes a row of table {} from {was:?} to {is:?}, and {found:?} was passed on",
                table.0
            ));
        }
    }
    Ok(())
}
