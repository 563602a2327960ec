//! Records the compiler's version, for `tidemill doctor`.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.split_whitespace().nth(1).map(String::from))
        .unwrap_or_else(|| "unknown".into());
    println!("cargo:rustc-env=TIDEMILL_RUSTC={version}");
    println!("cargo:rerun-if-changed=build.rs");
}
