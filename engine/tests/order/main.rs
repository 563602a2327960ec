//! Histories of a mixed load, and the properties of every history. Pushed batches go through
//! procedures, one of them nested, while several clients make calls.
//!
//! Every key holds a list. A transaction appends unique numbers, and reads whole lists. So each
//! read shows exactly which transactions came before it, and a checker need not search. It draws
//! the graph of the necessary orders, and looks for a cycle, as Elle does.
//!
//! | file | purpose |
//! | --- | --- |
//! | `history` | the observations of clients, and the procedures that they trigger |
//! | `load` | the load on a running engine |
//! | `model` | the same load in a loop, for histories to spoil |
//! | `serial` | checks that one serial order explains all observations |
//! | `rounds` | checks the schedule of turns: dataflow and stream order (S-Store, section 2.3) |
//! | `nested` | checks that a nested transaction is one (S-Store, section 2.4) |
//! | `spoiled` | histories that are wrong, each in one way |
//! | `porcupine` | the same histories for an external checker (`make histories`) |
//!
//! The serial order also respects real time, the order of each stream, and that of the procedures
//! (S-Store, sections 2.3 and 2.4).

mod history;
mod load;
mod model;
mod nested;
mod rounds;
mod serial;
mod spoiled;

use history::History;

/// Checks all properties of a history.
fn check(history: &History) -> Result<(), String> {
    serial::check(history)?;
    rounds::check(history)?;
    nested::check(history)
}

/// The number of histories: more when a longer run is requested.
fn cases(few: u64) -> u64 {
    let asked = std::env::var("TIDEMILL_CASES").ok().and_then(|cases| cases.parse::<u64>().ok());
    asked.map_or(few, |asked| few.max(asked / 200))
}

#[test]
fn what_clients_see_of_the_engine_has_one_serial_order() {
    for seed in 0..cases(4) {
        for workers in [1, 2] {
            let history = load::run(seed, workers);
            if let Err(wrong) = check(&history) {
                panic!("seed {seed}, {workers} workers: {wrong}");
            }
            history.is_worth_checking();
            // The file is for an external checker: `make histories`.
            if let Ok(folder) = std::env::var("TIDEMILL_HISTORIES") {
                history.write(&format!("{folder}/{seed}-{workers}.jsonl"));
            }
        }
    }
}

#[test]
fn what_a_loop_does_is_right() {
    for seed in 0..cases(50) {
        let history = model::run(seed);
        assert_eq!(check(&history), Ok(()), "seed {seed}");
        history.is_worth_checking();
    }
}
