//! Indexes, triggers and windows of random programs.

use std::sync::Arc;

use tidemill_core::{Column, DataType, StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Aggregate, Builder, Extent, On, Opaque, Take, Tx, WindowId};

use super::Dice;

/// The indexes and triggers of a random program.
pub struct Hooks {
    /// An index of the first table, by `a`.
    by_a: Option<TableId>,
    /// A table for notes.
    notes: TableId,
    /// The stream that triggers emit into.
    watched: StreamId,
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(int) => *int,
        Value::Null => -1,
        Value::Float(float) => float.to_bits() as i64 % 1000,
        other => unreachable!("{other}"),
    }
}

/// Updates a row of the notes and returns the new value.
fn note(tx: &mut dyn Tx, notes: TableId, id: i64, more: i64) -> Result<i64, Abort> {
    let there = tx.get(notes, &[Value::Int(id)])?.map_or(0, |row| int(&row[1]));
    let sum = (there * 3 + more).rem_euclid(1009);
    tx.put(notes, &[Value::Int(id), Value::Int(sum)])?;
    Ok(sum)
}

/// A trigger that notes its argument, reads other rows, and sometimes does more.
struct Watcher {
    hooks: Hooks,
    id: i64,
}

impl Opaque for Watcher {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let Hooks { by_a, notes, watched } = self.hooks;
        let ints = event.iter().filter(|value| matches!(value, Value::Int(_)));
        let mut sum = ints.fold(event.len() as i64, |sum, value| (sum * 7 + int(value)) % 1000);
        if let Some(by_a) = by_a {
            let take = if sum % 3 == 0 { Take::Last(3) } else { Take::First(3) };
            let found = match sum % 2 {
                0 => tx.scan(by_a, &[Value::Int(sum % 9)], &[], take)?,
                _ => tx.find(by_a, &[Value::Int(sum % 9 - 4)], take)?,
            };
            for entry in found {
                sum = (sum * 5 + entry.iter().map(int).sum::<i64>()) % 1000;
            }
        }
        let noted = note(tx, notes, self.id, sum)?;
        if noted % 19 == 7 {
            return Err(Abort::refused(format!("trigger {} has seen enough", self.id)));
        }
        if noted % 4 == 1 {
            tx.emit(watched, &[Value::Int(noted), Value::Int(sum)])?;
        }
        if noted % 5 == 2 {
            // This may fire triggers in turn, including this one.
            let id = Value::Int(noted % 5);
            if let Some(row) = tx.get(TableId(0), &[id])? {
                let mut row = row.to_vec();
                row[1] = Value::Int((int(&row[1]) + 1) % 1000);
                tx.put(TableId(0), &row)?;
            }
        }
        Ok(())
    }
}

/// A handler with a window of its own.
struct Gatherer {
    hooks: Hooks,
    window: WindowId,
    is_grouped: bool,
}

impl Opaque for Gatherer {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let (k, x) = (event[1].clone(), event[3].clone());
        if int(&x) % 6 == 1 {
            tx.window_advance(self.window)?;
        }
        tx.window_insert(self.window, &[k.clone(), x.clone()])?;
        let rows = tx.window_rows(self.window)?;
        let mut sum = rows.iter().fold(0, |sum, row| (sum * 3 + int(&row[1])) % 1000);
        let group = self.is_grouped.then_some(&k);
        for row in tx.window_groups(self.window, group)? {
            sum = (sum * 3 + row.iter().map(int).sum::<i64>()) % 1000;
        }
        match note(tx, self.hooks.notes, 9, sum)? % 13 {
            5 => Err(Abort::refused("the window has been looked at")),
            _ => Ok(()),
        }
    }
}

/// Adds indexes and triggers to a program with the first two tables. In `inputs`, the number is the
/// second column and `x` the fourth. `side` is emitted into. No handler takes what triggers emit,
/// because a handler that writes the first table would then feed itself.
pub fn add(dice: &mut Dice, b: &mut Builder, inputs: &[StreamId], side: StreamId, plain: bool) {
    let by_a = dice.chance(60).then(|| {
        let is_unique = dice.chance(20);
        b.index("by_a", TableId(0), &["a"], is_unique)
    });
    if !plain && dice.chance(50) {
        b.index("by_note", TableId(1), &["note", "a"], false);
    }
    let two = || vec![Column::new("k", DataType::Int), Column::new("v", DataType::Int)];
    let notes = b.table("notes", &["k"], two());
    let watched = b.emitted("watched", two());
    let hooks = || Hooks { by_a, notes, watched };
    let trigger = |b: &mut Builder, on: On, id: i64| {
        let function = Arc::new(Watcher { hooks: hooks(), id });
        b.trigger(&format!("trigger{id}"), on, &[watched], function);
    };
    if dice.chance(60) {
        trigger(b, On::Emitted(side), 0);
    }
    if dice.chance(60) {
        let [insert, update, delete] = [true, dice.chance(70), dice.chance(50)];
        trigger(b, On::Written { table: TableId(0), insert, update, delete }, 1);
    }
    if dice.chance(30) {
        let table = TableId(1);
        trigger(b, On::Written { table, insert: false, update: true, delete: true }, 2);
    }
    if dice.chance(70) {
        let extent = match dice.chance(50) {
            true => {
                let size = 1 + dice.below(8);
                Extent::Rows { size, slide: 1 + dice.below(size) }
            }
            false => {
                let size_us = 1 + dice.below(12) as i64;
                Extent::Time { size_us, slide_us: 1 + dice.below(size_us as u64) as i64 }
            }
        };
        let input = *dice.pick(inputs);
        let is_grouped = dice.chance(60);
        let window = WindowId(0);
        let function = Gatherer { hooks: hooks(), window, is_grouped };
        let owner = b.opaque("gatherer", input, Arc::new(function));
        b.emits(owner, &[]);
        let group = is_grouped.then_some("k");
        use Aggregate::{Avg, Count, First, Last, Max, Min, Sum};
        let all = [Sum, Min, Max, First, Last, Count, Avg];
        let names = ["sum", "low", "high", "first", "last", "count", "mean"];
        let made = names.into_iter().zip(all).map(|(name, of)| (name, of, "v"));
        let made: Vec<(&str, Aggregate, &str)> = made.filter(|_| dice.chance(50)).collect();
        b.window("last", owner, extent, two(), group, &made);
        if dice.chance(60) {
            trigger(b, On::Slid(window), 3);
        }
        if dice.chance(40) {
            trigger(b, On::Inserted(window), 4);
        }
    }
}
