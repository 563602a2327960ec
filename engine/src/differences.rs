//! The reasons why a program can't continue with the contents of a data directory, for people.

use serde_json::Value;
use tidemill_core::{Error, Kind};
use tidemill_env::Env;

use crate::changes::{first_differences, Change};
use crate::compare::Comparison;
use crate::data_dir::DataDir;
use crate::fingerprint::{self, forget_lines};
use crate::recover::is_other_program;
use crate::schema::Left;
use crate::settings::Settings;
use crate::spec::SourceDecl;
use crate::stored::Stored;

/// The text of the error for data of the same program, which was started in another way.
const WAY: &str =
    "the data directory was written by this program, which was started in another way";
/// The end of the name of a source whose rows are sent by this process or by its clients.
const PUSHED: &str = "/push";

/// Adds the differences between this program and the one that wrote the directory to the error of a
/// start.
pub(crate) fn explained(
    error: Error,
    env: &Env,
    dir: &DataDir,
    now: &Stored,
    settings: &Settings,
) -> Error {
    if error.kind != Kind::Setting {
        return error;
    }
    let left = dir.store().and_then(|store| Left::newest(&*store, dir.app));
    let Ok(Some(left)) = left else {
        return match is_other_program(&error) {
            true => Error {
                what: format!("{}; no snapshot was taken that shows the differences", error.what),
                ..error
            },
            false => error,
        };
    };
    if let Some(error) = other_partitions(&left, now) {
        return error;
    }
    if !is_other_program(&error) {
        return error;
    }
    let compared = Comparison::of(env, &left, now, &settings.renames);
    let changes = compared.map(|compared| compared.found().changes).unwrap_or_default();
    let mut named: Vec<String> = changes.iter().filter_map(Change::shown).collect();
    let ways = other_ways(&left.stored, now);
    if !ways.is_empty() && changes.iter().all(|change| change.is_of_source(PUSHED)) {
        // A comparison of the programs would show nothing.
        return Error {
            what: format!("{WAY}: {}", first_differences(named)),
            help: format!("{}; or take the data over: --upgrade (upgrade=True)", ways.join("; ")),
            ..error
        };
    }
    if named.is_empty() {
        named = other_parts(&left.stored, now);
    }
    Error {
        what: match named.is_empty() {
            true => error.what,
            false => format!("{}: {}", error.what, first_differences(named)),
        },
        help: ways.into_iter().chain([error.help]).collect::<Vec<_>>().join("; "),
        ..error
    }
}

/// The parts of the program that differ, where the comparison for upgrades has no word for them.
fn other_parts(before: &Stored, now: &Stored) -> Vec<String> {
    let parts = |stored: &Stored| {
        let mut program: Value =
            serde_json::from_str(&fingerprint::text(&stored.program)).unwrap_or_default();
        forget_lines(&mut program);
        program
    };
    let (before, now) = (parts(before), parts(now));
    let all = now.as_object().into_iter().flatten();
    let others = all.filter(|(part, value)| before[part.as_str()] != **value);
    others.map(|(part, _)| format!("'{part}' of the program has changed")).collect()
}

/// The ways of starting that explain other pushed streams, each with its remedy.
fn other_ways(before: &Stored, now: &Stored) -> Vec<String> {
    let names = |stored: &Stored| -> Vec<String> {
        let all = stored.program.sources.iter();
        all.filter_map(|source| source.name.strip_suffix(PUSHED).map(str::to_owned)).collect()
    };
    // A stream that is new or gone is no sign of another way.
    let in_both = |stream: &String| {
        let has = |stored: &Stored| {
            stored.program.streams.iter().any(|known| *known.spec.name == **stream)
        };
        has(before) && has(now)
    };
    let [before, now] = [names(before), names(now)]
        .map(|names| names.into_iter().filter(in_both).collect::<Vec<String>>());
    let (mut sent, mut called) = (Vec::new(), Vec::new());
    for stream in before.iter().filter(|stream| !now.contains(stream)) {
        match stream.strip_suffix(".calls") {
            Some(procedure) => called.push(procedure),
            None => sent.push(stream.as_str()),
        }
    }
    let mut ways = Vec::new();
    if !sent.is_empty() {
        ways.push(format!(
            "rows of {} were sent by app.start(), and here nothing sends or reads them: start it \
             with app.start() again, or give the stream a source",
            sent.join(", ")
        ));
    } else if !called.is_empty() {
        ways.push(format!(
            "clients could call {}, and here they can't: start it with app.start() or --http again",
            called.join(", ")
        ));
    } else if let Some(stream) = now.iter().find(|stream| !before.contains(stream)) {
        ways.push(match stream.strip_suffix(".calls") {
            Some(procedure) => format!(
                "earlier runs had no clients, and here they can call {procedure}: start it without \
                 --http again"
            ),
            None => format!(
                "earlier runs took no rows of {stream} from this process, and here it can send \
                 some: start it with the same command as before"
            ),
        });
    }
    ways
}

/// The error when a program differs only by the partitions of its topics, or by its files.
fn other_partitions(left: &Left, now: &Stored) -> Option<Error> {
    let names = |stored: &Stored| -> Vec<String> {
        stored.program.sources.iter().map(|source| source.name.to_string()).collect()
    };
    let (before, names) = (names(&left.stored), names(now));
    let is_of = |name: &String, is_it: fn(&SourceDecl) -> bool| {
        let of = |decl: &&SourceDecl| name.starts_with(&format!("{}/", decl.stream));
        now.sources.iter().filter(|decl| is_it(decl)).any(|decl| of(&decl))
    };
    let is_of_topic = |name: &String| is_of(name, |decl| decl.kafka.is_some());
    let is_of_file = |name: &String| is_of(name, |decl| decl.files.is_some());
    let more: Vec<&String> = names.iter().filter(|name| !before.contains(name)).collect();
    let fewer: Vec<&String> = before.iter().filter(|name| !names.contains(name)).collect();
    let mut all = more.iter().chain(&fewer);
    let are_files = all.clone().all(|name| is_of_file(name));
    if more.is_empty() && fewer.is_empty() || !all.all(|name| is_of_topic(name) || is_of_file(name))
    {
        return None;
    }
    let mut program = now.program.clone();
    program.sources.clone_from(&left.stored.program.sources);
    let [kept, same] = [&left.stored.program, &program].map(crate::fingerprint::of_program);
    let list =
        |names: &[&String]| names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let mut what = match are_files {
        true => "the files are not those that were read before".to_owned(),
        false => "the topics have other partitions than those that were read before".to_owned(),
    };
    if !more.is_empty() {
        what.push_str(&format!("; there are also {}", list(&more)));
    }
    if !fewer.is_empty() {
        what.push_str(&format!("; there is no longer {}", list(&fewer)));
    }
    (kept == same).then(|| {
        Error::setting(what).help(match are_files {
            true => {
                "put missing files back and take new ones out; or continue with the present files: \
                 --upgrade (upgrade=True); a folder that is read with follow=True takes new files \
                 without it"
            }
            false => {
                "continue with all present partitions: --upgrade (upgrade=True); or name those to \
                 read: tm.kafka(..., partitions=[...])"
            }
        })
    })
}
