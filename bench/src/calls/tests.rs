use crate::check;

#[test]
fn with_and_without_it_comes_to_the_baseline() {
    for (of, threads) in [("ycsb-t", 1), ("ycsb-t", 3), ("tpcc", 1), ("tpcc", 2), ("tpcc", 4)] {
        let options = format!(
            r#""of":"{of}","threads":{threads},"keys":60,"skew":0.9,"warehouses":3,"items":100,"events":2000,"epoch":150,"repeat":1"#
        );
        let report = check::report("calls", &options, Vec::new());
        assert_eq!(report["valid"], true, "{report}");
        let of = |run: &str, what: &str| report["protocol"][run][what].as_f64().unwrap();
        assert_eq!(of("no-cache", "cached_a_request"), 0.0, "{report}");
        if threads > 1 {
            assert!(of("all", "messages_a_request") > 0.0, "{report}");
        }
    }
}

#[test]
fn wrong_options_are_refused() {
    let cases = [
        (r#""of":"sl""#, "no such graph of calls"),
        (r#""every":7"#, "--every: calls has no such option"),
    ];
    check::are_refused("calls", &cases);
}
