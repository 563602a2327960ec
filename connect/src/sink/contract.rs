//! What every sink promises, as a check that panics where a promise is broken.

use tidemill_core::{Batch, Row};

use super::Sink;

/// A new sink, and what reads all rows that can be seen of it.
pub type Made = (Box<dyn Sink>, Box<dyn Fn() -> Vec<Row>>);

/// Checks what [`Sink`] promises. `make` makes a new sink; `batch` holds the rows to write, at
/// least two, which must differ.
///
/// # Panics
/// Where a promise is broken.
pub fn check(make: impl Fn() -> Made, batch: &Batch) {
    let rows: Vec<Row> = batch.rows().collect();
    assert!(rows.len() >= 2, "the check needs two rows");
    let half = rows.len() / 2;
    let (first, second) = (batch.slice(0, half), batch.slice(half, rows.len() - half));
    let empty = batch.slice(0, 0);

    let (mut sink, seen) = make();
    sink.finish().expect("a sink without rows is finished");
    assert_eq!(seen(), [] as [Row; 0], "no rows");
    sink.finish().expect("a second finish does nothing");
    assert!(sink.write(batch).is_err(), "nothing is written after finish");

    let (mut sink, seen) = make();
    sink.commit().expect("a commit without rows");
    sink.write(&empty).expect("no rows");
    sink.write(&first).expect("rows");
    sink.write(&second).expect("rows");
    sink.commit().expect("a commit");
    sink.commit().expect("a second commit does nothing");
    sink.finish().expect("the end");
    assert_eq!(seen(), rows, "two batches in one epoch");

    let (mut sink, seen) = make();
    for part in [&first, &second] {
        sink.write(part).expect("rows");
        sink.commit().expect("a commit");
    }
    sink.finish().expect("the end");
    assert_eq!(seen(), rows, "two epochs");

    let (mut sink, seen) = make();
    sink.write(&first).expect("rows");
    sink.commit().expect("a commit");
    sink.write(&second).expect("rows");
    sink.finish().expect("the end");
    assert_eq!(seen(), &rows[..half], "what was not committed is dropped");

    let (mut sink, seen) = make();
    sink.write(batch).expect("rows");
    drop(sink);
    assert_eq!(seen(), [] as [Row; 0], "what was not committed is not seen");
}
