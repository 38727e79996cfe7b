//! The API's listeners: plaintext on this host, by TCP or by a Unix socket; TLS for all other clients.
//!
//! Handshakes run concurrently, so that one that stalls does not delay the others; their number and time are bounded.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::access::self_signed::{SelfSignedCertificates, names_of};
use crate::access::{AUTHENTICATED, UserInfo};
use crate::expiry::{Expiries, Source};
use support::bounded_file;
use support::clock::{Deadline, WallClock};

use super::authentication::PeerIdentity;

/// Handshakes in progress at a time; further connections wait in the kernel.
pub const HANDSHAKES_MAX: usize = 256;
/// ... and how long each may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Authorities take some 2 KiB each; a wrong path (a disk image, a log) must not be read whole.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Interval of the check for certificates to renew, which expire weeks after they are due.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);
/// How long accepting pauses when the kernel refuses (out of descriptors, as a rule).
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

type PendingHandshake = Pin<Box<dyn Future<Output = Option<(TlsStream<TcpStream>, PeerIdentity)>> + Send>>;

/// A TLS listener.
pub struct ApiTlsListener {
    listener: TcpListener,
    /// Only this host can reach the listener. A listener that other hosts can reach authenticates every connection,
    /// over loopback too: the peer there may be a proxy or a tunnel.
    is_on_loopback: bool,
    acceptor: TlsAcceptor,
    handshakes: FuturesUnordered<PendingHandshake>,
    tls_files: TlsFiles,
    /// When the certificate's expiry is checked again.
    look_again: Deadline,
}

/// The server's certificate, and how clients authenticate.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Client certificates that these authorities signed are accepted.
    pub client_ca: Option<PathBuf>,
    /// Issues certificate and key, if they are self-signed.
    pub self_signed: Option<SelfSignedCertificates>,
    /// Coming over loopback says nothing.
    pub authenticates: bool,
    /// Records when the files' certificates expire.
    pub expiries: Arc<Expiries>,
}

impl ApiTlsListener {
    /// # Errors
    /// A file cannot be read or does not fit; it is named.
    pub fn new(listener: TcpListener, credentials: TlsFiles) -> Result<Self, String> {
        if let Some(maker) = &credentials.self_signed {
            maker.renew(jiff::Timestamp::now())?;
        }
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&credentials)?));
        let is_on_loopback =
            !credentials.authenticates && listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
        let handshakes = FuturesUnordered::new();
        let look_again = Deadline::new(WallClock::default().both(), RENEWAL_INTERVAL);
        Ok(Self { listener, is_on_loopback, acceptor, handshakes, tls_files: credentials, look_again })
    }

    /// The names and addresses that the certificate is for.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let chain = certificates(&self.tls_files.certificate).unwrap_or_default();
        chain.first().map(|certificate| names_of(certificate)).unwrap_or_default()
    }

    /// Takes a new certificate before the old one ends.
    fn renew(&mut self) {
        let Some(maker) = &self.tls_files.self_signed else { return };
        let now = WallClock::default().both();
        if !self.look_again.has_passed(now) {
            return;
        }
        self.look_again = Deadline::new(now, RENEWAL_INTERVAL);
        let renewed = match maker.renew(jiff::Timestamp::now()) {
            Ok(false) => return,
            Ok(true) => server_config(&self.tls_files),
            Err(why) => Err(why),
        };
        match renewed {
            Ok(config) => {
                self.acceptor = TlsAcceptor::from(Arc::new(config));
                tracing::info!("the API shows a new certificate");
            }
            Err(why) => tracing::error!(why, "the API's certificate cannot be renewed"),
        }
    }
}

/// Whether the given files are valid. Self-signed certificates are created when a listener is opened.
///
/// # Errors
/// A file cannot be read or does not fit; it is named.
pub fn check(credentials: &TlsFiles) -> Result<(), String> {
    if credentials.self_signed.is_none() {
        return server_config(credentials).map(drop);
    }
    credentials.client_ca.as_deref().map_or(Ok(()), |path| authorities(path).map(drop))
}

