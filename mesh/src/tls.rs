//! Certificates, and the handshake with them.
//!
//! Both sides show a certificate. The authority of the cluster must have signed it, directly or
//! through others, and it must be valid now. A side that shows one proves that it has the key.
//! **Names are not checked.** Processes have addresses, which change. An authority that signs for
//! one cluster only is enough. Only version 1.3 is used, because all processes run the same
//! release.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, Resumption};
use rustls::crypto::{ring::default_provider, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection as Session,
    DigitallySignedStruct, RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};
use tidemill_core::{Error, Result};
use tidemill_env::{Clock, Connection, Env};

use crate::hello::Failed;
use crate::sealed::Sealed;

/// The bytes that are read at once in a handshake.
const READ_BYTES: usize = 4096;
/// The first bytes that a record of TLS may have. A greeting in clear text has none of them.
const RECORDS: std::ops::RangeInclusive<u8> = 0x14..=0x18;
/// A TLS alert for an unexpected message. A peer with TLS understands it. Any other peer only has
/// to recognize TLS.
const UNEXPECTED: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 10];
/// The label under which both sides of a connection derive their channel.
const CHANNEL_LABEL: &[u8] = b"EXPORTER-tidemill-mesh";

/// Bytes that only the two sides of one connection have in common. They are zeros in clear text.
pub(crate) type Channel = [u8; 32];

/// The certificate of this process, and the authorities that it trusts.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads PEM files, once: the certificate of this process with its chain up to the authority,
    /// its key, and the certificates of one or more authorities of the cluster.
    ///
    /// # Errors
    /// If a file can't be read or has other content, if the key belongs to another certificate, or
    /// if others would not trust the certificate now.
    pub fn open(env: &Env, certificate: &Path, key: &Path, authority: &Path) -> Result<Tls> {
        let chain = certificates(env, certificate)?;
        let private =
            PrivateKeyDer::from_pem_slice(&read(env, key)?).map_err(|e| wrong(key, &e))?;
        let believed = Verifier::new(env, authority)?;
        let Verifier { roots, provider } = &believed;
        let (roots, provider) = (roots.clone(), provider.clone());
        let internal = |e: rustls::Error| Error::internal(format!("TLS: {e}"));
        let time = Arc::new(Time(env.clock.clone()));
        let now = time.current_time().unwrap_or(UnixTime::since_unix_epoch(Duration::ZERO));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|e| wrong(authority, &e))?;
        // Check it as others will, on both sides of a connection.
        let checked = believed.check(&chain[0], &chain[1..], now);
        let checked = checked.and_then(|()| {
            let as_client = verifier.verify_client_cert(&chain[0], &chain[1..], now);
            as_client.map(drop).map_err(certificate_error)
        });
        checked.map_err(|error| {
            let what = format!("{}: {}", certificate.display(), certificate_words(&error));
            let by = authority.display();
            Error::setting(what)
                .help(format!("use a certificate that the authority in {by} has issued"))
        })?;
        let mut client = ClientConfig::builder_with_details(provider.clone(), time.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(internal)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(believed))
            .with_client_auth_cert(chain.clone(), private.clone_key())
            .map_err(|e| wrong(key, &e))?;
        // Each connection is checked from scratch.
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])
            .map_err(internal)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, private)
            .map_err(|e| wrong(key, &e))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }

    /// Performs the handshake of the connecting side.
    pub(crate) fn connect(&self, socket: Box<dyn Connection>) -> Result<(Sealed, Channel), Failed> {
        // The name is neither checked nor sent.
        let name = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
        let session = ClientConnection::new(self.client.clone(), name).map_err(|e| failed(&e))?;
        shake(session.into(), socket)
    }

    /// Performs the handshake of the listening side. If it fails, the caller keeps the socket.
    pub(crate) fn receive(&self, socket: Box<dyn Connection>) -> Result<(Sealed, Channel), Failed> {
        let session = ServerConnection::new(self.server.clone()).map_err(|e| failed(&e))?;
        shake(session.into(), socket)
    }
}

/// Whether a peer's first byte belongs to TLS.
pub(crate) fn is_tls(first: u8) -> bool {
    RECORDS.contains(&first)
}

/// The remedy if only one side uses TLS.
pub(crate) const ONLY_ONE_SIDE: &str =
    "give cluster_certificate, cluster_key and cluster_authority to all processes of the cluster, or to none";

