//! The address and the login of a registry.

use std::collections::BTreeMap;

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use tidemill_core::{Error, Result};

const LOGIN: &str = "basic.auth.user.info";
const TOKEN: &str = "bearer.auth.token";
const AUTHORITY: &str = "ssl.ca.location";

/// A parsed address.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct At {
    /// The URL without secrets, and without a slash at its end.
    pub url: String,
    /// The header with the login.
    pub login: Option<String>,
    /// A file with certificates of the authorities that may sign the registry's.
    pub authority: Option<String>,
}

/// Refuses an invalid address, and unknown properties.
pub(crate) fn check(url: &str, properties: &BTreeMap<String, String>) -> Result<()> {
    At::parse(url, properties).map(drop)
}

impl At {
    pub fn parse(url: &str, properties: &BTreeMap<String, String>) -> Result<At> {
        for name in properties.keys() {
            if ![LOGIN, TOKEN, AUTHORITY].contains(&&**name) {
                return Err(Error::setting(format!("a registry has no property {name}")).help(
                    format!(
                        "the properties are {LOGIN} (as user:password), {TOKEN} and {AUTHORITY}"
                    ),
                ));
            }
        }
        // A wrong address may contain a password, so the error does not quote it.
        let wrong = || {
            Error::setting("the address of the registry is not an HTTP URL")
                .help("write it as http://host:8081 or https://user:password@host/path")
        };
        let (scheme, rest) = url.trim().split_once("://").ok_or_else(wrong)?;
        if !["http", "https"].contains(&scheme) {
            return Err(wrong());
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let is_plain = |c: char| c.is_ascii_graphic();
        if host.is_empty() || !rest.chars().all(is_plain) || path.contains(['?', '#']) {
            return Err(wrong());
        }
        let within = user.map(|user| unescaped(user).ok_or_else(wrong)).transpose()?;
        let given = [
            within.as_ref().map(|user| (basic(user), "the address")),
            properties.get(LOGIN).map(|user| (basic(user), LOGIN)),
            properties.get(TOKEN).map(|token| (format!("Bearer {token}"), TOKEN)),
        ];
        let mut given = given.into_iter().flatten();
        let login = given.next();
        if let (Some((_, one)), Some((_, other))) = (&login, given.next()) {
            return Err(Error::setting(format!(
                "the login to the registry is given twice: by {one} and by {other}"
            ))
            .help("give it once"));
        }
        Ok(At {
            url: format!("{scheme}://{host}{}", path.trim_end_matches('/')),
            login: login.map(|(login, _)| login),
            authority: properties.get(AUTHORITY).cloned(),
        })
    }
}

fn basic(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(user))
}

/// Decodes the escapes of a part of a URL.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let ([high, low], behind) = rest.split_first_chunk()?;
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        bytes.push((digit(high)? << 4 | digit(low)?) as u8);
        rest = behind;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, properties: &[(&str, &str)]) -> Result<At> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        At::parse(url, &properties.iter().map(owned).collect())
    }

    #[test]
    fn addresses_are_taken_apart() {
        let at = parse("http://host:8081/", &[]).unwrap();
        assert_eq!((&*at.url, at.login), ("http://host:8081", None));
        let at = parse("https://me:p%40ss:w@[::1]:1/apis/v7/", &[]).unwrap();
        assert_eq!(at.url, "https://[::1]:1/apis/v7");
        let login = Some("Basic bWU6cEBzczp3".to_owned());
        assert_eq!(at.login, login);
        assert_eq!(parse("http://h", &[(LOGIN, "me:p@ss:w")]).unwrap().login, login);
        let token = parse("http://h", &[(TOKEN, "t")]).unwrap().login;
        assert_eq!(token.as_deref(), Some("Bearer t"));
    }

    #[test]
    fn what_is_no_address_is_refused_without_its_secrets() {
        for url in
            ["", "host:8081", "ftp://h", "http://", "http://a:hidden@", "http://a:hidden@h?x"]
        {
            let error = parse(url, &[]).unwrap_err().to_string();
            assert!(error.contains("not an HTTP URL") && !error.contains("hidden"), "{error}");
        }
        let twice = parse("http://a:hidden@h", &[(TOKEN, "hidden")]).unwrap_err().to_string();
        assert!(twice.contains("given twice") && !twice.contains("hidden"), "{twice}");
        let other = parse("http://h", &[("basic.auth", "x")]).unwrap_err();
        assert!(other.help.contains(LOGIN), "{other}");
    }
}
