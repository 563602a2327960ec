//! Settings from JSON.

use serde::de::DeserializeOwned;
use tidemill_core::error::nearest;
use tidemill_core::{Error, Result};

/// Parses settings. An unknown name is refused, with the nearest known one. `what` names the
/// settings in the error.
///
/// # Errors
/// For an unknown name, or a value that does not fit its setting.
pub fn from_json<T: DeserializeOwned>(what: &str, json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|e| {
        let why = crate::json::why(&e);
        // serde's text is: unknown field `a`, expected one of `b`, `c`.
        let mut names = why.split('`').skip(1).step_by(2);
        let near = match why.starts_with("unknown field") {
            true => names.next().and_then(|given| nearest(given, names)),
            false => None,
        };
        let help = near.map(|near| format!("did you mean '{near}'?")).unwrap_or_default();
        Error::setting(format!("{what}: {why}")).help(help)
    })
}
