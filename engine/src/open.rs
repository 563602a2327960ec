//! From an app to everything that runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tidemill_connect::push::PushLimits;
use tidemill_connect::{files, push, sink, FilesSettings, PushHandle, SinkSettings, Source};
use tidemill_core::{Error, Result, SourceId, SourceSpec, StreamId, StreamTime};
use tidemill_env::Env;
use tidemill_flow::{Branch, Input, Stage as FlowStage};
use tidemill_table::Table;
use tidemill_txn::program::{Origin, Program, Stage};

use crate::feed::Feed;
use crate::outlets::{dead_schema, Outlet, Outlets};
use crate::spec::AppSpec;
use crate::stages::{FailedList, Step};

/// Rows and bytes that may wait in a pushed stream.
const PUSH_LIMITS: PushLimits = PushLimits { rows: 1 << 20, bytes: 64 << 20 };

/// An app, opened.
pub(crate) struct Opened {
    pub(crate) program: Arc<Program>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) workers: usize,
    /// Pushed streams by name, with their sources.
    pub(crate) pushed: BTreeMap<String, (SourceId, PushHandle)>,
    pub(crate) tables: Vec<Table>,
    pub(crate) outlets: Outlets,
    pub(crate) failed: FailedList,
}

/// A partition's name, its source, and the handle of a pushed one.
type OpenedSource = (String, Box<dyn Source>, Option<PushHandle>);

/// A source partition before it is given to the flow.
struct Partition {
    name: String,
    stream: StreamId,
    source: Box<dyn Source>,
    push: Option<PushHandle>,
    spec: SourceSpec,
}

pub(crate) fn open(spec: AppSpec, env: &Env) -> Result<Opened> {
    let AppSpec { mut program, sources, sinks, keep, settings } = spec;
    program.check()?;
    let mut partitions: Vec<Partition> = Vec::new();
    let mut read: Vec<PathBuf> = Vec::new();
    for decl in sources {
        let stream = input_stream(&program, &decl.stream).map_err(|e| e.at(decl.at.clone()))?;
        let schema = program.streams[stream.index()].spec.schema.clone();
        let mut open = || -> Result<Vec<OpenedSource>> {
            match &decl.files {
                None => {
                    let (handle, source) = push(schema.clone(), PUSH_LIMITS);
                    Ok(vec![("push".into(), Box::new(source), Some(handle))])
                }
                Some(files_json) => {
                    let settings = FilesSettings::from_json(&files_json.to_string())?;
                    read.extend(files::paths(&settings, &*env.disk)?);
                    let opened = files::open(&settings, &schema, env)?;
                    Ok(opened.into_iter().map(|(name, source)| (name, source, None)).collect())
                }
            }
        };
        for (partition, source, push) in open().map_err(|e| e.at(decl.at.clone()))? {
            // Two folders may hold files of one name.
            let base = format!("{}/{partition}", decl.stream);
            let same = partitions.iter().filter(|p| p.name == base).count();
            let name = if same == 0 { base.clone() } else { format!("{base}#{}", same + 1) };
            let spec = SourceSpec {
                name: name.clone().into(),
                stream,
                disorder_us: decl.disorder_us,
                idle_us: decl.idle_us,
            };
            partitions.push(Partition { name: base, stream, source, push, spec });
        }
    }
    program.sources = partitions.iter().map(|p| p.spec.clone()).collect();
    program.check()?;
    let program = Arc::new(program);
    let failed = FailedList::default();
    let workers = match settings.workers {
        0 => env.threads.cores().min(partitions.len() + 1),
        n => n,
    };
    let mut inputs = Vec::new();
    let mut pushed = BTreeMap::new();
    for (index, partition) in partitions.into_iter().enumerate() {
        let source = SourceId(index as u32);
        let stream = &program.streams[partition.stream.index()].spec;
        let time = match stream.time {
            StreamTime::Event { column } => Some(column),
            StreamTime::Arrival => None,
        };
        if let Some(handle) = partition.push {
            pushed.insert(stream.name.to_string(), (source, handle));
        }
        inputs.push(Input {
            source,
            // The first worker executes; the others read as long as there are any.
            worker: (workers - 1) - index % workers,
            ingress: Some(Box::new(Feed { source: partition.source, time })),
            branches: branches(&program, partition.stream, &failed),
        });
    }
    let seed = env.random.next_u64();
    let tables =
        program.tables.iter().map(|spec| Table::new(Arc::new(spec.clone()), seed)).collect();
    let outlets = outlets(&program, &sinks, &keep, &read, settings.fresh, env)?;
    Ok(Opened { program, inputs, workers, pushed, tables, outlets, failed })
}

