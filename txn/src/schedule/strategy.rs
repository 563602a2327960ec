//! Strategies by name.

use std::fmt;
use std::str::FromStr;

use tidemill_core::Error;

/// How the task precedence graph is walked (MorphStream V-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Explore {
    /// Structured: stratum after stratum, with a barrier between.
    Sbfs,
    /// Structured: every thread has its share of each stratum, and goes on as soon as what it needs
    /// is there.
    Sdfs,
    /// Not structured: whatever is ready, signalled from thread to thread.
    Ns,
}

/// What is scheduled at a time (MorphStream V-B).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One operation.
    Op,
    /// All operations of a key; keys that wait for one another in a circle are one unit.
    Chain,
}

/// When an abort is dealt with (MorphStream V-C).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aborts {
    /// At once.
    Eager,
    /// When the whole graph has been walked.
    Lazy,
}

/// How an epoch is executed. The outcome is the same; the time is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Chosen for each epoch, from what earlier ones measured.
    #[default]
    Adaptive,
    /// One thread, in order.
    Serial,
    /// By partition: one thread for each, transactions over several wait for all of theirs (S-Store).
    SStore,
    /// Chains of operations by key, aborts dealt with in the end (TStream).
    TStream,
    /// Rounds, of which every thread has a share; what meets is put off.
    Rounds,
    /// Blocks of transactions, which threads take one after the other; each transaction waits for those that
    /// have used its rows before.
    Blocks,
    /// Lists of transactions, one a thread, each of which waits for the farthest one that it needs
    /// of every other list.
    Lists,
    /// The task precedence graph, walked in one of MorphStream's ways.
    Graph(Explore, Unit, Aborts),
}

const EXPLORE: [(Explore, &str); 3] =
    [(Explore::Sbfs, "sbfs"), (Explore::Sdfs, "sdfs"), (Explore::Ns, "ns")];
const UNIT: [(Unit, &str); 2] = [(Unit::Op, "op"), (Unit::Chain, "chain")];
const ABORTS: [(Aborts, &str); 2] = [(Aborts::Eager, "eager"), (Aborts::Lazy, "lazy")];

impl Strategy {
    /// All that can be named, `adaptive` first.
    pub fn all() -> Vec<Strategy> {
        use Strategy::{Adaptive, Blocks, Lists, Rounds, SStore, Serial, TStream};
        let mut all = vec![Adaptive, Serial, Rounds, Blocks, Lists, SStore, TStream];
        for (explore, _) in EXPLORE {
            for (unit, _) in UNIT {
                all.extend(ABORTS.map(|(aborts, _)| Strategy::Graph(explore, unit, aborts)));
            }
        }
        all
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn name<T: PartialEq>(of: &T, names: &[(T, &'static str)]) -> &'static str {
            names.iter().find(|(item, _)| item == of).map_or("", |(_, name)| name)
        }
        match self {
            Strategy::Adaptive => f.write_str("adaptive"),
            Strategy::Serial => f.write_str("serial"),
            Strategy::SStore => f.write_str("s-store"),
            Strategy::TStream => f.write_str("tstream"),
            Strategy::Rounds => f.write_str("rounds"),
            Strategy::Blocks => f.write_str("blocks"),
            Strategy::Lists => f.write_str("lists"),
            Strategy::Graph(explore, unit, aborts) => {
                let (explore, unit) = (name(explore, &EXPLORE), name(unit, &UNIT));
                write!(f, "{explore}-{unit}-{}", name(aborts, &ABORTS))
            }
        }
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Strategy, Error> {
        let all = Strategy::all();
        all.iter().find(|strategy| strategy.to_string() == text).copied().ok_or_else(|| {
            let names: Vec<String> = all.iter().map(Strategy::to_string).collect();
            Error::setting(format!("there is no strategy '{text}'"))
                .help(format!("it is one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        let all = Strategy::all();
        assert_eq!(all.len(), 19);
        for strategy in all {
            assert_eq!(strategy.to_string().parse::<Strategy>().unwrap(), strategy);
        }
        let error = "ns-op".parse::<Strategy>().unwrap_err();
        assert!(error.to_string().contains("ns-op"));
    }
}
