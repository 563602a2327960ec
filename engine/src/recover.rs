//! What a data directory holds when the engine starts: a snapshot, the cuts behind it, and the rows
//! that were pushed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidemill_connect::Chunk;
use tidemill_core::{Error, Result, Schema, SourceId, TableId};
use tidemill_env::Disk;
use tidemill_log::{Log, LogKind, LogSpec, Record};
use tidemill_snapshot::{newest, Loader, Manifest, Store};
use tidemill_table::{Loading, Table};
use tidemill_txn::program::Program;

use crate::data_dir::DataDir;
use crate::fingerprint::{is_of_this_engine, is_same_program};
use crate::internal::Internal;
use crate::records::{self, CutRecord, Verdict};

/// A cut to be made again, and its number in the log.
pub(crate) struct Recorded {
    pub(crate) number: u64,
    pub(crate) record: CutRecord,
}

/// Rows in the input log that no snapshot covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged {
    pub(crate) number: u64,
    pub(crate) source: SourceId,
    pub(crate) next_offset: u64,
}

/// What is there to go on from.
pub(crate) struct Recovered {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) manifest: Option<Manifest>,
    pub(crate) internal: Option<Internal>,
    pub(crate) cuts: VecDeque<Recorded>,
    pub(crate) logged: VecDeque<Logged>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) input: Log,
    pub(crate) cut_log: Log,
    input_from: u64,
}

/// Opens everything in a data directory that is held.
///
/// # Errors
/// When anything is damaged or missing, or was written by another program.
pub(crate) fn recover(
    dir: &DataDir,
    disk: &Arc<dyn Disk>,
    program: &Program,
    fingerprint: u128,
) -> Result<Recovered> {
    let store = dir.store()?;
    let manifest = newest(&*store, dir.app)?;
    let (input_from, cut_from) =
        manifest.as_ref().map_or((0, 0), |m| (m.head.input_next, m.head.cut_next));
    // What it was written with, which may be an earlier way to write the same program.
    let mut written = fingerprint;
    if let Some(manifest) = &manifest {
        let head = &manifest.head;
        if head.fingerprint != fingerprint && !is_same_program(&head.program, fingerprint) {
            return Err(other_program());
        }
        written = head.fingerprint;
    }
    let internal = match &manifest {
        Some(manifest) => Some(Internal::decode(program, &manifest.internal(&*store)?)?),
        None => None,
    };
    let cut_log = Log::open(disk.clone(), dir.log(LogKind::Cuts), cut_from)?;
    let mut cuts = VecDeque::new();
    for record in cut_log.read(cut_from)? {
        let record = record?;
        let cut = records::take_cut(&record.bytes)?;
        if cut.fingerprint != written && cut.fingerprint != fingerprint {
            return Err(other_program());
        }
        if !is_of_this_engine(cut.fingerprint) {
            return Err(Error::setting(format!(
                "epoch {} was executed by another version of tidemill, which came to its outcomes \
                 in another way, and it is in no snapshot",
                cut.cut.epoch
            ))
            .help("start that version once more and stop it: it leaves a snapshot"));
        }
        cuts.push_back(Recorded { number: record.number, record: cut });
    }
    let input = Log::open(disk.clone(), dir.log(LogKind::Input), input_from)?;
    let (mut logged, mut verdicts) = (VecDeque::new(), Vec::new());
    for record in input.read(input_from)? {
        let record = record?;
        match record.kind {
            records::ROWS => {
                let (source, next_offset) = records::rows_end(&record.bytes)?;
                logged.push_back(Logged { number: record.number, source, next_offset });
            }
            records::VERDICT => verdicts.push(records::take_verdict(&record.bytes)?),
            kind => {
                return Err(Error::internal(format!("the input log has a record of kind {kind}")))
            }
        }
    }
    Ok(Recovered { store, manifest, internal, cuts, logged, verdicts, input, cut_log, input_from })
}

fn other_program() -> Error {
    Error::setting("the data directory was written by another version of this program").help(
        "run the version that wrote it, or see what has changed: tidemill schema diff; --fresh \
         starts anew and forgets everything",
    )
}

impl Recovered {
    /// Fills the tables from the snapshot.
    pub(crate) fn load(&self, tables: &mut [Table]) -> Result<()> {
        let (Some(manifest), Some(internal)) = (&self.manifest, &self.internal) else {
            return Ok(());
        };
        load(&self.store, manifest, internal, tables)
    }

    /// The rows of a pushed source that were logged, from an offset on.
    pub(crate) fn rows(
        &self,
        disk: &Arc<dyn Disk>,
        spec: LogSpec,
        source: SourceId,
        schema: Arc<Schema>,
        from: u64,
    ) -> Result<impl Iterator<Item = Result<Chunk>> + Send> {
        let reader = tidemill_log::read(disk.clone(), &spec, self.input_from)?;
        let last = self.logged.iter().filter(|l| l.source == source).map(|l| l.number).max();
        let rows = reader.take_while(move |record| match (record, last) {
            (Ok(record), Some(last)) => record.number <= last,
            (Ok(_), None) => false,
            (Err(_), _) => true,
        });
        Ok(rows_of(rows, source, schema, from))
    }

    /// The offset behind the last row that was logged of each source.
    pub(crate) fn logged_to(&self) -> BTreeMap<SourceId, u64> {
        self.logged.iter().map(|logged| (logged.source, logged.next_offset)).collect()
    }
}

/// The rows of a pushed source in the input log's records, from an offset on.
pub(crate) fn rows_of(
    records: impl Iterator<Item = Result<Record>> + Send,
    source: SourceId,
    schema: Arc<Schema>,
    from: u64,
) -> impl Iterator<Item = Result<Chunk>> + Send {
    records.filter_map(move |record| {
        let record = match record {
            Ok(record) if record.kind == records::ROWS => record,
            Ok(_) => return None,
            Err(error) => return Some(Err(error)),
        };
        match records::rows_end(&record.bytes) {
            Ok((of, next)) if of == source && next > from => {
                Some(records::take_rows(&schema, &record.bytes))
            }
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    })
}

/// Fills empty tables from a snapshot.
pub(crate) fn load(
    store: &Arc<dyn Store>,
    manifest: &Manifest,
    internal: &Internal,
    tables: &mut [Table],
) -> Result<()> {
    let loader = Loader::open(store, manifest)?;
    let rows = &internal.facts.tables;
    let mut loading: Vec<Loading<'_>> = (tables.iter_mut().enumerate())
        .map(|(index, table)| table.loading(rows.get(index).copied().unwrap_or(0) as usize))
        .collect();
    for piece in loader.pieces(1) {
        loader.load(&piece, |row| {
            let TableId(table) = row.table;
            let table = loading.get_mut(usize::from(table)).ok_or_else(|| {
                Error::internal("a snapshot has a table that the program has not")
            })?;
            table.row(row.key, row.row)
        })?;
    }
    loading.into_iter().try_for_each(Loading::finish)?;
    tables.iter_mut().for_each(|table| table.commit(internal.facts.seq));
    Ok(())
}
