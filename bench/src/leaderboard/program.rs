//! Tables, streams, and the connections of the procedures, independent of the language of the
//! procedures.

use std::sync::Arc;

use tidemill_core::{Column, DataType, Error, Result, StreamId, TableId, Value};
use tidemill_txn::program::Builder;
use tidemill_txn::Program;

use super::functions::{Count, Remove, Validate};
use crate::args::ProgramKind;
use crate::shape::{self, Parts};
use crate::Given;

/// The input streams, in this order.
pub(super) const CANDIDACIES: &str = "candidacies";
pub(super) const CAST: &str = "cast";

/// The index.
pub(super) const BY_CANDIDATE: &str = "votes.by_candidate";

/// The output streams, except those of aborts.
pub(super) const VALID: &str = "valid";
pub(super) const COUNTED: &str = "counted";
pub(super) const REMOVED: &str = "removed";
/// The stream of refused votes.
pub(super) const REFUSED: &str = "validate.aborted";

/// The tables and streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The running candidates by number: their standing votes, and their share of the last votes.
    pub(super) candidates: TableId,
    /// The standing votes by phone.
    pub(super) votes: TableId,
    /// The index of the votes by candidate, to remove them with it.
    pub(super) by_candidate: TableId,
    /// The number of accepted votes, in one row.
    pub(super) tally: TableId,
    /// The last accepted votes, by their number modulo the length of the trend.
    pub(super) recent: TableId,
    /// The leaderboards by number: three candidates, each with its votes.
    pub(super) boards: TableId,
    pub(super) candidacies: StreamId,
    pub(super) cast: StreamId,
    pub(super) valid: StreamId,
    pub(super) counted: StreamId,
    pub(super) removed: StreamId,
}

impl Frame {
    fn new(b: &mut Builder) -> Frame {
        let int = |name: &str| Column::new(name, DataType::Int);
        let ints = |names: &[&str]| names.iter().map(|name| int(name)).collect::<Vec<_>>();
        let zero = |name: &str| int(name).default(Value::Int(0));
        let columns = vec![int("candidate"), zero("votes"), zero("recent")];
        let candidates = b.table("candidates", &["candidate"], columns);
        b.ordered(candidates);
        let votes = b.table("votes", &["phone"], ints(&["phone", "candidate"]));
        let by_candidate = b.index(BY_CANDIDATE, votes, &["candidate"], false);
        let tally = b.table("tally", &["id"], vec![int("id"), zero("accepted")]);
        let recent = b.table("recent", &["place"], ints(&["place", "candidate"]));
        let places = ["first", "first_votes", "second", "second_votes", "third", "third_votes"];
        let columns = std::iter::once(int("board")).chain(places.map(int)).collect();
        let boards = b.table("boards", &["board"], columns);
        let candidacies = b.stream(CANDIDACIES, ints(&["candidate"]));
        let cast = b.stream(CAST, ints(&["phone", "candidate"]));
        let valid = b.emitted(VALID, ints(&["phone", "candidate"]));
        let counted = b.emitted(COUNTED, ints(&["accepted"]));
        let removed = b.emitted(REMOVED, ints(&["candidate", "votes", "accepted"]));
        Frame {
            candidates,
            votes,
            by_candidate,
            tally,
            recent,
            boards,
            candidacies,
            cast,
            valid,
            counted,
            removed,
        }
    }
}

/// Returns the program according to the options.
pub(super) fn program(kind: ProgramKind, given: Given<'_>, every: u64) -> Result<Parts> {
    let mut b = Builder::new("leaderboard");
    let frame = Frame::new(&mut b);
    let program = match (kind, given.program) {
        (ProgramKind::Rust, _) => {
            procedures(&mut b, frame, every);
            b.finish()?
        }
        (ProgramKind::Python, Some(json)) => {
            let mut program = Program::from_json(json)?;
            program.opaques = given.opaques;
            program
        }
        _ => {
            let what = format!("--program {}: this workload has no such program", kind.name());
            return Err(Error::setting(what).help(
                "procedures are functions: use --program rust, or python with the command line of \
                 the Python package",
            ));
        }
    };
    let mut b = Builder::new("leaderboard");
    Frame::new(&mut b);
    shape::parts("Leaderboard Maintenance", program, &b.finish()?)
}

/// Adds the handler that lets candidates stand, and the three procedures.
fn procedures(b: &mut Builder, frame: Frame, every: u64) {
    let mut h = b.handler("stand", frame.candidacies);
    let candidate = h.column("candidate");
    let row = h.row(frame.candidates, &[candidate]);
    h.insert(row, &[]);
    h.done();
    let Frame { cast, valid, counted, removed, .. } = frame;
    let validate = b.procedure("validate", &[cast], &[valid], Arc::new(Validate { frame }));
    let count = b.procedure("count", &[valid], &[counted], Arc::new(Count { frame }));
    let remove = Remove { frame, every: every as i64 };
    let remove = b.procedure("remove", &[counted], &[removed], Arc::new(remove));
    b.nested("vote", &[validate, count, remove], &[]);
}
