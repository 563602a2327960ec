//! What clients have seen, and the procedures that they have set off.

use std::collections::BTreeMap;
use std::io::Write;

/// What a procedure does to the lists of the keys that its event names.
#[derive(Clone, Copy, Debug)]
pub enum Do {
    /// Appends its number.
    Append(usize),
    /// Reads the whole list.
    Read(usize),
}

/// A procedure: what it takes, what it emits into, and what it does.
pub struct Procedure {
    pub name: &'static str,
    pub takes: &'static str,
    pub emits: Option<&'static str>,
    pub does: &'static [Do],
}

use Do::{Append, Read};

/// The procedures, in their order.
pub const PROCEDURES: [Procedure; 6] = [
    Procedure { name: "enter", takes: "left", emits: Some("entered"), does: &[Append(0), Read(1)] },
    Procedure {
        name: "pass",
        takes: "entered",
        emits: Some("passed"),
        does: &[Append(1), Read(0), Read(2)],
    },
    Procedure { name: "give", takes: "passed", emits: Some("given"), does: &[Append(0), Read(2)] },
    Procedure {
        name: "take",
        takes: "given",
        emits: None,
        does: &[Read(0), Append(2), Append(0), Read(1)],
    },
    Procedure { name: "begin", takes: "right", emits: Some("begun"), does: &[Append(2), Read(0)] },
    Procedure { name: "end", takes: "begun", emits: None, does: &[Read(2), Append(0)] },
];

/// The transactions that they make; one of several procedures is nested.
pub const NODES: [&[usize]; 5] = [&[0], &[1], &[2, 3], &[4], &[5]];
/// The nested one.
pub const NESTED: usize = 2;
/// Who precedes whom in a round.
pub const EDGES: [(usize, usize); 3] = [(0, 1), (1, 2), (3, 4)];
/// The streams that are pushed, and the transactions in a round of each.
pub const STREAMS: [(&str, &[usize]); 2] = [("left", &[0, 1, 2]), ("right", &[3, 4])];
/// Keys that there are.
pub const KEYS: u64 = 4;

/// Whether the last procedure of the nested transaction refuses a round.
pub fn is_refused(round: i64) -> bool {
    round % 7 == 0
}

/// The number that a procedure appends in a round; calls have negative ones.
pub fn number(procedure: usize, round: i64) -> i64 {
    round * 10 + procedure as i64
}

/// What a transaction has done to a list.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// It has appended a number.
    Append { key: i64, number: i64 },
    /// It has seen all of it.
    Read { key: i64, list: Vec<i64> },
}

/// Whose turn it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A transaction of [`NODES`] in a round.
    Node(usize, i64),
    /// A call.
    Call(i64),
}

/// A transaction.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub who: Who,
    /// When its client has made it, and when it was answered, by a counter that all clients share. The
    /// transactions of a round are made with its event, and answered with its acknowledgement.
    pub made: u64,
    pub answered: u64,
    /// In program order; of one that has aborted, what it would have appended.
    pub ops: Vec<Op>,
    pub committed: bool,
}

/// Who has had a turn, in the recorded order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Procedure { procedure: usize, round: i64 },
    Call(i64),
}

/// All that was seen.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub transactions: Vec<Transaction>,
    /// Those that have committed.
    pub schedule: Vec<Turn>,
    /// The lists in the end.
    pub lists: BTreeMap<i64, Vec<i64>>,
    /// Rounds of each of [`STREAMS`].
    pub rounds: [i64; 2],
}

impl History {
    /// Fails where there is nothing that could be wrong.
    pub fn is_worth_checking(&self) {
        let calls = self.transactions.iter().filter(|t| matches!(t.who, Who::Call(_))).count();
        let aborted = self.transactions.iter().filter(|t| !t.committed).count();
        let longest = self.lists.values().map(Vec::len).max().unwrap_or(0);
        assert!(calls > 20 && aborted > 3 && longest > 20, "{calls} {aborted} {longest}");
        assert!(self.rounds.iter().all(|rounds| *rounds > 10), "{:?}", self.rounds);
    }

    /// Writes what committed, a transaction a line.
    #[allow(clippy::disallowed_methods)] // For a program that is no part of this one.
    pub fn write(&self, path: &str) {
        let mut file = std::fs::File::create(path).expect("the folder is there");
        for (id, transaction) in self.transactions.iter().filter(|t| t.committed).enumerate() {
            let op = |op: &Op| match op {
                Op::Append { key, number } => serde_json::json!({ "key": key, "append": number }),
                Op::Read { key, list } => serde_json::json!({ "key": key, "read": list }),
            };
            let ops: Vec<_> = transaction.ops.iter().map(op).collect();
            let line = serde_json::json!({
                "id": id, "made": transaction.made, "answered": transaction.answered, "ops": ops,
            });
            writeln!(file, "{line}").expect("there is room");
        }
    }
}
