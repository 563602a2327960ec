//! How the transactions of a handler are decomposed into operations.

use std::sync::Arc;

use tidemill_table::{Layout, HEADER_WORDS};

use super::hint::is_words_layout;
use crate::execute::native::{self, NativeCode};
use crate::execute::words::{self, KeyFrom, WordCode};
use crate::plan::graph::Size;
use crate::program::{Body, Footprint, NativeBody, Program};

/// What an operation has to do with a row of its transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// The transaction's row.
    pub(crate) row: u16,
    /// Length of the version that it writes; 0 when it only reads.
    pub(crate) words: u32,
}

/// A word between a row's version and a register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    /// The operation's access.
    pub(crate) access: u16,
    /// Counted from the first word of the columns.
    pub(crate) word: u16,
    pub(crate) register: u8,
}

/// An operation of every transaction of a handler.
#[derive(Debug)]
pub(crate) struct Part {
    /// Those that write come first.
    pub(crate) touches: Vec<Touch>,
    pub(crate) loads: Vec<Move>,
    /// By access and word.
    pub(crate) stores: Vec<Move>,
    /// The instructions; a closure has none.
    pub(crate) code: Option<WordCode>,
}

/// What a handler's transactions are.
pub(crate) enum Kind {
    Words(WordCode),
    /// With the width of each stream that it emits to.
    Native(NativeCode, Arc<dyn NativeBody>, Vec<usize>),
}

/// How a handler's transactions look in a graph.
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    /// Table and key of each row.
    pub(crate) rows: Vec<(usize, KeyFrom)>,
    pub(crate) parts: Vec<Part>,
    /// Where each row is seen as it was before the transaction: in this part, by this access.
    pub(crate) seen: Vec<Option<(u16, u16)>>,
    pub(crate) size: Size,
    /// Event columns that must be plain words.
    pub(crate) columns: Vec<usize>,
}

/// The words of a version before its columns: [`PRESENT`] and [`WRITTEN`].
pub(crate) const FLAGS_WORDS: usize = 1;
/// The row is there.
pub(crate) const PRESENT: u64 = 1;
/// It was written, and not only passed on.
pub(crate) const WRITTEN: u64 = 2;
/// It is the version before: what was expected to write the row has not.
pub(crate) const PASSES: u64 = 4;
/// It is not known yet.
pub(crate) const POISON: u64 = 8;

/// The shapes of all handlers: in slices, and as a whole. The transactions of a handler that has none
/// are units.
///
/// Transactions are taken apart only where all of them are compiled. A closure may do anything, and
/// an endless loop too, when it is shown what can't be: so it sees nothing but what is final. That
/// is easily so where each transaction is one operation, whose verdict is there as soon as it was
/// executed.
pub(crate) fn shapes(program: &Program, layouts: &[Layout]) -> [Vec<Option<Shape>>; 2] {
    [true, false].map(|sliced| {
        let shape = |handler| shape(program, layouts, handler, sliced);
        (0..program.handlers.len()).map(shape).collect()
    })
}

fn shape(program: &Program, layouts: &[Layout], handler: usize, sliced: bool) -> Option<Shape> {
    let spec = &program.handlers[handler];
    // What others take of it is executed before the next event, and what goes along within it.
    if program.handlers_on(spec.aborted).next().is_some() || program.has_more(handler) {
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
    // What it emits may need rows that no slice needs, and so may asking whether they are there, and
    // the general path.
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
