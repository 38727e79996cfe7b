//! Which listeners each core has, and what clients are shown at those for TLS.

use std::net::TcpListener;
use std::sync::Arc;

use anyhow::{Context, Result};
use dataplane::core::{Https, Inside};
use dataplane::names::Domains;
use dataplane::publish::Tables;
use dataplane::tls::{Oldest, Terms};

use super::cores::Place;
use super::events_tls::EventsTls;
use super::logs::Logs;
use crate::config::TlsVersion;

/// What the cores listen on.
pub(super) struct Doors {
    pub(super) http: Vec<TcpListener>,
    pub(super) https: Vec<TcpListener>,
    pub(super) private: Vec<TcpListener>,
    pub(super) private_https: Vec<TcpListener>,
    /// In the clear and for TLS, and what names without a dot are in there.
    pub(super) inside: (Vec<(TcpListener, TcpListener)>, Arc<Domains>),
    pub(super) events: Vec<TcpListener>,
    pub(super) events_https: Vec<TcpListener>,
    /// What is shown at the last ones.
    pub(super) events_tls: Option<EventsTls>,
}

impl Doors {
    /// A place for each core.
    pub(super) fn places(
        self,
        tables: &Arc<Tables>,
        oldest: TlsVersion,
        logs: Vec<Logs>,
    ) -> Result<Vec<Place>> {
        let oldest = match oldest {
            TlsVersion::V12 => Oldest::Tls12,
            TlsVersion::V13 => Oldest::Tls13,
        };
        let own = self.events_tls.as_ref().map(EventsTls::own).unwrap_or_default();
        let everybody = Terms::from(tables, oldest).context("TLS")?;
        let callers_inside = Terms::inside(tables, oldest).context("TLS")?;
        let senders = Terms::with_own(tables, &own, oldest).context("TLS")?;

        let mut https = by_tls(self.https, &everybody);
        let mut private = self.private.into_iter();
        let mut private_https = by_tls(self.private_https, &callers_inside);
        let (inside, domains) = self.inside;
        let mut inside = inside.into_iter();
        let mut events_tls = by_tls(self.events_https, &senders);
        let places = self.http.into_iter().zip(self.events).zip(logs).map(|((http, events), logs)| Place {
            http,
            https: https.next(),
            private: private.next(),
            private_https: private_https.next(),
            inside: inside.next().map(|(http, listener)| Inside {
                http,
                https: Https { listener, terms: callers_inside.clone() },
                domains: Arc::clone(&domains),
            }),
            events,
            events_tls: events_tls.next(),
            logs,
        });
        Ok(places.collect())
    }
}

fn by_tls(listeners: Vec<TcpListener>, terms: &Terms) -> impl Iterator<Item = Https> {
    listeners.into_iter().map(|listener| Https { listener, terms: terms.clone() })
}
