//! The borders of the parts: their dependencies, and names that pure parts may not mention.
//!
//! `ARCHITECTURE.md` describes the architecture by these absences.

#![allow(clippy::disallowed_methods)] // A test that reads the sources of the project.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the packages of the project that directly depend on a package.
fn users_of(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--workspace",
            "--edges",
            "normal",
            "--depth",
            "1",
            "--prefix",
            "depth",
            "--no-dedupe",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut users, mut owner) = (Vec::new(), String::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let name = |rest: &str| rest.split(' ').next().unwrap_or_default().to_string();
        if let Some(rest) = line.strip_prefix('0') {
            owner = name(rest);
        } else if let Some(rest) = line.strip_prefix('1') {
            if name(rest) == package && !users.contains(&owner) {
                users.push(owner.clone());
            }
        }
    }
    users.sort();
    users
}

/// Returns the packages that a build of these includes, each with its features. Build scripts may
/// have others.
fn features(of: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--no-dedupe", "--prefix", "none", "--format", "{p}|{f}"])
        .args(of)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for (package, features) in text.lines().filter_map(|line| line.split_once('|')) {
        found.entry(package.to_string()).or_default().insert(features.to_string());
    }
    found
}

/// The libraries of the two Python packages.
const EXTENSIONS: [&str; 2] = ["tidemill-extension", "tidemill-bench-python"];

#[test]
fn the_extensions_and_the_tests_are_one_build() {
    let tests = features(&["--workspace", "--edges", "normal,dev"]);
    for package in EXTENSIONS {
        // `make setup` builds with this feature.
        let of = ["--package", package, "--edges", "normal", "--features", "testing"];
        let extension = features(&of);
        // The tests don't link the libraries themselves, which have hardly any code.
        let is_library = |package: &str| EXTENSIONS.iter().any(|of| package.starts_with(of));
        let others = extension.iter().filter(|(package, _)| !is_library(package));
        let other: Vec<_> =
            others.filter(|(package, features)| !features.is_subset(&tests[*package])).collect();
        assert!(other.is_empty(), "built twice, for the tests with other features: {other:?}");
    }
}

#[test]
fn wheels_have_no_functions_for_tests() {
    let has_them = |of: &[&str]| {
        let binding = features(of).into_iter().filter(|(of, _)| of.starts_with("tidemill-python "));
        let all: Vec<String> = binding.flat_map(|(_, features)| features).collect();
        assert!(!all.is_empty(), "the binding is not in {of:?}");
        all.iter().any(|features| features.split(',').any(|feature| feature == "testing"))
    };
    for package in EXTENSIONS {
        let wheel = ["--package", package, "--edges", "normal", "--features", "kafka-tls-vendored"];
        assert!(!has_them(&wheel), "a wheel of {package}");
        assert!(has_them(&["--package", package, "--edges", "normal", "--features", "testing"]));
    }
}

#[test]
fn only_the_bindings_know_pyo3() {
    assert_eq!(
        users_of("pyo3"),
        ["tidemill-bench-python", "tidemill-extension", "tidemill-python"]
    );
}

#[test]
fn the_reference_is_only_for_tests() {
    assert_eq!(users_of("tidemill-reference"), [""; 0]);
}

#[test]
fn only_the_gateway_knows_http() {
    for package in ["axum", "hyper", "tokio-rustls"] {
        assert_eq!(users_of(package), ["tidemill-gateway"], "{package}");
    }
    assert_eq!(users_of("tokio"), ["tidemill-gateway", "tidemill-s3"]);
}

#[test]
fn only_their_crates_know_kafka_and_s3() {
    assert_eq!(users_of("rdkafka"), ["tidemill-kafka"]);
    // Schema registries are asked over HTTP.
    assert_eq!(users_of("ureq"), ["tidemill-kafka"]);
    assert_eq!(users_of("object_store"), ["tidemill-s3"]);
}

#[test]
fn pure_parts_do_not_log() {
    let logging = ["connect", "engine", "env", "gateway", "host", "kafka"];
    assert_eq!(users_of("tracing"), logging.map(|part| format!("tidemill-{part}")));
    assert_eq!(users_of("tracing-subscriber"), ["tidemill-engine"]);
}

