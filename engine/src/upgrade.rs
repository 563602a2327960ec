//! Upgrades from one version of a program to another. The newest snapshot is rewritten for the new
//! version.
//!
//! It is written before anything else, as a snapshot of one epoch later, and its manifest comes
//! last. So after any crash the directory belongs to the old program or the new one. A recovery of
//! the new one is not affected by the upgrade.

use serde_json::json;
use tidemill_core::{Error, Result};
use tidemill_env::Env;
use tidemill_log::LogKind;
use tidemill_snapshot::{Delta, Snapshots};

use crate::changes::Found;
use crate::compare::Comparison;
use crate::crash_guard::CrashGuard;
use crate::data_dir::DataDir;
use crate::fingerprint;
use crate::records;
use crate::schema::{records_after, Left};
use crate::settings::{Settings, Upgrade};
use crate::stored::Stored;

/// Converts a held directory to this version of the program, if it belongs to another one. Returns
/// the changes, for the log.
///
/// # Errors
/// When the upgrade is not possible, or loses data without the user's consent. Nothing has changed
/// then.
pub(crate) fn upgrade(
    env: &Env,
    dir: &DataDir,
    app: &Stored,
    settings: &Settings,
) -> Result<Option<serde_json::Value>> {
    let (store, site) = (dir.store()?, dir.site());
    let fingerprint = fingerprint::of_program(&app.program);
    let Some(left) = Left::newest(&*store, dir.app)? else {
        return no_snapshot(env, dir, fingerprint).map(|()| None);
    };
    if left.is_of(app) {
        return Ok(None);
    }
    if let Some(why) = records_after(&site, &left.manifest)? {
        return Err(refused(vec![why]));
    }
    let mut comparison = Comparison::of(env, &left, app, &settings.renames)?;
    let mut delta = Delta::whole();
    comparison.convert(&store, &left.manifest, |table, partition, key, row| {
        delta.push(table, partition, key, Some(row));
    })?;
    check(&comparison.found(), settings.upgrade)?;
    // Its notes name rows by the numbers of their sources, which may have changed.
    CrashGuard::close(&*env.disk, &dir.path);
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

/// Reports an upgrade with its changes.
pub(crate) fn report(upgraded: &serde_json::Value) {
    let (epoch, changes) = (upgraded["epoch"].as_u64(), upgraded["changes"].to_string());
    tracing::info!(target: "tidemill::recovery", epoch, changes, "upgrade");
}

/// Refuses an upgrade that is not possible or loses data.
pub(crate) fn check(found: &Found, wanted: Upgrade) -> Result<()> {
    if !found.why.is_empty() {
        return Err(refused(found.why.clone()));
    }
    let losses = found.losses();
    if !losses.is_empty() && wanted != Upgrade::Lossy {
        return Err(Error::setting(format!("an upgrade would lose data: {}", losses.join("; ")))
            .help(
                "leave these parts in the app, or accept the loss: upgrade=\"lossy\" \
                 (tidemill run --upgrade --lossy)",
            ));
    }
    Ok(())
}

pub(crate) fn refused(why: Vec<String>) -> Error {
    let what = format!("no upgrade is possible: {}", why.join("; "));
    Error::setting(what).help("tidemill schema diff shows all differences")
}

/// Checks that nothing of another program exists without a snapshot.
fn no_snapshot(env: &Env, dir: &DataDir, fingerprint: u128) -> Result<()> {
    let spec = dir.log(LogKind::Cuts);
    if !env.disk.exists(&spec.dir).map_err(|e| Error::io(spec.dir.display(), &e))? {
        return Ok(());
    }
    let first = tidemill_log::read(env.disk.clone(), &spec, 0)?.next().transpose()?;
    match first.map(|first| records::cut(&first)).transpose()? {
        Some((cut, _)) if cut.fingerprint != fingerprint => Err(refused(vec![
            "there is no snapshot, and only the version that wrote the recorded cuts can replay \
             them: start that version with durable=\"log+snapshots\", stop it, and upgrade"
                .to_owned(),
        ])),
        _ => Ok(()),
    }
}
