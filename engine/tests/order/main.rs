//! Histories of a mixed load, and what must hold of every one: pushed batches that go through
//! procedures, a nested transaction among them, and calls made by several clients at the same time.
//!
//! Every key holds a list; a transaction appends numbers that nobody else appends, and reads whole lists.
//! So each read tells exactly which transactions came before it, and a checker needs not search: it
//! draws the graph of who must come before whom, and looks for a cycle, as Elle does.
//!
//! | file | what it is |
//! | --- | --- |
//! | `history` | what clients have seen, and the procedures that they have set off |
//! | `load` | the load on a running engine |
//! | `model` | the same load in a loop, for histories to spoil |
//! | `serial` | checks that one serial order explains all that was seen, and respects who was answered before whom was made, each stream's order, and the procedures' (S-Store 2.3, 2.4) |
//! | `rounds` | checks the recorded schedule of turns: the dataflow order and the stream order constraint (S-Store 2.3) |
//! | `nested` | checks that a nested transaction is one (S-Store 2.4) |
//! | `spoiled` | histories that are wrong, each in one way |
//! | `porcupine` | the same histories before a checker that others have written (`make histories`) |

mod history;
mod load;
mod model;
mod nested;
mod rounds;
mod serial;
mod spoiled;

use history::History;

/// Everything that must hold of a history.
fn check(history: &History) -> Result<(), String> {
    serial::check(history)?;
    rounds::check(history)?;
    nested::check(history)
}

/// How many histories: more when a longer run is asked for.
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
            // For a checker that others have written: `make histories`.
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
