//! What the closure of a native handler works on.

use tidemill_core::DataType;
use tidemill_table::{Layout, Place, RowAt, Seq, HEADER_WORDS, KEY_WORD};

use super::output::{Origin, OutputBuilder};
use crate::program::{Native, Program, RowRef};

/// What setting a column needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Plain,
    /// It is a float, which is stored with one NaN.
    Float,
    /// It is part of the key, or no column at all: setting it does nothing.
    Nothing,
}

/// Where a column is among a row's words.
#[derive(Clone, Copy, Debug)]
struct Position {
    word: u16,
    setting: Setting,
}

/// What is no column of a row is its first word.
const NO_COLUMN: Position = Position { word: 0, setting: Setting::Nothing };

/// Where the columns of a handler's rows are among each row's words.
#[derive(Debug)]
pub(crate) struct Places {
    /// Of the first rows and columns. A closure knows its numbers when it is compiled, and then
    /// looking here needs no check at all.
    near: [[Position; NEAR]; NEAR],
    /// `width` for each row.
    all: Vec<Position>,
    rows: usize,
    width: usize,
}

const NEAR: usize = 8;

impl Places {
    /// Of rows in slots, or why that can't be.
    pub(crate) fn in_slots(
        program: &Program,
        layouts: &[Layout],
        native: &Native,
    ) -> Result<Places, String> {
        Places::of(program, native, |table, column| match layouts[table].places[column] {
            Place::Key => Ok(KEY_WORD),
            Place::Word { word, null_bit: None } => {
                Ok(HEADER_WORDS + layouts[table].null_words + word)
            }
            _ => Err("a column is not a plain word".into()),
        })
    }

    /// Of rows whose columns stand one behind the other.
    fn in_frames(program: &Program, native: &Native) -> Places {
        let found = Places::of(program, native, |_, column| Ok(column));
        found.expect("every column has its place")
    }

    fn of(
        program: &Program,
        native: &Native,
        word: impl Fn(usize, usize) -> Result<usize, String>,
    ) -> Result<Places, String> {
        let spec = |row: usize| &program.tables[native.rows[row].table.index()];
        let rows = native.rows.len();
        let width = (0..rows).map(|row| spec(row).schema.len()).max().unwrap_or(0);
        let mut near = [[NO_COLUMN; NEAR]; NEAR];
        let mut all = vec![NO_COLUMN; rows * width];
        for row in 0..rows {
            let (table, spec) = (native.rows[row].table.index(), spec(row));
            for (column, definition) in spec.schema.columns.iter().enumerate() {
                let word = u16::try_from(word(table, column)?)
                    .map_err(|_| format!("table {} has too many columns", spec.name))?;
                let setting = match &definition.ty {
                    _ if spec.is_key(column) => Setting::Nothing,
                    DataType::Float => Setting::Float,
                    _ => Setting::Plain,
                };
                let position = Position { word, setting };
                all[row * width + column] = position;
                if row < NEAR && column < NEAR {
                    near[row][column] = position;
                }
            }
        }
        Ok(Places { near, all, rows, width })
    }

    #[inline(always)]
    fn at(&self, row: usize, column: usize) -> Position {
        if row < NEAR && column < NEAR {
            return self.near[row][column];
        }
        assert!(row < self.rows && column < self.width, "no such column");
        self.all[row * self.width + column]
    }
}

/// Where emitted events go.
#[derive(Debug)]
pub(crate) enum Emit<'a> {
    /// Kept for whoever called: per event the stream's number, then its words.
    Kept(&'a mut Vec<u64>),
    /// To the outputs, by the closure's number of the stream.
    Out {
        builders: &'a mut [OutputBuilder],
        streams: &'a [usize],
        /// See [`Origin::pack`].
        from: u64,
        emitted: u32,
    },
}

/// What a native closure works on: the event's words and its rows' words.
#[derive(Debug)]
pub struct NativeTx<'a> {
    /// The columns of a batch of events.
    columns: &'a [&'a [u64]],
    /// The event's row there.
    event: usize,
    /// Where the rows are; those with equal keys at one place.
    rows: &'a [RowAt],
    places: &'a Places,
    /// Number of the version that setting a column begins; none when the rows are frames.
    seq: Option<Seq>,
    /// Per row: whether a column was set.
    dirty: u64,
    /// Per row: whether it was there.
    present: u64,
    emit: Emit<'a>,
}

