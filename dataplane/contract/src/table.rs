//! The configuration of the cores: an immutable snapshot of hosts, backends, streams and subscribers.
//!
//! Control compiles its objects into a [`RoutingTable`] and replaces it as a whole (`arc_swap`). A core reads it
//! through its own cache, with one comparison per request and no lock. This module does not know Services or Triggers.

mod certificate_set;
mod endpoint;
mod gateway_options;
mod hosts;
mod listeners;
mod not_ready;
mod retention;
mod route;
mod sink_route;
mod traffic_policy;

use std::sync::Arc;
use std::time::Duration;

use codec::cloudevent::ContentMode;
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::abandoned::AbandonedEventsReport;
use crate::access_token::AccessToken;
use crate::client_address::ClientScheme;
use crate::event_store::ExternalStream;
use crate::event_types::EventTypeRegistry;
pub use crate::filter::{AttributeMatches, EventFilter, FilterRule, FilterVerdict};
pub use crate::initial_offset::InitialOffset;
use crate::load::{BackendLoad, ByteQuota, StreamCounters, SubscriberCounters};
use crate::request_log::RequestLog;
use crate::service_names::ServiceNames;
use crate::stream_admission::StreamAdmission;
use crate::tls::{CertificateStore, TlsClientConfig};
pub use codec::proxy_protocol::ProxyProtocolVersion;
pub use endpoint::{Endpoint, InstanceStart, StartupDuration};
pub use gateway_options::{ErrorPage, ErrorPages, GatewayOptions};
pub use hosts::HostTable;
pub use listeners::{HostnameRoutes, TableListener, TableListeners, TlsRelayMode, TlsTarget};
pub use not_ready::{NotReadyHost, NotReadyHosts};
pub use retention::{Durability, RetentionPolicy};
pub use ring::{EndpointAddress, UnixPath, UnixPathError};
pub use route::authentication;
pub use route::{
    AccessList, AuthorizationFailureMode, AuthorizationService, AuthorizationServiceError, BackendShare,
    COMPRESSED_BYTES_MIN, CORS_ITEMS_MAX, CompressionPolicy, ContentCoding, CorsPolicy, CorsPolicyError,
    ExternalAuthorization, FilterDestination, FilterOutcome, FilterRefusal, HeaderChanges, HeaderEditError,
    HeaderEdits, MatchRegex, MatchRegexError, MirrorFraction, MirrorPolicy, MirrorSet, PathMatch, PathRewrite,
    PathRewriteError, RATE_PERIOD_MAX, RATE_REQUESTS_MAX, RateLimit, RateLimitKey, RateLimiter, Redirect,
    RequestConditions, RequestMatch, Route, RouteFilters, RouteMatch, RouteReply, RouteRequest, ValueMatch,
    is_compressible,
};
pub use sink_route::SinkRoute;
pub use traffic_policy::{
    AffinityCookie, STICKY_COOKIE, SessionAffinity, SessionKey, TrafficPolicy, mix, names_clients,
};

type PersistentMap<V> = HashMap<Box<str>, V, RandomState>;

/// Everything a core serves, as of one moment. A copy shares nearly all of it.
#[derive(Debug, Default, Clone)]
pub struct RoutingTable {
    /// Rises by one with every publish.
    pub version: u64,
    /// By host: lower case, without port and trailing dot; `*.PARENT` too.
    pub hosts: HostTable,
    /// Names of destinations that need no DNS.
    pub names: Arc<ServiceNames>,
    /// For hosts that `hosts` does not name (`--route '*=…'`).
    pub any_host: Option<Arc<Route>>,
    /// By request path on the events listener: `/brokers/NAMESPACE/NAME`.
    pub streams: PersistentMap<Arc<EventStream>>,
    /// By request path on the events listener: `/sinks/PLURAL/NAMESPACE/NAME`.
    pub event_sinks: Arc<PersistentMap<SinkRoute>>,
    /// The secret in requests that streams of this process send each other. Empty: no request is accepted as internal.
    pub internal_key: Arc<str>,
    /// Pending events of streams and subscribers that were deleted; the same in every table.
    pub abandoned: Arc<AbandonedEventsReport>,
    /// By server name, for TLS.
    pub certificates: Arc<CertificateStore>,
    /// Only for cluster-local clients, which get the others as well.
    pub inner_certificates: Arc<CertificateStore>,
    /// Which of the events listeners accept events.
    pub events_by: EventsTransport,
    /// The request log, written in addition to the access log.
    pub request_log: Option<Arc<RequestLog>>,
    /// Settings of all listeners for requests.
    pub gateway: Arc<GatewayOptions>,
    /// Hosts without a route whose object exists and is not ready.
    pub not_ready: Arc<NotReadyHosts>,
    /// Listeners that are opened at run time, with their own hosts and certificates.
    pub listeners: TableListeners,
}

