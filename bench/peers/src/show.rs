//! The votes that all systems get, and what they must come to.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use serde_json::Value;

/// What went wrong.
pub type Wrong = Box<dyn Error>;

/// Rows by table, each table's in the order of its key.
pub type Tables = BTreeMap<String, Vec<Vec<i64>>>;

/// The tables that are compared; the key is the first column.
pub const TABLES: [(&str, &str); 5] = [
    ("candidates", "candidate, votes, recent"),
    ("votes", "phone, candidate"),
    ("tally", "id, accepted"),
    ("recent", "place, candidate"),
    ("boards", "board, first, first_votes, second, second_votes, third, third_votes"),
];

/// A show: its votes, and the tables after the last one.
pub struct Show {
    /// Candidates who stand.
    pub candidates: i64,
    /// After so many accepted votes one has to go.
    pub every: i64,
    /// Phone and candidate.
    pub votes: Vec<(i32, i32)>,
    refused: i64,
    tables: Tables,
}

/// What a system has come to.
pub struct Ended {
    /// From the first vote sent to the last one answered.
    pub seconds: f64,
    /// Votes that it has refused.
    pub refused: i64,
    /// Its tables.
    pub tables: Tables,
}

impl Show {
    /// Reads votes, and the file beside them that ends in `.json`.
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

    /// Whether a system has refused as many votes, and every row of every table is right; says which
    /// table is not.
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
