//! Logins and TLS: the abilities of a build, and the likely reasons why a broker refuses a login.
//!
//! librdkafka uses OpenSSL for TLS. Its headers are not on every machine, and it takes minutes to
//! build, so a build has it only on request. Without it there are logins by PLAIN, in clear text.
//! SCRAM also needs OpenSSL, for its hashes.

use std::collections::BTreeMap;

use tidemill_core::{Error, Result};

const HAS_TLS: bool = cfg!(any(feature = "tls", feature = "tls-vendored"));

const BUILD: &str =
    "build it with TLS: make setup FEATURES=kafka-tls, where OpenSSL and its headers are (libssl-dev), or \
     FEATURES=kafka-tls-vendored, which builds OpenSSL, too, with perl";

/// Refuses what this build can't do, and incomplete logins. Otherwise librdkafka would find these
/// only when it creates a client, or would fall back to Kerberos, without which it is built.
pub(crate) fn check(properties: &BTreeMap<String, String>) -> Result<()> {
    let of = |names: [&str; 2]| names.iter().find_map(|name| properties.get(*name));
    let wrong = |name: &str, value: &str, what: &str, help: &str| {
        let what = format!("the Kafka property {name} = {value} {what}");
        Err(Error::setting(what).help(help.to_owned()))
    };
    let protocol = of(["security.protocol"; 2]).map_or("plaintext", String::as_str);
    let is = |known: &str| protocol.eq_ignore_ascii_case(known);
    if (is("ssl") || is("sasl_ssl")) && !HAS_TLS {
        return wrong("security.protocol", protocol, "needs TLS, which this build lacks", BUILD);
    }
    if !is("sasl_plaintext") && !is("sasl_ssl") {
        return Ok(());
    }
    let names = "set sasl.mechanism to PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512";
    let Some(mechanism) = of(["sasl.mechanism", "sasl.mechanisms"]) else {
        return wrong(
            "security.protocol",
            protocol,
            "needs a login, but sasl.mechanism is not set",
            names,
        );
    };
    match mechanism.to_ascii_uppercase().as_str() {
        "PLAIN" => Ok(()),
        "GSSAPI" => {
            wrong("sasl.mechanism", mechanism, "is Kerberos, which no build supports", names)
        }
        _ if HAS_TLS => Ok(()),
        _ => {
            let what = "needs OpenSSL, which this build lacks";
            wrong("sasl.mechanism", mechanism, what, BUILD)
        }
    }
}

/// Returns help for the case that no broker answers, by the brokers' last error.
pub(crate) fn help(heard: &str) -> &'static str {
    let heard = heard.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| heard.contains(word));
    if has(&["authentication"]) {
        "check sasl.username, sasl.password and sasl.mechanism"
    } else if has(&["certificate required", "bad certificate", "certificate_required"]) {
        "the broker asks for a certificate, or does not take this one: check ssl.certificate.location and \
         ssl.key.location"
    } else if has(&["verify", "ssl.ca.location"]) {
        "ssl.ca.location is the certificate of the authority that has signed the broker's, which has to be \
         valid now, and for the host by which the broker is reached"
    } else if has(&["ssl", "security.protocol", "wrong version number"]) {
        "check security.protocol: the broker's listener at this address uses another one"
    } else {
        "check the address, that the broker runs and advertises an address that can be reached from here, and \
         security.protocol"
    }
}