/// How events may be sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventsTransport {
    /// Only without TLS.
    #[default]
    Plain,
    /// With or without TLS.
    Either,
    Tls,
}

impl EventsTransport {
    #[inline]
    #[must_use]
    pub fn accepts(self, by_tls: bool) -> bool {
        match self {
            Self::Plain => !by_tls,
            Self::Either => true,
            Self::Tls => by_tls,
        }
    }
}

/// Interchangeable instances.
#[derive(Debug)]
pub struct Backend {
    /// `NAMESPACE/REVISION`, or `static/HOST`: the name in signals, logs and metrics.
    pub key: Box<str>,
    /// The ready ones, in no order. May be empty.
    pub endpoints: Box<[Arc<Endpoint>]>,
    /// Concurrent requests of one instance; 0 = no limit. A hard limit, over all cores.
    pub concurrency_max: u32,
    pub when_empty: NoEndpointPolicy,
    /// The protocol of its instances.
    pub protocol: Protocol,
    /// Set for TLS: how its instances are verified.
    pub tls: Option<Arc<TlsClientConfig>>,
    pub timeouts: RequestTimeouts,
    /// Each connection begins with this header about the client, and carries requests of that client only.
    pub proxy_protocol: Option<ProxyProtocolVersion>,
    pub load: Arc<BackendLoad>,
}

impl Backend {
    /// Requests that an instance without a limit counts for: the default target of Knative's autoscaler.
    pub const CAPACITY_UNLIMITED: usize = 100;

    /// How its instances are reached.
    #[inline]
    #[must_use]
    pub fn scheme(&self) -> ClientScheme {
        if self.tls.is_some() { ClientScheme::Https } else { ClientScheme::Http }
    }

    /// Concurrent requests of all ready instances.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        let each = match self.concurrency_max {
            0 => Self::CAPACITY_UNLIMITED,
            limit => limit as usize,
        };
        self.endpoints.len().saturating_mul(each)
    }
}

/// The protocol of an instance's port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    #[default]
    Http1,
    /// HTTP/2; without TLS with prior knowledge.
    H2c,
}

/// What happens to a request when no instance has free capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoEndpointPolicy {
    /// It waits up to `timeout` while [`crate::signal::Signal::Demand`] asks for an instance.
    Wait { timeout: Duration },
    /// 503 at once: no autoscaler starts instances of this backend.
    Refuse,
    /// 503 at once that names the reason: its instances cannot be started now. Boxed: every backend has a policy, and few
    /// this one.
    Unavailable { reason: Box<&'static str> },
}

impl NoEndpointPolicy {
    /// An instance is started for the request.
    #[inline]
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, Self::Wait { .. })
    }
}

/// Limits on one proxied request. `Duration::ZERO` = none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimeouts {
    /// From the request's head to the end of the response (`timeoutSeconds`).
    pub total: Duration,
    /// From the request's head, or from its end (see `after_request`), to the first byte of the response
    /// (`responseStartTimeoutSeconds`).
    pub response_start: Duration,
    /// Between two bytes of the response (`idleTimeoutSeconds`).
    pub idle: Duration,
    /// Between two bytes of the request body before the response begins, if set for the backend.
    pub request_body: OwnTimeout,
    /// Without a byte in either direction after the response began, if set for the backend.
    pub stream_idle: OwnTimeout,
    /// To open a connection to an instance, if set for the backend.
    pub connect: OwnTimeout,
    /// `response_start` and `idle` count from the last byte of the request, as in nginx and Envoy, because an upload may take
    /// longer; and a tunnel is limited by its own idle timeout only. Knative's timeouts count from the request's head.
    pub after_request: bool,
}

impl RequestTimeouts {
    /// No timeout.
    pub const NONE: Self = Self {
        total: Duration::ZERO,
        response_start: Duration::ZERO,
        idle: Duration::ZERO,
        request_body: OwnTimeout::NONE,
        stream_idle: OwnTimeout::NONE,
        connect: OwnTimeout::NONE,
        after_request: false,
    };

