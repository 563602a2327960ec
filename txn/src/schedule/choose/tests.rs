//! The choices for epochs with given times.

use super::*;

const SEEN: Properties = Properties {
    transactions: 10_000,
    rows: 3.5,
    shared: 0.1,
    hottest: 0.0,
    aborts: 0.0,
    unknown: 0.0,
};

/// Runs a chooser for some epochs with these times, and returns the uses of each option.
fn run(chooser: &mut Chooser, epochs: usize, [serial, rounds, lists]: [f64; 3]) -> [usize; ARMS] {
    let mut used = [0; ARMS];
    for _ in 0..epochs {
        let arm = chooser.choose(&SEEN, 2).arm;
        let (plan_ns, execute_ns) = (Some(45.0), Some(serial * 0.9));
        let took = match arm {
            ExecutionMode::Serial => EpochTimes { ns: serial, ..EpochTimes::default() },
            ExecutionMode::Rounds => {
                EpochTimes { ns: rounds, plan_ns: Some(5.0), execute_ns, aborts: 0.0 }
            }
            ExecutionMode::Lists => EpochTimes { ns: lists, plan_ns, execute_ns, aborts: 0.0 },
            ExecutionMode::Blocks | ExecutionMode::Graph => {
                EpochTimes { ns: serial * 2.0, ..EpochTimes::default() }
            }
        };
        used[arm as usize] += 1;
        chooser.learn(&SEEN, 2, arm, took);
    }
    used
}

#[test]
fn cheap_transactions_are_executed_serially_but_for_a_try_now_and_then() {
    let used = run(&mut Chooser::new(ExecutionMode::IN_PLACE, 1.0), 10_000, [55.0, 90.0, 95.0]);
    assert!(used[0] > 9_700, "{used:?}");
}

#[test]
fn where_few_meet_rounds_win() {
    let used = run(&mut Chooser::new(ExecutionMode::IN_PLACE, 1.0), 10_000, [60.0, 40.0, 75.0]);
    assert!(used[1] > 9_700, "{used:?}");
}

#[test]
fn dear_ones_that_meet_are_executed_in_lists() {
    let used = run(&mut Chooser::new(ExecutionMode::IN_PLACE, 1.0), 10_000, [600.0, 500.0, 340.0]);
    assert!(used[2] > 9_700, "{used:?}");
}

/// On many threads, blocks replace rounds. Blocks win where one thread plans too slowly for all,
/// and lists win where no thread waits for the plan.
#[test]
fn many_threads_plan_together() {
    for (of, wins) in [
        ([220.0, 40.0, 115.0], ExecutionMode::Blocks),
        ([3_600.0, 310.0, 280.0], ExecutionMode::Lists),
    ] {
        let (mut chooser, mut used) = (Chooser::new(ExecutionMode::in_place(16), 1.0), 0);
        for _ in 0..2_000 {
            let arm = chooser.choose(&SEEN, 16).arm;
            assert!(arm != ExecutionMode::Rounds, "it is not among them");
            let ns = match arm {
                ExecutionMode::Serial => of[0],
                ExecutionMode::Blocks => of[1],
                ExecutionMode::Lists => of[2],
                ExecutionMode::Graph | ExecutionMode::Rounds => of[0] * 0.5,
            };
            used += usize::from(arm == wins);
            chooser.learn(&SEEN, 16, arm, EpochTimes { ns, ..EpochTimes::default() });
        }
        assert!(used > 1_900, "{wins:?} {used}");
    }
    assert_eq!([2, 3].map(ExecutionMode::in_place), [ExecutionMode::IN_PLACE; 2]);
}

/// If rounds lose although few rows are shared, they are not expected to win when more are.
#[test]
fn what_is_learned_of_few_shared_rows_holds_for_more() {
    let mut chooser = Chooser::new(ExecutionMode::IN_PLACE, 1.0);
    let took = |arm| match arm {
        ExecutionMode::Serial => 60.0,
        ExecutionMode::Rounds => 90.0,
        ExecutionMode::Lists => 110.0,
        ExecutionMode::Graph | ExecutionMode::Blocks => 600.0,
    };
    let mut lost = 0;
    for step in 0..60 {
        let shared = [0.0, 0.05, 0.1, 0.3, 0.6][step / 12];
        let seen = chooser.look(Properties { shared, ..SEEN });
        let arm = chooser.choose(&seen, 2).arm;
        lost += usize::from(arm != ExecutionMode::Serial);
        chooser.learn(&seen, 2, arm, EpochTimes { ns: took(arm), ..EpochTimes::default() });
    }
    // A try of each option and another of rounds, of two epochs each.
    assert!(lost <= 6, "{lost} of 60 epochs");
}

#[test]
fn a_change_is_noticed_both_ways() {
    let mut chooser = Chooser::new(ExecutionMode::IN_PLACE, 1.0);
    run(&mut chooser, 500, [55.0, 90.0, 95.0]);
    assert!(run(&mut chooser, 100, [3_000.0, 2_500.0, 1_600.0])[2] > 80);
    let used = run(&mut chooser, 100, [55.0, 90.0, 95.0]);
    assert!(used[0] > 70, "{used:?}");
}

/// The time of serial execution while memory is new is not its usual time.
#[test]
fn serial_execution_is_tried_again_soon() {
    let mut chooser = Chooser::new(ExecutionMode::IN_PLACE, 1.0);
    let mut serially = 0;
    for epoch in 0..400 {
        let arm = chooser.choose(&SEEN, 2).arm;
        serially += usize::from(arm == ExecutionMode::Serial);
        let serial = if epoch < 4 { 250.0 } else { 90.0 };
        let took =
            EpochTimes { ns: [serial, 137.0, 182.0, 900.0][arm as usize], ..EpochTimes::default() };
        chooser.learn(&SEEN, 2, arm, took);
    }
    assert!(serially > 200, "{serially}");
}

