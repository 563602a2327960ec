//! The contents of a data directory when the engine starts: a snapshot, the cuts after it, and the
//! pushed rows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tidemill_connect::Chunk;
use tidemill_core::{Error, Result, Schema, SourceId};
use tidemill_durable::Store;
use tidemill_env::Disk;
use tidemill_log::{is_begun, Log, LogKind, LogSpec, Record};
use tidemill_snapshot::{newest, Loader, Manifest, Part};
use tidemill_table::{Loading, Table};
use tidemill_txn::program::Program;
use tracing::{info, warn};

use crate::data_dir::DataDir;
use crate::fingerprint::{is_of_this_engine, is_same, is_same_program};
use crate::internal::Internal;
use crate::needed::{self, Needed};
use crate::records::{self, CutRecord, Verdict};
use crate::spec::SourceDecl;

/// A cut to replay, and its number in the log.
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

/// The state to continue from.
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

/// Opens everything in a data directory that this process holds.
///
/// It reads all contents first, and writes nothing before they are known to be whole.
///
/// # Errors
/// When anything is damaged or missing, or was written by another program.
pub(crate) fn recover(
    dir: &DataDir,
    disk: &Arc<dyn Disk>,
    program: &Program,
    decls: &[SourceDecl],
    fingerprint: u128,
) -> Result<Recovered> {
    let store = dir.store()?;
    let manifest = newest(&*store, dir.app)?;
    let (input_from, cut_from) =
        manifest.as_ref().map_or((0, 0), |m| (m.head.input_next, m.head.cut_next));
    let program_of = Written::by(manifest.as_ref(), fingerprint)?;
    let internal = match &manifest {
        Some(manifest) => Some(Internal::decode(program, &manifest.internal(&*store)?)?),
        None => None,
    };
    let (cut_spec, input_spec) = (dir.log(LogKind::Cuts), dir.log(LogKind::Input));
    let (has_cuts, has_input) = (is_begun(&**disk, &cut_spec)?, is_begun(&**disk, &input_spec)?);
    // The cut log is created first, and both exist before anything is recorded.
    if !has_cuts && (has_input || manifest.is_some()) {
        return Err(needed::missing(&cut_spec));
    }
    let (mut cuts, mut cut_next, mut needed) = (VecDeque::new(), cut_from, Needed::default());
    if has_cuts {
        let mut reader = tidemill_log::read(disk.clone(), &cut_spec, cut_from)?.needing(cut_from);
        for record in reader.by_ref() {
            let record = record?;
            let (cut, inputs) = records::cut(&record)?;
            program_of
                .check(&cut)
                .map_err(|error| other_sources(&cut, program).unwrap_or(error))?;
            needed.by(&cut, inputs);
            cuts.push_back(Recorded { number: record.number, record: cut });
        }
        cut_next = reader.next_number();
    }
    if !has_input && (!cuts.is_empty() || manifest.is_some()) {
        return Err(needed::missing(&input_spec));
    }
    let (mut logged, mut verdicts, mut input_next) = (VecDeque::new(), Vec::new(), input_from);
    if has_input {
        let mut reader = tidemill_log::read(disk.clone(), &input_spec, input_from)?
            .needing(needed.records.max(input_from));
        for record in reader.by_ref() {
            let record = record?;
            match record.kind {
                records::ROWS => {
                    let (source, next_offset) = records::rows_end(&record.bytes)?;
                    logged.push_back(Logged { number: record.number, source, next_offset });
                }
                records::VERDICT => verdicts.push(records::take_verdict(&record.bytes)?),
                kind => {
                    let what = format!("the input log has a record of kind {kind}");
                    return Err(Error::internal(what));
                }
            }
        }
        input_next = reader.next_number();
    }
    let ends = logged.iter().map(|logged: &Logged| (logged.source, logged.next_offset)).collect();
    needed.check(&input_spec, program, decls, internal.as_ref(), &ends)?;
    let cut_log = Log::open(disk.clone(), cut_spec, cut_next)?;
    let input = Log::open(disk.clone(), input_spec, input_next)?;
    Ok(Recovered { store, manifest, internal, cuts, logged, verdicts, input, cut_log, input_from })
}

/// The fingerprints of one program: its present one, and the one at the time of writing. They may
/// differ, because the text of a program may change.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    has: u128,
    had: u128,
}

impl Written {
    /// Returns the fingerprints of a program and of the one that took a snapshot.
    ///
    /// # Errors
    /// When the snapshot belongs to another program.
    pub(crate) fn by(manifest: Option<&Manifest>, has: u128) -> Result<Written> {
        let Some(head) = manifest.map(|m| &m.head) else { return Ok(Written { has, had: has }) };
        if head.fingerprint != has && !is_same_program(&head.program, has) {
            return Err(other_program());
        }
        Ok(Written { has, had: head.fingerprint })
    }

    /// Refuses a cut of another program, or of an engine with a different number.
    pub(crate) fn check(self, cut: &CutRecord) -> Result<()> {
        if !is_same(cut.fingerprint, self.had) && !is_same(cut.fingerprint, self.has) {
            return Err(other_program());
        }
        if !is_of_this_engine(cut.fingerprint, self.has) {
            return Err(Error::setting(format!(
                "epoch {} was executed by another version of tidemill, which computed results in \
                 another way, and no snapshot has it",
                cut.cut.epoch
            ))
            .help("start that version once more and stop it: it leaves a snapshot"));
        }
        Ok(())
    }
}

