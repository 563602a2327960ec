//! The observations of clients, and the procedures that they trigger.

use std::collections::BTreeMap;
use std::io::Write;

/// The action of a procedure on the lists of the keys that its event names.
#[derive(Clone, Copy, Debug)]
pub enum Do {
    /// Appends its number.
    Append(usize),
    /// Reads the whole list.
    Read(usize),
}

/// A procedure: its input stream, its output stream, and its actions.
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

/// The transactions that they form. One with several procedures is nested.
pub const NODES: [&[usize]; 5] = [&[0], &[1], &[2, 3], &[4], &[5]];
/// The nested one.
pub const NESTED: usize = 2;
/// The order of transactions in a round.
pub const EDGES: [(usize, usize); 3] = [(0, 1), (1, 2), (3, 4)];
/// The pushed streams, and the transactions in a round of each.
pub const STREAMS: [(&str, &[usize]); 2] = [("left", &[0, 1, 2]), ("right", &[3, 4])];
/// The number of keys.
pub const KEYS: u64 = 4;

/// Whether the last procedure of the nested transaction refuses a round.
pub fn is_refused(round: i64) -> bool {
    round % 7 == 0
}

/// The number that a procedure appends in a round; calls have negative ones.
pub fn number(procedure: usize, round: i64) -> i64 {
    round * 10 + procedure as i64
}

/// The action of a transaction on a list.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// It has appended a number.
    Append { key: i64, number: i64 },
    /// It has read the whole list.
    Read { key: i64, list: Vec<i64> },
}

/// The owner of a turn.
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
    /// When its client made it, and when it was answered, by a counter that all clients share. The
    /// transactions of a round are made with its event, and answered with its acknowledgement.
    pub made: u64,
    pub answered: u64,
    /// In program order. An aborted one has its intended appends.
    pub ops: Vec<Op>,
    pub committed: bool,
}

/// A procedure's or call's turn, in the recorded order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Procedure { procedure: usize, round: i64 },
    Call(i64),
}

/// All observations.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub transactions: Vec<Transaction>,
    /// The committed turns.
    pub schedule: Vec<Turn>,
    /// The final lists.
    pub lists: BTreeMap<i64, Vec<i64>>,
    /// The rounds of each of [`STREAMS`].
    pub rounds: [i64; 2],
}

impl History {
    /// Fails if the history is too small to have faults.
    pub fn is_worth_checking(&self) {
        let calls = self.transactions.iter().filter(|t| matches!(t.who, Who::Call(_))).count();
        let aborted = self.transactions.iter().filter(|t| !t.committed).count();
        let longest = self.lists.values().map(Vec::len).max().unwrap_or(0);
        assert!(calls > 20 && aborted > 3 && longest > 20, "{calls} {aborted} {longest}");
        assert!(self.rounds.iter().all(|rounds| *rounds > 10), "{:?}", self.rounds);
    }

    /// Writes the committed transactions, one a line.
    #[allow(clippy::disallowed_methods)] // The file is for an external program.
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
