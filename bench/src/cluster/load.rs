//! What a workload has to tell.

use tidemill_core::{Error, Result, Row, Value};
use tidemill_txn::Program;

use super::Offered;
use crate::args::Args;
use crate::shape::Parts;
use crate::{hotel, movie, tpcc, ycsb};

/// A row as it has to be at the end.
pub(crate) struct Wanted {
    /// The table's place among the workload's.
    pub(crate) table: usize,
    pub(crate) key: Vec<Value>,
    /// `None` where there must be none.
    pub(crate) row: Option<Row>,
}

impl Wanted {
    /// A row that has to be there; its key are the leading columns.
    pub(crate) fn row(table: usize, columns: usize, row: Row) -> Wanted {
        Wanted { table, key: row[..columns].to_vec(), row: Some(row) }
    }
}

/// What requests come to.
pub(crate) struct Ended {
    /// Every row that they may have changed, and where rows would be if they had done more than they should.
    pub(crate) wanted: Vec<Wanted>,
    /// How many have aborted.
    pub(crate) aborts: u64,
}

/// A workload of requests.
pub(crate) trait Load {
    /// Its program, with the tables and streams of the workload.
    fn parts(&self) -> &Parts;

    /// The rows of a table, by its place, that are there to begin with.
    fn opening(&self, table: usize) -> Vec<Row>;

    /// The requests: for each the place of its stream, and the event.
    fn calls(&self) -> Vec<(usize, Row)>;

    /// What these of them come to, in this order.
    fn end(&self, order: &[usize]) -> Ended;

    /// Whether the rows that were found keep what the workload promises besides.
    fn holds(&self, _tables: &[Vec<Row>]) -> bool {
        true
    }
}

/// The workload that the options ask for.
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
        other => Err(Error::setting(format!("--processes: {other} runs in one process alone"))
            .help("on several run ycsb-t, tpcc, hotel and movie")),
    }
}
