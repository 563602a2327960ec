//! Where each column of a row lives.

use tidemill_core::{DataType, TableSpec};

/// Words of a slot before its columns: key, stamp, link.
pub const HEADER_WORDS: usize = 3;

/// Where a slot has its key, when that is one word.
pub const KEY_WORD: usize = 0;

/// Where a column of a row lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the slot's key word: the one key column of a table with word keys.
    Key,
    /// In this word of the slot's columns; when nullable, with this bit among its null bits.
    Word {
        /// Index among the slot's column words.
        word: usize,
        /// Index among its null bits.
        null_bit: Option<usize>,
    },
    /// In this value beside the slot.
    Value(usize),
}

/// How rows of a table are laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Where each column lives.
    pub places: Vec<Place>,
    /// Words for null bits, before the column words.
    pub null_words: usize,
    /// Column words.
    pub words: usize,
    /// Values beside the slot.
    pub values: usize,
    /// Whether the key is one column of one word, kept in the slot itself.
    pub word_key: bool,
    /// Whether that, and all columns are integers that are never null.
    pub ints: bool,
}

impl Layout {
    /// The layout of a table.
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

    /// Words of a version: null bits and columns.
    #[inline]
    pub fn body_words(&self) -> usize {
        self.null_words + self.words
    }

    /// Where a version has a column, besides the key, of one word that is never null.
    #[inline]
    pub(crate) fn plain_word(&self, column: usize) -> Option<usize> {
        match self.places[column] {
            Place::Word { word, null_bit: None } => Some(self.null_words + word),
            _ => None,
        }
    }

    /// Words of a slot.
    #[inline]
    pub fn slot_words(&self) -> usize {
        HEADER_WORDS + self.body_words()
    }
}
