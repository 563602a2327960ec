//! What of an app takes much longer on several processes than in one: told when it starts, and in its status.

use tidemill_txn::program::Program;

/// What there is of that, each in a sentence with what to do.
pub(super) fn slow(program: &Program) -> Vec<String> {
    let histories = program.tables.iter().filter(|table| table.history.is_some()).map(|table| {
        format!(
            "table {} keeps a history, whose versions are rows on several processes: an event that writes it, or reads a \
             window over it, takes milliseconds, and in one process microseconds; run the app in one process, or keep \
             the sums that it needs in columns",
            table.name
        )
    });
    let windows = program.windows.iter().map(|window| {
        format!(
            "window {} has its rows with other nodes on several processes: an event that comes to it takes \
             milliseconds, and in one process a fraction of one; run the app in one process, or make the window shorter",
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
        let told = slow(&b.finish().unwrap());
        assert!(
            told.len() == 1 && told[0].starts_with("table sensors keeps a history"),
            "{told:?}"
        );
    }
}
