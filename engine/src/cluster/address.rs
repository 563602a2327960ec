//! The address at which a coordinator answers clients, as a file beside its log. `tidemill status`
//! finds it there.

use std::path::Path;

use tidemill_env::Env;

use crate::data_dir::replace;

/// The name of the file.
pub(super) const FILE: &str = "http";

/// Writes the address.
pub(super) fn write(env: &Env, dir: &Path, url: &str) {
    if let Err(error) = replace(&*env.disk, dir, FILE, url) {
        let what = error.to_string();
        tracing::warn!(target: "tidemill::cluster", what, "the address could not be stored");
    }
}

/// Removes the address, because nothing answers there any more.
pub(super) fn remove(env: &Env, dir: &Path) {
    // A leftover leads to nothing, which the status says.
    let _ = env.disk.remove(&dir.join(FILE));
}
