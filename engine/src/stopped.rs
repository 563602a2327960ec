//! The answers of a stopped engine, from its files. It writes nothing.

use std::path::Path;
use std::sync::Arc;

use serde_json::{json, Value};
use tidemill_core::{Error, Result};
use tidemill_env::Env;
use tidemill_snapshot::{newest, Manifest};
use tidemill_txn::execute::{tables, HandlerCounts};
use tidemill_txn::program::{Program, Stream};

use crate::cluster::LookedAt;
use crate::data_dir::Site;
use crate::inspect::describe;
use crate::internal::Internal;
use crate::moves::Way;
use crate::needed;
use crate::past::{Basis, Moment, Past};
use crate::process_mode::held;
use crate::reasons;
use crate::recover::load;
use crate::rings::Rings;
use crate::serve::{self, Answer, Fields, Ls, Query, Reply};
use crate::settings::Settings;
use crate::spec::SourceDecl;
use crate::stored::Stored;

/// The contents of a data directory.
struct Left<'a> {
    env: &'a Env,
    from: From,
    stored: Stored,
    program: Arc<Program>,
    manifest: Manifest,
    settings: Settings,
}

/// The way in which an app ran.
enum From {
    One(Site),
    Several(Box<LookedAt>),
}

pub(crate) fn answer(env: &Env, path: &Path, request: &str, reply: &mut Reply<'_>) -> Answer {
    let mut fields = Fields::parse(request.as_bytes())?;
    match fields.verb() {
        "status" => {
            fields.done()?;
            reply.end(Left::open(env, path)?.status()?)
        }
        "inspect" => {
            fields.done()?;
            let said = Left::open(env, path)?.inspect()?;
            reply.end(json!({"inspect": said}))
        }
        "query" => {
            let query = Query::take(&mut fields)?;
            fields.done()?;
            let left = Left::open(env, path)?;
            let plan = query.plan(&left.program)?;
            plan.head(reply)?;
            let past = left.at(query.as_of.unwrap_or(Moment::Newest))?;
            plan.rows(&plan.past(&past), reply)
        }
        "dlq_ls" => {
            let ls = Ls::take(&mut fields)?;
            fields.done()?;
            let left = Left::open(env, path)?;
            let past = left.at(Moment::Newest)?;
            ls.rows(&ls.find(&past.rings)?, past.epoch, reply)
        }
        "backup" => {
            let to: std::path::PathBuf = fields.need("to")?;
            fields.done()?;
            let report = match held(&*env.disk, path)? {
                Some(Way::Several) => serve::copy_several(env, path, &to)?,
                _ => serve::backup_stopped(&Site::look(&env.disk, path)?, &to)?,
            };
            reply.end(json!({"backup": report}))
        }
        "restore" => {
            let from: std::path::PathBuf = fields.need("from")?;
            fields.done()?;
            let report = match held(&*env.disk, &from)? {
                Some(Way::Several) => serve::copy_several(env, &from, path)?,
                _ => serve::restore(&env.disk, &from, path)?,
            };
            reply.end(json!({"restore": report}))
        }
        "verify" => {
            fields.done()?;
            let report = match held(&*env.disk, path)? {
                Some(Way::Several) => LookedAt::newest(env, path)?.verify()?,
                _ => serve::verify(&Site::look(&env.disk, path)?)?,
            };
            reply.end(json!({"verify": report}))
        }
        "tail" => {
            let tail = serve::Tail::take(&mut fields)?;
            fields.done()?;
            let left = Left::open(env, path)?;
            let past = left.at(Moment::Newest)?;
            let is_several = matches!(left.from, From::Several(_));
            tail.answer_stopped((&left.program, &past.rings), is_several, reply)
        }
        "dlq_replay" => {
            if held(&*env.disk, path)? != Some(Way::Several) {
                Site::look(&env.disk, path)?;
            }
            // A running engine would refuse this, too.
            refuse_replay(&serve::Replay::take(&mut fields)?, env, path)?;
            Err(needs_engine(path, "dlq_replay").into())
        }
        "summary" => {
            Site::look(&env.disk, path)?;
            Err(needs_engine(path, "summary").into())
        }
        other => Err(serve::unknown(other)),
    }
}

/// The source of answers about the newest snapshot of several processes.
pub(crate) const SNAPSHOT: &str = "snapshot";

/// The error for a directory that can't be read without its engine.
pub(crate) fn no_snapshot(path: &Path) -> Error {
    Error::setting(format!("{} has no snapshot yet", path.display()))
        .help("start the engine: it continues from its logs, and then answers")
}

fn needs_engine(path: &Path, verb: &str) -> Error {
    let what = format!("no engine runs on {}, and '{verb}' needs one", path.display());
    Error::resource(what).help("start it first")
}

/// Refuses to send rows again of a stream that takes none from clients, if that is known.
fn refuse_replay(replay: &serve::Replay, env: &Env, path: &Path) -> Result<()> {
    let base = replay.base()?;
    let Ok(left) = Left::open(env, path) else { return Ok(()) };
    let is_pushed = |decl: &SourceDecl| decl.stream == *base && decl.is_pushed();
    match left.stored.sources.iter().any(|decl| decl.stream == *base)
        && !left.stored.sources.iter().any(is_pushed)
    {
        true => Err(serve::not_pushed(base)),
        false => Ok(()),
    }
}

