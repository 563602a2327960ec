//! The common parts of the targets: parts of an input, a schema of every type, files in memory.

use std::panic;
use std::path::Path;
use std::sync::Arc;

use tidemill_connect::source::contract::{read_on, Taken};
use tidemill_connect::{files, FilesSettings, Message, MessageRows, MessageValues, Polled, Source};
use tidemill_core::{BatchBuilder, Column, DataType, Result, Row, Schema};
use tidemill_sim::SimEnv;

/// Takes parts off the front of an input. At its end, all numbers are 0.
pub struct Parts<'a>(pub &'a [u8]);

impl<'a> Parts<'a> {
    /// Takes at most `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// Takes the bytes up to a separator, or all.
    pub fn until(&mut self, separator: u8) -> &'a [u8] {
        let len = self.0.iter().position(|byte| *byte == separator);
        let head = self.bytes(len.unwrap_or(self.0.len()));
        self.bytes(1);
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// Takes a number.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Takes a number.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Takes a number.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Takes a number.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// Returns a schema with a column of every type.
pub fn every_type(nullable: bool) -> Arc<Schema> {
    let list = |inner| DataType::List(Box::new(inner));
    let column = |(name, ty)| match nullable {
        true => Column::new(name, ty).nullable(),
        false => Column::new(name, ty),
    };
    let columns = [
        ("i", DataType::Int),
        ("f", DataType::Float),
        ("b", DataType::Bool),
        ("s", DataType::Str),
        ("y", DataType::Bytes),
        ("t", DataType::Timestamp),
        ("d", DataType::Decimal(2)),
        ("l", list(DataType::Str)),
        ("m", list(list(DataType::Decimal(1)))),
        ("a", DataType::Any),
    ];
    Arc::new(Schema::new(columns.map(column).to_vec()))
}

/// Reads a file with this content, and checks that the size of the polls and a new beginning at a
/// place on the way change nothing. Returns the rows, or nothing if the file is refused.
///
/// # Panics
/// If the source breaks a promise.
pub fn read_file(settings: &FilesSettings, schema: &Arc<Schema>, content: &[u8]) -> Vec<Taken> {
    let env = SimEnv::new(0).env();
    env.disk.create_dir_all(Path::new("/in")).expect("a directory");
    let mut file = env.disk.create(&settings.path).expect("a file");
    file.write_all(content).expect("memory takes it");
    let open = || -> Result<Box<dyn Source>> {
        let mut partitions = files::open(settings, schema, &env)?;
        Ok(partitions.pop().expect("a partition").1)
    };
    let (Ok(mut first), Ok(mut second)) = (open(), open()) else { return Vec::new() };
    let mut all = Vec::new();
    let mut middle = None;
    let mut failed = loop {
        match first.poll(3) {
            Ok(Polled::Rows(chunk)) => {
                assert!(chunk.rows() > 0 && chunk.next_offset == first.offset());
                all.extend(taken(&chunk));
                if middle.is_none() || all.len().is_power_of_two() {
                    middle = Some((first.place(), all.len()));
                }
            }
            Ok(Polled::Pending | Polled::End) => break None,
            Err(error) => break Some(error),
        }
        assert!(all.len() <= 20 * content.len() + 100_000, "rows come from nowhere");
    };
    if settings.follow {
        return all;
    }
    if failed.is_none() {
        assert_eq!(read_on(&mut *second, 1000), all, "the size of polls changes the rows");
    }
    if let Some((place, rows)) = middle {
        let mut third = open().expect("it was opened before");
        third.resume(&place).expect("a place that is there");
        let mut rest = Vec::new();
        loop {
            match third.poll(2) {
                Ok(Polled::Rows(chunk)) => rest.extend(taken(&chunk)),
                Ok(Polled::Pending | Polled::End) => break,
                Err(error) => {
                    assert_eq!(Some(error), failed.take(), "another error after a new beginning");
                    break;
                }
            }
        }
        assert_eq!(rest, all[rows..], "other rows after a new beginning");
        assert_eq!(failed, None, "no error after a new beginning");
    }
    all
}

/// Returns the rows of a chunk, in their order.
fn taken(chunk: &tidemill_connect::Chunk) -> Vec<Taken> {
    let good = chunk.offsets.iter().copied().zip(chunk.batch.rows().map(Taken::Good));
    let bad = chunk.bad.iter().map(|bad| (bad.offset, Taken::Bad(bad.clone())));
    let mut all: Vec<_> = good.chain(bad).collect();
    all.sort_by_key(|(offset, _)| *offset);
    all.into_iter().map(|(_, taken)| taken).collect()
}

/// Decodes the value of a message as a row.
///
/// # Errors
/// The reason why it is none.
///
/// # Panics
/// If a bad row leaves something.
pub fn row_of(
    decoder: &mut MessageRows,
    schema: &Arc<Schema>,
    value: &[u8],
) -> Result<Row, String> {
    let message = Message { key: Some(b"k"), value: Some(value), ..Message::default() };
    if !decoder.is_ready(&message) {
        return Err("there is no schema yet".into());
    }
    let mut rows = BatchBuilder::new(schema.clone());
    let done = decoder.decode(&message, &mut rows);
    let batch = rows.finish();
    assert_eq!(batch.len(), usize::from(done.is_ok()), "a bad row leaves nothing");
    done.map(|()| batch.row(0))
}

/// Checks that a row is the same after it has been a message.
///
/// # Panics
/// If it is not.
pub fn comes_back(
    decoder: &mut MessageRows,
    encoder: &MessageValues,
    schema: &Arc<Schema>,
    row: &Row,
) {
    let batch = tidemill_core::Batch::from_rows(schema.clone(), std::iter::once(&row[..]));
    let mut bytes = Vec::new();
    encoder.value(&batch, 0, &mut bytes);
    let back = row_of(decoder, schema, &bytes);
    assert_eq!(back.as_ref(), Ok(row), "of {:?}", String::from_utf8_lossy(&bytes));
}

/// Checks that what was decoded is encoded in a way that is decoded and encoded alike.
///
/// # Panics
/// If it is not.
pub fn settles<T>(
    bytes: &[u8],
    take: impl Fn(&[u8]) -> Option<T>,
    put: impl Fn(&T) -> Vec<u8>,
) -> Option<T> {
    let first = take(bytes)?;
    let again = put(&first);
    let second = take(&again).expect("what was encoded is decoded");
    assert_eq!(put(&second), again, "a second way through changes it");
    Some(second)
}

/// Runs code that catches panics of libraries by itself. Only a panic that leaves it ends the
/// target.
pub fn catching(run: impl FnOnce() + panic::UnwindSafe) {
    panic::set_hook(Box::new(|_| {}));
    if let Err(caught) = panic::catch_unwind(run) {
        let text = caught.downcast_ref::<String>().cloned();
        eprintln!("{:?}", text.or(caught.downcast_ref::<&str>().map(|text| (*text).to_owned())));
        std::process::abort();
    }
}
