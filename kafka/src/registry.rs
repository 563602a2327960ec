//! A registry of schemas, asked over HTTP as Confluent's is, whose way of asking others have as well.
//!
//! A schema that a registry has given an id stays what it is, so that messages mean the same whenever they are
//! read. What a registry says is told from what happens on the way to it ([`Failed`]): only the former decides
//! what becomes of a message.

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

/// Schemas that one may name, and those that they name.
const REFERENCES_MAX: usize = 200;

/// Why a question has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Nobody has answered, or not as a registry does: to be asked again.
    Away(String),
    /// The registry has said no.
    No(String),
    /// Waiting does not mend it.
    Lasting(Error),
}

/// A registry.
pub(crate) struct Registry {
    client: Client,
}

/// A schema as it is asked for by its id; by its subject there is the id as well.
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

/// Where a schema is that another one names.
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
    /// At an address, with further properties; asks nobody.
    ///
    /// # Errors
    /// When it is none.
    pub fn open(
        env: &Env,
        url: &str,
        properties: &std::collections::BTreeMap<String, String>,
    ) -> Result<Registry> {
        Ok(Registry { client: Client::open(env, &at::At::parse(url, properties)?)? })
    }

    /// The address, without what is secret.
    pub fn shown(&self) -> &str {
        self.client.shown()
    }

    /// The schema of an id.
    pub fn schema(&self, id: u32) -> Asked<AvroSchema> {
        let answer: Answer = self.client.get(&format!("/schemas/ids/{id}"))?;
        self.parse(answer, &format!("the schema {id}"))
    }

    /// The latest schema of a subject, and its id.
    pub fn latest(&self, subject: &str) -> Asked<(u32, AvroSchema)> {
        let path = format!("/subjects/{}/versions/latest", ask::escaped(subject));
        let answer: Answer = self.client.get(&path)?;
        let id = answer.id;
        self.parse(answer, &format!("the latest schema of {subject}")).map(|schema| (id, schema))
    }

    /// Registers a schema with a subject, unless it is there; its id.
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

    /// Puts the schemas that one names before it, each once.
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
