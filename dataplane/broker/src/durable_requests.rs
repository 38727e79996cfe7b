//! Requests for Services that are stored before they are answered: the intake, and the results.
//!
//! The proxy sends them here, to the events listener, under the path of the Service's stream and with the secret of this
//! process. Their records are delivered like events ([`crate::delivery`]), and the responses are stored in the same stream.

use std::sync::Arc;

use bytes::Bytes;
use codec::http::LocalResponse;
use codec::stored_request::{
    RESULTS_PATH, RequestId, RequestToStore, StoredMethod, encode_request, fields_bytes, read_response,
};
use contract::core_relay::CoreSenders;
use contract::event_response::unavailable;
use contract::table::{Durability, EventStream, RoutingTable};
use ring_crypto::rand::{SecureRandom as _, SystemRandom};

use super::delivery::EventSender;
use super::engine::BrokerEngine;
use super::ingress::{self, IngressRejection};
use super::limits::{REQUEST_FIELDS_BYTES_MAX, REQUEST_TARGET_BYTES_MAX};
use super::request_scan;
use super::wall_clock::wall_clock_ms;

/// The slashes before the end of a stream's path: `/requests/NAMESPACE/NAME`.
const SLASHES: usize = 3;
/// Tells what became of a request.
const STATE_HEADER: &str = "Sluicegate-Request-State";
/// How long a client should wait before it asks again, in seconds.
const POLL_AFTER_S: &str = "1";

/// A client's request, as the proxy passed it on.
#[derive(Debug, Clone, Copy)]
pub(super) struct PassedRequest<'a> {
    pub(super) method: &'a str,
    pub(super) headers: &'a [(&'a str, &'a [u8])],
    pub(super) body: &'a Bytes,
}

/// Where a request is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestDestination<'t, 'p> {
    stream: &'t Arc<EventStream>,
    /// The path of the stream.
    path: &'p str,
    /// The client's path and query, below it.
    target: &'p str,
}

/// The stream of requests that a path leads to.
pub(super) fn find<'t, 'p>(table: &'t RoutingTable, path: &'p str) -> Option<RequestDestination<'t, 'p>> {
    let (end, _) = path.match_indices('/').nth(SLASHES)?;
    let (path, target) = path.split_at(end);
    let stream = table.streams.get(path).filter(|stream| stream.holds_requests())?;
    Some(RequestDestination { stream, path, target })
}

/// Stores a request, or answers one for a result.
pub(super) async fn answer<P: EventSender + Clone>(
    events: &BrokerEngine<P>,
    senders: &CoreSenders,
    table: &Arc<RoutingTable>,
    to: RequestDestination<'_, '_>,
    request: PassedRequest<'_>,
) -> LocalResponse {
    let RequestDestination { stream, path, target } = to;
    // Clients of the events listener do not come in this way.
    if ingress::is_internal(table, request.headers).is_none() {
        return ingress::refused(&IngressRejection::UnknownPath);
    }
    if let Some(text) = target.strip_prefix(RESULTS_PATH) {
        let text = text.split('?').next().unwrap_or_default();
        return answer_result(events, senders, (stream, path), request.method, text).await;
    }
    let Some(id) = random_id() else { return unavailable("the system has no random numbers") };
    let to_store = match check(stream, target, request, id) {
        Ok(to_store) => to_store,
        Err(refused) => return refused,
    };
    let stored = store(events, table, stream, &to_store, request.body).await;
    if stored.status != 202 {
        return stored;
    }
    LocalResponse::text(202, format!("stored as {id}"))
        .with("Location", format!("{RESULTS_PATH}{id}"))
        .with("Preference-Applied", "respond-async")
        .with("Retry-After", POLL_AFTER_S)
        .with(STATE_HEADER, "pending")
}

/// A client that does not know an id must not guess it.
fn random_id() -> Option<RequestId> {
    let mut bits = [0; 16];
    SystemRandom::new().fill(&mut bits).ok()?;
    Some(RequestId::of_bits(u128::from_ne_bytes(bits)))
}

fn check<'a>(
    stream: &'a EventStream,
    target: &'a str,
    request: PassedRequest<'a>,
    id: RequestId,
) -> Result<RequestToStore<'a>, LocalResponse> {
    let Some(method) = StoredMethod::parse(request.method) else {
        return Err(LocalResponse::text(405, "only POST, PUT, PATCH and DELETE are stored"));
    };
    let host = request.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, value)| *value);
    let Some(host) = host.and_then(|host| std::str::from_utf8(host).ok()) else {
        return Err(LocalResponse::text(400, "the request has no Host"));
    };
    let (bytes, max) = (request.body.len(), stream.event_bytes_max as usize);
    if bytes > max {
        return Err(LocalResponse::text(
            413,
            format!("the body has {bytes} bytes, a stored request has at most {max}"),
        ));
    }
    let bytes = fields_bytes(request.headers);
    if bytes > REQUEST_FIELDS_BYTES_MAX {
        let why = format!("the header has {bytes} bytes, that of a stored request at most {REQUEST_FIELDS_BYTES_MAX}");
        return Err(LocalResponse::text(431, why));
    }
    if target.len() > REQUEST_TARGET_BYTES_MAX {
        let why = format!("the path of a stored request has at most {REQUEST_TARGET_BYTES_MAX} bytes");
        return Err(LocalResponse::text(414, why));
    }
    Ok(RequestToStore { id, source: &stream.name, method, target, host, headers: request.headers })
}

