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

#[test]
fn the_extension_and_the_tests_are_one_build() {
    let extension = features(&["--package", "tidemill-python", "--edges", "normal"]);
    let tests = features(&["--workspace", "--edges", "normal,dev"]);
    let other =
        extension.iter().filter(|(package, features)| !features.is_subset(&tests[*package]));
    let other: Vec<_> = other.collect();
    assert!(other.is_empty(), "built twice, for the tests with other features: {other:?}");
}

#[test]
fn only_flow_knows_timely() {
    assert_eq!(users_of("timely"), ["tidemill-flow"]);
}

#[test]
fn only_python_knows_pyo3() {
    assert_eq!(users_of("pyo3"), ["tidemill-python"]);
    assert_eq!(users_of("pyo3-arrow"), ["tidemill-python"]);
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
            "tidemill-sim",
            "tidemill-snapshot"
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
        ("mesh", &["tidemill-cluster", "tidemill-function", "tidemill-txn", "tidemill-engine"]),
        ("durable", &["tidemill-function", "tidemill-engine", "tidemill-mesh", "tidemill-log"]),
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
        ("snapshot", &["tidemill-table", "tidemill-txn", "tidemill-log", "tidemill-engine"]),
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
