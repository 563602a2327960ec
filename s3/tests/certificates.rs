//! Tests the store on a machine without certificates of authorities. Environment variables are the
//! process's, so no other test is in this file.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // A socket of the test.

use std::net::TcpListener;

use tidemill_core::{Error, Kind};
use tidemill_s3::{S3Options, S3Store};

fn refusal(scheme: &str) -> Error {
    // The port was free a moment ago, and nothing listens there now.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = S3Options {
        endpoint: Some(format!("{scheme}://{address}")),
        access_key_id: Some("id".into()),
        secret_access_key: Some("secret".into()),
        ..S3Options::default()
    };
    S3Store::open("s3://bucket", &options).err().expect("a refusal")
}

#[test]
fn only_https_needs_certificates() {
    std::env::set_var("SSL_CERT_FILE", "/dev/null");
    std::env::remove_var("SSL_CERT_DIR");
    let unreached = refusal("http");
    assert_eq!(unreached.kind, Kind::Io, "{unreached}");
    assert!(unreached.to_string().contains("can't be reached"), "{unreached}");
    let refused = refusal("https");
    assert_eq!(refused.kind, Kind::Setting, "{refused}");
    assert!(refused.to_string().contains("No CA certificates"), "{refused}");
    assert!(format!("{:?}", refused.help).contains("ca-certificates"), "{refused}");
}