    /// The defaults for addresses that the appliance does not start itself: a server that hangs must not hold its clients for
    /// ever. The response has a minute to begin, as in nginx; `idle` is Envoy's stream idle timeout. Connections have
    /// `HttpLimits::connect_max`.
    pub const EXTERNAL: Self = Self {
        response_start: Duration::from_secs(60),
        idle: Duration::from_secs(300),
        after_request: true,
        ..Self::NONE
    };
}

/// An optional timeout of one backend, in milliseconds. Four bytes instead of the sixteen of an `Option<Duration>`: a
/// table of 100,000 routes has 200,000 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnTimeout(u32);

impl OwnTimeout {
    /// The global setting applies.
    pub const NONE: Self = Self(u32::MAX);

    /// Values above 49 days are reduced to that.
    #[must_use]
    pub fn new(wait: Option<Duration>) -> Self {
        wait.map_or(Self::NONE, |wait| Self(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).min(u32::MAX - 1)))
    }

    /// `None`: the global setting applies.
    #[inline]
    #[must_use]
    pub fn get(self) -> Option<Duration> {
        (self != Self::NONE).then(|| Duration::from_millis(self.0.into()))
    }
}

/// A durable sequence of events with its subscribers: the data plane of a Broker or Channel.
#[derive(Debug)]
pub struct EventStream {
    /// The name of its records in the log. It contains the owner's uid, so that a recreated owner starts empty:
    /// `broker/NAMESPACE/NAME/UID`.
    pub name: Box<str>,
    /// The largest accepted event, attributes and data together, in bytes.
    pub event_bytes_max: u32,
    pub keeping: RetentionPolicy,
    pub quota: Arc<ByteQuota>,
    /// One core's log takes all events, in the order of their arrival: some subscriber requires ordered events, or
    /// duplicates are recognised.
    pub in_order: bool,
    /// No more events are accepted from outside; pending ones are delivered, and replies re-enter.
    pub is_closed: bool,
    /// Hops are counted, because replies re-enter: true for a Broker, not for a Channel.
    pub guards_loops: bool,
    /// Records the types of incoming events, if that is enabled.
    pub types: Option<Arc<EventTypeRegistry>>,
    /// Which senders are authorized. `None`: all, without authentication.
    pub admission: Option<Arc<StreamAdmission>>,
    pub subscribers: Vec<Arc<Subscriber>>,
    /// Its events are in an external store, and not in the logs of the cores.
    pub external: Option<Arc<ExternalStream>>,
    pub tally: Arc<StreamCounters>,
}

impl EventStream {
    /// Its records are HTTP requests and the responses to them, and not events.
    #[inline]
    #[must_use]
    pub fn holds_requests(&self) -> bool {
        self.name.starts_with("requests/")
    }

    /// The namespace of its Broker or Channel.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.name.split('/').nth(1).unwrap_or_default()
    }
}

/// One subscriber of a stream, independent of all others.
#[derive(Debug)]
pub struct Subscriber {
    /// Durable identity: its cursor is stored under it (the owner's uid).
    pub name: Box<str>,
    /// `NAMESPACE/NAME` for logs and metrics.
    pub label: Box<str>,
    pub filter: EventFilter,
    pub target: DeliveryTarget,
    pub reply: ReplyTarget,
    pub dead_letter: Option<DeliveryTarget>,
    pub hold: HoldReason,
    pub delivery: DeliveryPolicy,
    pub initial_offset: InitialOffset,
    pub tally: Arc<SubscriberCounters>,
}

/// Why a subscriber's events are held: an object that its owner references does not exist. They stay in the log, and
/// continue with a table that says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HoldReason {
    #[default]
    Nothing,
    /// Events that failed are held for a dead letter sink.
    DeadLetters,
    /// All events are held: the target is unknown. `target` is the previous one.
    Everything,
}

/// The port of a [`DeliveryTarget`] whose URL is neither `http` nor `https`, or has an invalid port: every attempt
/// fails.
pub const NO_PORT: u16 = 0;

