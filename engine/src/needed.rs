//! The part of the input log that recorded cuts need.
//!
//! A cut becomes durable after its rows and verdicts. Its record has the number of records of the
//! input log that it needs at most. So a missing earlier record is damage, even at the very end of
//! the log, where it looks like an interrupted write. Only records that no cut needs may be
//! missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidemill_core::{Error, Kind, Result, SourceId};
use tidemill_env::Disk;
use tidemill_log::{is_begun, LogKind, LogSpec};
use tidemill_txn::program::Program;

use crate::data_dir::Site;
use crate::internal::Internal;
use crate::records::{self, CutRecord};
use crate::spec::SourceDecl;

/// The needs of the recorded cuts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needed {
    /// The number of needed records of the input log.
    pub(crate) records: u64,
    /// The epoch and the offsets of the last cut, if an earlier version has recorded it without
    /// that number.
    unsaid: Option<(u64, Vec<u64>)>,
}

impl Needed {
    /// Adds a cut, with the number of records of the input log before it.
    pub(crate) fn by(&mut self, record: &CutRecord, inputs: Option<u64>) {
        self.unsaid = match inputs {
            Some(inputs) => {
                self.records = self.records.max(inputs);
                None
            }
            None => Some((record.cut.epoch, record.cut.offsets.clone())),
        };
    }

    /// Computes the needs of the cut log, from a record on.
    pub(crate) fn of(disk: &Arc<dyn Disk>, cuts: &LogSpec, from: u64) -> Result<Needed> {
        let mut needed = Needed::default();
        for record in tidemill_log::read(disk.clone(), cuts, from)? {
            let (cut, inputs) = records::cut(&record?)?;
            needed.by(&cut, inputs);
        }
        Ok(needed)
    }

    /// Refuses an input log that ends before the rows of the last cut. `logged` is the offset after
    /// the last row of each pushed source in the log or the snapshot.
    pub(crate) fn check(
        &self,
        input: &LogSpec,
        program: &Program,
        decls: &[SourceDecl],
        internal: Option<&Internal>,
        logged: &BTreeMap<SourceId, u64>,
    ) -> Result<()> {
        let Some((epoch, offsets)) = &self.unsaid else { return Ok(()) };
        for (index, (source, needed)) in program.sources.iter().zip(offsets).enumerate() {
            let stream = &program.streams[source.stream.index()].spec.name;
            let is_pushed = |decl: &SourceDecl| decl.is_pushed() && decl.stream == **stream;
            if !decls.iter().any(is_pushed) || *source.name != *format!("{stream}/push") {
                continue;
            }
            let known = internal.and_then(|internal| internal.facts.sources.get(index));
            let known = known.map_or(0, |facts| facts.next_offset);
            let there = logged.get(&SourceId(index as u32)).copied().unwrap_or(0).max(known);
            if there < *needed {
                let what = format!(
                    "{}: the log ends with row {there} of stream {stream}, and rows up to {needed} \
                     were executed in epoch {epoch}",
                    input.dir.display()
                );
                return Err(Error::new(Kind::Io, what).help(RESTORE));
            }
        }
        Ok(())
    }
}

const RESTORE: &str = "the log was not changed; restore the whole data directory from a backup";

/// The error for a log that existed before.
pub(crate) fn missing(log: &LogSpec) -> Error {
    let name = match log.kind {
        LogKind::Input => "input",
        LogKind::Cuts => "cut",
    };
    let what = format!("{}: the {name} log is missing", log.dir.display());
    Error::new(Kind::Io, what).help(RESTORE)
}

/// Returns the number of records in the logs of a directory (inputs, cuts). Reads all records from
/// the given ones on.
///
/// # Errors
/// When a log is damaged, or the input log has fewer records than the cuts need.
pub(crate) fn ends(site: &Site, (input, cuts): (u64, u64)) -> Result<(u64, u64)> {
    let (cut_log, input_log) = (site.log(LogKind::Cuts), site.log(LogKind::Input));
    let has_input = is_begun(&*site.disk, &input_log)?;
    match (has_input, is_begun(&*site.disk, &cut_log)?) {
        (true, false) => return Err(missing(&cut_log)),
        // The first start has ended before anything was recorded.
        (false, false) if (input, cuts) == (0, 0) => return Ok((0, 0)),
        _ => {}
    }
    let mut needed = Needed::default();
    let mut reader = tidemill_log::read(site.disk.clone(), &cut_log, cuts)?.needing(cuts);
    for record in reader.by_ref() {
        let (cut, inputs) = records::cut(&record?)?;
        needed.by(&cut, inputs);
    }
    let cuts = reader.next_number();
    if !has_input {
        let is_first = (input, cuts) == (0, 0);
        return if is_first { Ok((0, 0)) } else { Err(missing(&input_log)) };
    }
    let mut reader = tidemill_log::read(site.disk.clone(), &input_log, input)?
        .needing(needed.records.max(input));
    reader.by_ref().try_for_each(|record| record.map(drop))?;
    Ok((reader.next_number(), cuts))
}
