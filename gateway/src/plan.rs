//! The plan of the gateway, from the settings. Settings that would give strangers access are
//! refused here, before anything runs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tidemill_core::{Error, Result};
use tidemill_engine::Settings;
use tidemill_env::Env;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;

use crate::access::Access;
use crate::tls::acceptor;

/// The largest number of threads that answer. Their work is short, and the cores are for the
/// engine.
const THREADS_MAX: usize = 4;

/// The checked settings of the gateway, and its open port.
pub struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) listener: TcpListener,
    pub(crate) runtime: Runtime,
    pub(crate) access: Access,
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Plan {
    /// Returns the plan that the settings ask for, if they ask for any. Connections wait from now
    /// on until the gateway starts.
    ///
    /// # Errors
    /// If a setting or a file that it names is wrong, or if the address is not available. Also if
    /// clients of other machines could connect without a token, or if others could read their
    /// traffic.
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
        let runtime = Builder::new_multi_thread()
            .worker_threads(env.threads.cores().min(THREADS_MAX))
            .thread_name("tidemill-http")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|e| Error::io("starting the threads that answer clients", &e))?;
        let wanted = SocketAddr::new(host, port);
        let listening = runtime.block_on(TcpListener::bind(wanted));
        let listening = listening.and_then(|l| Ok((l.local_addr()?, l)));
        let (address, listener) = listening.map_err(|e| {
            Error::io(format!("listening on {wanted}"), &e)
                .help("choose a free port of this machine with http_port (--http), or 0 for any")
        })?;
        Ok(Some(Plan { address, listener, runtime, access, tls }))
    }
}
