//! A file of a feed.

use std::ops::Range;

use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use tidemill_connect::{BadRow, Chunk, Place, Polled, Source};
use tidemill_core::{Batch, Error, Result, Row, Value};

use super::marks::FileMark;

/// One of the files of a feed, or a followed folder.
pub(super) struct File {
    pub name: String,
    source: Box<dyn Source>,
    /// The column of its times, if it has event time.
    time: Option<usize>,
    /// The rows that have been read, and the numbers of good and bad ones that have been given out.
    chunk: Option<Chunk>,
    good: usize,
    bad: usize,
    /// The position before these rows.
    place: Place,
    /// The time of the next row, if it has been looked up.
    next_us: Option<i64>,
    pub has_ended: bool,
    /// The rows that are left out, in order: they were executed before the feed began, while earlier
    /// ones waited.
    left_out: Vec<Range<u64>>,
}

impl File {
    pub fn new(
        name: String,
        source: Box<dyn Source>,
        time: Option<usize>,
        left_out: Vec<Range<u64>>,
    ) -> File {
        File {
            name,
            source,
            time,
            chunk: None,
            good: 0,
            bad: 0,
            place: Place::start(),
            next_us: None,
            has_ended: false,
            left_out,
        }
    }

    /// The rows that are left out after a position.
    pub fn left_out_after(&self, at: &Place) -> Vec<Range<u64>> {
        self.left_out.iter().filter(|rows| rows.end > at.offset).cloned().collect()
    }

    /// Whether there is a next row. Reads it, with at most `rows` rows in all.
    pub fn look(&mut self, rows: usize) -> Result<bool> {
        while !self.has_ended {
            if self.chunk.as_ref().is_some_and(|chunk| self.good + self.bad < chunk.rows()) {
                return Ok(true);
            }
            self.stands();
            match self.source.poll(rows)? {
                Polled::Rows(chunk) => self.chunk = Some(without(chunk, &self.left_out)),
                Polled::Pending => break,
                Polled::End => self.has_ended = true,
            }
        }
        Ok(false)
    }

    /// Sets the position to the source's.
    fn stands(&mut self) {
        self.place = self.source.place();
        (self.chunk, self.good, self.bad, self.next_us) = (None, 0, 0, None);
    }

    /// Whether the next row is the first one of those that were read together.
    pub fn is_at_chunk(&self) -> bool {
        self.good + self.bad == 0
    }

    /// Whether the next row is one that could not be read.
    fn is_bad(&self, chunk: &Chunk) -> bool {
        let good = chunk.offsets.get(self.good);
        chunk.bad.get(self.bad).is_some_and(|bad| good.is_none_or(|good| bad.offset < *good))
    }

    /// The number of the next row in its file.
    pub fn offset(&self) -> u64 {
        let Some(chunk) = &self.chunk else { return self.place.offset };
        match self.is_bad(chunk) {
            true => chunk.bad[self.bad].offset,
            false => chunk.offsets[self.good],
        }
    }

    /// The time of the next row. A row that could not be read has none, and comes first.
    pub fn time(&mut self) -> i64 {
        if let Some(next_us) = self.next_us {
            return next_us;
        }
        let chunk = self.chunk.as_ref().expect("there is a row");
        let next_us = match self.time {
            Some(column) if !self.is_bad(chunk) => match chunk.batch.value(column, self.good) {
                Value::Timestamp(time) | Value::Int(time) | Value::Decimal(time, _) => time,
                _ => i64::MIN,
            },
            _ => i64::MIN,
        };
        self.next_us = Some(next_us);
        next_us
    }

    /// Takes the next row, which must exist.
    pub fn give(&mut self) -> std::result::Result<Row, BadRow> {
        let chunk = self.chunk.as_ref().expect("there is a row");
        self.next_us = None;
        if self.is_bad(chunk) {
            self.bad += 1;
            return Err(chunk.bad[self.bad - 1].clone());
        }
        self.good += 1;
        Ok(chunk.batch.row(self.good - 1))
    }

    /// The number of rows from the next one on that have been read and can be given out together.
    pub fn run(&self) -> usize {
        let Some(chunk) = &self.chunk else { return 0 };
        let rest = &chunk.offsets[self.good..];
        let bad = chunk.bad.get(self.bad).map_or(u64::MAX, |bad| bad.offset);
        let first = rest.first().copied().unwrap_or(0);
        let after = self.left_out.partition_point(|rows| rows.start <= first);
        let gap = self.left_out.get(after).map_or(u64::MAX, |rows| rows.start);
        // The numbers of the rows are consecutive, except for those of bad rows, and of rows that are
        // left out.
        rest.partition_point(|offset| *offset < bad.min(gap))
    }

    /// Whether the next row could not be read.
    pub fn is_next_bad(&self) -> bool {
        self.chunk.as_ref().is_some_and(|chunk| self.is_bad(chunk))
    }

