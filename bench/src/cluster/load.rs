//! The interface of a workload for several processes.

use tidemill_core::{Error, Result, Row, Value};
use tidemill_txn::Program;

use super::Offered;
use crate::args::Args;
use crate::shape::Parts;
use crate::{hotel, movie, tpcc, ycsb};

/// A row that is expected at the end.
pub(crate) struct Wanted {
    /// The table's place among the workload's.
    pub(crate) table: usize,
    pub(crate) key: Vec<Value>,
    /// `None` where no row may exist.
    pub(crate) row: Option<Row>,
}

impl Wanted {
    /// Returns an expected row; its key is in the leading columns.
    pub(crate) fn row(table: usize, columns: usize, row: Row) -> Wanted {
        Wanted { table, key: row[..columns].to_vec(), row: Some(row) }
    }
}

/// The expected outcome of requests.
pub(crate) struct Ended {
    /// Every row that they may have changed, and the places of rows that only surplus work would
    /// write.
    pub(crate) wanted: Vec<Wanted>,
    /// The number of aborts.
    pub(crate) aborts: u64,
}

/// A workload of requests.
pub(crate) trait Load {
    /// Returns the program, with the tables and streams of the workload.
    fn parts(&self) -> &Parts;

    /// Returns the initial rows of a table, by its place.
    fn opening(&self, table: usize) -> Vec<Row>;

    /// Returns the requests: the place of the stream, and the event.
    fn calls(&self) -> Vec<(usize, Row)>;

    /// Returns the expected outcome of these requests, in this order.
    fn end(&self, order: &[usize]) -> Ended;

    /// Whether the final rows fulfil the further promises of the workload.
    fn holds(&self, _tables: &[Vec<Row>]) -> bool {
        true
    }
}

/// Returns the workload that the options ask for.
pub(super) fn of(args: &Args, program: Program, offered: &Offered) -> Result<Box<dyn Load>> {
    let multi = offered.multi.map(|share| (share / 100.0, offered.processes));
    if multi.is_some() && args.workload != "ycsb-t" {
        return Err(Error::setting(format!("--multi: {} has no such option", args.workload)));
    }
    match &*args.workload {
        "ycsb-t" => ycsb::load(args, program, multi),
        "tpcc" => tpcc::load(args, program),
        "hotel" => hotel::load(args, program),
        "movie" => movie::load(args, program),
        other => Err(Error::setting(format!("--processes: {other} runs in one process only"))
            .help("ycsb-t, tpcc, hotel and movie run on several")),
    }
}
