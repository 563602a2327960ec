//! The votes that all systems receive, and the expected outcome.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde_json::Value;

/// An error of a run.
pub type Wrong = Box<dyn Error>;

/// The rows of all tables, each table's in the order of its key.
pub type Tables = BTreeMap<String, Vec<Vec<i64>>>;

/// The tables that are compared; the key is the first column.
pub const TABLES: [(&str, &str); 5] = [
    ("candidates", "candidate, votes, recent"),
    ("votes", "phone, candidate"),
    ("tally", "id, accepted"),
    ("recent", "place, candidate"),
    ("boards", "board, first, first_votes, second, second_votes, third, third_votes"),
];

/// A show: its votes, and the expected final tables.
pub struct Show {
    /// The number of candidates.
    pub candidates: i64,
    /// A candidate is removed after every this many accepted votes.
    pub every: i64,
    /// The phone and the candidate of each vote.
    pub votes: Vec<(i32, i32)>,
    refused: i64,
    tables: Tables,
}

/// The outcome of a system.
pub struct Ended {
    /// The seconds from the first vote to the last reply.
    pub seconds: f64,
    /// The number of refused votes.
    pub refused: i64,
    /// The final tables.
    pub tables: Tables,
}

impl Show {
    /// Reads the votes, and the file with the extension `.json` beside them.
    pub fn read(path: &Path) -> Result<Show, Wrong> {
        let text = std::fs::read_to_string(path)?;
        let vote = |line: &str| -> Result<(i32, i32), Wrong> {
            let (phone, candidate) = line.split_once(',').ok_or("a vote has two columns")?;
            Ok((phone.parse()?, candidate.parse()?))
        };
        let votes = text.lines().skip(1).map(vote).collect::<Result<_, _>>()?;
        let beside = std::fs::read_to_string(path.with_extension("json"))?;
        let found: Value = serde_json::from_str(&beside)?;
        let number = |name: &str| found[name].as_i64().ok_or(format!("there is no {name}"));
        Ok(Show {
            candidates: number("candidates")?,
            every: number("every")?,
            votes,
            refused: number("refused")?,
            tables: serde_json::from_value(found["tables"].clone())?,
        })
    }

    /// Checks the number of refused votes and every row of every table; the error names the wrong
    /// table.
    pub fn check(&self, ended: &Ended) -> Result<(), String> {
        if ended.refused != self.refused {
            return Err(format!("{} votes were refused, not {}", ended.refused, self.refused));
        }
        for (name, _) in TABLES {
            let (found, wanted) = (&ended.tables[name], &self.tables[name]);
            if let Some(at) =
                (0..found.len().max(wanted.len())).find(|at| found.get(*at) != wanted.get(*at))
            {
                let (found, wanted) = (found.get(at), wanted.get(at));
                return Err(format!("{name}, row {at}: {found:?} and not {wanted:?}"));
            }
        }
        Ok(())
    }
}
