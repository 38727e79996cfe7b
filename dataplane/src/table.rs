//! What a core must know: an immutable picture of hosts, backends, streams and subscribers.
//!
//! Control compiles its objects into a [`RoutingTable`] and replaces the whole (`arc_swap`); a core reads
//! it through its own cache, one comparison a request, never a lock. Nothing in here knows what a
//! Service or a Trigger is.

mod certificate_set;
mod endpoint;
mod hosts;
mod route;
mod traffic_policy;

use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::access_log::RequestLog;
use crate::events::abandoned::AbandonedEventsReport;
use crate::events::auth::{AccessToken, StreamAdmission};
use crate::events::cloudevent::ContentMode;
use crate::events::event_types::EventTypeRegistry;
use crate::events::filter::cesql::CesqlExpression;
use crate::events::limits::UNHURRIED_FLUSH;
use crate::http::headers::ClientScheme;
use crate::load::{BackendLoad, ByteQuota, StreamCounters, SubscriberCounters};
use crate::service_names::ServiceNames;
use crate::tls::{CertificateStore, TlsClientConfig};
pub use endpoint::{Endpoint, InstanceStart, StartupDuration};
pub use hosts::HostTable;
pub use route::{BackendShare, HeaderEditError, HeaderEdits, Route, RouteMatch, RouteRequest};
pub use traffic_policy::{
    AffinityCookie, MirrorPolicy, STICKY_COOKIE, SessionAffinity, SessionKey, TrafficPolicy, mix, names_clients,
};

type PersistentMap<V> = HashMap<Box<str>, V, RandomState>;

/// Everything a core serves, as of one moment.
/// A copy shares nearly all of it.
#[derive(Debug, Default, Clone)]
pub struct RoutingTable {
    /// Rises by one with every publish.
    pub version: u64,
    /// By host: lower case, without port and trailing dot; `*.PARENT` too.
    pub hosts: HostTable,
    /// Names of destinations that DNS need not know.
    pub names: Arc<ServiceNames>,
    /// For hosts that `hosts` does not name (`--route '*=…'`).
    pub any_host: Option<Arc<Route>>,
    /// By request path on the events listener: `/brokers/NAMESPACE/NAME`.
    pub streams: PersistentMap<Arc<EventStream>>,
    /// What requests show that streams of this process send each other; nobody else can know it. Empty: no request is
    /// believed to be one.
    pub internal_key: Arc<str>,
    /// What streams had still to deliver that are none of these any more; the same in every table.
    pub abandoned: Arc<AbandonedEventsReport>,
    /// By server name, for TLS.
    pub certificates: Arc<CertificateStore>,
    /// Those for callers inside alone, who are shown the others too.
    pub inner_certificates: Arc<CertificateStore>,
    /// At which of the events listeners streams take events.
    pub events_by: EventsTransport,
    /// The lines that requests are to have, beside those of the access log.
    pub request_log: Option<Arc<RequestLog>>,
}

/// How events come in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventsTransport {
    /// In the clear alone.
    #[default]
    Plain,
    /// In the clear and by TLS.
    Either,
    Tls,
}

impl EventsTransport {
    #[must_use]
    pub fn accepts(self, by_tls: bool) -> bool {
        match self {
            Self::Plain => !by_tls,
            Self::Either => true,
            Self::Tls => by_tls,
        }
    }
}

/// Instances that can stand in for each other.
#[derive(Debug)]
pub struct Backend {
    /// `NAMESPACE/REVISION`, or `static/HOST`: the name in signals, logs and metrics.
    pub key: Box<str>,
    /// The ready ones, in no order. May be empty.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Requests inside one instance at a time; 0 = no limit. Hard, over all cores.
    pub concurrency_max: u32,
    pub when_empty: NoEndpointPolicy,
    /// What its instances speak.
    pub protocol: Protocol,
    /// They speak it by TLS, and are believed by this.
    pub tls: Option<Arc<TlsClientConfig>>,
    pub timeouts: RequestTimeouts,
    pub load: Arc<BackendLoad>,
}