/// An absolute URL, parsed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryTarget {
    /// As written, for logs and `knativeerrordest`.
    pub url: Box<str>,
    /// Host header: host, and port if it was written.
    pub authority: Box<str>,
    /// Lower case, without port: looked up in [`RoutingTable::hosts`] before DNS.
    pub host: Box<str>,
    pub port: u16,
    /// Path and query; `/` when the URL has none.
    pub path: Box<str>,
    /// The target is a stream of this appliance, which gets the remaining hops of an event.
    pub is_stream: bool,
    /// The token for the target, if it requires authentication.
    pub access_token: Option<Arc<AccessToken>>,
    /// Set for TLS: how the target is verified. Hosts of this table are reached inside this process, whatever their
    /// URL's scheme.
    pub tls: Option<Arc<TlsClientConfig>>,
}

/// What happens to an event in the subscriber's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyTarget {
    /// Appended to the same stream (Trigger).
    Reenter,
    /// Sent on, with its own retries (Subscription).
    Send(DeliveryTarget),
    /// Dropped (Subscription without `reply`).
    Discard,
    /// There is no subscriber (Subscription with only `reply`): the target is where replies go, and its response is
    /// dropped.
    Unasked,
}

/// How deliveries are retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryPolicy {
    /// Attempts after the first (AMB-28).
    pub retries_max: u32,
    pub backoff: BackoffPolicy,
    /// The timeout of one request; `Duration::ZERO` = [`DeliveryPolicy::TIMEOUT_DEFAULT`].
    pub timeout: Duration,
    /// Requests in flight to this subscriber from one core. To instances of this appliance: beyond their capacity.
    pub window: u32,
    pub sequence: DeliveryOrder,
    /// The content mode towards the subscriber; `None`: as the event came in (X-DLV-03).
    pub mode: Option<ContentMode>,
    /// Longest Retry-After of a 429 or 503 that is respected; `Duration::ZERO` ignores the header (X-DLV-02).
    pub retry_after_max: Duration,
}

/// The delivery order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeliveryOrder {
    /// Up to a window of events is in flight, in any order.
    #[default]
    Free,
    /// An event waits until the one before it with the same `partitionkey` has ended; those without a key are one
    /// sequence.
    ByKey,
    /// One event at a time.
    Strict,
}

impl DeliveryPolicy {
    /// One attempt, with a window of 64.
    pub const ONCE: Self = Self {
        retries_max: 0,
        backoff: BackoffPolicy::None,
        timeout: Duration::ZERO,
        window: 64,
        sequence: DeliveryOrder::Free,
        mode: None,
        retry_after_max: Duration::ZERO,
    };

    /// A subscriber that never answers must not hold its window forever.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackoffPolicy {
    None,
    /// The same delay each time (AMB-26).
    Linear(Duration),
    /// The k-th retry waits `delay * 2^(k-1)` (AMB-27).
    Exponential(Duration),
}

impl RoutingTable {
    /// The route for a Host header's value; case, port and a trailing dot are ignored.
    #[inline]
    #[must_use]
    pub fn route(&self, host: &str) -> Option<&Arc<Route>> {
        let name = host_name(host);
        let found = if name.bytes().any(|b| b.is_ascii_uppercase()) {
            self.hosts.find(name.to_ascii_lowercase().as_str()) // allocates only for odd clients
        } else {
            self.hosts.find(name)
        };
        found.or(self.any_host.as_ref())
    }

    /// The route of a request: in its search domain for a short name, otherwise by its Host. Cluster-local routes only
    /// for cluster-local clients, and those of a listener for its clients.
    #[inline]
    #[must_use]
    pub fn route_for(&self, request: &RouteRequest<'_>) -> Option<&Arc<Route>> {
        if let Some(listener) = request.listener() {
            return self.listener(listener.id)?.route(request.host);
        }
        let completed = request.completed().and_then(|host| self.hosts.get(&host));
        completed
            .or_else(|| self.route(request.host))
            .filter(|route| request.cluster_local || !route.cluster_local_only)
    }
}

/// The port of `https://HOST` (RFC 9110, section 4.2.2).
pub const HTTPS_PORT: u16 = 443;

/// The host of an authority: without port and trailing dot.
#[inline]
#[must_use]
pub fn host_name(authority: &str) -> &str {
    let end = match authority.rfind(':') {
        // In `[::1]:80` the port's colon is after the bracket; in `[::1]` there is none.
        Some(colon) if !authority[colon..].contains(']') => colon,
        _ => authority.len(),
    };
    let host = &authority[..end];
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests;
