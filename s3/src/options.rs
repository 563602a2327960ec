//! The place of the bucket, and the errors for people.

use std::net::IpAddr;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use tidemill_core::{Error, Kind, Result};

/// The options for a bucket. Missing ones are taken from the environment: `AWS_ENDPOINT`,
/// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`. Without keys,
/// those of the machine's role are requested.
#[derive(Clone, Default)]
pub struct S3Options {
    /// The address of a server other than Amazon's, as `https://host:port`.
    pub endpoint: Option<String>,
    /// The id of the access key.
    pub access_key_id: Option<String>,
    /// The secret access key.
    pub secret_access_key: Option<String>,
    /// The session token of a temporary key.
    pub session_token: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// Whether keys and objects may go unencrypted to an endpoint that is not this machine.
    pub allow_http: bool,
    /// The time after which a call has failed, in microseconds; 0 means 60 seconds.
    pub timeout_us: u64,
}

impl std::fmt::Debug for S3Options {
    // The secrets are left out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Options")
            .field("endpoint", &self.endpoint)
            .field("access_key_id", &self.access_key_id)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// A bucket, and the prefix of all names in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) bucket: String,
    pub(crate) prefix: String,
}

impl Place {
    /// Parses `s3://bucket/prefix`.
    pub(crate) fn of(url: &str) -> Result<Place> {
        let wrong = |why: &str| {
            Error::setting(format!("{url} is not a place in S3: {why}"))
                .help("write s3://bucket or s3://bucket/prefix")
        };
        let rest =
            url.strip_prefix("s3://").ok_or_else(|| wrong("it does not begin with s3://"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        if bucket.is_empty() {
            return Err(wrong("it names no bucket"));
        }
        if !(prefix.is_empty() || tidemill_durable::is_name(prefix)) {
            return Err(wrong(
                "a prefix is made of letters, digits, '.', '_', '-' and single slashes",
            ));
        }
        Ok(Place { bucket: bucket.into(), prefix: prefix.into() })
    }
}

impl S3Options {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_micros(if self.timeout_us == 0 { 60_000_000 } else { self.timeout_us })
    }

    fn endpoint(&self) -> Option<String> {
        let environment = || {
            let set = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
            set.iter().find_map(|name| std::env::var(name).ok())
        };
        self.endpoint.clone().or_else(environment).filter(|endpoint| !endpoint.is_empty())
    }

    /// Returns the server's address, for people.
    pub(crate) fn at(&self) -> String {
        self.endpoint().unwrap_or_else(|| "Amazon's S3".into())
    }

    pub(crate) fn client(&self, place: &Place) -> Result<AmazonS3> {
        let endpoint = self.endpoint();
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        if is_plain && !self.allow_http && !endpoint.as_deref().is_some_and(is_loopback) {
            return Err(Error::setting(format!("{} is not encrypted", self.at())).help(
                "use https://, or cluster_snapshots_allow_http=true where the network is trusted",
            ));
        }
        // Another part of the process may have named a provider for TLS already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = ClientOptions::new()
            .with_allow_http(is_plain)
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout(self.timeout());
        // The store counts tries itself, because it knows which of them may have had an effect.
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 0,
            retry_timeout: self.timeout(),
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&place.bucket)
            .with_client_options(client.clone())
            // Bulk requests would report a refused key as an error that may pass.
            .with_disable_bulk_delete(true)
            .with_retry(retry);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(id) = &self.access_key_id {
            builder = builder.with_access_key_id(id);
        }
        if let Some(key) = &self.secret_access_key {
            builder = builder.with_secret_access_key(key);
        }
        if let Some(token) = &self.session_token {
            builder = builder.with_token(token);
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        let built = match builder.clone().build() {
            // Small containers have no certificates of authorities, and HTTP needs none.
            Err(_) if is_plain => {
                builder.with_client_options(client.with_no_system_certificates(true)).build()
            }
            built => built,
        };
        built.map_err(|error| {
            let text = chain(&error);
            let is_without_authorities = text.contains("No CA certificates");
            let refused = Error::setting(format!("the settings for S3 are refused: {text}"));
            match is_without_authorities {
                true => refused.help("install the package ca-certificates, or set SSL_CERT_FILE"),
                false => refused,
            }
        })
    }

    /// Returns the error why a bucket can't be used.
    pub(crate) fn refused(&self, place: &Place, error: &object_store::Error) -> Error {
        let (at, bucket) = (self.at(), &place.bucket);
        let text = chain(error);
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if has(&["NoSuchBucket"]) {
            return Error::new(Kind::Io, format!("{at} has no bucket {bucket}"))
                .help("create the bucket, or name an existing one");
        }
        if has(&["InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"]) {
            return Error::new(Kind::Io, format!("{at} refuses the keys: {}", code(&text))).help(
                "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and this machine's clock",
            );
        }
        if matches!(
            error,
            object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. }
        ) {
            return Error::new(
                Kind::Io,
                format!("{at} does not allow the bucket {bucket} to be used: {}", code(&text)),
            )
            .help("grant the key GetObject, PutObject, DeleteObject and ListBucket");
        }
        if has(&["PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"])
        {
            return Error::new(Kind::Io, format!("the bucket {bucket} is in another region"))
                .help("set AWS_REGION to the region of the bucket");
        }
        if has(&["error sending request", "Connect", "connect", "dns"]) {
            return Error::new(Kind::Io, format!("{at} can't be reached: {text}"))
                .help("check the endpoint, and that this machine may reach it");
        }
        Error::new(Kind::Io, format!("the bucket {bucket} at {at} can't be used: {text}"))
    }
}

/// Whether an endpoint is this machine.
fn is_loopback(endpoint: &str) -> bool {
    let host = endpoint.trim_start_matches("http://");
    let host = host.split('/').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(host, _)| host),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns an error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some errors repeat their cause.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// Returns the code in an answer of S3, or all of it.
fn code(text: &str) -> &str {
    let of_tag = |text| -> Option<&str> {
        let (_, rest): (&str, &str) = str::split_once(text, "<Code>")?;
        Some(rest.split_once("</Code>")?.0)
    };
    of_tag(text).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_refused() {
        let place =
            |bucket: &str, prefix: &str| Place { bucket: bucket.into(), prefix: prefix.into() };
        assert_eq!(Place::of("s3://b").unwrap(), place("b", ""));
        assert_eq!(Place::of("s3://b/").unwrap(), place("b", ""));
        assert_eq!(Place::of("s3://b/some/where/").unwrap(), place("b", "some/where"));
        for wrong in ["", "b", "http://b", "s3://", "s3:///x", "s3://b//x", "s3://b/../x"] {
            assert_eq!(Place::of(wrong).unwrap_err().kind, Kind::Setting, "{wrong}");
        }
    }

    #[test]
    fn keys_do_not_go_unencrypted_to_others() {
        assert!(is_loopback("http://127.0.0.1:9000") && is_loopback("http://localhost"));
        assert!(is_loopback("http://[::1]:9000/x") && !is_loopback("http://10.0.0.1:9000"));
        assert!(!is_loopback("http://127.0.0.1.example.org:9000"));
        let options =
            S3Options { endpoint: Some("http://10.0.0.1:1".into()), ..S3Options::default() };
        let error = options.client(&Place::of("s3://b").unwrap()).unwrap_err().to_string();
        assert!(error.contains("not encrypted"), "{error}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let options =
            S3Options { secret_access_key: Some("hidden".into()), ..S3Options::default() };
        assert!(!format!("{options:?}").contains("hidden"));
    }
}