impl Backend {
    /// Requests that an instance without a limit counts for: what Knative's scaler wants in one if nobody says
    /// otherwise.
    pub const CAPACITY_UNLIMITED: usize = 100;

    /// How its instances are reached.
    #[must_use]
    pub fn scheme(&self) -> ClientScheme {
        if self.tls.is_some() { ClientScheme::Https } else { ClientScheme::Http }
    }

    /// Requests that the ready instances take at a time.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let each = match self.concurrency_max {
            0 => Self::CAPACITY_UNLIMITED,
            limit => limit as usize,
        };
        self.endpoints.len().saturating_mul(each)
    }
}

/// What an instance speaks on its port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    #[default]
    Http1,
    /// HTTP/2; without TLS by prior knowledge.
    H2c,
}

/// What a request meets when no instance has room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoEndpointPolicy {
    /// It waits up to `patience` while [`crate::signal::Signal::Demand`] asks for an instance.
    Wait { patience: Duration },
    /// 503 at once: nobody starts instances of this backend.
    Refuse,
    /// 503 at once that names the reason: its instances cannot be started now.
    Unavailable { reason: &'static str },
}

impl NoEndpointPolicy {
    /// An instance is started for the request.
    #[must_use]
    pub fn waits(self) -> bool {
        matches!(self, Self::Wait { .. })
    }
}

/// Limits on one proxied request. `Duration::ZERO` = none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimeouts {
    /// From the request's head to the end of the response (`timeoutSeconds`).
    pub total: Duration,
    /// From the request's head to the first byte of the response (`responseStartTimeoutSeconds`).
    pub response_start: Duration,
    /// Between two bytes of the response (`idleTimeoutSeconds`).
    pub idle: Duration,
    /// Between two bytes of the request's body while there is no response, if that is set for the backend.
    pub request_body: OwnTimeout,
    /// Without a byte in either direction once there is a response, if that is set for the backend.
    pub stream_idle: OwnTimeout,
}

impl RequestTimeouts {
    /// None of its own.
    pub const NONE: Self = Self {
        total: Duration::ZERO,
        response_start: Duration::ZERO,
        idle: Duration::ZERO,
        request_body: OwnTimeout::NONE,
        stream_idle: OwnTimeout::NONE,
    };
}

/// A timeout that may be set for one backend, in milliseconds. Four bytes and not the sixteen of an `Option<Duration>`: a table
/// of 100,000 routes has 200,000 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnTimeout(u32);

impl OwnTimeout {
    /// The setting of the whole appliance holds.
    pub const NONE: Self = Self(u32::MAX);

    /// Longer ones than 49 days are cut to that.
    #[must_use]
    pub fn new(wait: Option<Duration>) -> Self {
        wait.map_or(Self::NONE, |wait| Self(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).min(u32::MAX - 1)))
    }

    /// `None`: the setting of the whole appliance holds.
    #[must_use]
    pub fn get(self) -> Option<Duration> {
        (self != Self::NONE).then(|| Duration::from_millis(self.0.into()))
    }
}

/// A durable sequence of events with its readers: a Broker's or a Channel's data plane.
#[derive(Debug)]
pub struct EventStream {
    /// The name its records carry in the log; holds the owner's uid, so that a deleted and recreated
    /// owner starts empty: `broker/NAMESPACE/NAME/UID`.
    pub name: Box<str>,
    /// Largest event taken in, attributes and data together, in bytes.
    pub event_bytes_max: u32,
    pub keeping: RetentionPolicy,
    pub quota: Arc<ByteQuota>,
    /// Some subscriber wants its events in order: one core's log takes them all.
    pub in_order: bool,
    /// Nothing more is taken in from outside; what is there is delivered, and replies come back in.
    pub is_closed: bool,
    /// Hops are counted, because replies come back in: a Broker's, and not a Channel's.
    pub guards_loops: bool,
    /// Notes which types of events come, if anybody wants to know.
    pub types: Option<Arc<EventTypeRegistry>>,
    /// Who may send from outside; `None`: everybody, and nobody is asked who he is.
    pub admission: Option<Arc<StreamAdmission>>,
    pub subscribers: Vec<Arc<Subscriber>>,
    pub tally: Arc<StreamCounters>,
}