fn shake(
    mut session: Session,
    mut socket: Box<dyn Connection>,
) -> Result<(Sealed, Channel), Failed> {
    let (mut received, mut is_first) = ([0; READ_BYTES], true);
    loop {
        send(&mut session, &mut *socket)?;
        if !session.is_handshaking() {
            break;
        }
        let read = socket.read(&mut received)?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if std::mem::take(&mut is_first) && !is_tls(received[0]) {
            socket.write_all(&UNEXPECTED)?;
            return Err(Failed::Refused(format!("it does not speak TLS: {ONLY_ONE_SIDE}")));
        }
        let mut waiting = &received[..read];
        while !waiting.is_empty() {
            session.read_tls(&mut waiting)?;
            if let Err(error) = session.process_new_packets() {
                // The other side gets the reason, unless it has closed.
                let _ = send(&mut session, &mut *socket);
                return Err(failed(&error));
            }
        }
    }
    let channel = session.export_keying_material(Channel::default(), CHANNEL_LABEL, None);
    let channel = channel.map_err(|e| failed(&e))?;
    Ok((Sealed::new(session, socket), channel))
}

fn send(session: &mut Session, socket: &mut dyn Connection) -> io::Result<()> {
    let mut out = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut out)?;
    }
    socket.write_all(&out)
}

/// Returns the reason why TLS ended, for people on either side.
pub(crate) fn failed(error: &rustls::Error) -> Failed {
    let own = |what: &str| format!("it rejects the certificate of this process: {what}");
    Failed::Refused(match error {
        rustls::Error::InvalidCertificate(why) => certificate_words(why),
        rustls::Error::NoCertificatesPresented => "it shows no certificate".into(),
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA => own("another authority has issued it"),
            AlertDescription::CertificateExpired => own("it is not valid now"),
            AlertDescription::CertificateRequired => {
                "it requires a certificate, and this process has none".into()
            }
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied => own(&format!("{alert:?}")),
            AlertDescription::ProtocolVersion => {
                "it speaks another version of TLS: run the same release everywhere".into()
            }
            other => format!("it has ended TLS: {other:?}"),
        },
        other => format!("its TLS is invalid: {other}"),
    })
}

/// Returns the reason if an error of reading comes from TLS.
pub(crate) fn failed_in(error: &io::Error) -> Option<Failed> {
    error.get_ref()?.downcast_ref().map(failed)
}

fn certificate_error(error: rustls::Error) -> CertificateError {
    match error {
        rustls::Error::InvalidCertificate(why) => why,
        _ => CertificateError::BadEncoding,
    }
}

fn certificate_words(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate has expired".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet: look at the clocks of both machines".into()
        }
        CertificateError::UnknownIssuer => {
            "the certificate was not issued by the authority of the cluster".into()
        }
        CertificateError::BadSignature => {
            "the certificate is not signed by the authority of the cluster".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is not valid for both sides of a connection: leave out its extended \
             key usage, or allow clients and servers"
                .into()
        }
        other => format!("the certificate is invalid: {other}"),
    }
}

/// The clock of the process, for certificates.
struct Time(Arc<dyn Clock>);

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Time")
    }
}

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        let us = u64::try_from(self.0.now_us()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_micros(us)))
    }
}

/// Verifies the other side by its certificate, without its name.
#[derive(Debug)]
pub(crate) struct Verifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    /// Creates it with the authorities in a file.
    pub(crate) fn new(env: &Env, authority: &Path) -> Result<Verifier> {
        let mut roots = RootCertStore::empty();
        for root in certificates(env, authority)? {
            roots.add(root).map_err(|e| wrong(authority, &e))?;
        }
        Ok(Verifier { roots: Arc::new(roots), provider: Arc::new(default_provider()) })
    }

    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), CertificateError> {
        let known = self.provider.signature_verification_algorithms.all;
        let verified = ParsedCertificate::try_from(certificate).and_then(|parsed| {
            verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, known)
        });
        verified.map_err(certificate_error)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(certificate, between, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is allowed".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn wrong(path: &Path, what: &dyn fmt::Display) -> Error {
    Error::setting(format!("{}: {what}", path.display())).help(
        "cluster_certificate is a certificate with its chain, cluster_key its private key, \
         cluster_authority the certificate that has signed those of all processes; all as PEM",
    )
}

fn certificates(env: &Env, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(&read(env, path)?).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|e| wrong(path, &e))?;
    match found.is_empty() {
        true => Err(wrong(path, &"there is no certificate in it")),
        false => Ok(found),
    }
}

fn read(env: &Env, path: &Path) -> Result<Vec<u8>> {
    let io = |e: io::Error| Error::io(path.display(), &e);
    let mut bytes = Vec::new();
    env.disk.open_read(path).map_err(io)?.read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}
