//! What recorded cuts need of the input log.
//!
//! A cut is durable after the rows and verdicts that it is made of, and says how many records of the
//! input log these are at most. So whatever is missing before is damage, be it at the very end of that
//! log, where it looks like a write that was interrupted; and only what no cut needs may be missing.

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

/// What the recorded cuts need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needed {
    /// So many records of the input log.
    pub(crate) records: u64,
    /// The epoch and the offsets of the last cut, when an earlier version has recorded it, which did not
    /// say how many.
    unsaid: Option<(u64, Vec<u64>)>,
}

impl Needed {
    /// One more cut, and how many records of the input log come before it.
    pub(crate) fn by(&mut self, record: &CutRecord, inputs: Option<u64>) {
        self.unsaid = match inputs {
            Some(inputs) => {
                self.records = self.records.max(inputs);
                None
            }
            None => Some((record.cut.epoch, record.cut.offsets.clone())),
        };
    }

    /// By the cut log, from a record on.
    pub(crate) fn of(disk: &Arc<dyn Disk>, cuts: &LogSpec, from: u64) -> Result<Needed> {
        let mut needed = Needed::default();
        for record in tidemill_log::read(disk.clone(), cuts, from)? {
            let (cut, inputs) = records::cut(&record?)?;
            needed.by(&cut, inputs);
        }
        Ok(needed)
    }

    /// Refuses an input log that ends before the rows of the last cut. `logged` is the offset behind the
    /// last row of each pushed source there, behind those of the snapshot.
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

const RESTORE: &str = "the log is left as it is; restore the whole data directory from a backup";

/// Refuses a log that has been there.
pub(crate) fn gone(log: &LogSpec) -> Error {
    let name = match log.kind {
        LogKind::Input => "input",
        LogKind::Cuts => "cut",
    };
    let what = format!("{}: the {name} log is missing", log.dir.display());
    Error::new(Kind::Io, what).help(RESTORE)
}

/// How many records the logs of a directory have (inputs, cuts), all of which from these on are read.
///
/// # Errors
/// When one is damaged, or the input log has less than the cuts need.
pub(crate) fn ends(site: &Site, (input, cuts): (u64, u64)) -> Result<(u64, u64)> {
    let (cut_log, input_log) = (site.log(LogKind::Cuts), site.log(LogKind::Input));
    let has_input = is_begun(&*site.disk, &input_log)?;
    if has_input && !is_begun(&*site.disk, &cut_log)? {
        return Err(gone(&cut_log));
    }
    let mut needed = Needed::default();
    let mut reader = tidemill_log::read(site.disk.clone(), &cut_log, cuts)?.needing(cuts);
    for record in reader.by_ref() {
        let (cut, inputs) = records::cut(&record?)?;
        needed.by(&cut, inputs);
    }
    let cuts = reader.next_number();
    if !has_input && cuts > 0 {
        return Err(gone(&input_log));
    }
    let mut reader = tidemill_log::read(site.disk.clone(), &input_log, input)?
        .needing(needed.records.max(input));
    reader.by_ref().try_for_each(|record| record.map(drop))?;
    Ok((reader.next_number(), cuts))
}
