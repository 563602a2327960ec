//! The check that an app's files are separate from each other, and from the engine's own files.

use std::path::{Path, PathBuf};

use tidemill_connect::sink::{check_overlap, Read, Written};
use tidemill_connect::FilesSettings;
use tidemill_core::Result;
use tidemill_env::Env;

use crate::emptied::{Emptied, Purpose};
use crate::moves::Way;
use crate::process_mode;
use crate::settings::Durable;
use crate::spec::{AppSpec, Target};

/// Refuses an app that writes its own input, writes one file twice, or writes into a directory of
/// the engine. These are the given directories, and the app's own one. It changes nothing.
///
/// # Errors
/// When files are not separate, with their names and the user's line. A data directory that belongs
/// to something else is reported first: in a folder with the user's files, it is the setting to
/// change.
pub(crate) fn check(spec: &AppSpec, directories: &[PathBuf], env: &Env) -> Result<()> {
    let own = spec.settings.data_dir.iter().filter(|_| spec.settings.durable != Durable::None);
    for path in own.clone() {
        if spec.settings.fresh {
            process_mode::check_fresh(&*env.disk, path, Way::One)?;
        }
        if process_mode::held(&*env.disk, path)? != Some(Way::Several) {
            Emptied { disk: &*env.disk, path, purpose: Purpose::Data }.check_whose()?;
        }
    }
    let mut written = Vec::new();
    if let Some(path) = spec.settings.log_to.as_ref().filter(|path| **path != Path::new("-")) {
        written.push(Written::new(path, "log_to", ""));
    }
    for decl in &spec.sinks {
        if let Target::File(settings) = decl.target()? {
            written.push(Written::of(&settings, format!("stream {}", decl.stream), &decl.at));
        }
    }
    let mut read = Vec::new();
    for decl in &spec.sources {
        let Some(files) = &decl.files else { continue };
        let settings = FilesSettings::from_json(&files.to_string());
        let settings = settings.map_err(|error| error.at(decl.at.clone()))?;
        read.push(Read { settings, by: format!("stream {}", decl.stream), at: decl.at.clone() });
    }
    let directories: Vec<PathBuf> = own.chain(directories).cloned().collect();
    check_overlap(&*env.disk, &written, &read, &directories)
}