/// How a stream's events are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    pub durability: Durability,
    /// The oldest events beyond so many bytes, over all cores, are dropped though somebody waits for them;
    /// 0 = never.
    pub retention_bytes: u64,
    /// Events older than this are dropped though somebody waits for them; `Duration::ZERO` = never.
    pub retention_time: Duration,
    /// Events are kept for so long, for replay, though everybody has had them.
    pub history_time: Duration,
}

/// What a 202 promises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// The event survives a power cut.
    #[default]
    Flush,
    /// The event is flushed within this time, and lost if the process ends before.
    Interval(Duration),
    /// The event is flushed some time, and lost if the process ends before.
    None,
}

impl EventStream {
    /// Of the Broker or Channel that it belongs to.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.name.split('/').nth(1).unwrap_or_default()
    }
}

impl Durability {
    /// How long an acknowledged event may stay unflushed; `None` = not at all.
    #[must_use]
    pub const fn patience(self) -> Option<Duration> {
        match self {
            Self::Flush => None,
            Self::Interval(patience) => Some(patience),
            Self::None => Some(UNHURRIED_FLUSH),
        }
    }
}

/// One reader of a stream, independent of all others.
#[derive(Debug)]
pub struct Subscriber {
    /// Durable identity: its bookmark is kept under it (the owner's uid).
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

/// What a subscriber's events wait for, because an object that its owner names is not there. They keep their places in the
/// log, and go on with a table that says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HoldReason {
    #[default]
    Nothing,
    /// Those that are given up wait for a dead letter sink.
    DeadLetters,
    /// All of them: where they are to go is not known. The target is where they went.
    Everything,
}

/// Where a subscriber begins that the log does not know yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InitialOffset {
    /// With the next event.
    #[default]
    Now,
    /// With the oldest event that the log still has.
    Earliest,
    /// With what came at this time or later, in milliseconds since 1970.
    At(u64),
}

/// Which events a subscriber wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventFilter {
    Everything,
    /// Every attribute named has exactly this value, in the canonical string form; an empty value
    /// means "present and not empty" (EV: `spec.filter.attributes`, upstream X-FLT-13).
    Exact(AttributeMatches),
    /// All rules hold (`spec.filters`, X-FLT-02). Shared, because every publish makes a new table.
    Rules(Arc<[FilterRule]>),
}

/// Attributes with their values, or parts of values.
pub type AttributeMatches = Vec<(Box<str>, Box<str>)>;

/// One filter in one dialect (X-FLT-04 to X-FLT-09). Values are not empty, except in
/// [`EventFilter::Exact`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterRule {
    Exact(AttributeMatches),
    Prefix(AttributeMatches),
    Suffix(AttributeMatches),
    All(Vec<FilterRule>),
    Any(Vec<FilterRule>),
    Not(Box<FilterRule>),
    Sql(CesqlExpression),
    /// The same for every event.
    Always(FilterVerdict),
}

/// What a rule says of an event. It is withheld only on `Fail` (X-FLT-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterVerdict {
    Pass,
    Fail,
    NoFilter,
}

/// The port of a [`DeliveryTarget`] whose URL is neither `http` nor `https`, or has a port that is none: every attempt to send there fails.
pub const NO_PORT: u16 = 0;

/// An absolute URL, parsed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryTarget {
    /// As written, for logs and `knativeerrordest`.
    pub url: Box<str>,
    /// Host header: host, and port if it was written.
    pub authority: Box<str>,
    /// Lower case, without port: looked up in [`RoutingTable::hosts`] before anything is resolved by DNS.
    pub host: Box<str>,
    pub port: u16,
    /// Path and query; `/` when the URL has none.
    pub path: Box<str>,
    /// A stream of this appliance is there: it is told how many hops an event has left.
    pub is_stream: bool,
    /// What is shown there, if it wants to know who comes.
    pub access_token: Option<Arc<AccessToken>>,
    /// It is reached by TLS, and has to be believed by this. Hosts of ours are reached inside this process, whatever
    /// their URL begins with.
    pub tls: Option<Arc<TlsClientConfig>>,
}