async fn answer_result<P: EventSender + Clone>(
    events: &BrokerEngine<P>,
    senders: &CoreSenders,
    (stream, path): (&Arc<EventStream>, &str),
    method: &str,
    text: &str,
) -> LocalResponse {
    if !matches!(method, "GET" | "HEAD") {
        return LocalResponse::text(405, "a result is read with GET").with("Allow", "GET, HEAD");
    }
    let unknown =
        || LocalResponse::text(404, "no stored request has this id: it never existed, or its result has expired");
    let Some(id) = RequestId::parse(text) else { return unknown() };
    if let Some(found) = result(events, stream, id).await {
        return found;
    }
    // The request came to another core.
    let found = senders.result(path, id).await;
    found.unwrap_or_else(unknown)
}

/// Appends a request; the answer is 202 when it is durable.
async fn store<P: EventSender + Clone>(
    events: &BrokerEngine<P>,
    table: &Arc<RoutingTable>,
    stream: &Arc<EventStream>,
    request: &RequestToStore<'_>,
    body: &[u8],
) -> LocalResponse {
    let head = encode_request(request);
    let appended = match events.append_record(table, stream, &[&head, body]) {
        Ok(appended) => appended,
        Err(refused) => return refused,
    };
    if let Ok(feed) = events.home_writer.feed_of(stream) {
        events.home_writer.requests.note(feed.id, request.id, None);
    }
    events.acknowledge(stream, 1, Ok(appended), Durability::default()).await
}

/// What this core knows of a request: its response, or that there is none yet. `None`: nothing.
pub(super) async fn result<P: EventSender + Clone>(
    events: &BrokerEngine<P>,
    stream: &Arc<EventStream>,
    id: RequestId,
) -> Option<LocalResponse> {
    let mut is_pending = false;
    for writer in events.writers() {
        let Ok(feed) = writer.feed_of(stream) else { continue };
        if writer.requests.is_incomplete() {
            return Some(unavailable("the stored requests of an earlier process are being read"));
        }
        let Some(found) = writer.requests.get(feed.id, id) else { continue };
        let Some(position) = found.response else {
            is_pending = true;
            continue;
        };
        let (at_ms, record) = request_scan::read(writer, feed.id, position).await?;
        let age_ms = wall_clock_ms().saturating_sub(at_ms);
        let is_expired = u128::from(age_ms) > stream.keeping.history_time.as_millis();
        return read_response(&record).filter(|_| !is_expired).map(|mut response| {
            response.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("date")); // this response has its own
            response.with(STATE_HEADER, "done")
        });
    }
    is_pending.then(|| {
        LocalResponse::text(202, "not answered yet: ask again later")
            .with("Retry-After", POLL_AFTER_S)
            .with(STATE_HEADER, "pending")
    })
}

#[cfg(test)]
mod tests {
    use contract::table::RetentionPolicy;

    use super::*;

    const HOST: (&str, &[u8]) = ("Host", b"app.ns.localhost");

    fn stream(name: &str) -> EventStream {
        EventStream {
            name: name.into(),
            event_bytes_max: 4,
            keeping: RetentionPolicy::default(),
            quota: Arc::default(),
            in_order: false,
            is_closed: true,
            guards_loops: false,
            types: None,
            admission: None,
            subscribers: Vec::new(),
            external: None,
            tally: Arc::default(),
        }
    }

    #[test]
    fn request_beyond_a_limit_is_refused_with_its_status() {
        let (stream, id) = (stream("requests/ns/app/1"), RequestId::of_bits(1));
        let large = vec![b'a'; REQUEST_FIELDS_BYTES_MAX];
        let long = format!("/{}", "a".repeat(REQUEST_TARGET_BYTES_MAX));
        for (method, target, headers, body, wanted) in [
            ("POST", "/a", vec![HOST], "1234", None),
            ("GET", "/a", vec![HOST], "", Some(405)),
            ("POST", "/a", vec![], "", Some(400)),
            ("POST", "/a", vec![("host", &b"\xff"[..])], "", Some(400)),
            ("PUT", "/a", vec![HOST], "12345", Some(413)),
            ("PATCH", "/a", vec![HOST, ("x", &large[..])], "", Some(431)),
            ("DELETE", &long, vec![HOST], "", Some(414)),
        ] {
            let body = Bytes::copy_from_slice(body.as_bytes());
            let request = PassedRequest { method, headers: &headers, body: &body };
            let refused = check(&stream, target, request, id).err().map(|refused| refused.status);
            assert_eq!(refused, wanted, "{method} {}", target.len());
        }
    }

    #[test]
    fn path_of_a_stream_of_requests_has_more_below() {
        let streams = [("/requests/ns/app", stream("requests/ns/app/1")), ("/brokers/ns/b", stream("broker/ns/b/1"))];
        let streams = streams.into_iter().map(|(path, stream)| (path.into(), Arc::new(stream))).collect();
        let table = RoutingTable { streams, ..RoutingTable::default() };
        let found = |path| find(&table, path).map(|found| (found.path, found.target));
        assert_eq!(found("/requests/ns/app/a?b=/c"), Some(("/requests/ns/app", "/a?b=/c")));
        assert_eq!(found("/requests/ns/app/"), Some(("/requests/ns/app", "/")));
        for path in ["/requests/ns/app", "/requests/ns/other/", "/brokers/ns/b/", ""] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
