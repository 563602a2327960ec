//! Tests of the formats through the crate's public interface.

mod csv_rows;
mod damage;
mod file_sinks;
mod folders;
mod followed;
mod jsonl_rows;
mod parquet_rows;
mod pushed;
mod recovered_sinks;
mod roundtrip;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::write::GzEncoder;
use std::io::Write;
use tempfile::TempDir;
use tidemill_connect::files::{self, Partition};
use tidemill_connect::source::contract::{check, Taken};
use tidemill_connect::FilesSettings;
use tidemill_core::{Column, DataType, Result, Schema, Value};
use tidemill_env::Env;

/// A test's own folder.
pub(crate) struct Folder {
    pub(crate) env: Env,
    dir: TempDir,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder { env: Env::real(), dir: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        self.env.disk.create(&path).expect("a file").write_all(bytes.as_ref()).expect("bytes");
        path
    }

    pub(crate) fn get(&self, path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut file = self.env.disk.open_read(path).expect("a file");
        std::io::Read::read_to_end(&mut file, &mut bytes).expect("bytes");
        bytes
    }

    pub(crate) fn open(
        &self,
        settings: &FilesSettings,
        schema: &Arc<Schema>,
    ) -> Result<Vec<Partition>> {
        files::open(settings, schema, &self.env)
    }

    /// Returns all rows of one file, which must fulfil the contract.
    pub(crate) fn rows(&self, settings: &FilesSettings, schema: &Arc<Schema>) -> Vec<Taken> {
        check(|| self.open(settings, schema).expect("a source").remove(0).1)
    }
}

/// Returns the number of random cases that a test tries: `few`, or the number in `TIDEMILL_CASES`.
#[allow(clippy::disallowed_methods)]
pub(crate) fn cases(few: usize) -> usize {
    std::env::var("TIDEMILL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

pub(crate) fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).expect("memory");
    packer.finish().expect("memory")
}

pub(crate) fn schema(columns: Vec<Column>) -> Arc<Schema> {
    Arc::new(Schema::new(columns))
}

/// Returns a schema with one column of each type, `nullable` or not.
pub(crate) fn every_type(nullable: bool) -> Arc<Schema> {
    let list = DataType::List(Box::new(DataType::Str));
    let columns = [
        ("i", DataType::Int),
        ("f", DataType::Float),
        ("b", DataType::Bool),
        ("s", DataType::Str),
        ("y", DataType::Bytes),
        ("t", DataType::Timestamp),
        ("d", DataType::Decimal(2)),
        ("l", list),
        ("a", DataType::Any),
    ];
    schema(
        columns
            .into_iter()
            .map(|(name, ty)| Column { nullable, ..Column::new(name, ty) })
            .collect(),
    )
}

/// Returns the rows that were decoded.
pub(crate) fn good(rows: &[Taken]) -> Vec<Vec<Value>> {
    rows.iter()
        .filter_map(|row| match row {
            Taken::Good(row) => Some(row.to_vec()),
            Taken::Bad(_) => None,
        })
        .collect()
}

/// Returns the line and the reason of each bad row.
pub(crate) fn bad(rows: &[Taken]) -> Vec<(u64, &str)> {
    rows.iter()
        .filter_map(|row| match row {
            Taken::Good(_) => None,
            Taken::Bad(row) => Some((row.line, &*row.reason)),
        })
        .collect()
}
