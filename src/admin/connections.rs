//! Debug queries: `/debug/connections` and `/debug/routes`.
//!
//! The cores themselves report their connections, between two turns of their loops; routes are read from
//! the current table. Both responses are bounded, and say how much is omitted.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dataplane::codec::hop_fields::INTERNAL_HEADER;
use dataplane::connection_query::{CONNECTIONS_LISTED_MAX, ConnectionInfo};
use dataplane::table::{
    Backend, BackendShare, NoEndpointPolicy, Protocol, Route, RouteReply, RoutingTable, ValueMatch,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminServer;

/// Default number of entries in a response.
const LIMIT_DEFAULT: usize = 100;
/// Maximum number of entries: the response is built in memory.
const LIMIT_MAX: usize = CONNECTIONS_LISTED_MAX;
/// Instances shown per backend.
const INSTANCES_LISTED_MAX: usize = 100;
/// Longest wait for the cores: they answer within a turn of their loops.
const ANSWER_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default, Deserialize)]
pub(super) struct ConnectionsQuery {
    limit: Option<usize>,
    /// For routes: show the one that matches this host.
    host: Option<String>,
}

impl ConnectionsQuery {
    fn most(&self) -> usize {
        self.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX)
    }
}

pub(super) async fn connections(
    State(admin): State<Arc<AdminServer>>,
    Query(wanted): Query<ConnectionsQuery>,
) -> Response {
    let Ok(answers) = tokio::time::timeout(ANSWER_MAX, admin.questions.connections(wanted.most())).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the cores do not respond: is one of them stuck?\n").into_response();
    };
    let silent: Vec<usize> = (0..answers.len()).filter(|core| answers[*core].is_none()).collect();
    let open: usize = answers.iter().flatten().map(|answers| answers.open).sum();
    let mut all: Vec<(usize, ConnectionInfo)> = answers
        .into_iter()
        .enumerate()
        .flat_map(|(core, answers)| {
            answers.into_iter().flat_map(move |t| t.connections.into_iter().map(move |c| (core, c)))
        })
        .collect();
    // The longest waiting connections are the most interesting.
    all.sort_by_key(|(_, one)| (one.state.is_idle(), Reverse(one.state_age)));
    all.truncate(wanted.most());
    let shown: Vec<Value> = all.iter().map(|(core, one)| connection(*core, one)).collect();
    Json(json!({ "open": open, "returned": shown.len(), "unresponsive_cores": silent, "connections": shown }))
        .into_response()
}

fn connection(core: usize, one: &ConnectionInfo) -> Value {
    json!({
        "core": core,
        "peer": one.peer.to_string(),
        "listener": one.listener,
        "protocol": one.protocol,
        "state": one.state.name(),
        "state_ms": ms(one.state_age),
        "age_ms": ms(one.age),
        "requests": one.requests,
        "streams": one.streams,
        "received_bytes": one.received,
        "sent_bytes": one.sent,
    })
}

pub(super) async fn routes(State(admin): State<Arc<AdminServer>>, Query(wanted): Query<ConnectionsQuery>) -> Response {
    // 100,000 host names take some time to sort; the control thread has other things to do.
    match tokio::task::spawn_blocking(move || routes_of(&admin.tables.load(), &wanted)).await {
        Ok(value) => Json(value).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the reading thread panicked\n").into_response(),
    }
}

fn routes_of(table: &RoutingTable, wanted: &ConnectionsQuery) -> Value {
    let all = table.hosts.len() + usize::from(table.any_host.is_some());
    let met: Vec<(String, Arc<Route>)> = match &wanted.host {
        Some(host) => table.route(host).map(|route| (host.clone(), Arc::clone(route))).into_iter().collect(),
        None => {
            let any = table.any_host.iter().map(|route| ("*".to_owned(), route));
            let mut named: Vec<_> = table.hosts.iter().chain(any).collect();
            named.sort_by(|one, other| one.0.cmp(&other.0));
            named.truncate(wanted.most());
            named.into_iter().map(|(host, route)| (host, Arc::clone(route))).collect()
        }
    };
    let splits = met.iter().flat_map(|(_, route)| route.all_splits());
    let used = splits.filter(|split| !split.backend.key.is_empty()); // the others have a reply
    let backends: BTreeMap<&str, Value> = used.map(|split| (&*split.backend.key, backend(&split.backend))).collect();
    let shown: Vec<Value> = met.iter().map(|(host, found)| route(host, found)).collect();
    json!({
        "table_version": table.version, "hosts": all, "returned": shown.len(), "routes": shown, "backends": backends
    })
}

