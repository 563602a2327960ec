//! Lanes: the events of one run for one handler, walked from front to back. Ahead of the walk keys
//! are hashed and their slots asked for, by the block; at a block's beginning its slots are found.

use tidemill_core::Batch;
use tidemill_table::Table;

use super::words::KeyFrom;

/// Rows of a lane that are staged together.
const BLOCK: usize = 16;
/// How many rows ahead of a block's first one slots are asked for.
const AHEAD: usize = 2 * BLOCK;
/// How many rows ahead of a block's first one events are asked for. The processor sees by itself
/// that columns are read in order, but too late when there are a dozen of them.
const EVENTS_AHEAD: usize = 12 * BLOCK;
/// Staged rows that a lane keeps: at least the block being executed and those ahead.
const RING: usize = 4 * BLOCK;

/// A slot that is not there: its row is missing.
pub(crate) const MISSING: usize = usize::MAX;

/// The columns of a batch as words; booleans are unpacked.
#[derive(Debug)]
pub(crate) struct WordColumns<'a> {
    batch: &'a Batch,
    unpacked: Vec<(usize, Vec<u64>)>,
}

impl<'a> WordColumns<'a> {
    /// The columns of a batch, as far as its handler wants words at all.
    pub(crate) fn new(batch: &'a Batch, wanted: bool) -> WordColumns<'a> {
        let bools = (0..batch.columns().len()).filter_map(|c| Some((c, batch.bools(c)?)));
        let unpack = |(column, bools): (usize, &arrow_array::BooleanArray)| {
            (column, (0..batch.len()).map(|row| u64::from(bools.value(row))).collect())
        };
        let unpacked = if wanted { bools.map(unpack).collect() } else { Vec::new() };
        WordColumns { batch, unpacked }
    }

    /// A column, when it is one of words that are never null.
    pub(crate) fn get(&self, column: usize) -> Option<&[u64]> {
        if let Some(ints) = self.batch.ints(column) {
            // SAFETY: both are 64-bit integers; every bit pattern is a value of either.
            return Some(unsafe { std::slice::from_raw_parts(ints.as_ptr().cast(), ints.len()) });
        }
        if let Some(floats) = self.batch.floats(column) {
            // SAFETY: as above, with the bits of 64-bit floats.
            let words = unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) };
            return Some(words);
        }
        self.unpacked.iter().find(|(c, _)| *c == column).map(|(_, words)| &words[..])
    }
}

#[derive(Clone, Copy, Debug)]
enum KeySource<'a> {
    Column(&'a [u64]),
    Const(u64),
}

/// What a handler's code wants of its events.
#[derive(Debug)]
pub(crate) struct Wants {
    /// Event columns.
    pub(crate) columns: Vec<usize>,
    /// Per row: its table and where its key comes from.
    pub(crate) keys: Vec<(usize, KeyFrom)>,
    /// Pairs of rows of one table, whose keys may turn out equal.
    pub(crate) pairs: Vec<(u8, u8)>,
}

/// A lane being walked.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) handler: usize,
    /// Whether the fast path can take its events.
    pub(crate) fast: bool,
    /// The event columns that the code wants, in its order.
    pub(crate) columns: Vec<&'a [u64]>,
    sources: Vec<(usize, KeySource<'a>)>,
    /// Event columns to be asked for ahead of time.
    ahead: Vec<&'a [u64]>,
    pairs: Vec<(u8, u8)>,
    /// Per row of the transaction, for the staged rows of the lane in a ring: its key, the key's
    /// hash, and where its slot begins.
    keys: Vec<u64>,
    hashes: Vec<u64>,
    bases: Vec<usize>,
    staged_to: usize,
    /// Rows up to here are located, as of [`Lane::moves`].
    located_to: usize,
    /// Of the block being executed: which rows have two equal keys in one table.
    equal: u32,
    /// How often slots of any table had moved when the block was located.
    moves: u64,
}