fn input_stream(program: &Program, name: &str) -> Result<StreamId> {
    let found = program.streams.iter().position(|s| &*s.spec.name == name);
    match found {
        Some(index) if program.streams[index].origin == Origin::Input => Ok(StreamId(index as u16)),
        Some(_) => Err(Error::program(format!("stream {name} is not an input"))),
        None => Err(Error::program(format!("there is no stream {name}"))),
    }
}

/// The streams that an input stream feeds, those with someone behind them: handlers, or anybody
/// who may ask for its events.
fn branches(program: &Program, root: StreamId, failed: &FailedList) -> Vec<Branch> {
    let step = |stream: StreamId, stage: &Stage| {
        let transform = Arc::new(Step {
            stage: stage.clone(),
            stream,
            schema: program.streams[stream.index()].spec.schema.clone(),
            failed: failed.clone(),
        });
        match stage {
            Stage::Filter { .. } => FlowStage::Filter(transform),
            Stage::Map { .. } => FlowStage::Map(transform),
        }
    };
    let mut branches = Vec::new();
    for index in 0..program.streams.len() as u16 {
        let stream = StreamId(index);
        if program.root_stream(stream) != root {
            continue;
        }
        let mut stages = Vec::new();
        let mut at = stream;
        while let Origin::Derived { from, stage } = &program.streams[at.index()].origin {
            stages.push(step(at, stage));
            at = *from;
        }
        stages.reverse();
        branches.push(Branch { stream, stages });
    }
    branches
}

fn outlets(
    program: &Program,
    sinks: &[crate::spec::SinkDecl],
    keep: &[String],
    read: &[PathBuf],
    fresh: bool,
    env: &Env,
) -> Result<Outlets> {
    let mut outlets = Outlets::default();
    for stream in &program.streams {
        let (name, schema) = (stream.spec.name.to_string(), stream.spec.schema.clone());
        match stream.origin {
            Origin::Input | Origin::Derived { .. } => {
                let late = Outlet::new(schema.clone(), false);
                outlets.by_name.insert(format!("{name}.late"), late);
                let dead = Outlet::new(dead_schema(), false);
                outlets.by_name.insert(format!("{name}.dead"), dead);
                outlets.by_name.insert(name, Outlet::new(schema, false));
            }
            _ => {
                outlets.by_name.insert(name, Outlet::new(schema, true));
            }
        }
    }
    let mut settings = Vec::new();
    for decl in sinks {
        let mut parsed =
            SinkSettings::from_json(&decl.files.to_string()).map_err(|e| e.at(decl.at.clone()))?;
        parsed.overwrite |= fresh;
        settings.push(parsed);
    }
    let written: Vec<PathBuf> = settings.iter().map(|s| s.path.clone()).collect();
    sink::check_paths(&written, read)?;
    for (decl, settings) in sinks.iter().zip(settings) {
        let outlet = outlets.by_name.get_mut(&decl.stream).ok_or_else(|| {
            Error::program(format!("there is no stream {} to write", decl.stream))
                .at(decl.at.clone())
        })?;
        let schema = outlet.schema.clone();
        outlet
            .sinks
            .push(sink::open(&settings, &schema, env, None).map_err(|e| e.at(decl.at.clone()))?);
    }
    for name in keep {
        let outlet = outlets
            .by_name
            .get_mut(name)
            .ok_or_else(|| Error::program(format!("there is no stream {name} to keep")))?;
        outlet.keep = true;
    }
    Ok(outlets)
}