/// Branches in the order in which they are tried; the last matches everything else.
fn route(host: &str, route: &Route) -> Value {
    let mut ways: Vec<Value> = Vec::with_capacity(route.branches().len() + 1);
    for branch in route.branches() {
        let conditions = branch.matches.conditions();
        let headers = conditions.map(|conditions| values(&conditions.headers)).unwrap_or_default();
        let query = conditions.map(|conditions| values(&conditions.query)).unwrap_or_default();
        ways.push(json!({
            "path": branch.matches.path().text(),
            "path_type": branch.matches.path().kind(),
            "method": conditions.and_then(|conditions| conditions.method.as_deref()),
            "headers": headers,
            "query": query,
            "cluster_local": route.cluster_local_only || branch.cluster_local_only,
            "splits": splits(&branch.splits),
        }));
    }
    if !route.splits.is_empty() {
        let private = route.cluster_local_only;
        ways.push(json!({
            "path": "", "path_type": "PathPrefix", "headers": {}, "cluster_local": private,
            "splits": splits(&route.splits),
        }));
    }
    json!({
        "host": host,
        "cluster_local": route.cluster_local_only,
        "https_redirect": route.https_redirect,
        "hash": route.hash.as_deref(),
        "rules": ways,
    })
}

fn values(conditions: &[(Box<str>, ValueMatch)]) -> BTreeMap<&str, &str> {
    conditions.iter().map(|(name, value)| (&**name, value.text())).collect()
}

fn splits(splits: &[BackendShare]) -> Vec<Value> {
    splits
        .iter()
        .map(|split| {
            let edits = split.edits();
            let set = edits.into_iter().flat_map(|edits| edits.headers());
            // Its value is a secret of this process.
            let set: BTreeMap<&str, &str> = set.filter(|(name, _)| *name != INTERNAL_HEADER).collect();
            json!({
                "weight": split.weight,
                "backend": split.backend.key,
                "set_headers": set,
                "rewrite_host": edits.and_then(|edits| edits.host()),
                "reply": split.reply().map(|reply| match reply {
                    RouteReply::Redirect(redirect) => redirect.status(),
                    RouteReply::Status(status) => *status,
                }),
            })
        })
        .collect()
}

fn backend(backend: &Backend) -> Value {
    use std::sync::atomic::Ordering::Relaxed;
    let instances: Vec<Value> = backend
        .endpoints
        .iter()
        .take(INSTANCES_LISTED_MAX)
        .map(|one| json!({ "address": one.address.to_string(), "active_requests": one.load.in_flight() }))
        .collect();
    json!({
        "tls": backend.tls.is_some(),
        "protocol": match backend.protocol {
            Protocol::Http1 => "http1",
            Protocol::H2c => "h2",
        },
        "ready_instances": backend.endpoints.len(),
        "instances": instances,
        "concurrency_max": backend.concurrency_max,
        // `null`: a request that finds no instance is rejected at once.
        "queue_timeout_ms": match &backend.when_empty {
            NoEndpointPolicy::Wait { timeout } => Some(ms(*timeout)),
            NoEndpointPolicy::Refuse | NoEndpointPolicy::Unavailable { .. } => None,
        },
        "timeouts_ms": {
            "total": ms(backend.timeouts.total),
            "response_start": ms(backend.timeouts.response_start),
            "idle": ms(backend.timeouts.idle),
        },
        "active_requests": backend.load.in_flight.load(Relaxed),
        "queued_requests": backend.load.waiting.load(Relaxed),
        "requests": backend.load.requests.load(Relaxed),
    })
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