fn server_config(credentials: &TlsFiles) -> Result<ServerConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates(&credentials.certificate)?;
    record_expiries(credentials);
    let key =
        PrivateKeyDer::from_pem_slice(&read(&credentials.key)?).map_err(|why| path_error(&credentials.key, &why))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|why| why.to_string())?;
    let builder = match &credentials.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path)?), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|why| path_error(path, &why))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|why| path_error(&credentials.certificate, &why))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// For files of the operator: certificates of our own are renewed.
fn record_expiries(credentials: &TlsFiles) {
    let given = credentials.self_signed.is_none().then_some((Source::Api, &credentials.certificate));
    let clients = credentials.client_ca.as_ref().map(|path| (Source::ApiClientCa, path));
    for (source, path) in given.into_iter().chain(clients) {
        if let Ok(pem) = read(path) {
            credentials.expiries.record(source, &path.display().to_string(), &pem, jiff::Timestamp::now());
        }
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for root in certificates(path)? {
        roots.add(root).map_err(|why| path_error(path, &why))?;
    }
    Ok(roots)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let large = || path_error(path, &format!("it has more than {FILE_BYTES_MAX} bytes"));
    bounded_file::read(path, FILE_BYTES_MAX).map_err(|why| path_error(path, &why))?.ok_or_else(large)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => Err(path_error(path, &"no certificate is in it")),
        Err(why) => Err(path_error(path, &why)),
    }
}

fn path_error(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

impl Listener for ApiTlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = PeerIdentity;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.next() => {
                    if let Some(opened) = done {
                        return opened;
                    }
                }
                taken = self.listener.accept(), if self.handshakes.len() < HANDSHAKES_MAX => match taken {
                    Ok((stream, _)) => {
                        self.renew();
                        self.handshakes.push(Box::pin(handshake(self.acceptor.clone(), stream, self.is_on_loopback)));
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<PeerIdentity> {
        Ok(PeerIdentity { is_local: self.is_on_loopback, certificate: None })
    }
}

async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    is_local: bool,
) -> Option<(TlsStream<TcpStream>, PeerIdentity)> {
    set_nodelay(&stream);
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await.ok()?.ok()?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certificate = certificate.and_then(|certificate| user_from_certificate(certificate));
    Some((stream, PeerIdentity { is_local, certificate }))
}

/// The user that a certificate names: the common name is the user, organizations are groups.
fn user_from_certificate(certificate: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|one| one.as_str().ok().map(str::to_owned));
    let groups = groups.chain([AUTHENTICATED.to_owned()]).collect();
    Some(UserInfo { name, groups, ..UserInfo::default() })
}

/// The peer of a plaintext connection, which exists on loopback only.
pub fn tcp_peer(stream: &TcpStream, address: &SocketAddr) -> PeerIdentity {
    set_nodelay(stream);
    PeerIdentity { is_local: address.ip().is_loopback(), certificate: None }
}

/// The same where coming over loopback says nothing.
pub fn by_token(stream: &TcpStream, _: &SocketAddr) -> PeerIdentity {
    set_nodelay(stream);
    PeerIdentity { is_local: false, certificate: None }
}

/// The peer of a Unix socket.
pub fn unix_peer<Address>(stream: &UnixStream, _: &Address) -> PeerIdentity {
    let user = stream.peer_cred().map(|peer| peer.uid());
    let own = rustix::process::geteuid().as_raw();
    PeerIdentity { is_local: user.is_ok_and(|user| user == 0 || user == own), certificate: None }
}

/// A watch is many small writes: each would wait for the client's ACK of the one before, up to 40 ms.
fn set_nodelay(stream: &TcpStream) {
    let _ = stream.set_nodelay(true); // slower without; a broken stream fails at its next use
}
