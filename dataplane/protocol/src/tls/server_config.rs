//! The server's TLS parameters: TLS 1.3 and 1.2, HTTP/1.1, tickets, and the table's certificates.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use contract::listener_sockets::{ListenerId, ListenerSockets};
use contract::table_publisher::TablePublisher;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, version};

use super::TlsIdentity;

/// Shared by all cores, so that a ticket of one is valid at every other.
#[derive(Clone)]
pub struct TlsServerConfig(pub(super) Arc<ServerConfig>);

/// A certificate of one listener, for every name that is not in the table. It may be replaced at any time; open
/// connections are not affected.
#[derive(Debug, Clone, Default)]
pub struct DefaultCertificate(Arc<ArcSwapOption<CertifiedKey>>);

impl DefaultCertificate {
    pub fn set(&self, identity: &TlsIdentity) {
        self.0.store(Some(identity.certified_key()));
    }
}

/// The lowest accepted TLS version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersionMin {
    #[default]
    Tls12,
    Tls13,
}

impl TlsServerConfig {
    pub fn new(tables: &Arc<TablePublisher>) -> Result<Self, rustls::Error> {
        Self::from(tables, TlsVersionMin::default())
    }

    pub fn from(tables: &Arc<TablePublisher>, oldest: TlsVersionMin) -> Result<Self, rustls::Error> {
        Self::by(Arc::new(TableCertificateResolver { tables: Arc::clone(tables), cluster_local: false }), oldest)
    }

    /// For cluster-local clients, which get cluster-local certificates before public ones.
    pub fn cluster_local(tables: &Arc<TablePublisher>, oldest: TlsVersionMin) -> Result<Self, rustls::Error> {
        Self::by(Arc::new(TableCertificateResolver { tables: Arc::clone(tables), cluster_local: true }), oldest)
    }

    /// For a listener that was opened at run time: only its own certificates. Sessions of other listeners are not resumed.
    pub fn of_listener(
        tables: &Arc<TablePublisher>,
        sockets: &ListenerSockets,
        oldest: TlsVersionMin,
    ) -> Result<Self, rustls::Error> {
        if let Some(config) = sockets.tls.get() {
            return Ok(Self(Arc::clone(config)));
        }
        let resolver = ListenerCertificateResolver { tables: Arc::clone(tables), listener: sockets.id };
        let Self(config) = Self::by(Arc::new(resolver), oldest)?;
        Ok(Self(Arc::clone(sockets.tls.get_or_init(|| config)))) // another core may have been first
    }

    /// Uses the table's certificates by exact or wildcard name, and otherwise `own`.
    pub fn with_own(
        tables: &Arc<TablePublisher>,
        own: &DefaultCertificate,
        oldest: TlsVersionMin,
    ) -> Result<Self, rustls::Error> {
        Self::by(Arc::new(DefaultingCertificateResolver { tables: Arc::clone(tables), own: own.clone() }), oldest)
    }

    /// The same, without a protocol to agree on. Tickets of one are valid for the other.
    pub(super) fn without_protocols(&self) -> Self {
        let mut config = (*self.0).clone();
        config.alpn_protocols.clear();
        Self(Arc::new(config))
    }

    fn by(certificates: Arc<dyn ResolvesServerCert>, oldest: TlsVersionMin) -> Result<Self, rustls::Error> {
        let versions: &[_] = match oldest {
            TlsVersionMin::Tls12 => &[&version::TLS13, &version::TLS12],
            TlsVersionMin::Tls13 => &[&version::TLS13],
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A session's state is in its ticket: nothing to store, and no lock for cores to share.
        config.ticketer = Ticketer::new()?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self(Arc::new(config)))
    }
}

/// Also called for a resumption: a name without a certificate is rejected whatever its ticket.
#[derive(Debug)]
struct TableCertificateResolver {
    tables: Arc<TablePublisher>,
    cluster_local: bool,
}

impl ResolvesServerCert for TableCertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.tables.load().identity(hello.server_name(), self.cluster_local).map(TlsIdentity::certified_key)
    }
}

#[derive(Debug)]
struct ListenerCertificateResolver {
    tables: Arc<TablePublisher>,
    listener: ListenerId,
}

impl ResolvesServerCert for ListenerCertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let table = self.tables.load();
        let listener = table.listener(self.listener)?;
        listener.certificates.find(hello.server_name()).map(TlsIdentity::certified_key)
    }
}

#[derive(Debug)]
struct DefaultingCertificateResolver {
    tables: Arc<TablePublisher>,
    own: DefaultCertificate,
}

impl ResolvesServerCert for DefaultingCertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let table = self.tables.load();
        let named = table.certificates.named(hello.server_name()).map(TlsIdentity::certified_key);
        named.or_else(|| self.own.0.load_full())
    }
}