/// An option that begins slower than the best and becomes faster with use is found. An option that
/// stays slow is soon left.
#[test]
fn what_becomes_faster_is_used_until_it_does_not() {
    for (warm, is_found) in [([400.0, 120.0, 95.0, 80.0, 62.0, 50.0], true), ([400.0; 6], false)] {
        let (mut chooser, mut in_row, mut last, mut rounds) =
            (Chooser::new(ExecutionMode::IN_PLACE, 1.0), 0, ExecutionMode::Serial, 0);
        for _ in 0..300 {
            let arm = chooser.choose(&SEEN, 2).arm;
            in_row = if arm == last { in_row + 1 } else { 0 };
            last = arm;
            rounds += usize::from(arm == ExecutionMode::Rounds);
            let ns = [70.0, warm[in_row.min(5)], 110.0, 900.0][arm as usize];
            chooser.learn(&SEEN, 2, arm, EpochTimes { ns, ..EpochTimes::default() });
        }
        assert!(if is_found { rounds > 230 } else { rounds < 12 }, "{rounds}");
    }
}

/// Blocks are tried where expensive transactions share rows, and stay if they are faster. For cheap
/// transactions, occasional tries cost little.
#[test]
fn blocks_are_for_what_is_dear_and_meets() {
    let seen = Properties { shared: 0.6, ..SEEN };
    for (of, blocks_win) in [([3_500.0, 3_400.0, 2_300.0, 2_000.0], true), ([35.0; 4], false)] {
        let (mut chooser, mut in_blocks) = (Chooser::new(ExecutionMode::IN_PLACE, 1.0), 0);
        for _ in 0..2_000 {
            let arm = chooser.choose(&seen, 2).arm;
            in_blocks += usize::from(arm == ExecutionMode::Blocks);
            let took = EpochTimes { ns: of[arm as usize], ..EpochTimes::default() };
            chooser.learn(&seen, 2, arm, took);
        }
        assert!(if blocks_win { in_blocks > 1_800 } else { in_blocks < 10 }, "{in_blocks}");
    }
}

#[test]
fn a_sample_holds_for_a_while() {
    let mut chooser = Chooser::new(ExecutionMode::IN_PLACE, 1.0);
    let mut samples = 0;
    for _ in 0..100 {
        chooser.look_at(1_000, || {
            samples += 1;
            SEEN
        });
    }
    assert_eq!(samples, 25);
    let seen = chooser.look_at(10_000, || Properties { shared: 0.9, ..SEEN });
    assert_eq!((seen.transactions, seen.shared), (10_000, 0.9));
}

/// Transactions that can't be executed in place go into a graph where that pays. They are executed
/// serially where a try has shown that it does not pay.
#[test]
fn a_graph_is_for_what_is_dear_and_known_beforehand() {
    for (serial, graph, is_graph) in
        [(900.0, 1_300.0, false), (20_000.0, 11_500.0, true), (20_000.0, 24_000.0, false)]
    {
        let mut chooser = Chooser::new(ExecutionMode::NOT_IN_PLACE, 1.0);
        let mut in_graphs = 0;
        for _ in 0..2_000 {
            let arm = chooser.choose(&SEEN, 2).arm;
            let ns = [serial, graph][usize::from(arm == ExecutionMode::Graph)];
            in_graphs += usize::from(arm == ExecutionMode::Graph);
            chooser.learn(&SEEN, 2, arm, EpochTimes { ns, ..EpochTimes::default() });
        }
        assert_eq!(in_graphs > 1_900, is_graph, "{serial} {graph}: {in_graphs}");
        assert!(is_graph || in_graphs < 60, "{serial} {graph}: {in_graphs}");
    }
}

/// A graph is not tried if most transactions write one row, because it could only execute them one
/// after the other.
#[test]
fn a_graph_is_not_tried_for_one_row() {
    for (hottest, is_tried) in [(0.75, false), (0.1, true)] {
        let seen = Properties { rows: 1.0, hottest, ..SEEN };
        let mut chooser = Chooser::new(ExecutionMode::NOT_IN_PLACE, 1.5);
        let mut in_graphs = 0;
        for _ in 0..200 {
            let arm = chooser.choose(&seen, 2).arm;
            in_graphs += usize::from(arm == ExecutionMode::Graph);
            let took = EpochTimes { ns: 4_000.0, ..EpochTimes::default() };
            chooser.learn(&seen, 2, arm, took);
        }
        assert_eq!(in_graphs > 0, is_tried, "{hottest}: {in_graphs}");
    }
}

/// On a machine that plans slowly, less is planned before the first measurements.
#[test]
fn a_slow_machine_plans_less() {
    let took = EpochTimes { ns: 150.0, ..EpochTimes::default() };
    let first = |slower| {
        let mut chooser = Chooser::new(ExecutionMode::IN_PLACE, slower);
        (0..2).for_each(|_| chooser.learn(&SEEN, 2, ExecutionMode::Serial, took));
        chooser.expected(&SEEN, 2).best(ExecutionMode::IN_PLACE)
    };
    assert_eq!([first(1.0), first(8.0)], [ExecutionMode::Lists, ExecutionMode::Serial]);
}

#[test]
fn what_waits_too_much_is_left_alone() {
    // All transactions use the same rows, and both take longer than the model says.
    let used = run(&mut Chooser::new(ExecutionMode::IN_PLACE, 1.0), 10_000, [200.0, 290.0, 260.0]);
    assert!(used[0] > 9_600, "{used:?}");
}
