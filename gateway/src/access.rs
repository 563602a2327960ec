//! Who is let in: bearer tokens with roles.
//!
//! The file of tokens holds hashes only, so whoever reads it can't come in with it. Tokens are random
//! and long, so that a plain SHA-256 of each is enough.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use axum::http::{header, HeaderMap, HeaderValue, StatusCode};
use ring::digest::{digest as hash, SHA256};
use serde::Deserialize;
use subtle::ConstantTimeEq as _;
use tidemill_core::{Error, Result};
use tidemill_env::Env;

use crate::refusal::Refusal;

/// The role that every client has.
const EVERYBODY: &str = "*";
/// Bytes of the file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A client that has been let in.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Its name; nobody where there are no tokens.
    pub(crate) name: String,
    roles: Vec<String>,
}

/// Who is let in, and what for.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// By the hashes of their tokens; everybody on this machine when absent.
    clients: Option<Vec<([u8; 32], Client)>>,
    /// By what they may do: the roles of which it needs one; everybody may where there is none.
    roles: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// In hexadecimal digits.
    sha256: String,
    #[serde(default)]
    roles: Vec<String>,
}

/// The hash of a token, as the file has it.
pub fn digest(token: &str) -> String {
    hash(&SHA256, token.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Access {
    /// Reads the file of tokens, if there is one.
    ///
    /// # Errors
    /// When it can't be read or is wrong, and when roles are needed that nobody can have.
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
                "say who has which roles: http_tokens = \"tokens.toml\" (tidemill token makes one)",
            ));
        }
        Ok(access)
    }

    /// One of these roles is needed, unless something else is said already.
    pub(crate) fn guard(&mut self, what: &str, roles: &str) {
        let roles = roles.split('|').map(str::trim).filter(|role| !role.is_empty());
        let roles: Vec<String> = roles.map(String::from).collect();
        let roles = if roles.iter().any(|role| role == EVERYBODY) { Vec::new() } else { roles };
        self.roles.entry(what.to_owned()).or_insert(roles);
    }

    /// What something else needs is needed here, unless something else is said already.
    pub(crate) fn guard_as(&mut self, what: String, other: &str) {
        if let Some(roles) = self.roles.get(other).cloned() {
            self.roles.entry(what).or_insert(roles);
        }
    }

    /// Whether clients have to show tokens.
    pub(crate) fn wants_tokens(&self) -> bool {
        self.clients.is_some()
    }

    /// What roles are needed for.
    pub(crate) fn guarded(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// The roles of which something needs one, in words.
    pub(crate) fn role(&self, what: &str) -> Option<String> {
        self.roles.get(what).filter(|roles| !roles.is_empty()).map(|roles| any(roles))
    }

    /// Who asks.
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
            return Err(unauthorized("a token is needed"));
        };
        let given = hash(&SHA256, token.as_bytes());
        // All are compared, and each to its end: how long it takes says nothing.
        let mut found = None;
        for (known, client) in clients {
            if bool::from(known[..].ct_eq(given.as_ref())) {
                found = Some(client);
            }
        }
        found.cloned().ok_or_else(|| unauthorized("nobody has this token"))
    }

    /// Refuses who has not the role that something needs.
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

/// Roles of which one is enough, in words.
fn any(roles: &[String]) -> String {
    roles.join(" or ")
}

/// Somebody on this machine. A page of a foreign site that a browser here shows is not: it comes by a
/// name that its owner lets point here.
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

fn unauthorized(what: &str) -> Refusal {
    let error = Error::setting(what).help("send the header Authorization: Bearer TOKEN");
    Refusal::new(StatusCode::UNAUTHORIZED, error)
        .header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}

fn read(env: &Env, path: &Path) -> Result<Vec<([u8; 32], Client)>> {
    let io = |e: std::io::Error| Error::io(path.display(), &e);
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
        return Err(wrong("there is no client in it".into()));
    }
    let client = |(name, entry): (String, Entry)| {
        let hash = bytes(&entry.sha256).ok_or_else(|| {
            wrong(format!("sha256 of {name} is no hash of 64 hexadecimal digits"))
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
