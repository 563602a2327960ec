//! The functions of random programs.

use std::sync::atomic::{AtomicBool, Ordering};

use tidemill_core::{StreamId, TableId, Value};
use tidemill_txn::program::{Abort, Aggregate, EventBatch, Opaque, Take, Tx, Window};

/// Whether functions leave out random numbers and times, which differ where places of events do.
pub static IS_PLACELESS: AtomicBool = AtomicBool::new(false);

/// A function that moves and counts. Its accesses depend on its reads.
pub struct Wanderer {
    pub output: Option<StreamId>,
    /// The window that it reads on its way.
    pub window: (Window, Aggregate),
    pub ranges: bool,
}

impl Opaque for Wanderer {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let (Value::Int(k), Value::Int(x)) = (&event[1], &event[3]) else { unreachable!() };
        let mut row = match tx.get(TableId(0), &[Value::Int(*k)])? {
            Some(row) => row.to_vec(),
            None => vec![
                Value::Int(*k),
                Value::Int(0),
                Value::Float(0.5),
                Value::Decimal(0, 2),
                Value::Bool(false),
            ],
        };
        let Value::Int(mut a) = row[1] else { unreachable!() };
        if x % 3 == 0 {
            let (window, aggregate) = &self.window;
            match tx.window(TableId(0), &[Value::Int(x % 5)], window, 1, aggregate)? {
                Value::Int(found) => a = a.wrapping_add(found) % 1000,
                other => assert!(other.is_null(), "{other}"),
            }
        }
        if self.ranges && x % 4 == 0 {
            let take = if x % 8 == 0 { Take::Last(2) } else { Take::First(2) };
            for row in tx.scan(TableId(0), &[Value::Int(x % 3)], &[], take)? {
                a = (a * 3 + i64::from(row[4] == Value::Bool(true))) % 1000;
            }
        }
        if x % 5 == 1 && !IS_PLACELESS.load(Ordering::Relaxed) {
            a = (a + (tx.random() % 7) as i64 + (tx.random() % 3) as i64) % 1000;
        }
        if a % 7 == 6 {
            return Err(Abort::refused(format!("{k} has had enough")));
        }
        row[1] = Value::Int(a.wrapping_add(1));
        tx.put(TableId(0), &row)?;
        // The next row depends on the found value.
        if a % 2 == 0 {
            tx.delete(TableId(0), &[Value::Int(a % 5)])?;
        } else if let Some(next) = tx.get(TableId(0), &[Value::Int(*x)])? {
            let mut next = next.to_vec();
            next[3] = Value::Decimal(a * 100, 2);
            tx.put(TableId(0), &next)?;
        }
        match self.output {
            Some(stream) => tx.emit(stream, &[Value::Int(*k), Value::Int(a)]),
            None => Ok(()),
        }
    }
}

/// A function on rows with text in their keys.
pub struct Writer {
    pub output: Option<StreamId>,
    pub ranges: bool,
}

impl Opaque for Writer {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let (Value::Int(k), Value::Int(x)) = (&event[1], &event[3]) else { unreachable!() };
        let key = [Value::Int(*k), event[7].clone()];
        let found = tx.get(TableId(1), &key)?;
        let mut a = match found.as_ref().map(|row| &row[2]) {
            Some(Value::Int(a)) => *a,
            _ => *x,
        };
        if self.ranges && x % 2 == 0 {
            let take = if x % 4 == 0 { Take::Last(3) } else { Take::First(3) };
            for row in tx.scan(TableId(1), &[Value::Int(x % 5)], &[Value::Int(4)], take)? {
                a = (a * 5 + row.len() as i64 + i64::from(row[2].is_null())) % 1000;
            }
        }
        if a % 11 == 7 {
            return Err(Abort::refused(format!("{a} is written already")));
        }
        let other = [Value::Int(a.rem_euclid(5)), event[7].clone()];
        if x % 3 == 0 {
            tx.delete(TableId(1), &other)?;
        }
        let [id, name] = if a % 2 == 0 { other } else { key };
        let count = if a % 5 == 4 { Value::Null } else { Value::Int(a.wrapping_add(1)) };
        tx.put(TableId(1), &[id, name, count, Value::str("written"), Value::Decimal(*x, 2)])?;
        match self.output {
            Some(stream) => tx.emit(stream, &[Value::Int(*k), Value::Int(a)]),
            None => Ok(()),
        }
    }
}

/// A function that takes the output of others and emits some of it back, sometimes without end.
pub struct Follower {
    /// The column of the event's number.
    pub k: usize,
    pub output: StreamId,
}

impl Opaque for Follower {
    fn call(&self, event: &[Value], tx: &mut dyn Tx) -> Result<(), Abort> {
        let Value::Int(k) = &event[self.k] else { unreachable!() };
        let next = (k + 1).rem_euclid(5);
        let Some(row) = tx.get(TableId(0), &[Value::Int(next)])? else {
            return Err(Abort::refused("nobody to follow"));
        };
        let Value::Int(a) = row[1] else { unreachable!() };
        let mut row = row.to_vec();
        row[1] = Value::Int((a + 1) % 1000);
        tx.put(TableId(0), &row)?;
        match a % 3 {
            0 => Err(Abort::refused("no further")),
            1 => tx.emit(self.output, &[Value::Int(next), Value::Int(a)]),
            _ => Ok(()),
        }
    }
}

/// A procedure that counts its events and passes some of them on.
pub struct Juggler {
    pub emits: Vec<StreamId>,
    /// The row in which its results are visible.
    pub seen_at: i64,
}

impl Opaque for Juggler {
    fn call(&self, _: &[Value], _: &mut dyn Tx) -> Result<(), Abort> {
        unreachable!("it takes batches")
    }

    fn call_batch(&self, batches: &[EventBatch], tx: &mut dyn Tx) -> Result<(), Abort> {
        let mut seen = 0;
        for EventBatch { stream, events } in batches {
            for event in events {
                let int = |at: usize| match &event[at] {
                    Value::Int(int) => *int,
                    other => unreachable!("{other}"),
                };
                let [k, x] = if event.len() < 4 { [int(0), int(1)] } else { [int(1), int(3)] };
                seen = (seen * 31 + k * 7 + x % 100 + i64::from(stream.0)) % 997;
                let a = add(tx, k.rem_euclid(5), x % 100)?;
                if a % 13 == 6 {
                    return Err(Abort::refused(format!("{k} fell down")));
                }
                let count = self.emits.len() as i64;
                if let Some(stream) = self.emits.get(a.rem_euclid(count + 1) as usize) {
                    tx.emit(*stream, &[Value::Int(k), Value::Int(a)])?;
                }
            }
        }
        if !IS_PLACELESS.load(Ordering::Relaxed) {
            seen = (seen + (tx.random() % 11) as i64 + tx.time_us() % 2) % 997;
        }
        add(tx, self.seen_at, seen).map(|_| ())
    }
}

/// Adds to a row of the first table and returns the sum.
fn add(tx: &mut dyn Tx, id: i64, more: i64) -> Result<i64, Abort> {
    let row = tx.get(TableId(0), &[Value::Int(id)])?;
    let mut row = row.map_or_else(
        || {
            let (f, m, b) = (Value::Float(0.5), Value::Decimal(0, 2), Value::Bool(false));
            vec![Value::Int(id), Value::Int(0), f, m, b]
        },
        |row| row.to_vec(),
    );
    let Value::Int(a) = row[1] else { unreachable!() };
    let a = a.wrapping_add(more) % 1000;
    row[1] = Value::Int(a);
    tx.put(TableId(0), &row)?;
    Ok(a)
}
