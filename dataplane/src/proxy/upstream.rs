//! A way to an instance: a connection of its own in HTTP/1, a share of one in HTTP/2.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ring::Tick;

use super::exchange::ResponseDeadlines;
use super::{AcquireRequest, LocalReply, Permit, Proxy, SelectedEndpoint};
use crate::h2::client::Http2StreamPermit;
use crate::http::client::UpstreamAddress;
use crate::http::pool::{PoolKey, UpstreamConnection};
use crate::table::{Backend, Endpoint, Protocol};
use crate::target_policy::TargetRefused;

/// Between two lines of the log about instances that are not trusted: each request meets them.
const TLS_FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);

pub(super) enum UpstreamLink {
    Http1(Box<UpstreamConnection>),
    Http2(Http2StreamPermit),
}

impl UpstreamLink {
    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Self::Http1(_) => Protocol::Http1,
            Self::Http2(_) => Protocol::H2c,
        }
    }

    /// It was given a request before.
    fn is_reused(&self) -> bool {
        match self {
            Self::Http1(upstream) => upstream.reused,
            Self::Http2(turn) => turn.reused,
        }
    }
}

/// Why instances were not believed, while others are tried: a certificate that is no good is nothing that waiting
/// mends, and somebody has to be told.
#[derive(Default)]
pub(super) struct TlsFailures {
    why: Option<Box<str>>,
    /// The target policy refused the last address, which was not connected to at all.
    refused: Option<TargetRefused>,
}

impl TlsFailures {
    pub(super) fn note(&mut self, why: &io::Error) {
        if why.kind() == io::ErrorKind::InvalidData {
            self.why = Some(why.to_string().into());
        }
        self.refused = TargetRefused::of(why).copied().or(self.refused);
    }

    /// Puts the reason where it only says that nobody was reached.
    pub(super) fn explain(&self, proxy: &Proxy, refusal: LocalReply) -> LocalReply {
        match (refusal, &self.why) {
            (LocalReply::UpstreamConnectFailure(key), _) if let Some(refused) = self.refused => {
                let now = proxy.ring.now();
                if proxy.refusal_told.get().is_none_or(|told| now - told >= TLS_FAILURE_LOG_INTERVAL) {
                    proxy.refusal_told.set(Some(now));
                    tracing::warn!(backend = %key, "request not sent: {refused}");
                }
                LocalReply::TargetRefused(key)
            }
            (LocalReply::UpstreamConnectFailure(key), Some(why)) => {
                let now = proxy.ring.now();
                if proxy.tls_failure_logged.get().is_none_or(|told| now - told >= TLS_FAILURE_LOG_INTERVAL) {
                    proxy.tls_failure_logged.set(Some(now));
                    tracing::warn!(backend = %key, %why, "an instance is not trusted");
                }
                LocalReply::UpstreamTlsVerificationFailed(key, why.clone())
            }
            (other, _) => other,
        }
    }
}

impl Proxy {
    /// A way to the instance of `place`: one that is open, or a new one. `upgrades`: for a WebSocket or another protocol.
    pub(super) async fn link(&self, place: &Permit, upgrades: bool, due: Option<Tick>) -> io::Result<UpstreamLink> {
        let endpoint = &place.endpoint;
        let protocol = endpoint.protocol(place.backend().protocol, upgrades);
        let kept = match protocol {
            Protocol::Http1 => self.client.pooled(PoolKey::Endpoint(endpoint.id)).map(UpstreamLink::Http1),
            Protocol::H2c => self.h2_client.idle_connection(endpoint.id).map(UpstreamLink::Http2),
        };
        match kept {
            Some(link) => Ok(self.counted(endpoint, link)),
            None => self.fresh_link(place.backend(), endpoint, protocol, due).await,
        }
    }

    /// A new connection to an instance; in HTTP/2 one that others wait for too, or one that has got room meanwhile.
    pub(super) async fn fresh_link(
        &self,
        backend: &Backend,
        endpoint: &Endpoint,
        protocol: Protocol,
        due: Option<Tick>,
    ) -> io::Result<UpstreamLink> {
        let trust = backend.tls.as_ref();
        let Endpoint { id, address, .. } = *endpoint;
        let unrestricted = endpoint.is_unrestricted();
        let key = PoolKey::Endpoint(id);
        let link = match protocol {
            // Boxed: few requests open a connection, and every one would have room for a handshake by TLS.
            Protocol::Http1 => {
                let to = UpstreamAddress { address, key, tls: trust.map(Arc::as_ref), unrestricted };
                UpstreamLink::Http1(Box::pin(self.client.open(to, due)).await?)
            }
            Protocol::H2c => UpstreamLink::Http2(Box::pin(self.h2_client.open(endpoint, trust, due)).await?),
        };
        Ok(self.counted(endpoint, link))
    }

    fn counted(&self, endpoint: &Endpoint, link: UpstreamLink) -> UpstreamLink {
        if link.is_reused() {
            self.counters.reused();
            return link;
        }
        self.counters.upstream_opened.fetch_add(1, Relaxed);
        if !self.outliers.borrow().is_empty() {
            self.outliers.borrow_mut().accepted(endpoint.id);
        }
        link
    }

    /// A place, waited for if need be, and a way to its instance. An instance that refuses is reported,
    /// and another tried.
    pub(super) async fn reach(
        self: &Rc<Self>,
        mut choice: SelectedEndpoint,
        wish: &mut AcquireRequest<'_>,
        started: Tick,
    ) -> Result<(Permit, UpstreamLink), LocalReply> {
        let mut distrust = TlsFailures::default();
        let upgrades = wish.route_request.request.is_some_and(|request| request.head.is_upgrade());
        loop {
            let place = self.acquire(choice, wish).await.map_err(|why| distrust.explain(self, why))?;
            let due = ResponseDeadlines::new(started, &place.backend().timeouts).first_byte;
            match self.link(&place, upgrades, due).await {
                Ok(link) => return Ok((place, link)),
                Err(_) if due.is_some_and(|due| self.ring.now() >= due) => return Err(LocalReply::ResponseTimeout),
                Err(why) => {
                    distrust.note(&why);
                    wish.tried.push(place.endpoint.id);
                    self.refused_by(&place);
                    choice = place.selected.clone();
                }
            }
        }
    }
}
