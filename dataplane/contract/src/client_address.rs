//! The client of a connection: its address and how it reached the gateway. Routes depend on both, and so do the headers
//! that an instance gets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use codec::http::{FieldName, RequestView, tokens};

use crate::listener_sockets::ListenerId;
use crate::trusted_proxies::TrustedProxies;

/// How a client reached the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientScheme {
    Http,
    Https,
}

impl ClientScheme {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// How a connection came to a listener that was opened at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConnection {
    pub id: ListenerId,
    /// The server name (SNI) that the client asked for.
    pub server_name: Option<Box<str>>,
}

/// The client's address, in the two formats that headers need; made once per connection.
#[derive(Debug)]
pub struct ClientAddress {
    pub address: SocketAddr,
    /// Accepted by the cluster-local listener.
    cluster_local: bool,
    /// Completes hosts without a dot.
    domain: Option<Arc<str>>,
    /// Set if the client is a trusted proxy, whose forwarding fields are accepted.
    trust: Option<Arc<TrustedProxies>>,
    /// The address that it connected to, where a backend is told. Boxed: few connections need it, and idle ones are many.
    local: Option<Box<SocketAddr>>,
    /// Set if the listener was opened at run time. Boxed for the same reason.
    listener: Option<Box<ListenerConnection>>,
    scheme: ClientScheme,
    plain: Box<str>,
    /// In the format of `Forwarded`: IPv6 in brackets and quotes.
    node: Box<str>,
}

impl ClientAddress {
    /// In the format of logs: an IPv4-mapped address is written as IPv4.
    #[must_use]
    pub fn canonical(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip().to_canonical(), self.address.port())
    }

    #[must_use]
    pub fn new(address: SocketAddr, scheme: ClientScheme) -> Self {
        let ip = address.ip().to_canonical();
        Self {
            address,
            cluster_local: false,
            domain: None,
            trust: None,
            local: None,
            listener: None,
            scheme,
            plain: ip.to_string().into(),
            node: forwarded_node(ip).into(),
        }
    }

    /// The same, with whether the cluster-local listener accepted it.
    #[must_use]
    pub fn cluster_local(self, cluster_local: bool) -> Self {
        Self { cluster_local, ..self }
    }

    /// The same; hosts without a dot are in `domain`.
    #[must_use]
    pub fn in_domain(self, domain: Option<Arc<str>>) -> Self {
        Self { domain, ..self }
    }

    /// The same; its forwarding fields are accepted if it is one of `proxies`.
    #[must_use]
    pub fn trusting(self, proxies: &Arc<TrustedProxies>) -> Self {
        let trust = proxies.contains(self.address.ip()).then(|| Arc::clone(proxies));
        Self { trust, ..self }
    }

    /// The same, with the address that it connected to.
    #[must_use]
    pub fn connected_to(self, local: Option<SocketAddr>) -> Self {
        Self { local: local.map(Box::new), ..self }
    }

    /// The same, with the listener that accepted it, if that was opened at run time.
    #[must_use]
    pub fn accepted_by(self, listener: Option<ListenerConnection>) -> Self {
        Self { listener: listener.map(Box::new), ..self }
    }

    /// The listener that accepted it, if that was opened at run time.
    #[inline]
    #[must_use]
    pub fn listener(&self) -> Option<&ListenerConnection> {
        self.listener.as_deref()
    }

    /// The trusted proxies, if it is one of them.
    #[inline]
    #[must_use]
    pub fn trust(&self) -> Option<&TrustedProxies> {
        self.trust.as_deref()
    }

    /// The address that it connected to, if it was looked up.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.local.as_deref().copied()
    }

    /// Whether details of failures may be shown to it: it is a trusted proxy, or it called a cluster-local listener.
    #[must_use]
    pub fn may_see_reasons(&self) -> bool {
        self.cluster_local || self.trust.is_some()
    }

    /// Whether a trusted proxy received the request by HTTPS.
    #[must_use]
    pub fn has_forwarded_https(&self, request: RequestView<'_>) -> bool {
        self.trust.is_some()
            && request
                .values(FieldName::ForwardedProto)
                .flat_map(tokens)
                .next()
                .is_some_and(|proto| proto.eq_ignore_ascii_case(b"https"))
    }

    /// The domain that completes hosts without a dot.
    #[inline]
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// Whether it may use cluster-local routes.
    #[inline]
    #[must_use]
    pub fn is_cluster_local(&self) -> bool {
        self.cluster_local
    }

    #[inline]
    #[must_use]
    pub fn scheme(&self) -> ClientScheme {
        self.scheme
    }

    /// The address without its port, in the format of `X-Forwarded-For`.
    #[inline]
    #[must_use]
    pub fn forwarded_for(&self) -> &str {
        &self.plain
    }

    /// The same in the format of `Forwarded`.
    #[inline]
    #[must_use]
    pub fn forwarded_node(&self) -> &str {
        &self.node
    }

    /// Whether it came without TLS.
    #[inline]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.scheme == ClientScheme::Http
    }
}

/// An address in the format of `Forwarded`: IPv6 in brackets and quotes.
#[must_use]
pub fn forwarded_node(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("\"[{ip}]\""),
    }
}
