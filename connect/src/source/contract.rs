//! The promises of every source, as a check that panics if a promise is broken.

use std::collections::BTreeMap;

use tidemill_core::{Kind, Row};

use super::{BadRow, Chunk, Place, Polled, Source};
use crate::Checksum;

/// A row as a source returned it: decoded or bad.
#[derive(Clone, Debug, PartialEq)]
pub enum Taken {
    /// A decoded row.
    Good(Row),
    /// A row that could not be decoded.
    Bad(BadRow),
}

/// Checks the promises of a [`Source`]. `make` creates the same source again, at offset 0, with all
/// its input available (a pushed one is closed). Returns all rows, by offset.
///
/// # Panics
/// If a promise is broken.
pub fn check(make: impl Fn() -> Box<dyn Source>) -> Vec<Taken> {
    let all = read_on(&mut *make(), usize::MAX);
    for rows_max in [1, 2, 7, 1000] {
        let mut source = make();
        assert_eq!(source.offset(), 0, "a new source begins at offset 0");
        assert_eq!(read_on(&mut *source, rows_max), all, "rows_max {rows_max} changes the rows");
    }
    check_zero_rows(&mut *make());
    if make().replayable() {
        check_resume(&make, &all);
    }
    all
}

fn check_zero_rows(source: &mut dyn Source) {
    match source.poll(0).expect("a source that can be read") {
        Polled::Rows(chunk) => assert_eq!((chunk.next_offset, chunk.rows()), (0, 0)),
        Polled::Pending | Polled::End => {}
    }
    assert_eq!(source.offset(), 0, "asking for no rows moves nothing");
    let start = Place { begin: source.place().begin, ..Place::start() };
    assert_eq!(source.place(), start, "nothing was read");
}

fn check_resume(make: &impl Fn() -> Box<dyn Source>, all: &[Taken]) {
    let total = all.len() as u64;
    let places = places(&mut *make(), 1);
    for (offset, place) in self::places(&mut *make(), 5) {
        assert_eq!(place, places[&offset], "a place depends on the rows only, here {offset}");
    }
    for to in [0, 1, total / 3, total / 2, total.saturating_sub(1), total] {
        let Some(place) = places.get(&to) else { continue };
        let rest = &all[to as usize..];
        let json = serde_json::to_string(place).expect("a place is JSON");
        let place: Place = serde_json::from_str(&json).expect("a place is JSON");
        let mut fresh = make();
        fresh.resume(&place).expect("a place that is there");
        assert_eq!((fresh.offset(), fresh.place()), (to, place.clone()));
        assert_eq!(read_on(&mut *fresh, 3), rest, "resumed at {to} in a new source");
        let end = fresh.place();
        // It moves back from the end, and from a place on the way.
        fresh.resume(&place).expect("a place that is there");
        assert_eq!(read_on(&mut *fresh, 1000), rest, "resumed at {to} back from the end");
        assert_eq!(fresh.place(), end, "the place at the end");
        let mut midway = make();
        let _ = midway.poll(all.len() / 2);
        midway.resume(&place).expect("a place that is there");
        assert_eq!(read_on(&mut *midway, 5), rest, "resumed at {to} from the middle");
    }
    if total > 0 {
        check_other_input(make, total);
    }
}

/// Checks that a place is refused if the input differs from it.
fn check_other_input(make: &impl Fn() -> Box<dyn Source>, total: u64) {
    let mut source = make();
    while source.offset() == 0 {
        let _ = source.poll(total.div_ceil(2) as usize).expect("a source that can be read");
    }
    let place = source.place();
    let checksum = Checksum(place.checksum.0 ^ 1);
    for wrong in [
        Place { checksum, ..place.clone() },
        Place { bytes: place.bytes + 1, ..place.clone() },
        Place { bytes: place.bytes + (1 << 40), ..place.clone() },
    ] {
        let error = source.resume(&wrong).expect_err("an input that has changed");
        assert_eq!(error.kind, Kind::Input, "{error}");
        assert!(!error.help.is_empty(), "it says what to do");
        assert_eq!(source.poll(1).expect_err("the error stays"), error);
    }
    source.resume(&place).expect("the error has gone");
}

/// Returns the source's place after each poll, by offset.
fn places(source: &mut dyn Source, rows_max: usize) -> BTreeMap<u64, Place> {
    let mut places = BTreeMap::new();
    loop {
        let place = source.place();
        assert_eq!(place.offset, source.offset());
        let before = places.insert(place.offset, place.clone());
        assert!(before.is_none_or(|before| before == place), "a place depends on the rows only");
        match source.poll(rows_max).expect("a source that can be read") {
            Polled::End => break,
            Polled::Rows(_) | Polled::Pending => {}
        }
    }
    places
}

/// Returns all rows from the current offset, in polls of `rows_max`, and checks every chunk.
///
/// # Panics
/// If a promise is broken.
pub fn read_on(source: &mut dyn Source, rows_max: usize) -> Vec<Taken> {
    let mut all = Vec::new();
    let mut pending = 0;
    loop {
        let before = source.offset();
        match source.poll(rows_max).expect("a source that can be read") {
            Polled::Rows(chunk) => {
                assert_eq!(source.offset(), chunk.next_offset, "offset() is the next row's");
                assert!(chunk.rows() > 0, "a chunk has rows");
                assert!(chunk.rows() <= rows_max, "rows_max is respected");
                assert_eq!(chunk.batch.schema(), source.schema());
                take(before, chunk, &mut all);
                pending = 0;
            }
            Polled::Pending => {
                pending += 1;
                assert!(pending < 1000, "the source's input is all there, yet it stays pending");
            }
            Polled::End => break,
        }
    }
    let end = source.offset();
    for _ in 0..3 {
        assert!(matches!(source.poll(rows_max), Ok(Polled::End)), "the end is final");
        assert_eq!(source.offset(), end);
    }
    all
}

/// Merges good and bad rows by offset, which must leave no gap.
fn take(from: u64, chunk: Chunk, all: &mut Vec<Taken>) {
    assert_eq!(chunk.offsets.len(), chunk.batch.len(), "every row has an offset");
    let mut good = chunk.offsets.iter().zip(chunk.batch.rows()).peekable();
    let mut bad = chunk.bad.into_iter().peekable();
    for offset in from..chunk.next_offset {
        if let Some((_, row)) = good.next_if(|(o, _)| **o == offset) {
            all.push(Taken::Good(row));
        } else {
            let row = bad.next_if(|b| b.offset == offset);
            let row = row.unwrap_or_else(|| panic!("offset {offset} is missing"));
            assert!(!row.reason.is_empty(), "a bad row has a reason");
            assert!(row.raw.len() <= BadRow::RAW_BYTES_MAX, "a bad row's text is bounded");
            all.push(Taken::Bad(row));
        }
    }
    assert!(good.next().is_none() && bad.next().is_none(), "offsets ascend, each once");
}
