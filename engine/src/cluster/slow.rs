//! Features of an app that are much slower on several processes than in one. They are reported at
//! the start and in the status.

use tidemill_txn::program::Program;

/// Describes these features, each in a sentence with a remedy. Nothing is slow if one worker owns all
/// rows.
pub(super) fn slow(program: &Program, has_sole_owner: bool) -> Vec<String> {
    if has_sole_owner {
        return Vec::new();
    }
    let histories = program.tables.iter().filter(|table| table.history.is_some()).map(|table| {
        format!(
            "table {} has a history, whose versions are rows on several processes: an event that writes it, or reads a \
             window over it, takes milliseconds, instead of microseconds in one process; run the app in one process, or store \
             the sums that it needs in columns",
            table.name
        )
    });
    let windows = program.windows.iter().map(|window| {
        format!(
            "window {} has its rows on other nodes on several processes: an event that enters it takes \
             milliseconds, instead of a fraction of one in one process; run the app in one process, or make the window shorter",
            window.name
        )
    });
    histories.chain(windows).collect()
}

#[cfg(test)]
mod tests {
    use tidemill_core::{Column, DataType, History};
    use tidemill_txn::program::Builder;

    use super::*;

    #[test]
    fn histories_are_told() {
        let mut b = Builder::new("sensors");
        let columns = |names: [&str; 2]| names.map(|n| Column::new(n, DataType::Int)).to_vec();
        let table = b.table("sensors", &["k"], columns(["k", "n"]));
        b.history(table, History { time_us: Some(1_000), versions: None });
        b.table("others", &["k"], columns(["k", "n"]));
        let program = b.finish().unwrap();
        assert!(slow(&program, true).is_empty());
        let told = slow(&program, false);
        assert!(told.len() == 1 && told[0].starts_with("table sensors has a history"), "{told:?}");
    }
}
