//! The plan of the gateway, from the settings. Settings that would give strangers access are
//! refused here, before anything runs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tidemill_core::{Error, Result};
use tidemill_engine::Settings;
use tidemill_env::Env;
use tokio_rustls::TlsAcceptor;

use crate::access::Access;
use crate::tls::acceptor;

/// The checked settings of the gateway.
pub struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) access: Access,
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Plan {
    /// Returns the plan that the settings ask for, if they ask for any.
    ///
    /// # Errors
    /// If a setting or a file that it names is wrong. Also if clients of other machines could
    /// connect without a token, or if others could read their traffic.
    pub fn of(settings: &Settings, env: &Env) -> Result<Option<Plan>> {
        let Some(port) = settings.http_port else {
            return Ok(None);
        };
        let host = match settings.http_host.as_str() {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.trim_matches(['[', ']']).parse().map_err(|_| {
                Error::setting(format!("http_host is '{host}', which is not an address"))
                    .help("give one of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them")
            })?,
        };
        let tls = match (&settings.http_cert, &settings.http_key) {
            (Some(cert), Some(key)) => Some(acceptor(env, cert, key)?),
            (None, None) => None,
            _ => {
                return Err(Error::setting("http_cert and http_key belong together")
                    .help("give both or neither"))
            }
        };
        let tokens = settings.http_tokens.as_deref();
        if !host.is_loopback() && (tls.is_none() || tokens.is_none()) {
            return Err(Error::setting(format!(
                "other machines can connect to {host}, which needs tokens and a certificate"
            ))
            .help("set http_tokens, http_cert and http_key, or listen on 127.0.0.1"));
        }
        let access = Access::of(env, tokens, &settings.http_roles)?;
        Ok(Some(Plan { address: SocketAddr::new(host, port), access, tls }))
    }
}
