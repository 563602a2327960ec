//! Loading rows of a snapshot.
//!
//! With ten million rows of an int and a decimal, it takes 100 ns a row, a fifth of it for making
//! room. If keys are not words, it takes 350 ns a row, and twice that with texts.

use tidemill_core::{encode, Column, Error, Key, Kind, Result, Value};

use super::{Table, HEADER_WORDS, KEY, LINK, LOAD_MAX, SNAPPED, STAMP, TAKEN};
use crate::cells::prefetch;
use crate::layout::Place;
use crate::version::{stamp_word, NO_LINK};

/// The number of rows that are decoded before the first of them goes to its slot, which was
/// prefetched when the row was decoded.
const RING: usize = 16;

/// A table that is being loaded. The given rows are in the table once it is
/// [finished](Loading::finish).
#[derive(Debug)]
pub struct Loading<'t> {
    table: &'t mut Table,
    /// The rows with word keys on their way to their slots, and the values beside. A row has
    /// `width` words: the key, null bits and columns. There are `RING` rows once `given` is that
    /// large.
    words: Vec<u64>,
    width: usize,
    values: Vec<Value>,
    given: usize,
    placed: usize,
    key: Vec<u8>,
}

mod versions;

/// The reason why a row can't be loaded.
enum Fault {
    /// The key is not an encoding of the key columns.
    Key,
    /// The bytes of this column are not an encoding of its type.
    Column(usize),
    /// The column has a null and may not have one.
    Null(usize),
    /// There are bytes after the last column.
    TooLong,
    /// The row has another key.
    OtherKey,
    /// The table has a row with this key already.
    Twice,
    /// The bytes are too short for a version.
    Version,
    /// The table retains no versions.
    NoHistory,
    /// A version is missing before the one with this number.
    Gap(u64),
    /// The newest version differs from the row.
    NotTheRow,
}

impl Table {
    /// Begins to load rows of a snapshot into an empty table. About `rows` rows are expected.
    ///
    /// The rows are those of [`Changed::for_each`](super::Changed::for_each). They exist as of
    /// sequence number 0, and no later snapshot has to take them. Afterwards, call
    /// [`Table::commit`] with the number of the recovered state.
    pub fn loading(&mut self, rows: usize) -> Loading<'_> {
        self.reserve(rows);
        let width = 1 + self.layout.body_words();
        Loading {
            words: vec![0; RING * width],
            width,
            values: vec![Value::Null; RING * self.layout.values],
            given: 0,
            placed: 0,
            key: Vec::new(),
            table: self,
        }
    }
}

