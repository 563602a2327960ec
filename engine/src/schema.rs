//! The comparison of the program that wrote a data directory with another version of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::{json, Value};
use tidemill_core::{Kind, Result};
use tidemill_durable::Store;
use tidemill_env::{Addr, Env};
use tidemill_snapshot::{epochs, Manifest};

use crate::changes::{counted, Found};
use crate::cluster::{stored_on_several, LookedAt};
use crate::compare::Comparison;
use crate::data_dir::{other_app, Site};
use crate::fingerprint;
use crate::internal::Internal;
use crate::moves::Way;
use crate::needed;
use crate::outlets::sink_keys;
use crate::process_mode::held;
use crate::recover::Written;
use crate::spec::AppSpec;
use crate::stopped::no_snapshot;
use crate::stored::Stored;

/// The time for a running engine to accept a connection, in microseconds.
const CONNECT_US: u64 = 2_000_000;
/// How often a comparison is repeated when the running engine has removed its files.
const TRIES: usize = 3;

/// Returns the differences between the program in a data directory's newest snapshot and `app`, and
/// the effects of an upgrade, as `docs/internals/protocol.md` describes them. It writes nothing,
/// and an engine may run on the directory meanwhile.
///
/// # Errors
/// When there is no such data directory, when it belongs to another app or has no snapshot yet, or
/// when the setting `renames` has names that do not exist.
pub fn schema_diff(env: &Env, data_dir: &Path, app: &AppSpec) -> Result<Value> {
    if held(&*env.disk, data_dir)? == Some(Way::Several) {
        return diff_of_several(env, data_dir, app);
    }
    let site = Site::look(&env.disk, data_dir)?;
    if site.name != *app.program.name {
        return Err(other_app(data_dir, &site.name, &app.program.name));
    }
    let to = Stored::of(app, env)?;
    let store: Arc<dyn Store> = site.store();
    let renames = &app.settings.renames;
    for _ in 1..TRIES {
        let before = epochs(&*store)?;
        match diff(env, &site, &store, &to, renames) {
            // A running engine has taken the next snapshot, and removed this one.
            Err(error) if error.kind == Kind::Io && epochs(&*store)? != before => {}
            done => return done,
        }
    }
    diff(env, &site, &store, &to, renames)
}

/// Compares with the newest snapshot of several processes.
fn diff_of_several(env: &Env, data_dir: &Path, app: &AppSpec) -> Result<Value> {
    let LookedAt { left, store, .. } = &LookedAt::newest(env, data_dir)?;
    let (found, wanted) = (&left.stored.program.name, &app.program.name);
    if found != wanted {
        return Err(other_app(data_dir, found, wanted));
    }
    let Some(to) = stored_on_several(app, &left.stored.program)? else {
        return Ok(json!({"same": true, "possible": true, "why": [], "changes": []}));
    };
    let mut comparison = Comparison::of(env, left, &to, &app.settings.renames)?;
    comparison.look(store, &left.manifest)?;
    let Found { changes, why } = comparison.found();
    Ok(json!({"same": false, "possible": why.is_empty(), "why": why, "changes": changes}))
}

fn diff(
    env: &Env,
    site: &Site,
    store: &Arc<dyn Store>,
    to: &Stored,
    renames: &BTreeMap<String, String>,
) -> Result<Value> {
    let Some(left) = Left::newest(&**store, site.app)? else {
        return Err(no_snapshot(&site.path));
    };
    if left.is_of(to) {
        return Ok(json!({"same": true, "possible": true, "why": [], "changes": []}));
    }
    let mut comparison = Comparison::of(env, &left, to, renames)?;
    comparison.look(store, &left.manifest)?;
    let mut found = comparison.found();
    // A running engine takes a snapshot when it stops, so its last cuts do not matter.
    let socket = Addr::Unix(Site::socket(&site.path));
    if env.net.connect(&socket, CONNECT_US).is_err() {
        found.why.extend(records_after(site, &left.manifest)?);
    }
    let Found { changes, why } = found;
    Ok(json!({"same": false, "possible": why.is_empty(), "why": why, "changes": changes}))
}

/// The contents of the newest snapshot beside rows.
pub(crate) struct Left {
    pub(crate) manifest: Manifest,
    pub(crate) stored: Stored,
    pub(crate) internal: Internal,
}

impl Left {
    /// Reads it, if there is a snapshot.
    pub(crate) fn newest(store: &dyn Store, app: u128) -> Result<Option<Left>> {
        let Some(manifest) = tidemill_snapshot::newest(store, app)? else { return Ok(None) };
        let stored = Stored::parse(&manifest.head.program)?;
        let internal = Internal::decode(&stored.program, &manifest.internal(store)?)?;
        Ok(Some(Left { manifest, stored, internal }))
    }

    /// Whether this app wrote it, so that a start changes nothing.
    pub(crate) fn is_of(&self, app: &Stored) -> bool {
        let fingerprint = fingerprint::of_program(&app.program);
        let sinks = self.internal.facts.sinks.iter().map(|s| (s.stream.clone(), s.path.clone()));
        let sinks: BTreeSet<(String, String)> = sinks.collect();
        Written::by(Some(&self.manifest), fingerprint).is_ok()
            && sink_keys(&app.sinks).is_ok_and(|wanted| wanted == sinks)
    }
}

/// Describes the records after a snapshot, if there are any. They prevent an upgrade, because only
/// the program that recorded them can replay them.
pub(crate) fn records_after(site: &Site, manifest: &Manifest) -> Result<Option<String>> {
    let from = (manifest.head.input_next, manifest.head.cut_next);
    let (rows, cuts) = needed::ends(site, from)?;
    let (rows, cuts) = (rows - from.0, cuts - from.1);
    Ok((cuts + rows > 0).then(|| {
        format!(
            "{} and {} come after the newest snapshot, and only the version that wrote them can \
             replay them: start that version, stop it (it then leaves a snapshot), and upgrade",
            counted(cuts, "recorded cut"),
            counted(rows, "record") + " of pushed rows"
        )
    }))
}