    /// Returns the next `rows` rows, which are of one [`File::run`], without taking them.
    pub fn next_rows(&self, rows: usize) -> Batch {
        self.chunk.as_ref().expect("there is a row").batch.slice(self.good, rows)
    }

    /// Takes these rows. Returns the newest of their times, if they have times.
    pub fn take_rows(&mut self, batch: &Batch) -> Option<i64> {
        self.next_us = None;
        self.good += batch.len();
        let times = batch.columns()[self.time?].as_primitive_opt::<Int64Type>()?;
        times.iter().flatten().max()
    }

    /// Returns its present position.
    pub fn mark(&self) -> FileMark {
        let (name, given) = (self.name.clone(), self.good + self.bad);
        let read = if given > 0 { self.source.place() } else { self.place.clone() };
        // When all read rows were given out, the position is after them, in the file that they are
        // from.
        let is_all = self.chunk.as_ref().is_some_and(|chunk| chunk.rows() == given);
        match is_all {
            true => FileMark { name, place: read.clone(), given: 0, read },
            false => FileMark { name, place: self.place.clone(), given: given as u64, read },
        }
    }

    /// Returns its present position as one between two rows, from which any reader continues. If rows
    /// after it are left out, the position is after these. The rows before them come with it.
    ///
    /// # Errors
    /// When the input has changed.
    pub fn exact_place(&mut self) -> Result<(Place, Vec<Chunk>)> {
        let FileMark { mut place, given, .. } = self.mark();
        if given > 0 {
            let next = self.offset();
            self.source.resume(&place)?;
            place = place_of(&mut *self.source, &self.name, next, |_| {})?;
        }
        let after = self.left_out.last().map_or(0, |rows| rows.end);
        let mut ahead = Vec::new();
        if place.offset < after {
            self.source.resume(&place)?;
            let take = |chunk| ahead.push(without(chunk, &self.left_out));
            place = place_of(&mut *self.source, &self.name, after, take)?;
        }
        Ok((place, ahead))
    }

    /// Moves to an earlier position. Returns whether there are as many rows as had been given out.
    ///
    /// # Errors
    /// When the input before the position has changed.
    pub fn go_to(&mut self, mark: &FileMark) -> Result<bool> {
        // A file that is not needed yet stays closed.
        if mark.place != Place::start() || self.source.place() != Place::start() {
            self.source.resume(&mark.place)?;
        }
        self.has_ended = false;
        self.stands();
        for _ in 0..mark.given {
            if !self.look(mark.given as usize)? {
                return Ok(false);
            }
            // The caller has these records already.
            let _ = self.give();
        }
        Ok(true)
    }

    /// Returns a position after its first rows, if nothing was given out and there are some.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn begins_with(&mut self, rows: usize) -> Result<Place> {
        let begins = self.place.offset == 0 && self.is_at_chunk();
        match begins && self.look(rows)? {
            true => Ok(self.source.place()),
            false => Ok(Place::start()),
        }
    }

    /// Checks that the input begins like one with this position after its first rows.
    ///
    /// # Errors
    /// When it does not.
    pub fn compare(&mut self, read: &Place) -> Result<()> {
        if read.offset > 0 {
            self.source.resume(read)?;
            self.source.resume(&Place::start())?;
        }
        Ok(())
    }

    /// Checks that the input that was read has not changed.
    ///
    /// # Errors
    /// When it has changed.
    pub fn verify(&mut self, mark: &FileMark) -> Result<()> {
        self.source.resume(&mark.read)
    }
}

/// Reads a source on to a row, and returns the position before it. `take` gets the rows before it.
///
/// # Errors
/// When the input has changed.
pub(in crate::cluster) fn place_of(
    source: &mut dyn Source,
    name: &str,
    row: u64,
    mut take: impl FnMut(Chunk),
) -> Result<Place> {
    while source.place().offset < row {
        let Polled::Rows(chunk) = source.poll((row - source.place().offset) as usize)? else {
            let what = format!("{name} has fewer rows than before");
            return Err(Error::input(what).help("restore it as it was"));
        };
        take(chunk);
    }
    Ok(source.place())
}

/// Returns the rows of a chunk that are not left out.
fn without(mut chunk: Chunk, left_out: &[Range<u64>]) -> Chunk {
    let first = chunk.next_offset - chunk.rows() as u64;
    if left_out.last().is_none_or(|last| last.end <= first) {
        return chunk;
    }
    let stays = |offset: u64| {
        let after = left_out.partition_point(|rows| rows.start <= offset);
        after == 0 || left_out[after - 1].end <= offset
    };
    let rows = (0..).zip(&chunk.offsets).filter(|(_, offset)| stays(**offset));
    let rows: Vec<u32> = rows.map(|(row, _)| row).collect();
    chunk.batch = chunk.batch.take(&rows);
    chunk.offsets.retain(|offset| stays(*offset));
    chunk.bad.retain(|bad| stays(bad.offset));
    chunk
}
