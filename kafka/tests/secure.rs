//! Logins and TLS on a real broker whose listeners have different requirements. `make test-servers`
//! starts one and runs these tests, with the feature `tls`. All other tests run without it.

#![allow(clippy::disallowed_methods)] // Time of the tests themselves.

#[allow(dead_code)] // What other tests need.
#[path = "server/common.rs"]
mod common;
#[allow(dead_code)]
#[path = "server/read.rs"]
mod read;

use std::time::{Duration, Instant};

use tidemill_cluster::Topic;
use tidemill_kafka::KafkaSettings;

use common::*;

fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name}: run this with make test-servers"))
}

/// Returns settings for a listener, with these properties.
fn at(listener: &str, properties: &[(&str, &str)]) -> KafkaSettings {
    let mut settings = settings("secured", 1);
    settings.brokers = var(&format!("SERVERS_KAFKA_{listener}"));
    let all = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    settings.properties = all.collect();
    settings
}

fn works(settings: &KafkaSettings) {
    let log = open(settings);
    append_all(&log, Topic::Input(0), 1, 0..100).into_iter().for_each(|at| assert!(at.is_ok()));
    let records = read_patiently(&log, Topic::Input(0), 0);
    assert_eq!(records.records.len(), 100);
}

/// Checks the reason, and that the refusal is fast.
fn refused(settings: &KafkaSettings, words: &[&str]) {
    // Within this time the log tries again.
    let settings = KafkaSettings { timeout_us: 2_500_000, ..settings.clone() };
    let begun = Instant::now();
    let said = refusal(&settings);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    for words in words {
        assert!(said.contains(words), "{words}: {said}");
    }
}

fn login<'a>(
    protocol: &'a str,
    mechanism: &'a str,
    password: &'a str,
) -> Vec<(&'static str, &'a str)> {
    vec![
        ("security.protocol", protocol),
        ("sasl.mechanism", mechanism),
        ("sasl.username", "tidemill"),
        ("sasl.password", password),
    ]
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_logs_in_by_a_plain_password() {
    let password = var("SERVERS_KAFKA_PASSWORD");
    works(&at("SASL", &login("sasl_plaintext", "PLAIN", &password)));
    let wrong = at("SASL", &login("sasl_plaintext", "PLAIN", "guessed"));
    refused(&wrong, &["no broker", "uthentication", "check sasl.username"]);
}

#[test]
#[ignore = "needs a server: make test-servers"]
fn server_listeners_that_speak_otherwise_are_told_apart() {
    for listener in ["SASL", "TLS", "SASL_TLS"] {
        refused(&at(listener, &[]), &["no broker", "security.protocol"]);
    }
    let password = var("SERVERS_KAFKA_PASSWORD");
    let clear = login("sasl_plaintext", "PLAIN", &password);
    refused(&at("SASL_TLS", &clear), &["no broker", "security.protocol"]);
}

#[cfg(any(feature = "tls", feature = "tls-vendored"))]
mod with_tls {
    use super::*;

    fn key(name: &str) -> String {
        format!("{}/{name}", var("SERVERS_KAFKA_KEYS"))
    }

    #[test]
    #[ignore = "needs a server: make test-servers"]
    fn server_is_known_by_its_certificate() {
        let (authority, other) = (key("authority.pem"), key("other.pem"));
        let by = |authority| [("security.protocol", "ssl"), ("ssl.ca.location", authority)];
        works(&at("TLS", &by(&authority)));
        refused(&at("TLS", &by(&other)), &["no broker", "ssl.ca.location is the certificate"]);
        // This machine has no such authority by default, either.
        refused(&at("TLS", &by(&authority)[..1]), &["no broker", "ssl.ca.location"]);
        let mut plain = at("TLS", &by(&authority));
        plain.brokers = brokers();
        refused(&plain, &["no broker", "security.protocol"]);
        plain.brokers = var("SERVERS_KAFKA_SASL");
        refused(&plain, &["no broker", "security.protocol"]);
    }

    #[test]
    #[ignore = "needs a server: make test-servers"]
    fn server_asks_for_a_certificate() {
        let [authority, certificate, private] =
            ["authority.pem", "client.pem", "client.key"].map(key);
        let all = [
            ("security.protocol", "ssl"),
            ("ssl.ca.location", &*authority),
            ("ssl.certificate.location", &*certificate),
            ("ssl.key.location", &*private),
        ];
        works(&at("MUTUAL", &all));
        refused(&at("MUTUAL", &all[..2]), &["no broker", "asks for a certificate"]);
    }

    #[test]
    #[ignore = "needs a server: make test-servers"]
    fn server_logs_in_by_scram() {
        let (password, authority) = (var("SERVERS_KAFKA_PASSWORD"), key("authority.pem"));
        works(&at("SASL", &login("sasl_plaintext", "SCRAM-SHA-256", &password)));
        for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
            let mut login = login("sasl_ssl", mechanism, &password);
            login.push(("ssl.ca.location", &authority));
            works(&at("SASL_TLS", &login));
            login[3].1 = "guessed";
            refused(&at("SASL_TLS", &login), &["uthentication", "check sasl.username"]);
        }
    }
}
