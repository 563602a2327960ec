//! The description of an app and of how it will run. It runs nothing.

use std::sync::Arc;

use serde_json::{json, Value};
use tidemill_core::{Result, StreamTime};
use tidemill_txn::execute::{Path, Serial};
use tidemill_txn::order::Groups;
use tidemill_txn::program::{Body, Handler, Origin, Program, Stage};

use crate::requests::is_hidden;
use crate::spec::{AppSpec, SinkDecl, SourceDecl};
use crate::stored::forget_user;

/// The path of a handler's execution in one word, and the reason.
pub(crate) fn path_words(path: &Path) -> (&'static str, String) {
    match path {
        Path::Words => ("words", "compiled: all its columns are plain words".into()),
        Path::Values(why) => ("values", why.clone()),
        Path::Native => ("native", "a closure over words".into()),
        Path::NativeValues(why) => ("native", why.clone()),
        Path::Opaque => {
            ("opaque", "it finds its rows by running, one transaction at a time".into())
        }
    }
}

pub(crate) fn inspect(spec: &AppSpec) -> Result<Value> {
    spec.program.check()?;
    let mut said = describe(&spec.program, &spec.sources, &spec.sinks)?;
    said["settings"] = json!(spec.settings);
    Ok(said)
}

/// Describes a program that has been checked.
pub(crate) fn describe(
    program: &Program,
    sources: &[SourceDecl],
    sinks: &[SinkDecl],
) -> Result<Value> {
    let groups = Groups::of(program)?;
    // A stored program has lost its closures.
    let is_whole = |h: &Handler| !matches!(h.body, Body::Native(n) if n >= program.natives.len());
    let paths = match program.handlers.iter().all(is_whole) {
        true => Serial::new(Arc::new(program.clone()), 0).paths().to_vec(),
        false => vec![Path::Native; program.handlers.len()],
    };
    let name = |stream: tidemill_core::StreamId| &*program.streams[stream.index()].spec.name;
    let handlers: Vec<Value> = program
        .handlers
        .iter()
        .zip(&paths)
        .enumerate()
        .map(|(index, (handler, path))| {
            let (path, how) = path_words(path);
            let emits = program.emits(index).into_iter().map(name);
            let emits: Vec<&str> = emits.filter(|name| !is_hidden(name)).collect();
            json!({
                "name": handler.name, "input": name(handler.input), "path": path, "why": handler.why,
                "how": how, "emits": emits, "at": handler.at,
            })
        })
        .collect();
    let tables: Vec<Value> = program
        .tables
        .iter()
        .filter(|table| !is_hidden(&table.name))
        .map(|table| {
            let columns = table.schema.columns.iter();
            let columns: Vec<Value> = columns
                .map(|c| {
                    let default = c.default.as_ref().map(ToString::to_string);
                    json!({"name": c.name, "type": c.ty.to_string(), "nullable": c.nullable,
                           "default": default})
                })
                .collect();
            let key: Vec<&str> =
                table.key.iter().map(|c| &*table.schema.columns[*c].name).collect();
            json!({"name": table.name, "key": key, "columns": columns, "at": table.at})
        })
        .collect();
    let streams: Vec<Value> = program
        .streams
        .iter()
        .enumerate()
        .filter(|(_, stream)| !is_hidden(&stream.spec.name))
        .map(|(index, stream)| {
            let columns: Vec<Value> = (stream.spec.schema.columns.iter())
                .filter(|c| !is_hidden(&c.name))
                .map(|c| json!({"name": c.name, "type": c.ty.to_string(), "nullable": c.nullable}))
                .collect();
            let time = match stream.spec.time {
                _ if !matches!(stream.origin, Origin::Input) => Value::Null,
                StreamTime::Arrival => json!("arrival"),
                StreamTime::Event { column } => json!(stream.spec.schema.columns[column].name),
            };
            json!({"name": stream.spec.name, "origin": origin(program, &stream.origin),
                   "columns": columns, "time": time, "watermark_group": groups.of[index],
                   "at": stream.spec.at})
        })
        .collect();
    let sources: Vec<Value> =
        (sources.iter()).map(|s| description(&s.stream, &s.files, &s.kafka, Some(&s.at))).collect();
    let sinks: Vec<Value> =
        (sinks.iter()).map(|s| description(&s.stream, &s.files, &s.kafka, None)).collect();
    Ok(json!({
        "app": program.name, "handlers": handlers, "tables": tables, "streams": streams,
        "sources": sources, "sinks": sinks,
    }))
}

/// Describes a source or a sink, without secrets.
fn description(
    stream: &str,
    files: &Option<Value>,
    kafka: &Option<Value>,
    at: Option<&str>,
) -> Value {
    let mut said = json!({"stream": stream, "files": files});
    if let Some(topic) = kafka {
        let mut topic = topic.clone();
        if let Some(settings) = topic.as_object_mut() {
            settings.remove("properties");
            settings.remove("registry_properties");
        }
        forget_user(&mut topic);
        said["kafka"] = topic;
    }
    if let Some(at) = at {
        said["at"] = json!(at);
    }
    said
}

fn origin(program: &Program, origin: &Origin) -> String {
    match origin {
        Origin::Input => "input".into(),
        Origin::Derived { from, stage } => {
            let from = &program.streams[from.index()].spec.name;
            match stage {
                Stage::Filter { .. } => format!("filter of {from}"),
                Stage::Map { .. } => format!("map of {from}"),
            }
        }
        Origin::Output(h) => format!("output of {}", program.handlers[h.index()].name),
        Origin::Aborted(h) => format!("aborted by {}", program.handlers[h.index()].name),
        Origin::Emitted => "emitted".into(),
    }
}
