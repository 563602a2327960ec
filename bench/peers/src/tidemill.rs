//! Tidemill, run through its command line: the whole engine, with a real log.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::show::Wrong;

/// Runs once; returns the report.
pub fn run(command: &Path, program: &str, sink: &Path, shape: &[String]) -> Result<Value, Wrong> {
    let out = Command::new(command)
        .args(["bench", "leaderboard", "--program", program, "--repeat", "1", "--json", "--sink"])
        .arg(sink)
        .args(shape)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("{} can't be run: {e}; make setup builds it", command.display()))?;
    let text = String::from_utf8(out.stdout)?;
    let line = text.lines().last().ok_or(format!("{program} has ended with {}", out.status))?;
    Ok(serde_json::from_str(line)?)
}
