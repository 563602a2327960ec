use crate::check;

const SMALL: &str = r#""warehouses":3,"items":200,"events":3000,"repeat":2"#;

fn options(folder: &std::path::Path, more: &str) -> String {
    format!(r#"{SMALL},"sink":"{}"{more}"#, folder.display())
}

#[test]
fn the_rust_functions_come_to_the_baseline() {
    let folder = tempfile::tempdir().unwrap();
    for more in ["", r#","durable":"none""#, r#","rate":20000"#, r#","threads":2"#] {
        let report = check::report("tpcc", &options(folder.path(), more), Vec::new());
        assert_eq!(report["valid"], true, "{report}");
        assert!(report["refused"].as_u64().unwrap() > 5, "{report}");
    }
}

#[test]
fn wrong_options_are_refused() {
    let cases = [
        (r#""warehouses":0"#, "--warehouses 0"),
        (r#""items":7"#, "--items 7"),
        (r#""candidates":7"#, "--candidates: tpcc has no such option"),
        (r#""program":"traced""#, "at run time"),
        (r#""program":"python""#, "were not given"),
    ];
    check::are_refused("tpcc", &cases);
}
