//! Values in Avro: where a source gets its schemas, and which schema a sink writes with.

use std::sync::Arc;

use tidemill_connect::message::{derive_avro, AvroSchema, AvroValues};
use tidemill_connect::{MessageFormat, MessageValues, Troubles};
use tidemill_core::{Error, Kind, Result, Schema};
use tidemill_env::Env;

use super::settings::{SinkSchema, TopicSink, TopicSource};
use crate::registry::{Failed, Fetcher, Registry};

/// The time before an unreachable registry is asked again, in microseconds.
const AGAIN_US: u64 = 200_000;

/// Returns the fetcher of schemas, for a topic that needs them.
pub(super) fn fetcher(
    settings: &TopicSource,
    env: &Env,
    (troubles, who): (&Troubles, &str),
) -> Result<Option<Arc<Fetcher>>> {
    match &settings.registry {
        Some(url) if settings.format == MessageFormat::Avro => {
            let registry = Registry::open(env, url, &settings.registry_properties)?;
            Fetcher::start(env, registry, troubles, who).map(Arc::new).map(Some)
        }
        _ => Ok(None),
    }
}

/// Returns the encoder of a stream's rows. For Avro, this finds the schema in the registry or
/// registers it there.
///
/// # Errors
/// If the columns and the schema do not fit, the registry refuses, or it does not answer in time.
pub(super) fn values(
    settings: &TopicSink,
    schema: &Arc<Schema>,
    stream: &str,
    env: &Env,
    troubles: &Troubles,
) -> Result<MessageValues> {
    let url = match &settings.registry {
        Some(url) if settings.format == MessageFormat::Avro => url,
        _ => return MessageValues::new(schema, settings.format, &settings.key),
    };
    let registry = Registry::open(env, url, &settings.registry_properties)?;
    let subject = settings.subject.clone().unwrap_or_else(|| format!("{}-value", settings.topic));
    let begun_ns = env.clock.monotonic_ns();
    let (id, avro) = loop {
        let asked = match &settings.schema {
            Some(SinkSchema::Id(id)) => registry.schema(*id).map(|avro| (*id, avro)),
            Some(SinkSchema::Latest) => registry.latest(&subject),
            None => registered(&registry, &subject, stream, schema)?,
        };
        let why = match asked {
            Ok(found) => break found,
            Err(Failed::Lasting(error)) => return Err(error),
            Err(Failed::No(why)) => {
                let what = format!("topic {}, subject {subject}: {why}", settings.topic);
                return Err(Error::setting(what).help(match settings.schema {
                    None => {
                        "the subject does not accept the schema of the stream's columns: \
                         change the columns, relax the subject's compatibility, or set subject="
                    }
                    Some(_) => "correct schema= or subject=, or register the schema first",
                }));
            }
            Err(Failed::Away(why)) => why,
        };
        let waited_ns = env.clock.monotonic_ns() - begun_ns;
        if troubles.is_over() || waited_ns > settings.timeout_us.saturating_mul(1000) {
            return Err(Error::new(Kind::Io, why).help(
                "check registry=, and that the registry runs; timeout= is the time for its answer",
            ));
        }
        env.clock.sleep_us(AGAIN_US);
    };
    MessageValues::avro(schema, AvroValues::new(schema, id, &avro)?, &settings.key)
}

/// Registers the schema of the columns.
fn registered(
    registry: &Registry,
    subject: &str,
    stream: &str,
    schema: &Schema,
) -> Result<std::result::Result<(u32, AvroSchema), Failed>> {
    let derived = derive_avro(stream, schema)?;
    let avro = AvroSchema::parse(&[&derived])
        .map_err(|why| Error::internal(format!("the schema of stream {stream}: {why}")))?;
    Ok(registry.register(subject, &derived).map(|id| (id, avro)))
}