impl Left<'_> {
    fn open<'a>(env: &'a Env, path: &Path) -> Result<Left<'a>> {
        if held(&*env.disk, path)? == Some(Way::Several) {
            let looked = Box::new(LookedAt::newest(env, path)?);
            let (stored, manifest) = (looked.left.stored.clone(), looked.left.manifest.clone());
            let (program, from) = (Arc::new(stored.program.clone()), From::Several(looked));
            let settings = Settings::default();
            return Ok(Left { env, from, stored, program, manifest, settings });
        }
        let site = Site::look(&env.disk, path)?;
        let manifest = newest(&*site.store(), site.app)?.ok_or_else(|| no_snapshot(path))?;
        let stored = Stored::parse(&manifest.head.program)?;
        let program = Arc::new(stored.program.clone());
        let (from, settings) = (From::One(site), Settings::default());
        Ok(Left { env, from, stored, program, manifest, settings })
    }

    fn at(&self, moment: Moment) -> Result<Past> {
        let site = match &self.from {
            From::One(site) => site,
            From::Several(looked) => return self.at_snapshot(looked, moment),
        };
        let basis = Basis {
            env: self.env,
            site,
            program: &self.program,
            fingerprint: self.manifest.head.fingerprint,
            decls: &self.stored.sources,
            settings: &self.settings,
            go_on: &|| Ok(()),
        };
        basis.at(moment)
    }

    /// Returns the state of several processes at their newest snapshot.
    fn at_snapshot(&self, looked: &LookedAt, moment: Moment) -> Result<Past> {
        let facts = &looked.left.internal.facts;
        let (epoch, clock_us) = (facts.epoch, facts.clock_us);
        let is_it = match moment {
            Moment::Epoch(wanted) => wanted == epoch,
            Moment::Time(us) => us >= clock_us,
            Moment::Newest => true,
        };
        if !is_it {
            let what = format!(
                "of several processes only the newest snapshot, of epoch {epoch}, can be read"
            );
            return Err(Error::setting(what).help("leave out --as-of"));
        }
        let mut tables = tables(&self.program, 0);
        load(&looked.store, &self.manifest, &looked.left.internal, &mut tables)?;
        let found = &looked.left.internal.rings;
        // The rows are all that were retained.
        let has_rows = found.iter().filter(|facts| !facts.batches.is_empty());
        let written = has_rows.map(|facts| facts.stream.clone()).collect();
        let mut rings = Rings::on_several(&self.program, &Settings::all_rows(), &written, found);
        rings.restore(found);
        Ok(Past { tables, epoch, clock_us, rings, unreplayed: 0 })
    }

    fn internal(&self) -> Result<Internal> {
        match &self.from {
            From::One(site) => {
                Internal::decode(&self.program, &self.manifest.internal(&*site.store())?)
            }
            From::Several(looked) => Ok(looked.left.internal.clone()),
        }
    }

    /// The number of recorded cuts after the snapshot. That of several processes is not looked for.
    fn cuts_after(&self) -> Result<u64> {
        let From::One(site) = &self.from else { return Ok(0) };
        let from = (self.manifest.head.input_next, self.manifest.head.cut_next);
        Ok(needed::ends(site, from)?.1 - from.1)
    }

    /// Returns the status as of the snapshot. It replays nothing.
    fn status(&self) -> Result<Value> {
        let (facts, behind) = (self.internal()?.facts, self.cuts_after()?);
        let counts = &facts.counts;
        let HandlerCounts { committed, aborted, faults } = counts.of_all();
        let aborted = aborted - faults;
        Ok(json!({
            "status": {
                "app": self.program.name, "state": "stopped", "why": null, "epoch": facts.epoch + behind,
                "events": counts.events, "transactions": committed + aborted + faults, "aborted": aborted,
                "faults": faults, "reasons": reasons::report(&facts.reasons),
                "dead": counts.dead, "late": counts.late, "buffered": counts.buffered,
                "lag_us": counts.lag_us, "recovering": false, "snapshot_epoch": facts.epoch,
                "as_of": facts.epoch, "http": null,
            },
            "as_of": facts.epoch, "behind": behind,
        }))
    }

    fn inspect(&self) -> Result<Value> {
        let internal = self.internal()?;
        let facts = &internal.facts;
        let mut said = describe(&self.program, &self.stored.sources, &self.stored.sinks)?;
        let rows: Vec<usize> = facts.tables.iter().map(|rows| *rows as usize).collect();
        let offsets: Vec<u64> = facts.sources.iter().map(|s| s.next_offset).collect();
        let passes = |s: &Stream| !s.is_output();
        let streams = self.program.streams.iter().filter(|s| !passes(s));
        let is_output = |name: &str| streams.clone().any(|s| &*s.spec.name == name);
        let outputs = facts.outlets.iter().filter(|(name, _)| is_output(name));
        let outputs = outputs.map(|(name, facts)| (name.clone(), facts.rows)).collect();
        serve::add(&mut said, &self.program, &rows, &offsets, outputs);
        let mut rings = Rings::new(&self.program, &self.settings);
        rings.resume(&internal);
        serve::streams(&mut said, &rings);
        said["status"] = self.status()?["status"].take();
        Ok(said)
    }
}
