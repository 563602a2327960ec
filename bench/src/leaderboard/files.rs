//! Votes in a file with their expected results, to run the same show on another system.

use std::io::Write;
use std::path::Path;

use serde_json::{json, Map, Value as Json};
use tidemill_core::{Error, Result, Value};
use tidemill_env::Env;

use super::program::BY_CANDIDATE;
use super::run::Leaderboard;

/// Writes the votes as CSV to `path`. A file of the same name with the extension `.json` has the
/// show and the final rows of all tables.
pub(super) fn write(
    env: &Env,
    case: &Leaderboard,
    path: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let path = Path::new(path);
    if path.extension().is_none_or(|end| end != "csv") {
        let what = format!("--write-source {}: votes can only be written as CSV", path.display());
        return Err(Error::setting(what).help("end the name with .csv"));
    }
    let mut votes = String::from("phone,candidate\n");
    for vote in &case.made.events.votes {
        votes.push_str(&format!("{},{}\n", vote.phone, vote.candidate));
    }
    put(env, path, votes.as_bytes())?;
    // Each system has its own indexes.
    let tables = case.straight.tables().into_iter().filter(|(name, _)| *name != BY_CANDIDATE);
    let tables =
        tables.map(|(name, rows)| (name.to_string(), rows.iter().map(|r| ints(r)).collect()));
    let numbers = case.straight.numbers();
    let mut found: Map<String, Json> =
        numbers.into_iter().map(|(name, number)| (name.into(), number.into())).collect();
    found.insert("candidates".into(), case.show.candidates.into());
    found.insert("every".into(), case.show.every.into());
    found.insert("tables".into(), Json::Object(tables.collect()));
    put(env, &path.with_extension("json"), json!(found).to_string().as_bytes())?;
    let count = case.made.events.votes.len();
    progress(&format!("leaderboard: {count} votes are in {}", path.display()));
    Ok(())
}

fn ints(row: &[Value]) -> Json {
    let int = |value: &Value| match value {
        Value::Int(int) => json!(int),
        other => unreachable!("{other} is in a column of integers"),
    };
    row.iter().map(int).collect()
}

fn put(env: &Env, path: &Path, bytes: &[u8]) -> Result<()> {
    let wrong = |e| Error::io(format!("writing {}", path.display()), &e);
    let mut file = env.disk.create(path).map_err(wrong)?;
    file.write_all(bytes).map_err(wrong)
}
