//! Authentication and authorization of clients: bearer tokens with roles.
//!
//! The file of tokens holds hashes only, so a reader of the file can't use it to authenticate.
//! Tokens are long and random, so a plain SHA-256 of each is enough.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use axum::http::{header, HeaderMap, HeaderValue, StatusCode};
use ring::digest::{digest as hash, SHA256};
use serde::Deserialize;
use subtle::ConstantTimeEq as _;
use tidemill_core::{Error, Result, Value};
use tidemill_env::Env;

use crate::refusal::Refusal;

/// The role that every client has.
const EVERYBODY: &str = "*";
/// The prefix of a client's name, as functions see their caller.
const CLIENT: &str = "client:";
/// The largest size of the file of tokens, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// An authenticated client.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// The client's name; empty where there are no tokens.
    pub(crate) name: String,
    roles: Vec<String>,
}

impl Client {
    /// The client as functions see their caller; null if it has no name.
    pub(crate) fn as_caller(&self) -> Value {
        match self.name.is_empty() {
            true => Value::Null,
            false => Value::str(&format!("{CLIENT}{}", self.name)),
        }
    }
}

/// The rules for who may do what.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// The clients by the hashes of their tokens. Absent if every client on this machine is
    /// allowed.
    clients: Option<Vec<([u8; 32], Client)>>,
    /// The roles by the action that they allow. A client needs one of them; without roles, every
    /// client may act.
    roles: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The hash, in hexadecimal digits.
    sha256: String,
    #[serde(default)]
    roles: Vec<String>,
}

/// Returns the hash of a token, as the file of tokens has it.
pub fn digest(token: &str) -> String {
    hash(&SHA256, token.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Access {
    /// Reads the file of tokens, if there is one.
    ///
    /// # Errors
    /// If the file can't be read or is wrong, or if roles are needed that no client can have.
    pub(crate) fn of(
        env: &Env,
        file: Option<&Path>,
        roles: &BTreeMap<String, String>,
    ) -> Result<Access> {
        let clients = file.map(|path| read(env, path)).transpose()?;
        let mut access = Access { clients, roles: BTreeMap::new() };
        for (what, roles) in roles {
            access.guard(what, roles);
        }
        let mut guarded = access.roles.iter().filter(|(_, roles)| !roles.is_empty());
        if let (None, Some((what, roles))) = (&access.clients, guarded.next()) {
            let what = format!("{what} needs the role {}, and there are no tokens", any(roles));
            return Err(Error::setting(what).help(
                "say which client has which roles: http_tokens = \"tokens.toml\" \
                 (tidemill token makes one)",
            ));
        }
        Ok(access)
    }

    /// Requires one of these roles for an action, unless the action has roles already.
    pub(crate) fn guard(&mut self, what: &str, roles: &str) {
        let roles = roles.split('|').map(str::trim).filter(|role| !role.is_empty());
        let roles: Vec<String> = roles.map(String::from).collect();
        let roles = if roles.iter().any(|role| role == EVERYBODY) { Vec::new() } else { roles };
        self.roles.entry(what.to_owned()).or_insert(roles);
    }

    /// Requires for an action the roles of another one, unless it has roles already.
    pub(crate) fn guard_as(&mut self, what: String, other: &str) {
        if let Some(roles) = self.roles.get(other).cloned() {
            self.roles.entry(what).or_insert(roles);
        }
    }

    /// Whether clients must show tokens.
    pub(crate) fn wants_tokens(&self) -> bool {
        self.clients.is_some()
    }

    /// Returns the actions that need roles.
    pub(crate) fn guarded(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// Returns the roles that allow an action, in words.
    pub(crate) fn role(&self, what: &str) -> Option<String> {
        self.roles.get(what).filter(|roles| !roles.is_empty()).map(|roles| any(roles))
    }

    /// Returns the client that sent these headers.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Result<Client, Refusal> {
        let Some(clients) = &self.clients else {
            return local(headers);
        };
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = given.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let Some(token) = token else {
            let help = "send the header Authorization: Bearer TOKEN";
            return Err(unauthorized("a token is missing", help));
        };
        let given = hash(&SHA256, token.as_bytes());
        // Every hash is compared to its end, so the time taken reveals nothing.
        let mut found = None;
        for (known, client) in clients {
            if bool::from(known[..].ct_eq(given.as_ref())) {
                found = Some(client);
            }
        }
        let help =
            "check the token; the app reads its file of tokens at the start only, so start it \
                    again after a change";
        found.cloned().ok_or_else(|| unauthorized("no client has this token", help))
    }

    /// Refuses a client that has none of the roles for an action.
    pub(crate) fn permit(&self, client: &Client, what: &str) -> Result<(), Refusal> {
        match self.roles.get(what) {
            Some(roles) if !roles.is_empty() && !roles.iter().any(|r| client.roles.contains(r)) => {
                let error = Error::setting(format!("{} may not use {what}", client.name)).help(
                    format!("it needs the role {}: add it in the file of tokens", any(roles)),
                );
                Err(Refusal::new(StatusCode::FORBIDDEN, error))
            }
            _ => Ok(()),
        }
    }
}

/// Returns roles, any of which is enough, in words.
fn any(roles: &[String]) -> String {
    roles.join(" or ")
}

/// Returns the client for a request from this machine. A page of a foreign site in a browser here
/// is refused. Such a page uses a name that its owner points at this machine.
fn local(headers: &HeaderMap) -> Result<Client, Refusal> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_here = name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match is_here {
        true => Ok(Client { name: String::new(), roles: Vec::new() }),
        false => {
            let error = Error::setting(format!("'{host}' is not this machine"))
                .help("without tokens only this machine is served: ask 127.0.0.1 or localhost");
            Err(Refusal::new(StatusCode::FORBIDDEN, error))
        }
    }
}

fn unauthorized(what: &str, help: &str) -> Refusal {
    let error = Error::setting(what).help(help);
    Refusal::new(StatusCode::UNAUTHORIZED, error)
        .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}

fn read(env: &Env, path: &Path) -> Result<Vec<([u8; 32], Client)>> {
    let io = |e: std::io::Error| {
        Error::io(format!("http_tokens: {}", path.display()), &e)
            .help("give the file of tokens, which tidemill token makes")
    };
    let mut text = String::new();
    let file = env.disk.open_read(path).map_err(io)?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(io)?;
    let wrong = |what: String| {
        Error::setting(format!("{}: {what}", path.display())).help(
            "each client is a table: [ann], then sha256 = \"...\" and roles = [\"teller\"] \
             (tidemill token makes one)",
        )
    };
    let entries: BTreeMap<String, Entry> =
        toml::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if entries.is_empty() {
        return Err(wrong("it has no clients".into()));
    }
    let client = |(name, entry): (String, Entry)| {
        let hash = bytes(&entry.sha256).ok_or_else(|| {
            wrong(format!("sha256 of {name} is not a hash of 64 hexadecimal digits"))
        })?;
        Ok((hash, Client { name, roles: entry.roles }))
    };
    entries.into_iter().map(client).collect()
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> =
        hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[pair.len() - 1]).collect();
    (digits.len() == 64).then(|| bytes.try_into().ok()).flatten()
}