impl<'a> Lane<'a> {
    /// A lane; without wants, one that the general path takes.
    pub(crate) fn new(
        batch: &'a Batch,
        handler: usize,
        columns: &'a WordColumns<'a>,
        wants: Option<&Wants>,
    ) -> Lane<'a> {
        let mut lane = Lane {
            batch,
            handler,
            fast: false,
            columns: Vec::new(),
            sources: Vec::new(),
            ahead: Vec::new(),
            pairs: Vec::new(),
            keys: Vec::new(),
            hashes: Vec::new(),
            bases: Vec::new(),
            staged_to: 0,
            located_to: 0,
            equal: 0,
            moves: 0,
        };
        let Some(wants) = wants else { return lane };
        for column in &wants.columns {
            let Some(words) = columns.get(*column) else { return lane };
            lane.columns.push(words);
        }
        for (table, key) in &wants.keys {
            let source = match key {
                KeyFrom::Const(word) => KeySource::Const(*word),
                KeyFrom::Column(column) => match columns.get(usize::from(*column)) {
                    Some(words) => KeySource::Column(words),
                    None => return lane,
                },
            };
            lane.sources.push((*table, source));
        }
        let keys = lane.sources.iter().filter_map(|(_, source)| match source {
            KeySource::Column(words) => Some(*words),
            KeySource::Const(_) => None,
        });
        lane.ahead = lane.columns.iter().copied().chain(keys).collect();
        lane.ahead.sort_unstable_by_key(|words| words.as_ptr());
        lane.ahead.dedup_by_key(|words| words.as_ptr());
        lane.pairs.clone_from(&wants.pairs);
        let room = RING * lane.sources.len();
        (lane.keys, lane.hashes) = (vec![0; room], vec![0; room]);
        lane.bases = vec![MISSING; room];
        lane.fast = true;
        lane
    }

    /// Sees to it that `row`'s slots are located, and those of the rows ahead asked for. `moves` is
    /// how often slots of any table have moved.
    #[inline(always)]
    pub(crate) fn reach(&mut self, row: usize, tables: &[Table], prefetch: bool, moves: u64) {
        if row >= self.located_to {
            self.next_block(tables, prefetch, moves);
        } else if self.moves != moves {
            self.locate(row, tables, moves);
        }
    }

    /// Where the slot of a transaction's row number `of` begins, or [`MISSING`]. What is not missing was found in the row's table
    /// since its slots last moved, when [`Lane::reach`] has been called for the event.
    #[inline(always)]
    pub(crate) fn base(&self, of: usize, row: usize) -> usize {
        self.bases[of * RING + row % RING]
    }

    /// Whether two rows of a transaction are one.
    #[inline(always)]
    pub(crate) fn has_equal_keys(&self, row: usize) -> bool {
        self.equal >> (row % BLOCK) & 1 == 1
    }

    #[inline(never)]
    fn next_block(&mut self, tables: &[Table], prefetch: bool, moves: u64) {
        let from = self.located_to;
        while self.staged_to < (from + BLOCK + AHEAD).min(self.batch.len()) {
            self.stage(tables, prefetch);
        }
        if prefetch {
            // A block of a column is two cache lines.
            for words in &self.ahead {
                tidemill_table::prefetch(words, from + EVENTS_AHEAD);
                tidemill_table::prefetch(words, from + EVENTS_AHEAD + BLOCK / 2);
            }
        }
        self.located_to = (from + BLOCK).min(self.batch.len());
        self.equal = 0;
        for (a, b) in &self.pairs {
            let block = |of: u8| &self.keys[usize::from(of) * RING + from % RING..][..BLOCK];
            for (at, (a, b)) in block(*a).iter().zip(block(*b)).enumerate() {
                self.equal |= u32::from(a == b) << at;
            }
        }
        self.locate(from, tables, moves);
    }

    /// Hashes the keys of the next block and asks for their slots.
    fn stage(&mut self, tables: &[Table], prefetch: bool) {
        let (from, to) = (self.staged_to, (self.staged_to + BLOCK).min(self.batch.len()));
        for (of, (table, source)) in self.sources.iter().enumerate() {
            let (table, first) = (&tables[*table], of * RING + from % RING);
            let keys = &mut self.keys[first..][..to - from];
            match source {
                KeySource::Column(words) => keys.copy_from_slice(&words[from..to]),
                KeySource::Const(key) => keys.fill(*key),
            }
            for (hash, key) in self.hashes[first..].iter_mut().zip(keys) {
                *hash = table.hash(*key);
                if prefetch {
                    table.prefetch(*hash);
                }
            }
        }
        self.staged_to = to;
    }

    /// Finds the slots of the block's rows from `row` on.
    #[inline(never)]
    fn locate(&mut self, row: usize, tables: &[Table], moves: u64) {
        for (of, (table, _)) in self.sources.iter().enumerate() {
            let (table, first) = (&tables[*table], of * RING + row % RING);
            let bases = &mut self.bases[first..][..self.located_to - row];
            let staged = self.keys[first..].iter().zip(&self.hashes[first..]);
            for (base, (key, hash)) in bases.iter_mut().zip(staged) {
                *base = table.find(*key, *hash).unwrap_or(MISSING);
            }
        }
        self.moves = moves;
    }
}
