//! The layout of a row: the place of each column.

use tidemill_core::{DataType, TableSpec};

/// The number of words of a slot before its columns: key, stamp, link.
pub const HEADER_WORDS: usize = 3;

/// The word of a slot that has the key, if the key is one word.
pub const KEY_WORD: usize = 0;

/// The place of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The slot's key word: the one key column of a table with word keys.
    Key,
    /// A word among the slot's columns. If the column is nullable, it also has a null bit.
    Word {
        /// The index among the slot's column words.
        word: usize,
        /// The index among the null bits.
        null_bit: Option<usize>,
    },
    /// A value beside the slot, by its index.
    Value(usize),
}

/// The layout of a table's rows.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The place of each column.
    pub places: Vec<Place>,
    /// The number of words for null bits, before the column words.
    pub null_words: usize,
    /// The number of column words.
    pub words: usize,
    /// The number of values beside the slot.
    pub values: usize,
    /// Whether the key is one column of one word, stored in the slot itself.
    pub word_key: bool,
    /// Whether `word_key` holds, and all columns are integers that are never null.
    pub ints: bool,
}

impl Layout {
    /// Returns the layout of a table.
    pub fn of(spec: &TableSpec) -> Layout {
        let columns = &spec.schema.columns;
        let word_key = spec.key.len() == 1 && columns[spec.key[0]].ty.is_word();
        let (mut words, mut null_bits, mut values) = (0, 0, 0);
        let places = columns
            .iter()
            .enumerate()
            .map(|(index, column)| {
                if word_key && spec.is_key(index) {
                    Place::Key
                } else if column.ty.is_word() {
                    let null_bit = column.nullable.then_some(null_bits);
                    null_bits += usize::from(column.nullable);
                    words += 1;
                    Place::Word { word: words - 1, null_bit }
                } else {
                    values += 1;
                    Place::Value(values - 1)
                }
            })
            .collect();
        let ints = word_key && columns.iter().all(|c| c.ty == DataType::Int && !c.nullable);
        Layout { places, null_words: null_bits.div_ceil(64), words, values, word_key, ints }
    }

    /// Returns the number of words of a version: null bits and columns.
    #[inline]
    pub fn body_words(&self) -> usize {
        self.null_words + self.words
    }

    /// Returns the place of a column in a version's words, if it is one word, never null and not
    /// the key.
    #[inline]
    pub(crate) fn plain_word(&self, column: usize) -> Option<usize> {
        match self.places[column] {
            Place::Word { word, null_bit: None } => Some(self.null_words + word),
            _ => None,
        }
    }

    /// Returns the number of words of a slot.
    #[inline]
    pub fn slot_words(&self) -> usize {
        HEADER_WORDS + self.body_words()
    }
}
