//! The listeners of each core, and the certificates of those with TLS.

use std::net::TcpListener;
use std::sync::Arc;

use anyhow::{Context, Result};
use dataplane::core::{ClusterLocalListeners, HttpsListener};
use dataplane::service_names::SearchDomains;
use dataplane::table_publisher::TablePublisher;
use dataplane::tls::{TlsServerConfig, TlsVersionMin};

use super::cores::PerCoreConfig;
use super::events_tls::EventsTls;
use super::logs::CoreLogs;
use crate::config::TlsVersion;

/// What the cores listen on.
pub(super) struct CoreListeners {
    pub(super) http: Vec<TcpListener>,
    pub(super) https: Vec<TcpListener>,
    pub(super) private: Vec<TcpListener>,
    pub(super) private_https: Vec<TcpListener>,
    /// Plain and TLS, and the search domain of names without a dot.
    pub(super) cluster_local: (Vec<(TcpListener, TcpListener)>, Arc<SearchDomains>),
    pub(super) events: Vec<TcpListener>,
    pub(super) events_https: Vec<TcpListener>,
    /// The certificate of the last ones.
    pub(super) events_tls: Option<EventsTls>,
}

impl CoreListeners {
    /// One entry for each core.
    pub(super) fn addresses(
        self,
        tables: &Arc<TablePublisher>,
        oldest: TlsVersionMin,
        logs: Vec<CoreLogs>,
    ) -> Result<Vec<PerCoreConfig>> {
        let own = self.events_tls.as_ref().map(EventsTls::own).unwrap_or_default();
        let public_tls = TlsServerConfig::from(tables, oldest).context("TLS")?;
        let callers_inside = TlsServerConfig::cluster_local(tables, oldest).context("TLS")?;
        let senders = TlsServerConfig::with_own(tables, &own, oldest).context("TLS")?;

        let mut https = by_tls(self.https, &public_tls);
        let mut private = self.private.into_iter();
        let mut private_https = by_tls(self.private_https, &callers_inside);
        let (inside, domains) = self.cluster_local;
        let mut inside = inside.into_iter();
        let mut events_tls = by_tls(self.events_https, &senders);
        let configs = self.http.into_iter().zip(self.events).zip(logs).map(|((http, events), logs)| PerCoreConfig {
            http,
            https: https.next(),
            private: private.next(),
            private_https: private_https.next(),
            cluster_local: inside.next().map(|(http, listener)| ClusterLocalListeners {
                http,
                https: HttpsListener { listener, server_config: callers_inside.clone() },
                domains: Arc::clone(&domains),
            }),
            events,
            events_tls: events_tls.next(),
            logs,
        });
        Ok(configs.collect())
    }
}

/// The lowest accepted version, as the data plane names it.
pub(super) fn tls_version_min(oldest: TlsVersion) -> TlsVersionMin {
    match oldest {
        TlsVersion::V12 => TlsVersionMin::Tls12,
        TlsVersion::V13 => TlsVersionMin::Tls13,
    }
}

fn by_tls(listeners: Vec<TcpListener>, terms: &TlsServerConfig) -> impl Iterator<Item = HttpsListener> {
    listeners.into_iter().map(|listener| HttpsListener { listener, server_config: terms.clone() })
}
