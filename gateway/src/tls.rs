//! Certificates.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use tidemill_core::{Error, Result};
use tidemill_env::Env;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

/// Accepts HTTPS connections with a certificate chain and its private key, both as PEM.
///
/// # Errors
/// If they can't be read or do not fit each other.
pub(crate) fn acceptor(env: &Env, cert: &Path, key: &Path) -> Result<TlsAcceptor> {
    let wrong = |path: &Path, what: &dyn std::fmt::Display| {
        Error::setting(format!("{}: {what}", path.display()))
            .help("http_cert is a certificate with its chain, http_key its private key, as PEM")
    };
    let chain = CertificateDer::pem_slice_iter(&read(env, "http_cert", cert)?)
        .collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|e| wrong(cert, &e))?;
    if chain.is_empty() {
        return Err(wrong(cert, &"it has no certificate"));
    }
    let private =
        PrivateKeyDer::from_pem_slice(&read(env, "http_key", key)?).map_err(|e| wrong(key, &e))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::internal(format!("TLS: {e}")))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|e| wrong(key, &e))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read(env: &Env, setting: &str, path: &Path) -> Result<Vec<u8>> {
    let io = |e: std::io::Error| {
        Error::io(format!("{setting}: {}", path.display()), &e).help("give a PEM file")
    };
    let mut bytes = Vec::new();
    env.disk.open_read(path).map_err(io)?.read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}
