//! The app as a manifest stores it, so that the data of a stopped engine can be read without the
//! program's source.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidemill_connect::Troubles;
use tidemill_core::{Error, Result};
use tidemill_env::Env;
use tidemill_txn::program::{Body, Program};

use crate::open::partitions;
use crate::requests;
use crate::spec::{AppSpec, SinkDecl, SourceDecl};

/// A program and its sources and sinks, without closures and opaque functions.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stored {
    pub(crate) program: Program,
    pub(crate) sources: Vec<SourceDecl>,
    pub(crate) sinks: Vec<SinkDecl>,
    /// The identity of the code of functions, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) codes: BTreeMap<String, String>,
}

impl Stored {
    /// Returns an app as its manifests would store it. It looks up files, and writes nothing.
    pub(crate) fn of(app: &AppSpec, env: &Env) -> Result<Stored> {
        let mut program = app.program.clone();
        requests::add(&mut program)?;
        program.check()?;
        let partitions = partitions(&program, &app.sources, env, &Troubles::default())?;
        program.sources = partitions.into_iter().map(|partition| partition.spec).collect();
        program.check()?;
        let (sources, sinks) = (app.sources.clone(), app.sinks.clone());
        Ok(Stored { program, sources, sinks, codes: app.codes.clone() })
    }

    /// Returns an app as the file of a coordinator's directory has it.
    pub(crate) fn on_several(program: &Program) -> Stored {
        let (sources, sinks, codes) = Default::default();
        Stored { program: program.clone(), sources, sinks, codes }
    }

    /// Encodes the app without passwords. A start gets these from its settings.
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
                .help("it was written by another version of tidemill: use that version")
        })
    }
}

/// Removes the secrets from the properties for Kafka and for a schema registry.
fn forget_secrets(topic: &mut Value) {
    const SECRETS: [&str; 7] =
        ["password", "secret", "ssl.key.pem", "oauthbearer", "jaas", "user.info", "auth.token"];
    for properties in ["properties", "registry_properties"] {
        if let Some(properties) = topic.get_mut(properties).and_then(Value::as_object_mut) {
            properties.retain(|name, _| !SECRETS.iter().any(|secret| name.contains(secret)));
        }
    }
    forget_user(topic);
}

/// Removes the user from the address of a registry.
pub(crate) fn forget_user(topic: &mut Value) {
    let Some(Value::String(url)) = topic.get_mut("registry") else { return };
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url[begin..].find(['/', '?', '#']).map_or(url.len(), |at| begin + at);
    if let Some(at) = url[begin..end].rfind('@') {
        url.replace_range(begin..=begin + at, "");
    }
}

/// A handler whose function is not in the data directory, and its kind.
pub(crate) fn without_body(program: &Program) -> Option<(&str, &'static str)> {
    program.handlers.iter().find_map(|handler| match handler.body {
        Body::Declared(_) => None,
        Body::Native(_) => Some((&*handler.name, "native")),
        Body::Opaque(_) => Some((&*handler.name, "opaque")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_kept() {
        let mut topic = serde_json::json!({
            "topic": "t",
            "properties": {"sasl.username": "me", "sasl.password": "hidden"},
            "registry": "https://me:hid@den@host:8081/a@b",
            "registry_properties": {
                "basic.auth.user.info": "me:hidden", "bearer.auth.token": "hidden", "ssl.ca.location": "f"
            },
        });
        forget_secrets(&mut topic);
        let kept = serde_json::json!({
            "topic": "t",
            "properties": {"sasl.username": "me"},
            "registry": "https://host:8081/a@b",
            "registry_properties": {"ssl.ca.location": "f"},
        });
        assert_eq!(topic, kept);
    }
}