impl Loading<'_> {
    /// Loads a row from its key and all its columns, in the canonical encoding.
    ///
    /// # Errors
    /// `Io` if the bytes are damaged or belong to another table, or if the table has the key
    /// already. The contents of the table are then unspecified. A duplicate key may show only with
    /// a later row, or at the end.
    pub fn row(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        if self.given - self.placed == RING {
            self.place()?;
        }
        if let Err(fault) = self.decode(key, row) {
            return Err(self.error(&fault, key));
        }
        self.given += 1;
        if self.table.keys.is_some() {
            // Slots of keys that are not words are taken one after the other.
            return self.place_keyed(key);
        }
        Ok(())
    }

    /// Moves the last rows to their slots.
    ///
    /// # Errors
    /// The same as [`Loading::row`].
    pub fn finish(mut self) -> Result<()> {
        while self.placed < self.given {
            self.place()?;
        }
        self.table.order_all();
        self.finish_versions()
    }

    /// Decodes a row into the ring.
    #[inline(always)]
    fn decode(&mut self, key: &[u8], mut row: &[u8]) -> Result<(), Fault> {
        let (spec, layout) = (&*self.table.spec, &self.table.layout);
        let at = self.given % RING;
        let (key_word, body) =
            self.words[at * self.width..][..self.width].split_first_mut().expect("it has a key");
        let values = &mut self.values[at * layout.values..][..layout.values];
        if layout.word_key {
            let mut rest = key;
            let column = &spec.schema.columns[spec.key[0]];
            let word = encode::decode_word(&column.ty, &mut rest).flatten().ok_or(Fault::Key)?;
            if !rest.is_empty() {
                return Err(Fault::Key);
            }
            *key_word = word;
        }
        body[..layout.null_words].fill(0);
        for (index, place) in layout.places.iter().enumerate() {
            let column = &spec.schema.columns[index];
            match place {
                Place::Key => {
                    let word = encode::decode_word(&column.ty, &mut row);
                    let word = word.ok_or(Fault::Column(index))?;
                    // A float's -0.0 is not a key.
                    let is_key = word.is_some_and(|word| {
                        word == *key_word
                            && super::key_word(&Value::of_word(&column.ty, word)) == Some(word)
                    });
                    if !is_key {
                        return Err(Fault::OtherKey);
                    }
                }
                Place::Word { word, null_bit } => {
                    let bits = encode::decode_word(&column.ty, &mut row);
                    let bits = bits.ok_or(Fault::Column(index))?;
                    if bits.is_none() {
                        let bit = null_bit.ok_or(Fault::Null(index))?;
                        body[bit / 64] |= 1 << (bit % 64);
                    }
                    body[layout.null_words + word] = bits.unwrap_or(0);
                }
                Place::Value(at) => {
                    let value = encode::decode(&column.ty, &mut row);
                    let value = value.ok_or(Fault::Column(index))?;
                    if value.is_null() && !column.nullable {
                        return Err(Fault::Null(index));
                    }
                    values[*at] = value;
                }
            }
        }
        if !row.is_empty() {
            return Err(Fault::TooLong);
        }
        if !layout.word_key {
            self.key.clear();
            for index in &spec.key {
                let column: &Column = &spec.schema.columns[*index];
                match &layout.places[*index] {
                    Place::Value(at) => encode::key(&values[*at], &mut self.key),
                    Place::Word { word, .. } => {
                        let value = Value::of_word(&column.ty, body[layout.null_words + word]);
                        encode::key(&value, &mut self.key);
                    }
                    Place::Key => unreachable!("keys of several columns are not in the key word"),
                }
            }
            if self.key != key {
                return Err(Fault::OtherKey);
            }
        } else {
            let table = &*self.table;
            prefetch(table.slots.words(), table.home(table.hash(*key_word)) * table.stride);
        }
        Ok(())
    }

    /// Moves the first row of the ring to its slot.
    #[inline(always)]
    fn place(&mut self) -> Result<()> {
        let at = self.placed % RING;
        let key = self.words[at * self.width];
        let table = &mut *self.table;
        if (table.taken + 1) * LOAD_MAX.1 > table.capacity * LOAD_MAX.0 {
            table.grow();
        }
        let (stride, mask) = (table.stride, table.capacity - 1);
        let mut slot = table.home(table.hash(key));
        let words = table.slots.words_mut();
        while words[slot * stride + LINK] & TAKEN != 0 {
            if words[slot * stride + KEY] == key {
                let column = &table.spec.schema.columns[table.spec.key[0]];
                let mut bytes = Vec::new();
                encode::word(&column.ty, key, &mut bytes);
                return Err(self.error(&Fault::Twice, &bytes));
            }
            slot = (slot + 1) & mask;
        }
        self.put(slot, key);
        Ok(())
    }

    /// Moves the first row of the ring to the next slot, under a key that is not a word.
    fn place_keyed(&mut self, key: &[u8]) -> Result<()> {
        if self.table.taken == self.table.capacity {
            self.table.grow();
        }
        let keys = self.table.keys.as_mut().expect("keys are not words");
        match keys.try_insert(Key(key.into())) {
            Some(slot) => {
                self.put(slot as usize, u64::from(slot));
                Ok(())
            }
            None => Err(self.error(&Fault::Twice, key)),
        }
    }

    /// Moves the first row of the ring to this slot, which is free.
    #[inline(always)]
    fn put(&mut self, slot: usize, key: u64) {
        let at = self.placed % RING;
        let table = &mut *self.table;
        let (stride, beside) = (table.stride, table.layout.values);
        let words = &mut table.slots.words_mut()[slot * stride..][..stride];
        words[KEY] = key;
        words[STAMP] = stamp_word(0, true);
        words[LINK] = u64::from(NO_LINK) << 32 | TAKEN | SNAPPED;
        let body = &self.words[at * self.width..][1..self.width];
        words[HEADER_WORDS..].copy_from_slice(body);
        for (held, value) in
            table.values[slot * beside..][..beside].iter_mut().zip(&mut self.values[at * beside..])
        {
            table.values_bytes += value.heap_bytes();
            *held = std::mem::replace(value, Value::Null);
        }
        table.taken += 1;
        table.present += 1;
        self.placed += 1;
    }

    #[cold]
    fn error(&self, fault: &Fault, key: &[u8]) -> Error {
        let spec = &self.table.spec;
        let column = |index: &usize| {
            let column = &spec.schema.columns[*index];
            format!("column '{}' ({})", column.name, column.ty)
        };
        let why = match fault {
            Fault::Key => "its key does not fit the table".into(),
            Fault::Column(index) => format!("its {} is damaged or of another type", column(index)),
            Fault::Null(index) => format!("its {} is null and may not be", column(index)),
            Fault::TooLong => "there are bytes after its last column".into(),
            Fault::OtherKey => "its columns have another key".into(),
            Fault::Twice => "there is another row with this key".into(),
            Fault::Version => "one of its versions is truncated".into(),
            Fault::NoHistory => "it has versions, but the table retains none".into(),
            Fault::Gap(number) => format!("there is no version before number {number}"),
            Fault::NotTheRow => "its newest version differs from the row".into(),
        };
        let key = Value::Bytes(key[..key.len().min(64)].into());
        Error::new(Kind::Io, format!("table {}: stored row {key}: {why}", spec.name))
            .help("the snapshot is damaged, or belongs to another program: restore a backup")
    }
}
