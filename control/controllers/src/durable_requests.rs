//! Requests of a Route that are stored before they are answered: the rules that send them to the events listener, and the stream
//! from which they are delivered to the Route.

use std::time::Duration;

use codec::hop_fields::INTERNAL_HEADER;
use codec::stored_request::{REQUEST_TYPE, RESULTS_PATH, StoredMethod};
use contract::table::{
    BackoffPolicy, DeliveryOrder, DeliveryPolicy, DeliveryTarget, EventFilter, HeaderEdits, HoldReason, InitialOffset,
    MatchRegex, PathMatch, PathRewrite, Protocol, ReplyTarget, RequestMatch, RetentionPolicy, ValueMatch,
};

use crate::context::ControllerContext;
use crate::names::{requests_backend, requests_path};
use crate::publish::{HostRule, PathRule, Publisher, StreamSpec, StreamSubscriberSpec, WeightedBackend};
use types::serving::durable_requests::{DurableRequests, durable_requests};
use types::serving::route::Route;
use types::shared::{name, namespace};

/// The client asks for it: one of several preferences, which may have parameters (RFC 7240).
const RESPOND_ASYNC: &str = r"(?i)(.*,)?\s*respond-async\s*([;,].*)?";

/// Bytes of a stored request's body: that of an event, because it is a record of the same log.
const BODY_BYTES_MAX: u32 = 1 << 20;
/// How long a request and its result are kept. A client that polls has it within minutes; a day leaves time to repair the Service
/// and send the request again.
const RESULT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Attempts after the first, and the delay before the second: the last one begins after 205 s and more, as with upstream's default
/// for Brokers.
const RETRIES_MAX: u32 = 10;
const BACKOFF_DELAY: Duration = Duration::from_millis(200);
/// One attempt, with the wait for an instance: a request's longest time in Knative by default.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);
/// Requests in flight to the Route from one core, beyond what its instances take.
const WINDOW: u32 = 64;
/// The longest Retry-After that is respected.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// The rules of requests that are stored, and of those for a result; none without the annotation. They come before the others.
pub(crate) fn path_rules(route: &Route, publisher: &Publisher) -> Vec<PathRule> {
    let Some(which) = durable_requests(&route.metadata) else { return Vec::new() };
    let stored = StoredMethod::ALL.map(|method| {
        let by_method = RequestMatch::default().with_method(method.as_str());
        match which {
            DurableRequests::Always => by_method,
            DurableRequests::WhenPreferred => match MatchRegex::new(RESPOND_ASYNC) {
                Ok(regex) => by_method.with_header("Prefer", ValueMatch::Regex(regex)),
                Err(_) => by_method, // the expression is a constant
            },
        }
    });
    let results = RequestMatch::new(PathMatch::Prefix(RESULTS_PATH.trim_end_matches('/').into()));
    stored.into_iter().chain([results]).map(|matches| intake_rule(route, matches, publisher)).collect()
}

/// Sends requests to the events listener, where their path begins with that of the stream.
fn intake_rule(route: &Route, matches: RequestMatch, publisher: &Publisher) -> PathRule {
    let (ns, name) = (namespace(&route.metadata), name(&route.metadata));
    let mut edits = HeaderEdits::default();
    if let Ok(rewrite) = PathRewrite::prefix("", &requests_path(ns, name)) {
        edits.set_path(rewrite); // names of objects are always fit for a path
    }
    if let Err(why) = edits.set(INTERNAL_HEADER, publisher.internal_key()) {
        tracing::warn!(%why, "not set"); // the key has hexadecimal digits only
    }
    let share = WeightedBackend { edits, ..WeightedBackend::new(requests_backend(ns, name), 100) };
    PathRule { matches, splits: vec![share], ..PathRule::default() }
}

/// The rule by which stored requests reach the Route: that of its own hosts without `path_rules`, under a name that no client can
/// guess.
pub(crate) fn delivery_rule(route: &Route, own: &HostRule, publisher: &Publisher) -> Option<HostRule> {
    durable_requests(&route.metadata)?;
    Some(HostRule {
        hosts: vec![delivery_host(route, publisher).as_str().into()],
        splits: own.splits.clone(),
        traffic_policy: own.traffic_policy.clone(),
        filters: own.filters.clone(),
        cluster_local: true,
        ..HostRule::default()
    })
}

fn delivery_host(route: &Route, publisher: &Publisher) -> String {
    // Without a colon, behind which a port would be read.
    publisher.private_host(&format!("requests {}/{}", namespace(&route.metadata), name(&route.metadata)))
}

/// Publishes the stream of the Route's requests, with the Route as its subscriber; or removes it, if the annotation is gone.
pub(crate) fn publish(context: &ControllerContext, route: &Route) {
    let (ns, name) = (namespace(&route.metadata), name(&route.metadata));
    let listener = context.config.listeners.events;
    let Some((_, listener)) = durable_requests(&route.metadata).zip(listener) else {
        return remove(&context.publisher, ns, name);
    };
    let (path, uid) = (requests_path(ns, name), route.metadata.uid.as_deref().unwrap_or_default());
    let publisher = &context.publisher;
    publisher.set_gateway(&requests_backend(ns, name), Protocol::Http1, None, listener);
    let retention = RetentionPolicy { history_time: RESULT_RETENTION, ..RetentionPolicy::default() };
    let stream = StreamSpec {
        // The uid makes a recreated Route start empty.
        name: format!("requests/{ns}/{name}/{uid}"),
        event_bytes_max: BODY_BYTES_MAX,
        retention,
        quota: context.quotas.of(ns),
        is_closed: true, // no events from outside
        admission: None,
        reports_event_types: false,
        external: None,
    };
    publisher.set_stream(&path, stream);
    publisher.set_subscriber(&subscriber(uid), subscription(route, &path, publisher));
}

/// The durable identity of the Route as a subscriber of its requests.
fn subscriber(uid: &str) -> String {
    format!("requests-{uid}")
}

fn subscription(route: &Route, path: &str, publisher: &Publisher) -> StreamSubscriberSpec {
    let (ns, name) = (namespace(&route.metadata), name(&route.metadata));
    let host = delivery_host(route, publisher);
    let authority = format!("{name}.{ns}.svc.cluster.local");
    StreamSubscriberSpec {
        path: path.to_owned(),
        label: format!("{ns}/{name}"),
        // Responses are in the same stream.
        filter: EventFilter::Exact([("type".into(), REQUEST_TYPE.into())].into()),
        target: DeliveryTarget {
            url: format!("http://{authority}").into(),
            authority: authority.into(),
            host: host.into(),
            port: 80,
            path: "/".into(),
            is_stream: false,
            access_token: None,
            tls: None,
        },
        reply: ReplyTarget::Discard,
        dead_letter: None,
        hold: HoldReason::Nothing,
        delivery: DeliveryPolicy {
            retries_max: RETRIES_MAX,
            backoff: BackoffPolicy::Exponential(BACKOFF_DELAY),
            timeout: ATTEMPT_TIMEOUT,
            window: WINDOW,
            sequence: DeliveryOrder::Free,
            mode: None,
            retry_after_max: RETRY_AFTER_MAX,
        },
        start_position: InitialOffset::Earliest,
    }
}

/// Without the Route: pending requests are reported as abandoned, like the events of a deleted Broker.
pub(crate) fn remove(publisher: &Publisher, ns: &str, name: &str) {
    let path = requests_path(ns, name);
    publisher.retain_subscribers(&path, |_| false);
    publisher.remove_stream(&path);
}
