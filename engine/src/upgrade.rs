//! Going from one version of a program to another: the newest snapshot is rewritten for the new one.
//!
//! It is written before anything else, as a snapshot of one epoch later, and its manifest comes last. So
//! whatever a crash leaves is the old program's directory or the new one's, and a recovery that finds
//! the new one has nothing to know of this.

use serde_json::json;
use tidemill_core::{Error, Result};
use tidemill_env::Env;
use tidemill_log::LogKind;
use tidemill_snapshot::{Delta, Snapshots};

use crate::changes::Found;
use crate::compare::Comparison;
use crate::data_dir::DataDir;
use crate::fingerprint;
use crate::records;
use crate::schema::{behind, Left};
use crate::settings::{Settings, Upgrade};
use crate::stored::Stored;
use crate::trial::Trial;

/// Makes a held directory that of this version of the program, if it is another's. What it has
/// done, for whoever hears of the engine's life.
///
/// # Errors
/// When it can't be done, or not without a loss that nobody has agreed to; nothing has changed then.
pub(crate) fn upgrade(
    env: &Env,
    dir: &DataDir,
    app: &Stored,
    settings: &Settings,
) -> Result<Option<serde_json::Value>> {
    let (store, site) = (dir.store()?, dir.site());
    let fingerprint = fingerprint::of(&fingerprint::text(&app.program));
    let Some(left) = Left::newest(&*store, dir.app)? else {
        return no_snapshot(env, dir, fingerprint).map(|()| None);
    };
    if left.is_of(app) {
        return Ok(None);
    }
    if let Some(why) = behind(&site, &left.manifest)? {
        return Err(refused(vec![why]));
    }
    let mut comparison = Comparison::of(env, &left, app, &settings.renames)?;
    let mut delta = Delta::whole();
    comparison.convert(&store, &left.manifest, |table, partition, key, row| {
        delta.push(table, partition, key, Some(row));
    })?;
    check(&comparison.found(), settings.upgrade)?;
    // It names rows by the numbers of their sources, which may be others now.
    Trial::close(&*env.disk, &dir.path);
    let mut head = left.manifest.head.clone();
    (head.epoch, head.fingerprint) = (comparison.internal.facts.epoch, fingerprint);
    head.program = app.bytes();
    let said = json!({"epoch": head.epoch, "changes": comparison.found().changes});
    Snapshots::open(store, dir.app, env.random.next_u64())?.publish(
        head,
        &comparison.internal.encode(),
        &delta,
    )?;
    Ok(Some(said))
}

/// Refuses what can't be done or loses something.
pub(crate) fn check(found: &Found, wanted: Upgrade) -> Result<()> {
    if !found.why.is_empty() {
        return Err(refused(found.why.clone()));
    }
    let losses = found.losses();
    if !losses.is_empty() && wanted != Upgrade::Lossy {
        return Err(Error::setting(format!("an upgrade would lose data: {}", losses.join("; ")))
            .help(
                "leave in the app what is to be kept, or say that it may go: upgrade=\"lossy\" \
                 (tidemill run --upgrade --lossy)",
            ));
    }
    Ok(())
}

pub(crate) fn refused(why: Vec<String>) -> Error {
    let what = format!("no upgrade is possible: {}", why.join("; "));
    Error::setting(what).help("tidemill schema diff shows all that is different")
}

/// Without a snapshot there must be nothing of another program.
fn no_snapshot(env: &Env, dir: &DataDir, fingerprint: u128) -> Result<()> {
    let spec = dir.log(LogKind::Cuts);
    if !env.disk.exists(&spec.dir).map_err(|e| Error::io(spec.dir.display(), &e))? {
        return Ok(());
    }
    let first = tidemill_log::read(env.disk.clone(), &spec, 0)?.next().transpose()?;
    match first.map(|first| records::cut(&first)).transpose()? {
        Some((cut, _)) if cut.fingerprint != fingerprint => Err(refused(vec![
            "there is no snapshot, and only the version that wrote the recorded cuts can make \
             them again: start that version with durable=\"log+snapshots\", stop it, and upgrade"
                .to_owned(),
        ])),
        _ => Ok(()),
    }
}
