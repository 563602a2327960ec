//! The app as a manifest keeps it, so that what a stopped engine has left can be read without the
//! program's source.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidemill_connect::Troubles;
use tidemill_core::{Error, Result};
use tidemill_env::Env;
use tidemill_txn::program::{Body, Program};

use crate::open::partitions;
use crate::requests;
use crate::spec::{AppSpec, SinkDecl, SourceDecl};

/// A program and what it is connected to. Closures and opaque functions are not in it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stored {
    pub(crate) program: Program,
    pub(crate) sources: Vec<SourceDecl>,
    pub(crate) sinks: Vec<SinkDecl>,
}

impl Stored {
    /// An app as its manifests would have it: its files are looked up, and nothing is written.
    pub(crate) fn of(app: &AppSpec, env: &Env) -> Result<Stored> {
        let mut program = app.program.clone();
        requests::add(&mut program)?;
        program.check()?;
        let partitions =
            partitions(&program, &app.sources, env, &mut Vec::new(), &Troubles::default())?;
        program.sources = partitions.into_iter().map(|partition| partition.spec).collect();
        program.check()?;
        Ok(Stored { program, sources: app.sources.clone(), sinks: app.sinks.clone() })
    }

    /// Passwords are not kept: whoever needs them has them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut kept = self.clone();
        let sources = kept.sources.iter_mut().filter_map(|source| source.kafka.as_mut());
        let sinks = kept.sinks.iter_mut().filter_map(|sink| sink.kafka.as_mut());
        sources.chain(sinks).for_each(forget_secrets);
        serde_json::to_vec(&kept).expect("an app is JSON")
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Stored> {
        serde_json::from_slice(bytes).map_err(|e| {
            Error::setting(format!("the program in the newest snapshot can't be read: {e}"))
                .help("it was written by another version of tidemill: use that one")
        })
    }
}

/// Takes out what opens doors of the properties for Kafka.
fn forget_secrets(topic: &mut Value) {
    const SECRETS: [&str; 5] = ["password", "secret", "ssl.key.pem", "oauthbearer", "jaas"];
    if let Some(properties) = topic.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !SECRETS.iter().any(|secret| name.contains(secret)));
    }
}

/// A handler whose function is not in the data directory, and what it is.
pub(crate) fn without_body(program: &Program) -> Option<(&str, &'static str)> {
    program.handlers.iter().find_map(|handler| match handler.body {
        Body::Declared(_) => None,
        Body::Native(_) => Some((&*handler.name, "native")),
        Body::Opaque(_) => Some((&*handler.name, "opaque")),
    })
}
