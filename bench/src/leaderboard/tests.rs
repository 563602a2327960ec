use serde_json::Value;
use tidemill_env::Env;

use super::run::Leaderboard;
use super::straight::Straight;
use super::tight::Tight;
use super::votes::{Vote, Votes};
use super::Show;
use crate::check::{all_agree, are_refused, args, case, report};
use crate::events::{cuts, epochs, Events};
use crate::execute::{execute, Execution};
use crate::run::{is_right, Case};
use crate::same::same_as_reference;

/// A show that ends after a few thousand votes.
const SMALL: &str = r#""candidates":6,"phones":2000,"every":250,"repeat":1"#;

#[test]
fn executor_and_engine_come_to_the_same_however_votes_are_cut() {
    let options = format!(r#"{SMALL},"durable":"none""#);
    let mut reports = all_agree("leaderboard", &["rust"], &options, Vec::new);
    let folder = tempfile::tempdir().unwrap();
    let sink = folder.path().display();
    for options in [
        r#""durable":"log""#,
        r#""durable":"log","batch":7,"threads":2"#,
        r#""durable":"log+snapshots","epoch":50"#,
        r#""durable":"log","rate":20000"#,
        r#""durable":"none","rate":20000"#,
    ] {
        let options = format!(r#"{SMALL},"sink":"{sink}",{options}"#);
        let found = report("leaderboard", &options, Vec::new());
        assert_eq!(found["valid"], true, "{found}");
        assert_eq!(found["latency_ms"].is_object(), options.contains("rate"), "{found}");
        reports.push(found);
    }
    let hashes = |report: &Value| (report["state_hash"].clone(), report["output_hash"].clone());
    assert!(reports.iter().all(|report| hashes(report) == hashes(&reports[0])), "{reports:?}");
    let number = |name: &str| reports[0][name].as_u64().unwrap();
    assert_eq!(number("running"), 1);
    assert!(number("refused") > 50 && number("standing") < 1250, "{}", reports[0]);
}

#[test]
fn the_reference_comes_to_the_same() {
    for (skew, epoch) in [(0, 1), (1, 40)] {
        let options =
            format!(r#""candidates":5,"phones":150,"every":60,"skew":{skew},"durable":"none""#);
        let case: Leaderboard = case(&args("leaderboard", &options), Vec::new());
        assert!(same_as_reference(&case, epoch, None) > 10);
    }
}

/// Returns a show with these votes.
fn shown(candidates: usize, every: u64, votes: &[(u32, u32)]) -> Leaderboard {
    let options =
        format!(r#""candidates":{candidates},"every":{every},"phones":200,"durable":"none""#);
    let mut case: Leaderboard = case(&args("leaderboard", &options), Vec::new());
    let votes =
        votes.iter().map(|(phone, candidate)| Vote { phone: *phone, candidate: *candidate });
    let votes = Votes { candidates, votes: votes.collect() };
    case.straight = Straight::run(&votes, every);
    case.made.events = votes;
    case
}

/// Whether the executor agrees with the straight loop.
fn is_done_right(case: &Leaderboard) -> bool {
    let epochs = epochs(&[case.made.events.count()], 3);
    let parts = &case.made.parts;
    let cuts = cuts(&case.made.events, &epochs, &parts.inputs);
    let done =
        execute(&Env::real(), &parts.program, cuts, case.tables(), Execution::SERIAL).unwrap();
    let mut tight = case.baseline();
    let verdicts = case.run_baseline(&mut tight);
    is_right(case, &done, verdicts, &tight)
}

#[test]
fn the_rules_are_these() {
    // The second vote of a phone, and one for an unknown candidate, are refused.
    let case = shown(4, 100, &[(1, 2), (1, 3), (2, 9), (3, 2), (4, 4)]);
    assert_eq!(case.straight.numbers().map(|(_, n)| n), [3, 2, 3, 4]);
    assert_eq!(
        case.straight.boards(),
        [[2, 2, 4, 1, 1, 0], [1, 0, 3, 0, 4, 1], [2, 2, 4, 1, 1, 0]]
    );
    assert!(is_done_right(&case));

    // Of three candidates with one vote or none, the first is removed. Its phone may vote again,
    // but not for it.
    let case = shown(3, 4, &[(1, 1), (2, 2), (3, 3), (4, 3), (1, 1), (1, 2), (2, 3)]);
    assert_eq!(case.straight.removed, [[1, 1, 4]]);
    assert_eq!(case.straight.numbers().map(|(_, n)| n), [5, 2, 4, 2]);
    // Two are left, and the fifth vote was for one of them.
    assert_eq!(
        case.straight.boards(),
        [[2, 2, 3, 2, 0, 0], [2, 2, 3, 2, 0, 0], [2, 2, 3, 2, 0, 0]]
    );
    assert!(is_done_right(&case));

    // The last candidate stays.
    let case = shown(2, 1, &[(1, 2), (2, 2), (3, 2)]);
    assert_eq!(case.straight.removed, [[1, 0, 1]]);
    assert!(is_done_right(&case));
}

#[test]
fn a_trend_is_of_the_last_hundred_votes_even_if_they_were_taken_back() {
    // Fifty votes are for 1 and fifty for 2, one of which removes 3. The next vote for 2 drops the
    // oldest one.
    let votes = |n: u32| (1..=n).map(|phone| (phone, if phone <= 50 { 1 } else { 2 }));
    let case = shown(3, 100, &votes(99).chain([(99, 2), (98, 3)]).collect::<Vec<_>>());
    assert_eq!(case.straight.boards()[2], [1, 50, 2, 49, 3, 0]);
    assert!(is_done_right(&case));
    let back = [(0, 3), (98, 1)];
    let case = shown(3, 98, &votes(97).chain([(98, 1)]).chain(back).collect::<Vec<_>>());
    // 3 is removed without a vote, so both of the last two votes are refused.
    assert_eq!(case.straight.removed, [[3, 0, 98]]);
    assert_eq!(case.straight.boards()[2], [1, 51, 2, 47, 0, 0]);
    assert!(is_done_right(&case));
    // 1 is removed with its votes, which stay among the last hundred.
    let phones = (0..60).map(|phone| (phone, if phone < 20 { 1 } else { 2 }));
    let again = (0..20).map(|phone| (phone, 2));
    let case = shown(2, 60, &phones.chain(again).collect::<Vec<_>>());
    assert_eq!(case.straight.removed, [[1, 20, 60]]);
    assert_eq!(case.straight.boards()[2], [2, 60, 0, 0, 0, 0]);
    assert!(is_done_right(&case));
}

#[test]
fn the_audience_votes_as_it_is_said() {
    let args =
        args("leaderboard", r#""candidates":8,"phones":20000,"every":1000,"durable":"none""#);
    let case: Leaderboard = case(&args, Vec::new());
    let [(_, accepted), (_, refused), _, (_, running)] = case.straight.numbers();
    assert_eq!(running, 1);
    let share = refused as f64 / (accepted + refused) as f64;
    assert!((0.05..0.08).contains(&share), "{share}");
    let removed = &case.straight.removed;
    assert!(removed.iter().enumerate().all(|(nth, [.., at])| *at == 1000 * (nth as i64 + 1)));
}

/// The invariant detects wrong tables.
#[test]
fn what_is_wrong_is_found() {
    let case: Leaderboard =
        case(&args("leaderboard", &format!(r#"{SMALL},"durable":"none""#)), Vec::new());
    let parts = &case.made.parts;
    let epochs = epochs(&[case.made.events.count()], 100);
    let cuts = cuts(&case.made.events, &epochs, &parts.inputs);
    let mut done =
        execute(&Env::real(), &parts.program, cuts, case.tables(), Execution::SERIAL).unwrap();
    let show = Show::of(&args("leaderboard", &format!(r#"{SMALL},"durable":"none""#))).unwrap();
    let mut tight = Tight::new(&show);
    let verdicts = tight.run(&case.made.events, show.every);
    assert!(is_right(&case, &done, verdicts, &tight));
    for table in 0..parts.program.tables.len() {
        let row = done.tables[table].rows()[0].clone();
        let spec = done.tables[table].spec().clone();
        let key: Vec<_> = spec.key.iter().map(|column| row[*column].clone()).collect();
        let seq = 1 << 40;
        done.tables[table].put(&key, None, seq);
        assert!(!is_right(&case, &done, verdicts, &tight), "{} lacks a row", spec.name);
        done.tables[table].put(&key, Some(&row), seq + 1);
        assert!(is_right(&case, &done, verdicts, &tight));
    }
    tight.removed.pop();
    assert!(!is_right(&case, &done, verdicts, &tight));
}

#[test]
fn wrong_options_are_named() {
    are_refused(
        "leaderboard",
        &[
            (r#""candidates":1"#, "--candidates 1"),
            (r#""candidates":201"#, "--candidates 201"),
            (r#""phones":0"#, "--phones 0"),
            (r#""every":0"#, "--every 0"),
            (r#""program":"traced""#, "--program traced"),
            (r#""program":"python""#, "procedures are functions"),
            (r#""length":3"#, "--length"),
        ],
    );
}
