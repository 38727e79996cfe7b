//! A link to an instance: a connection of its own in HTTP/1, a stream of a shared one in HTTP/2.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use codec::proxy_protocol::{self, ProxyProtocolVersion};
use contract::client_address::ClientAddress;
use contract::table::{Backend, Endpoint, EndpointAddress, Protocol};
use contract::target_policy::TargetRefused;
use protocol::h2::client::Http2StreamPermit;
use protocol::http::client::{OpeningOptions, UpstreamAddress};
use protocol::http::pool::{PoolKey, UpstreamConnection};
use ring::Tick;

use super::{LocalReply, Permit, Proxy};

/// Between two log lines about TLS failures of instances: each request meets them.
const TLS_FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A connection to an instance, ready for one request.
pub enum UpstreamLink {
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

    /// It carried a request before.
    fn is_reused(&self) -> bool {
        match self {
            Self::Http1(upstream) => upstream.reused,
            Self::Http2(stream_permit) => stream_permit.reused,
        }
    }
}

/// How a request is connected to an instance.
#[derive(Debug, Clone, Copy)]
pub struct ConnectPlan {
    pub protocol: Protocol,
    /// An open connection may be used, which the instance may be about to close.
    pub reuses: bool,
    pub due: Option<Tick>,
}

impl ConnectPlan {
    /// For a client's request that began at `started`. `upgrades`: for a WebSocket or another protocol.
    #[must_use]
    pub(super) fn for_client(permit: &Permit, upgrades: bool, started: Tick) -> Self {
        Self {
            protocol: permit.endpoint.protocol(permit.backend().protocol, upgrades),
            reuses: true,
            due: permit.deadlines(started).first_byte,
        }
    }
}

/// Failed TLS verifications while other instances are tried. Waiting does not fix an invalid certificate, so the reason
/// is logged and returned.
#[derive(Default)]
pub(super) struct TlsFailures {
    why: Option<Box<str>>,
    /// The target policy refused the last address, which was not connected to.
    refused: Option<TargetRefused>,
}

impl TlsFailures {
    pub(super) fn note(&mut self, why: &io::Error) {
        if why.kind() == io::ErrorKind::InvalidData {
            self.why = Some(why.to_string().into());
        }
        self.refused = TargetRefused::of(why).copied().or(self.refused);
    }

    /// Adds the reason to a reply that only says that no instance was reached.
    pub(super) fn explain(&self, proxy: &Proxy, local_reply: LocalReply) -> LocalReply {
        match (local_reply, &self.why) {
            (LocalReply::UpstreamConnectFailure(key), _) if let Some(refused) = self.refused => {
                let now = proxy.ring.now();
                if proxy.target_refusal_logged.get().is_none_or(|logged| now - logged >= TLS_FAILURE_LOG_INTERVAL) {
                    proxy.target_refusal_logged.set(Some(now));
                    tracing::warn!(backend = %key, "request not sent: {refused}");
                }
                LocalReply::TargetRefused(key)
            }
            (LocalReply::UpstreamConnectFailure(key), Some(why)) => {
                let now = proxy.ring.now();
                if proxy.tls_failure_logged.get().is_none_or(|logged| now - logged >= TLS_FAILURE_LOG_INTERVAL) {
                    proxy.tls_failure_logged.set(Some(now));
                    tracing::warn!(backend = %key, %why, "TLS verification of an instance failed");
                }
                LocalReply::UpstreamTlsVerificationFailed(key, why.clone())
            }
            (other, _) => other,
        }
    }
}

impl Proxy {
    /// A link to the instance of `permit` for a request of `peer`: a pooled one, or a new one. Without a peer, the request is
    /// the appliance's own.
    pub(super) async fn link(
        &self,
        permit: &Permit,
        plan: ConnectPlan,
        peer: Option<&ClientAddress>,
    ) -> io::Result<UpstreamLink> {
        let (endpoint, ConnectPlan { protocol, reuses, due }) = (&permit.endpoint, plan);
        let kept = match protocol {
            _ if !reuses => None,
            // A connection that names its client is for that client only.
            _ if peer.is_some() && permit.backend().proxy_protocol.is_some() => None,
            Protocol::Http1 => self.client.pooled(PoolKey::Endpoint(endpoint.id)).map(UpstreamLink::Http1),
            Protocol::H2c => self.h2_client.idle_connection(endpoint.id).map(UpstreamLink::Http2),
        };
        match kept {
            Some(link) => Ok(self.counted(endpoint, link)),
            None => self.fresh_link(permit.backend(), endpoint, protocol, due, peer).await,
        }
    }

    /// A new connection to an instance. In HTTP/2 it may be one that other requests wait for too, or one that got free
    /// capacity meanwhile.
    async fn fresh_link(
        &self,
        backend: &Backend,
        endpoint: &Endpoint,
        protocol: Protocol,
        due: Option<Tick>,
        peer: Option<&ClientAddress>,
    ) -> io::Result<UpstreamLink> {
        let trust = backend.tls.as_ref();
        let timeout = backend.timeouts.connect.get();
        let Endpoint { id, address, .. } = *endpoint;
        let unrestricted = endpoint.is_unrestricted();
        let key = PoolKey::Endpoint(id);
        let link = match protocol {
            // Boxed: few requests open a connection, and every one would reserve memory for a TLS handshake.
            Protocol::Http1 => {
                let preamble = backend.proxy_protocol.map(|version| proxy_header(version, peer, address));
                let opening = OpeningOptions { timeout, preamble: preamble.as_deref().unwrap_or_default() };
                let to = UpstreamAddress { address, key, tls: trust.map(Arc::as_ref), unrestricted, opening };
                UpstreamLink::Http1(Box::pin(self.client.open(to, due)).await?)
            }
            Protocol::H2c => UpstreamLink::Http2(Box::pin(self.h2_client.open(endpoint, trust, due, timeout)).await?),
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
}

/// The first bytes of a connection to `to` for a request of `peer`. A mirrored request has no client.
fn proxy_header(version: ProxyProtocolVersion, peer: Option<&ClientAddress>, to: EndpointAddress) -> Vec<u8> {
    let Some(peer) = peer else { return proxy_protocol::local_header(version).to_vec() };
    let destination = match (peer.local(), to) {
        (Some(local), _) => local,
        (None, EndpointAddress::Ip(address)) => address, // a table from before this backend
        (None, EndpointAddress::Unix(_)) => return proxy_protocol::local_header(version).to_vec(),
    };
    proxy_protocol::header(version, peer.address, destination)
}
