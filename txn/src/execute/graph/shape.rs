//! The decomposition of a handler's transactions into operations.

use std::sync::Arc;

use tidemill_table::{Layout, HEADER_WORDS};

use super::hint::is_words_layout;
use crate::execute::native::{self, NativeCode};
use crate::execute::words::{self, KeyFrom, WordCode};
use crate::plan::graph::Size;
use crate::program::{Body, Footprint, NativeBody, Program};

/// The access of an operation to a row of its transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// The row of the transaction.
    pub(crate) row: u16,
    /// The number of words of the version that it writes, or 0 if it only reads.
    pub(crate) words: u32,
}

/// A word that moves between a row's version and a register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    /// The access of the operation.
    pub(crate) access: u16,
    /// The index of the word, from the first word of the columns.
    pub(crate) word: u16,
    pub(crate) register: u8,
}

/// An operation of every transaction of a handler.
#[derive(Debug)]
pub(crate) struct Part {
    /// The accesses. Those that write are first.
    pub(crate) touches: Vec<Touch>,
    pub(crate) loads: Vec<Move>,
    /// The moves to versions, sorted by access and word.
    pub(crate) stores: Vec<Move>,
    /// The instructions. A closure has none.
    pub(crate) code: Option<WordCode>,
}

/// The kind of a handler's transactions.
pub(crate) enum Kind {
    Words(WordCode),
    /// A closure, with the width of each stream that it emits to.
    Native(NativeCode, Arc<dyn NativeBody>, Vec<usize>),
}

/// The form of a handler's transactions in a graph.
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    /// The table and the key of each row.
    pub(crate) rows: Vec<(usize, KeyFrom)>,
    pub(crate) parts: Vec<Part>,
    /// The place where each row is visible as it was before the transaction: a part, and an access
    /// of it.
    pub(crate) seen: Vec<Option<(u16, u16)>>,
    pub(crate) size: Size,
    /// The event columns that must be plain words.
    pub(crate) columns: Vec<usize>,
}

/// The number of words of a version before its columns: one word with the flags below.
pub(crate) const FLAGS_WORDS: usize = 1;
/// The row exists.
pub(crate) const PRESENT: u64 = 1;
/// The row was written, and not only passed on.
pub(crate) const WRITTEN: u64 = 2;
/// The version equals the one before: the expected writer of the row has not written it.
pub(crate) const PASSES: u64 = 4;
/// The version is not known yet.
pub(crate) const POISON: u64 = 8;

/// Returns the shapes of all handlers: in slices, and as a whole. Transactions of a handler without
/// a shape are units.
///
/// Transactions are sliced only if all of them are compiled. A closure that sees an impossible
/// state may do anything, even loop endlessly. So it sees only final versions. This is simple if
/// each transaction is one operation, which has its verdict as soon as it was executed.
pub(crate) fn shapes(program: &Program, layouts: &[Layout]) -> [Vec<Option<Shape>>; 2] {
    [true, false].map(|sliced| {
        let shape = |handler| shape(program, layouts, handler, sliced);
        (0..program.handlers.len()).map(shape).collect()
    })
}

fn shape(program: &Program, layouts: &[Layout], handler: usize, sliced: bool) -> Option<Shape> {
    let spec = &program.handlers[handler];
    // Other handlers' work on its aborts is executed before the next event, and triggers within it.
    if program.handlers_on(spec.aborted).next().is_some() || program.has_hooks(handler) {
        return None;
    }
    let footprint = Footprint::of(program, handler);
    let mut rows = footprint.rows.iter().map(|row| row.table.index());
    let keeps = rows.any(|table| program.tables[table].history.is_some());
    match &spec.body {
        Body::Declared(_) => {
            let code = words::compile(program, layouts, handler).ok()?;
            let is_words = |row: &words::WordRow| {
                is_words_layout(&layouts[row.table], &program.tables[row.table])
            };
            let fits = !code.consumed && code.rows.iter().all(is_words);
            fits.then(|| of_words(layouts, code, sliced))
        }
        // Closures read windows where versions are in tables.
        Body::Native(_) if keeps => None,
        Body::Native(n) => {
            let native = &program.natives[*n];
            let code = native::prepare(program, layouts, native).ok()?;
            let columns = program.streams[spec.input.index()].spec.schema.len();
            let body = native.body.clone();
            let width = |stream: &usize| program.streams[*stream].spec.schema.len();
            let widths = code.streams.iter().map(width).collect();
            (!code.consumed).then(|| of_native(layouts, code, body, widths, columns))
        }
        Body::Opaque(_) => None,
    }
}

