//! The strategies by name.

use std::fmt;
use std::str::FromStr;

use tidemill_core::Error;

/// The walk of the task precedence graph (MorphStream, section V-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Explore {
    /// Structured: stratum after stratum, with a barrier between.
    Sbfs,
    /// Structured: every thread has its share of each stratum. It continues as soon as the
    /// dependencies of its next unit are executed.
    Sdfs,
    /// Not structured: threads execute any ready unit and signal dependents.
    Ns,
}

/// The unit of scheduling (MorphStream, section V-B).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One operation.
    Op,
    /// All operations of a key. Keys that form a cycle are one unit.
    Chain,
}

/// The handling of aborts (MorphStream, section V-C).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aborts {
    /// At once.
    Eager,
    /// After the walk of the whole graph.
    Lazy,
}

/// The execution of an epoch. The choice affects the time, never the outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Chosen for each epoch, from measurements of earlier epochs.
    #[default]
    Adaptive,
    /// One thread, in order.
    Serial,
    /// One thread for each partition. Transactions on several partitions wait for all of them
    /// (S-Store).
    SStore,
    /// Chains of operations by key, with aborts handled at the end (TStream).
    TStream,
    /// Rounds, of which every thread has a share. Transactions that conflict are deferred.
    Rounds,
    /// Blocks of transactions, which threads take one after the other. Each transaction waits for
    /// the earlier users of its rows.
    Blocks,
    /// A list of transactions for each thread. Each transaction waits for the last one that it
    /// needs in every other list.
    Lists,
    /// The task precedence graph, walked in one of MorphStream's ways.
    Graph(Explore, Unit, Aborts),
}

const EXPLORE: [(Explore, &str); 3] =
    [(Explore::Sbfs, "sbfs"), (Explore::Sdfs, "sdfs"), (Explore::Ns, "ns")];
const UNIT: [(Unit, &str); 2] = [(Unit::Op, "op"), (Unit::Chain, "chain")];
const ABORTS: [(Aborts, &str); 2] = [(Aborts::Eager, "eager"), (Aborts::Lazy, "lazy")];

impl Strategy {
    /// Returns all strategies with names, `adaptive` first.
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
                .help(format!("the strategies are {}", names.join(", ")))
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
