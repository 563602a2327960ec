//! A schema registry with Confluent's HTTP interface, which other registries also have.
//!
//! A schema that has an id in a registry never changes, so messages always mean the same.
//! [`Failed`] separates the registry's own answers from failures on the way to it. Only the former
//! decide about a message.

mod ask;
mod at;
mod fetch;

use std::collections::BTreeSet;

use serde::Deserialize;
use tidemill_connect::message::AvroSchema;
use tidemill_core::{Error, Result};
use tidemill_env::Env;

pub(crate) use at::check;
pub(crate) use fetch::Fetcher;

use ask::Client;

/// The largest number of schemas that a schema may refer to, directly or indirectly.
const REFERENCES_MAX: usize = 200;

/// The reason why a request failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// No answer, or not the answer of a registry. The request is to be repeated.
    Away(String),
    /// The registry's refusal.
    No(String),
    /// An error that does not go away by waiting.
    Lasting(Error),
}

/// A schema registry.
pub(crate) struct Registry {
    client: Client,
}

/// A schema in the registry's answer. An answer by subject also has the id.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    id: u32,
    schema: String,
    #[serde(default, rename = "schemaType")]
    kind: Option<String>,
    #[serde(default)]
    references: Option<Vec<Reference>>,
}

/// The place of a schema that another one refers to.
#[derive(Deserialize)]
struct Reference {
    subject: String,
    version: u32,
}

#[derive(Deserialize)]
struct Registered {
    id: u32,
}

type Asked<T> = std::result::Result<T, Failed>;

impl Registry {
    /// Creates a client for an address, with further properties. It sends nothing yet.
    ///
    /// # Errors
    /// If it is not an address.
    pub fn open(
        env: &Env,
        url: &str,
        properties: &std::collections::BTreeMap<String, String>,
    ) -> Result<Registry> {
        Ok(Registry { client: Client::open(env, &at::At::parse(url, properties)?)? })
    }

    /// Returns the address without secrets.
    pub fn shown(&self) -> &str {
        self.client.shown()
    }

    /// Returns the schema of an id.
    pub fn schema(&self, id: u32) -> Asked<AvroSchema> {
        let answer: Answer = self.client.get(&format!("/schemas/ids/{id}"))?;
        self.parse(answer, &format!("the schema {id}"))
    }

    /// Returns the latest schema of a subject, and its id.
    pub fn latest(&self, subject: &str) -> Asked<(u32, AvroSchema)> {
        let path = format!("/subjects/{}/versions/latest", ask::escaped(subject));
        let answer: Answer = self.client.get(&path)?;
        let id = answer.id;
        self.parse(answer, &format!("the latest schema of {subject}")).map(|schema| (id, schema))
    }

    /// Registers a schema with a subject, unless it is registered. Returns its id.
    pub fn register(&self, subject: &str, schema: &str) -> Asked<u32> {
        let path = format!("/subjects/{}/versions", ask::escaped(subject));
        let body = serde_json::json!({ "schema": schema }).to_string();
        let registered: Registered = self.client.post(&path, &body)?;
        Ok(registered.id)
    }

    fn parse(&self, answer: Answer, what: &str) -> Asked<AvroSchema> {
        let mut texts = Vec::new();
        self.named(&answer, what, &mut BTreeSet::new(), &mut texts, 0)?;
        texts.push(answer.schema);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        AvroSchema::parse(&texts).map_err(|why| Failed::No(format!("{what}: {why}")))
    }

    /// Puts the schemas that a schema refers to before it, each once.
    fn named(
        &self,
        answer: &Answer,
        what: &str,
        seen: &mut BTreeSet<(String, u32)>,
        texts: &mut Vec<String>,
        depth: usize,
    ) -> Asked<()> {
        if let Some(kind) = answer.kind.as_deref().filter(|kind| *kind != "AVRO") {
            return Err(Failed::No(format!("{what} is of type {kind}, and not of Avro")));
        }
        for Reference { subject, version } in answer.references.iter().flatten() {
            if !seen.insert((subject.clone(), *version)) {
                continue;
            }
            if seen.len() > REFERENCES_MAX || depth > 20 {
                return Err(Failed::No(format!("{what} names more than {REFERENCES_MAX} others")));
            }
            let path = format!("/subjects/{}/versions/{version}", ask::escaped(subject));
            let named: Answer = self.client.get(&path)?;
            self.named(&named, what, seen, texts, depth + 1)?;
            texts.push(named.schema);
        }
        Ok(())
    }
}