fn version_words(layout: &Layout) -> u32 {
    (FLAGS_WORDS + layout.body_words()) as u32
}

fn of_words(layouts: &[Layout], code: WordCode, sliced: bool) -> Shape {
    let slices = if sliced { code.slices() } else { vec![code.whole()] };
    let touch = |row: u8, writes: bool| {
        let layout = &layouts[code.rows[usize::from(row)].table];
        let words = if writes { version_words(layout) } else { 0 };
        Touch { row: u16::from(row), words }
    };
    let mut parts: Vec<Part> = Vec::new();
    for slice in slices {
        let mut touches: Vec<Touch> = slice.written_rows().map(|row| touch(row, true)).collect();
        for load in &slice.loads {
            if !touches.iter().any(|t| t.row == u16::from(load.row)) {
                touches.push(touch(load.row, false));
            }
        }
        parts.push(Part { touches, loads: Vec::new(), stores: Vec::new(), code: Some(slice) });
    }
    // Its events may need rows that no slice needs. So may tests for existence, and the general
    // path.
    let asked = (0..code.rows.len() as u8).filter(|_| code.asks || !sliced);
    for row in code.loads.iter().map(|load| load.row).chain(asked) {
        if !parts.iter().flat_map(|p| &p.touches).any(|t| t.row == u16::from(row)) {
            parts[0].touches.push(touch(row, false));
        }
    }
    for part in &mut parts {
        let slice = part.code.as_ref().expect("compiled");
        let touches = &part.touches;
        let place = |m: &words::Move| Move {
            access: touches.iter().position(|t| t.row == u16::from(m.row)).expect("it is touched")
                as u16,
            word: m.word - HEADER_WORDS as u16,
            register: m.register,
        };
        let loads = slice.loads.iter().map(place).collect();
        let mut stores: Vec<Move> = slice.stores.iter().map(place).collect();
        stores.sort_unstable_by_key(|store| (store.access, store.word));
        (part.loads, part.stores) = (loads, stores);
    }
    let rows = code.rows.iter().map(|row| (row.table, row.key)).collect();
    let columns = code.columns.iter().map(|(column, _)| usize::from(*column)).collect();
    finish(Kind::Words(code), rows, parts, columns)
}

fn of_native(
    layouts: &[Layout],
    code: NativeCode,
    body: Arc<dyn NativeBody>,
    widths: Vec<usize>,
    columns: usize,
) -> Shape {
    let touch = |(row, at): (usize, &native::NativeRow)| Touch {
        row: row as u16,
        words: version_words(&layouts[at.table]),
    };
    let touches = code.rows.iter().enumerate().map(touch).collect();
    let part = Part { touches, loads: Vec::new(), stores: Vec::new(), code: None };
    let rows = code.rows.iter().map(|row| (row.table, row.key)).collect();
    finish(Kind::Native(code, body, widths), rows, vec![part], (0..columns).collect())
}

fn finish(
    kind: Kind,
    rows: Vec<(usize, KeyFrom)>,
    parts: Vec<Part>,
    mut columns: Vec<usize>,
) -> Shape {
    let mut seen = vec![None; rows.len()];
    let mut size = Size { vertices: parts.len() as u32, ..Size::default() };
    for (p, part) in parts.iter().enumerate() {
        for (a, touch) in part.touches.iter().enumerate() {
            seen[usize::from(touch.row)].get_or_insert((p as u16, a as u16));
            size.accesses += 1;
            size.words += touch.words;
        }
    }
    let key_column = |(_, key): &(usize, KeyFrom)| match key {
        KeyFrom::Column(column) => Some(usize::from(*column)),
        KeyFrom::Const(_) => None,
    };
    columns.extend(rows.iter().filter_map(key_column));
    columns.sort_unstable();
    columns.dedup();
    Shape { kind, rows, parts, seen, size, columns }
}
