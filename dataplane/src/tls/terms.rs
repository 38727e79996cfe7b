//! What we offer in a handshake: TLS 1.3 and 1.2, HTTP/1.1, tickets, and the table's certificates.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, version};

use super::Identity;
use crate::publish::Tables;

/// Shared by all cores, so that a ticket given out by one is good at every other.
#[derive(Clone)]
pub struct Terms(pub(super) Arc<ServerConfig>);

/// A certificate of one listener's own, for every name that the table has none for. It may be replaced at any time;
/// connections that are open keep what they agreed on.
#[derive(Debug, Clone, Default)]
pub struct Own(Arc<ArcSwapOption<CertifiedKey>>);

impl Own {
    pub fn set(&self, identity: &Identity) {
        self.0.store(Some(identity.shown()));
    }
}

/// The oldest version of TLS that is spoken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Oldest {
    #[default]
    Tls12,
    Tls13,
}

impl Terms {
    pub fn new(tables: &Arc<Tables>) -> Result<Self, rustls::Error> {
        Self::from(tables, Oldest::default())
    }

    pub fn from(tables: &Arc<Tables>, oldest: Oldest) -> Result<Self, rustls::Error> {
        Self::by(Arc::new(FromTable { tables: Arc::clone(tables), inside: false }), oldest)
    }

    /// For callers inside, who are shown what is for them before what is for everybody.
    pub fn inside(tables: &Arc<Tables>, oldest: Oldest) -> Result<Self, rustls::Error> {
        Self::by(Arc::new(FromTable { tables: Arc::clone(tables), inside: true }), oldest)
    }

    /// What the table has is shown by name alone, and else `own`.
    pub fn with_own(tables: &Arc<Tables>, own: &Own, oldest: Oldest) -> Result<Self, rustls::Error> {
        Self::by(Arc::new(NamedOrOwn { tables: Arc::clone(tables), own: own.clone() }), oldest)
    }

    fn by(certificates: Arc<dyn ResolvesServerCert>, oldest: Oldest) -> Result<Self, rustls::Error> {
        let versions: &[_] = match oldest {
            Oldest::Tls12 => &[&version::TLS13, &version::TLS12],
            Oldest::Tls13 => &[&version::TLS13],
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A resumed session is in its ticket: nothing to keep, nothing for cores to share a lock over.
        config.ticketer = Ticketer::new()?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self(Arc::new(config)))
    }
}

/// Also asked for a resumption: a name without a certificate is refused whatever its ticket.
#[derive(Debug)]
struct FromTable {
    tables: Arc<Tables>,
    inside: bool,
}

impl ResolvesServerCert for FromTable {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.tables.load().identity(hello.server_name(), self.inside).map(Identity::shown)
    }
}

#[derive(Debug)]
struct NamedOrOwn {
    tables: Arc<Tables>,
    own: Own,
}

impl ResolvesServerCert for NamedOrOwn {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let table = self.tables.load();
        let named = table.certificates.named(hello.server_name()).map(Identity::shown);
        named.or_else(|| self.own.0.load_full())
    }
}