/// Users filter by target, so each event has one of the documented targets.
#[test]
fn every_target_is_a_known_one() {
    let known = fs::read_to_string(root().join("engine/src/logging.rs")).unwrap();
    for part in ["connect", "engine", "env", "gateway", "host", "kafka"] {
        for file in sources(&root().join(part).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            let logs = text.contains("use tracing::");
            for line in text.lines().filter(|_| logs) {
                let is_event = ["error!(", "warn!(", "info!(", "debug!(", "trace!("]
                    .iter()
                    .any(|event| line.contains(event));
                let target =
                    line.split("target: \"").nth(1).and_then(|rest| rest.split('"').next());
                let is_known = |target: &str| known.contains(&format!("(\"{target}\", "));
                assert!(target.is_none_or(is_known), "{}: {line}", file.display());
                let is_begun = line.trim_end().ends_with("!(");
                assert!(!is_event || is_begun || target.is_some(), "{}: {line}", file.display());
            }
        }
    }
}

#[test]
fn the_door_is_only_for_those_who_may_go_out() {
    // No IO, clock or thread can reach core, place, table or txn, which do not depend on the
    // environment.
    assert_eq!(
        users_of("tidemill-env"),
        [
            "tidemill-bench",
            "tidemill-connect",
            "tidemill-durable",
            "tidemill-engine",
            "tidemill-flow",
            "tidemill-gateway",
            "tidemill-host",
            "tidemill-kafka",
            "tidemill-log",
            "tidemill-mesh",
            "tidemill-python",
            "tidemill-sim"
        ]
    );
}

#[test]
fn parts_do_not_know_what_they_must_not() {
    for (part, must_not_know) in [
        ("core", &["tidemill-"][..]),
        ("env", &["tidemill-"]),
        ("place", &["tidemill-env", "tidemill-table", "tidemill-txn", "tidemill-engine"]),
        ("table", &["tidemill-env", "tidemill-txn", "tidemill-connect", "tidemill-flow"]),
        ("txn", &["tidemill-env", "tidemill-connect", "tidemill-flow", "tidemill-engine"]),
        ("function", &["tidemill-env", "tidemill-flow", "tidemill-engine", "tidemill-cluster"]),
        ("cluster", &["tidemill-env", "tidemill-flow", "tidemill-engine", "tidemill-log"]),
        ("reference", &["tidemill-table", "tidemill-function", "tidemill-engine"]),
        ("sim", &["tidemill-txn", "tidemill-function", "tidemill-cluster", "tidemill-engine"]),
        ("mesh", &["tidemill-cluster", "tidemill-function", "tidemill-txn", "tidemill-engine"]),
        (
            "durable",
            &[
                "tidemill-cluster",
                "tidemill-function",
                "tidemill-engine",
                "tidemill-mesh",
                "tidemill-log",
                "tidemill-snapshot",
            ],
        ),
        (
            "kafka",
            &[
                "tidemill-function",
                "tidemill-engine",
                "tidemill-mesh",
                "tidemill-host",
                "tidemill-table",
                "tidemill-txn",
                "tidemill-flow",
                "tokio",
            ],
        ),
        ("s3", &["tidemill-cluster", "tidemill-engine", "tidemill-mesh", "tidemill-host"]),
        ("host", &["tidemill-engine", "tidemill-gateway", "tidemill-flow", "tokio", "pyo3"]),
        ("log", &["tidemill-table", "tidemill-txn", "tidemill-connect", "tidemill-engine"]),
        (
            "connect",
            &[
                "tidemill-table",
                "tidemill-txn",
                "tidemill-flow",
                "tidemill-engine",
                "tidemill-kafka",
            ],
        ),
        ("flow", &["tidemill-table", "tidemill-txn", "tidemill-connect", "tidemill-engine"]),
        ("engine", &["tidemill-gateway", "tokio", "pyo3"]),
        ("gateway", &["tidemill-txn", "tidemill-table", "tidemill-flow", "pyo3"]),
        (
            "snapshot",
            &[
                "tidemill-table",
                "tidemill-txn",
                "tidemill-log",
                "tidemill-engine",
                "tidemill-cluster",
                "tidemill-env",
            ],
        ),
    ] {
        let manifest = fs::read_to_string(root().join(part).join("Cargo.toml")).unwrap();
        let normal = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let normal = normal.split("\n[").next().unwrap_or_default();
        for package in must_not_know.iter() {
            assert!(!normal.contains(package), "{part} must not know {package}");
        }
    }
}

#[test]
fn pure_parts_mention_no_io() {
    let refused = ["std::fs", "std::net", "std::io", "std::time", "std::thread", "println!"];
    for part in ["core", "place", "table", "txn", "function", "cluster"] {
        for file in sources(&root().join(part).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            for word in refused {
                // The error type of core holds the text of an IO error from elsewhere.
                let is_error = file.ends_with("core/src/error.rs") && word == "std::io";
                assert!(is_error || !text.contains(word), "{}: {word}", file.display());
            }
        }
    }
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}