/// What happens to an event that the subscriber answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyTarget {
    /// Appended to the same stream (Trigger).
    Reenter,
    /// Sent on, with retries of its own (Subscription).
    Send(DeliveryTarget),
    /// Dropped (Subscription without `reply`).
    Discard,
    /// Not even asked for (Subscription with nothing but `reply`): the target is where replies go, and
    /// what it answers is dropped.
    Unasked,
}

/// How hard to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryPolicy {
    /// Attempts after the first (AMB-28).
    pub retries_max: u32,
    pub backoff: BackoffPolicy,
    /// One request's limit; `Duration::ZERO` = [`DeliveryPolicy::TIMEOUT_DEFAULT`].
    pub timeout: Duration,
    /// Requests in flight to this subscriber from one core. To instances of ours: beyond those that they take
    /// at a time.
    pub window: u32,
    pub sequence: DeliveryOrder,
    /// The mode towards the subscriber; `None`: as the event came in (X-DLV-03).
    pub mode: Option<ContentMode>,
    /// Longest wait that a 429 or 503 may ask for with Retry-After; `Duration::ZERO` ignores the header
    /// (X-DLV-02).
    pub retry_after_max: Duration,
}

/// Which events wait for which.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeliveryOrder {
    /// None: up to a window of events is under way, in any order.
    #[default]
    Free,
    /// An event waits until the one before it of the same `partitionkey` has come to its end; those
    /// without a key are one sequence.
    ByKey,
    /// One event at a time.
    Strict,
}

impl DeliveryPolicy {
    /// One attempt, one at a time per place in a window of 64.
    pub const ONCE: Self = Self {
        retries_max: 0,
        backoff: BackoffPolicy::None,
        timeout: Duration::ZERO,
        window: 64,
        sequence: DeliveryOrder::Free,
        mode: None,
        retry_after_max: Duration::ZERO,
    };

    /// A subscriber that never answers must not hold its window for ever.
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
    /// The route for a Host header's value; case, port and a trailing dot do not matter.
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

    /// The route that a request means: a neighbour's by its short name, else by its Host; none that is not for who asks.
    #[must_use]
    pub fn route_for(&self, ask: &RouteRequest<'_>) -> Option<&Arc<Route>> {
        let neighbour = ask.completed().and_then(|host| self.hosts.get(&host));
        neighbour.or_else(|| self.route(ask.host)).filter(|route| ask.cluster_local || !route.cluster_local_only)
    }
}

/// What `https://HOST` means without a port (RFC 9110, section 4.2.2).
pub const HTTPS_PORT: u16 = 443;

/// The host of an authority: without port, without the root's dot.
#[must_use]
pub fn host_name(authority: &str) -> &str {
    let end = match authority.rfind(':') {
        // In `[::1]:80` the port's colon stands behind the bracket; in `[::1]` there is none.
        Some(colon) if !authority[colon..].contains(']') => colon,
        _ => authority.len(),
    };
    let host = &authority[..end];
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_found_whatever_its_case_port_or_root_dot() {
        let mut table = RoutingTable::default();
        table.hosts.insert("app.default.localhost", Arc::new(Route::default()));

        for host in ["app.default.localhost", "APP.Default.localhost:8080", "app.default.localhost."] {
            assert!(table.route(host).is_some(), "{host}");
        }
        for host in ["", "default.localhost", "app.default.localhost.evil", "app:default.localhost"] {
            assert!(table.route(host).is_none(), "{host}");
        }
    }

    #[test]
    fn an_authority_loses_its_port_only() {
        for (authority, host) in [("a:80", "a"), ("a", "a"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("a.:1", "a")] {
            assert_eq!(host_name(authority), host);
        }
    }
}