/// The error when the cuts were recorded with other files, and there is no snapshot that names
/// them.
fn other_sources(cut: &CutRecord, program: &Program) -> Option<Error> {
    let (then, now) = (cut.cut.offsets.len(), program.sources.len());
    let names: Vec<&str> = program.sources.iter().map(|source| &*source.name).collect();
    (then != now).then(|| {
        Error::setting(format!(
            "the recorded cuts have {then} sources, and there are {now} now: {}",
            names.join(", ")
        ))
        .help(
            "put missing files back and take new ones out, because each is a source; or run the \
             version of the program that wrote the cuts; --fresh (fresh=True) starts from scratch",
        )
    })
}

/// The text of the error for the data of another version of the program.
const OTHER_PROGRAM: &str = "the data directory was written by another version of this program";

/// Whether an error says that another version of the program wrote the data.
pub(crate) fn is_other_program(error: &Error) -> bool {
    error.what == OTHER_PROGRAM
}

fn other_program() -> Error {
    Error::setting(OTHER_PROGRAM).help(
        "see the differences: tidemill schema diff; take the data over: --upgrade (upgrade=True); \
         or run the version that wrote it; --fresh (fresh=True) starts from scratch and deletes everything",
    )
}

impl Recovered {
    /// Reports damage that was mended, and the replay to come.
    pub(crate) fn report(&self) {
        for damage in [&self.input, &self.cut_log].iter().flat_map(|log| log.damaged()) {
            warn!(target: "tidemill::log", what = damage.to_string(), "damage");
        }
        let (epochs, from) = (self.cuts.len(), self.manifest.as_ref().map(|m| m.head.epoch));
        if epochs > 0 {
            info!(target: "tidemill::recovery", snapshot_epoch = from, epochs, "recovery begun");
        }
    }

    /// Fills the tables from the snapshot.
    pub(crate) fn load(&self, tables: &mut [Table]) -> Result<()> {
        let (Some(manifest), Some(internal)) = (&self.manifest, &self.internal) else {
            return Ok(());
        };
        load(&self.store, manifest, internal, tables)
    }

    /// The logged rows of a pushed source, from an offset on.
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

    /// The offset after the last logged row of each source.
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
                let mut chunk = match records::take_rows(&schema, &record.bytes) {
                    Ok(chunk) => chunk,
                    Err(error) => return Some(Err(error)),
                };
                // A run that reads fewer rows at a time may have made a cut within the record.
                let first = chunk.next_offset - chunk.rows() as u64;
                if first < from {
                    chunk.split_off_front((from - first) as usize);
                }
                Some(Ok(chunk))
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
    let (rows, count) = (&internal.facts.tables, tables.len());
    let mut loading: Vec<Loading<'_>> = (tables.iter_mut().enumerate())
        .map(|(index, table)| table.loading(rows.get(index).copied().unwrap_or(0) as usize))
        .collect();
    for piece in loader.pieces(1) {
        loader.load(&piece, |row| {
            let part = Part::of(row.table, count);
            let (Part::Row(table) | Part::Version(table)) = part;
            let table = loading.get_mut(table).ok_or_else(|| {
                Error::internal("a snapshot has a table that the program has not")
            })?;
            match part {
                Part::Row(_) => table.row(row.key, row.row),
                Part::Version(_) => table.version(row.key, row.row),
            }
        })?;
    }
    loading.into_iter().try_for_each(Loading::finish)?;
    for (index, table) in tables.iter_mut().enumerate() {
        table.frontier(internal.facts.frontier_us(index));
        table.commit(internal.facts.seq);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidemill_core::{Batch, Column, DataType, Value};

    use super::*;

    #[test]
    fn rows_come_from_the_middle_of_a_record() {
        let env = tidemill_sim::SimEnv::new(1).env();
        let dir = DataDir::open(&env, Path::new("/data"), "a", false, 1 << 20).unwrap();
        let none = r#"{"name": "a", "tables": [], "streams": [], "sources": [], "handlers": []}"#;
        let program = Program::from_json(none).unwrap();
        let schema = Arc::new(Schema::new(vec![Column::new("n", DataType::Int)]));
        let rows: Vec<[Value; 1]> = (0..10).map(|n| [Value::Int(n)]).collect();
        let chunk = Chunk {
            batch: Batch::from_rows(schema.clone(), rows.iter().map(|r| &r[..])),
            offsets: (0..10).collect(),
            bad: Vec::new(),
            next_offset: 10,
        };
        let source = SourceId(0);
        let mut recovered = recover(&dir, &env.disk, &program, &[], 1).unwrap();
        recovered.input.append(records::ROWS, &records::put_rows(source, &chunk)).unwrap();
        recovered.input.commit().unwrap();
        drop(recovered);
        let recovered = recover(&dir, &env.disk, &program, &[], 1).unwrap();
        for from in 0..=10 {
            let spec = dir.log(LogKind::Input);
            let rows = recovered.rows(&env.disk, spec, source, schema.clone(), from).unwrap();
            let offsets: Vec<u64> = rows.flat_map(|chunk| chunk.unwrap().offsets).collect();
            assert_eq!(offsets, (from..10).collect::<Vec<_>>());
        }
    }
}