impl<'a> NativeTx<'a> {
    /// A transaction on rows in their slots, which are there.
    ///
    /// # Safety
    /// The rows may be used (see [`RowAt::find`]) as long as the transaction, are of the tables
    /// that `places` was made of, in its order, and `seq` is more than 0.
    #[inline(always)]
    pub(crate) unsafe fn in_slots(
        columns: &'a [&'a [u64]],
        event: usize,
        rows: &'a [RowAt],
        places: &'a Places,
        seq: Seq,
        emit: Emit<'a>,
    ) -> NativeTx<'a> {
        let (seq, present) = (Some(seq), u64::MAX);
        NativeTx { columns, event, rows, places, seq, dirty: 0, present, emit }
    }

    /// Takes back what was set and what was emitted to the outputs.
    #[cold]
    pub(crate) fn undo(self) {
        let Some(seq) = self.seq else { return };
        let set = |row: &usize| self.dirty >> row & 1 == 1;
        // SAFETY: `in_slots` asks that the rows may be used; theirs are the last versions.
        let undone: Vec<usize> = (0..self.rows.len())
            .filter(set)
            .filter(|row| unsafe { self.rows[*row].undo(seq) })
            .collect();
        // SAFETY: as above; all of the transaction's versions have been undone.
        undone.iter().for_each(|row| unsafe { self.rows[*row].forget() });
        if let Emit::Out { builders, streams, from, .. } = self.emit {
            let origin = Origin::unpack(from, 0);
            streams.iter().for_each(|stream| builders[*stream].take_back(origin));
        }
    }
}

impl NativeTx<'_> {
    /// A column of the event: an int, timestamp, decimal's units, bool or a float's bits.
    #[inline(always)]
    pub fn event(&self, column: usize) -> i64 {
        self.columns[column][self.event] as i64
    }

    /// A column of a row.
    #[inline(always)]
    pub fn get(&self, row: usize, column: usize) -> i64 {
        let (at, place) = (self.rows[row], self.places.at(row, column));
        // SAFETY: the row is as `in_slots` or `on_frames` has it, and the place is one of its words.
        unsafe { at.word(usize::from(place.word)) as i64 }
    }

    /// Sets a column of a row; a missing row is made with its defaults. Columns of the key stay
    /// what they are.
    #[inline(always)]
    pub fn set(&mut self, row: usize, column: usize, value: i64) {
        let (at, place) = (self.rows[row], self.places.at(row, column));
        if self.dirty >> row & 1 == 0 {
            self.begin(row, at);
        }
        let word = match place.setting {
            Setting::Plain => value as u64,
            Setting::Float => canonical(value as u64),
            Setting::Nothing => return,
        };
        // SAFETY: as in `get`; the version has begun.
        unsafe { at.set(usize::from(place.word), word) };
    }

    #[inline(always)]
    fn begin(&mut self, row: usize, at: RowAt) {
        self.dirty |= 1 << row;
        if let Some(seq) = self.seq {
            // SAFETY: as `in_slots` asks.
            unsafe { at.begin(seq) };
        }
    }

    /// Whether the row was there when the transaction began.
    #[inline(always)]
    pub fn exists(&self, row: usize) -> bool {
        self.present >> row & 1 == 1
    }

    /// Emits an event to the handler's stream number `stream`.
    #[inline(always)]
    pub fn emit(&mut self, stream: usize, words: &[i64]) {
        match &mut self.emit {
            Emit::Out { builders, streams, from, emitted } => {
                let builder = &mut builders[streams[stream]];
                let origin = Origin::unpack(*from, *emitted);
                builder.push_words(origin, words.len(), |c| words[c] as u64);
                *emitted += 1;
            }
            Emit::Kept(kept) => {
                kept.push(stream as u64);
                kept.extend(words.iter().map(|w| *w as u64));
            }
        }
    }
}

/// A float's bits, with one NaN.
#[cold]
fn canonical(word: u64) -> u64 {
    tidemill_core::value::canonical_f64(f64::from_bits(word)).to_bits()
}

/// What a closure did to copies of its rows.
#[derive(Debug)]
pub(crate) struct OnFrames {
    /// Per row: whether a column was set.
    pub(crate) dirty: u64,
    /// Per event the stream's number, then its words.
    pub(crate) emitted: Vec<u64>,
}

/// Calls a closure on copies of its rows: `words` has the columns of one row after another, and
/// `bases` says where each row's begin, those of rows with equal keys at one place. `present` has
/// a bit for each row that is there. The error is the abort's reason.
pub(crate) fn on_frames(
    program: &Program,
    native: &Native,
    event: &[u64],
    words: &mut [u64],
    bases: &[u32],
    present: u64,
) -> Result<OnFrames, &'static str> {
    let places = Places::in_frames(program, native);
    let columns: Vec<&[u64]> = event.iter().map(std::slice::from_ref).collect();
    let (first, room) = (words.as_mut_ptr(), words.len());
    let row = |(row, base): (&RowRef, &u32)| {
        let (base, len) = (*base as usize, program.tables[row.table.index()].schema.len());
        assert!(base + len <= room, "a row lies within the words");
        // `wrapping_add`, because the check above is all there is to say.
        RowAt::frame(first.wrapping_add(base))
    };
    let rows: Vec<RowAt> = native.rows.iter().zip(bases).map(row).collect();
    let mut emitted = Vec::new();
    let mut tx = NativeTx {
        columns: &columns,
        event: 0,
        rows: &rows,
        places: &places,
        seq: None,
        dirty: 0,
        present,
        emit: Emit::Kept(&mut emitted),
    };
    native.body.call(&mut tx)?;
    let dirty = tx.dirty;
    Ok(OnFrames { dirty, emitted })
}
