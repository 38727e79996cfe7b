//! Sinks behind the events listener: a request is admitted as one for a stream is, and passed on to the program of the sink,
//! whose response is the answer. Nothing is stored here.

use bytes::Bytes;
use codec::encode::EncodedEvent;
use codec::hop_fields::is_hop_field;
use codec::http::{LocalResponse, Method};
use contract::event_response::{answer as reply, unavailable};
use contract::post_error::PostError;
use contract::table::{RoutingTable, SinkRoute};

use super::engine::BrokerEngine;
use super::ingress::{self, IngressRejection};
use super::limits::SINK_RESPONSE_TIMEOUT;
use super::sender::HttpSender;

/// The slashes before the end of a sink's path: `/sinks/PLURAL/NAMESPACE/NAME`.
const SLASHES: usize = 4;
/// Further fields that the writer of the message adds.
const OWN_FIELDS: [&str; 2] = ["date", "allow"];

/// A client's request for a sink.
#[derive(Debug, Clone, Copy)]
pub(super) struct SinkRequest<'a> {
    pub(super) method: &'a str,
    /// The path below the sink's.
    pub(super) rest: &'a str,
    pub(super) headers: &'a [(&'a str, &'a [u8])],
    pub(super) body: &'a Bytes,
}

/// The sink at a request's path, and the path below it. A query is ignored.
pub(super) fn find<'t, 'p>(table: &'t RoutingTable, path: &'p str) -> Option<(&'t SinkRoute, &'p str)> {
    let path = path.split('?').next().unwrap_or_default();
    let end = path.match_indices('/').nth(SLASHES).map_or(path.len(), |(at, _)| at);
    let sink = table.event_sinks.get(&path[..end])?;
    Some((sink, path[end..].trim_end_matches('/')))
}

/// The method with which a request is passed on.
fn method_of(sink: &SinkRoute, method: &str, rest: &str) -> Result<Method, IngressRejection> {
    match (method, rest.is_empty()) {
        ("POST", true) => Ok(Method::Post),
        ("OPTIONS", true) => Err(IngressRejection::Options),
        (_, true) => Err(IngressRejection::Method),
        ("GET", false) if sink.has_subresources => Ok(Method::Get),
        (_, false) => Err(IngressRejection::UnknownPath),
    }
}

/// Answers a request for a sink.
pub(super) async fn answer(
    events: &BrokerEngine<HttpSender>,
    sender: &HttpSender,
    sink: &SinkRoute,
    request: SinkRequest<'_>,
) -> LocalResponse {
    let method = match admit(events, sink, request) {
        Ok(method) => method,
        Err(why) => return ingress::refused(&why),
    };
    let mut target = sink.target.clone();
    if !request.rest.is_empty() {
        target.path = format!("{}{}", target.path, request.rest).into();
    }
    match sender.forward(&target, method, outgoing(sink, request), SINK_RESPONSE_TIMEOUT).await {
        Ok(mut response) => {
            response.headers.retain(|(name, _)| !is_own(name));
            response
        }
        Err(PostError::Timeout(limit)) => reply(504, &format!("the sink did not answer within {limit:?}")),
        // The host of the target is not for clients.
        Err(PostError::Unresolved { .. }) => unavailable("the sink is not ready: its program does not run"),
        Err(why) => unavailable(&why.to_string()),
    }
}

fn admit(
    events: &BrokerEngine<HttpSender>,
    sink: &SinkRoute,
    request: SinkRequest<'_>,
) -> Result<Method, IngressRejection> {
    let method = method_of(sink, request.method, request.rest)?;
    if let Some(admission) = &sink.admission {
        let event = (method == Method::Post).then_some(&**request.body);
        events.admit_to_sink(admission, request.headers, event)?;
    }
    Ok(method)
}

/// The request as it is passed on. The token of its sender was for this listener.
fn outgoing(sink: &SinkRoute, request: SinkRequest<'_>) -> EncodedEvent {
    let mut out = EncodedEvent { fields: Vec::new(), body: request.body.clone() };
    let is_token = |name: &str| sink.admission.is_some() && name.eq_ignore_ascii_case("authorization");
    for (name, value) in request.headers.iter().filter(|(name, _)| !is_own(name) && !is_token(name)) {
        out.push(name, value);
    }
    out
}

fn is_own(name: &str) -> bool {
    is_hop_field(name) || OWN_FIELDS.iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::target;

    fn sink(has_subresources: bool) -> SinkRoute {
        SinkRoute { admission: None, target: target("http://s/sinks/jobsinks/ns/s"), has_subresources }
    }

    #[test]
    fn path_names_the_sink_and_what_is_below() {
        let sinks = [("/sinks/jobsinks/ns/s".into(), sink(true))].into_iter().collect();
        let table = RoutingTable { event_sinks: Arc::new(sinks), ..RoutingTable::default() };
        let rest = |path| find(&table, path).map(|(_, rest)| rest);
        for (path, wanted) in [
            ("/sinks/jobsinks/ns/s", Some("")),
            ("/sinks/jobsinks/ns/s/?a=b", Some("")),
            ("/sinks/jobsinks/ns/s/sources/a/ids/1", Some("/sources/a/ids/1")),
            ("/sinks/jobsinks/ns/other", None),
            ("/sinks/jobsinks/ns", None),
            ("", None),
        ] {
            assert_eq!(rest(path), wanted, "{path}");
        }
    }

    #[test]
    fn only_events_and_subresources_are_passed_on() {
        for (has_subresources, method, rest, wanted) in [
            (false, "POST", "", Ok(Method::Post)),
            (false, "OPTIONS", "", Err(200)),
            (false, "PUT", "", Err(405)),
            (false, "GET", "/sources/a", Err(404)),
            (true, "GET", "/sources/a", Ok(Method::Get)),
            (true, "POST", "/sources/a", Err(404)),
            (true, "GET", "", Err(405)),
        ] {
            let found = method_of(&sink(has_subresources), method, rest).map_err(|why| ingress::refused(&why).status);
            assert_eq!(found, wanted, "{method} {rest}");
        }
    }

    #[test]
    fn fields_of_the_connection_are_not_passed_on() {
        let headers: [(&str, &[u8]); 5] = [
            ("Host", b"h"),
            ("ce-id", b"1"),
            ("Transfer-Encoding", b"chunked"),
            ("SLUICEGATE-Internal", b"key"),
            ("Content-Type", b"text/plain"),
        ];
        let body = Bytes::from_static(b"x");
        let request = SinkRequest { method: "POST", rest: "", headers: &headers, body: &body };
        let fields = outgoing(&sink(false), request).fields;
        assert_eq!(fields, b"ce-id: 1\r\nContent-Type: text/plain\r\n");
    }
}
