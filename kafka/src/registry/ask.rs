//! Requests over HTTP, and the meaning of their answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Deserialize;
use tidemill_core::{Error, Kind, Result};
use tidemill_env::Env;
use ureq::tls::{parse_pem, Certificate, PemItem, RootCerts, TlsConfig};
use ureq::Agent;

use super::at::At;
use super::Failed;

/// The longest time for an answer, including the connection.
const ANSWER: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes.
const BYTES_MAX: u64 = 8 << 20;
/// The longest quotation of a registry's answer.
const WORDS_MAX: usize = 400;
/// The media type of a registry's answers.
const MIME: &str = "application/vnd.schemaregistry.v1+json";

/// An HTTP client of one registry.
pub(super) struct Client {
    agent: Agent,
    url: String,
    login: Option<String>,
}

/// A registry's answer if it refuses.
#[derive(Deserialize)]
struct ErrorBody {
    error_code: u32,
    #[serde(default)]
    message: String,
}

impl Client {
    pub fn open(env: &Env, at: &At) -> Result<Client> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER))
            .max_idle_connections(1)
            // Only the settings of the topic decide which address is asked, not the environment.
            .proxy(None);
        if at.url.starts_with("https:") {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let tls = TlsConfig::builder()
                .unversioned_rustls_crypto_provider(provider)
                .root_certs(authorities(env, at.authority.as_deref())?);
            config = config.tls_config(tls.build());
        }
        let agent = config.build().new_agent();
        Ok(Client { agent, url: at.url.clone(), login: at.login.clone() })
    }

    pub fn shown(&self) -> &str {
        &self.url
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> std::result::Result<T, Failed> {
        let mut request = self.agent.get(format!("{}{path}", self.url)).header("accept", MIME);
        if let Some(login) = &self.login {
            request = request.header("authorization", login);
        }
        self.error_of(request.call())
    }

    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &str,
    ) -> std::result::Result<T, Failed> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let mut request = request.header("accept", MIME).header("content-type", MIME);
        if let Some(login) = &self.login {
            request = request.header("authorization", login);
        }
        self.error_of(request.send(body))
    }

    fn error_of<T: DeserializeOwned>(
        &self,
        answer: std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> std::result::Result<T, Failed> {
        let away = |why: String| Failed::Away(format!("the schema registry at {} {why}", self.url));
        let mut answer = answer.map_err(|error| away(format!("does not answer: {error}")))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(BYTES_MAX).read_to_string();
        let body = body.map_err(|error| away(format!("broke off its answer: {error}")))?;
        if let 200..300 = status {
            let parsed = serde_json::from_str(&body);
            return parsed.map_err(|_| {
                away(format!("does not answer like a schema registry: {}", words(&body)))
            });
        }
        // An answer in another form is quoted as it is.
        let said: Option<ErrorBody> = serde_json::from_str(&body).ok();
        let words = said.as_ref().map_or_else(|| words(&body), |said| words(&said.message));
        Err(match (status, said) {
            // Unknown subjects, versions and schemas. Any other 404 means that the address is
            // wrong.
            (404, Some(ErrorBody { error_code: 40401..=40403, .. })) | (409 | 422, Some(_)) => {
                Failed::No(format!("the registry of schemas says: {words} ({status})"))
            }
            (401 | 403, _) => Failed::Lasting(
                Error::new(
                    Kind::Io,
                    format!("the schema registry at {} refuses it: {words} ({status})", self.url),
                )
                .help(
                    "give a login: registry=\"http://user:password@host\", or basic.auth.user.info \
                     or bearer.auth.token in registry_properties=; reading needs the right to read \
                     schemas, and writing the right to register them",
                ),
            ),
            (404, _) => away(format!(
                "does not know the paths of a registry (404): is the address right? {words}"
            )),
            _ => away(format!("answers {status}: {words}")),
        })
    }
}

/// Returns the beginning of an answer, in one line.
fn words(text: &str) -> String {
    let line: Vec<&str> = text.split_whitespace().collect();
    let line = line.join(" ");
    line.chars().take(WORDS_MAX).collect()
}

/// Escapes a part of a path.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Returns the trusted authorities: those of a file, or else the system's.
fn authorities(env: &Env, file: Option<&str>) -> Result<RootCerts> {
    let Some(file) = file else {
        let found = rustls_native_certs::load_native_certs();
        let own =
            |der: &rustls::pki_types::CertificateDer<'_>| Certificate::from_der(der).to_owned();
        let found: Vec<Certificate<'static>> = found.certs.iter().map(own).collect();
        return match found.is_empty() {
            true => Err(Error::setting("this machine has no certificates of authorities")
                .help("set ssl.ca.location in registry_properties=, or install ca-certificates")),
            false => Ok(RootCerts::new_with_certs(&found)),
        };
    };
    let what = format!("ssl.ca.location = {file}");
    let mut pem = Vec::new();
    let opened = env.disk.open_read(Path::new(file));
    let read = opened.and_then(|mut opened| std::io::Read::read_to_end(&mut opened, &mut pem));
    read.map_err(|error| Error::io(&what, &error))?;
    let found: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match found.is_empty() {
        true => Err(Error::setting(format!("{what} has no certificate"))
            .help("give the certificate of the authority that has signed the registry's, as PEM")),
        false => Ok(RootCerts::new_with_certs(&found)),
    }
}
