//! Writes heads directly into the outgoing buffer.
//!
//! Removed on the way to an instance: fields of one hop (`Connection` and every field it names, `Keep-Alive`,
//! `Proxy-*`, `TE`, `Transfer-Encoding`, `Upgrade`), `K-Network-Hash` and other fields that only a platform sets
//! ([`codec::http::FieldName::Platform`]), everything under `Sluicegate-`, and fields that the route sets itself.
//! Added: the route's [`HeaderEdits`], `Forwarded`, `X-Forwarded-For`, `-Proto`, `-Host`, `traceparent`. All other
//! fields, `Host` first, are forwarded unchanged and in order (RT-HDR-01).
//!
//! What a client says about other clients (`Forwarded`, `X-Forwarded-…`, `X-Real-IP`) is removed, unless the client is a trusted
//! proxy: anybody can write `X-Forwarded-For: 10.0.0.1`.

use bytes::{BufMut, BytesMut};
use codec::hex;
use codec::http::DateText;
use codec::http::put_status;
use codec::http::{BodyFraming, FieldName, RequestView, ResponseView, UpgradeRequest, has_token, is_authority, tokens};
use contract::client_address::{ClientAddress, ClientScheme, forwarded_node};
use contract::forwarded_chain::{accepted_elements, accepted_hops, hop_address, node_address};
use contract::table::{HeaderChanges, HeaderEdits};
use fastrand::Rng;

use super::field_copier::{FieldCopier, put_field};

/// Writes the head for an instance, including the empty line. `edits` are the route's.
pub fn put_request(
    out: &mut BytesMut,
    request: RequestView<'_>,
    peer: &ClientAddress,
    edits: Option<&HeaderEdits>,
    rng: &mut Rng,
) {
    let head = request.head;
    out.reserve(request.bytes.len() + 512); // the additions are shorter, except for odd Forwarded chains
    let host = edits.and_then(HeaderEdits::host).map_or(request.authority_bytes(), str::as_bytes);
    let space: &[u8] = if request.root().is_empty() { b" " } else { b" /" };
    match edits.and_then(HeaderEdits::path) {
        None => put_all(out, &[request.method_bytes(), space, request.path_bytes()]),
        Some(rewrite) => {
            let [front, slash, rest] = rewrite.parts(request.path()).map(str::as_bytes);
            put_all(out, &[request.method_bytes(), b" ", front, slash, rest]);
        }
    }
    put_all(out, &[b" HTTP/1.1\r\nHost: ", host, b"\r\n"]);

    let trace = TracePropagation::of(request);
    let has = put_fields(out, request, edits, (trace, peer.trust().is_some()));
    for (name, value) in edits.into_iter().flat_map(HeaderEdits::headers) {
        put_field(out, name.as_bytes(), value.as_bytes());
    }

    if let Some(hops) = head.hops_left {
        let less = hops.saturating_sub(1);
        put_field(out, b"Max-Forwards", itoa::Buffer::new().format(less).as_bytes());
    }
    if head.framing == BodyFraming::Chunked {
        out.put_slice(b"Transfer-Encoding: chunked\r\n");
    }
    match head.upgrade {
        UpgradeRequest::WebSocket => out.put_slice(WEBSOCKET),
        UpgradeRequest::Admitted { offered, .. } => {
            let protocol = request.upgrades().nth(usize::from(offered)).unwrap_or_default();
            put_all(out, &[CONNECTION_UPGRADE, b"Upgrade: ", protocol, b"\r\n"]);
        }
        UpgradeRequest::None | UpgradeRequest::Offered => {}
    }
    put_forwarding(out, request, peer, &has);
    if trace == TracePropagation::Fresh {
        put_fresh_trace(out, rng);
    }
    out.put_slice(b"\r\n");
}

/// Writes the fields that are forwarded.
fn put_fields(
    out: &mut BytesMut,
    request: RequestView<'_>,
    edits: Option<&HeaderEdits>,
    (trace, is_trusted): (TracePropagation, bool),
) -> PresentFields {
    let head = request.head;
    let mut lines = FieldCopier::of(request.bytes);
    let mut has = PresentFields::default();
    for field in &head.fields {
        match field.kind {
            FieldName::Host
            | FieldName::TransferEncoding
            | FieldName::Connection
            | FieldName::Upgrade
            | FieldName::HopByHop
            | FieldName::NetworkHash
            | FieldName::Platform
            | FieldName::Internal => continue,
            FieldName::Forwarded
            | FieldName::ForwardedFor
            | FieldName::ForwardedHost
            | FieldName::ForwardedProto
            | FieldName::ForwardedOther
                if !is_trusted =>
            {
                continue;
            }
            FieldName::Forwarded => {
                has.forwarded = true;
                continue;
            }
            FieldName::ForwardedFor => {
                has.chain = true;
                continue;
            }
            FieldName::ForwardedHost => has.host = true,
            FieldName::ForwardedProto => has.proto = true,
            FieldName::Expect if !head.expects_continue => continue,
            FieldName::MaxForwards if head.hops_left.is_some() => continue,
            FieldName::TraceParent | FieldName::TraceState if trace == TracePropagation::Fresh => continue,
            FieldName::Other
            | FieldName::ForwardedOther
            | FieldName::Date
            | FieldName::MaxForwards
            | FieldName::TraceState
                if head.nominates
                    && is_nominated(field.name.in_bytes(request.bytes), request.values(FieldName::Connection)) =>
            {
                continue;
            }
            _ if edits.is_some_and(|edits| edits.replaces(field.name.in_bytes(request.bytes))) => continue,
            _ => {}
        }
        lines.put(out, field);
    }
    lines.end(out);
    has
}

#[derive(Default, PartialEq, Eq)]
pub(super) struct PresentFields {
    pub(super) forwarded: bool,
    pub(super) chain: bool,
    pub(super) host: bool,
    pub(super) proto: bool,
}

/// RT-HDR-05..07. The list of a trusted proxy is kept, from the entry of the first client on, and gets this client appended;
/// lists on several lines become one, because many applications read the first line only.
pub(super) fn put_forwarding(out: &mut BytesMut, request: RequestView<'_>, peer: &ClientAddress, has: &PresentFields) {
    let host = request.authority_bytes();
    if *has == PresentFields::default() && !host.is_empty() {
        return put_first_forwarding(out, host, peer);
    }
    out.put_slice(b"X-Forwarded-For: ");
    if has.chain {
        put_list(out, accepted_hops(request, peer));
    }
    put_all(out, &[peer.forwarded_for().as_bytes(), b"\r\n"]);
    if !has.proto {
        put_field(out, b"X-Forwarded-Proto", peer.scheme().name().as_bytes());
    }
    if !has.host && !host.is_empty() {
        put_field(out, b"X-Forwarded-Host", host);
    }

    out.put_slice(b"Forwarded: ");
    if has.forwarded && is_forwarded_usable(request, peer, has.chain) {
        put_list(out, accepted_elements(request, peer));
        put_element(out, peer.forwarded_node(), Some((host, peer.scheme().name().as_bytes())));
    } else {
        put_forwarded_from_older(out, request, peer, has);
    }
    out.put_slice(b"\r\n");
}

/// All four fields, for a request without any, as most are. In as few pieces as possible.
fn put_first_forwarding(out: &mut BytesMut, host: &[u8], peer: &ClientAddress) {
    let (proto, end): (&[u8], &[u8]) = match peer.scheme() {
        ClientScheme::Http => (b"\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: ", b"\";proto=http\r\n"),
        ClientScheme::Https => (b"\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: ", b"\";proto=https\r\n"),
    };
    let (plain, node) = (peer.forwarded_for().as_bytes(), peer.forwarded_node().as_bytes());
    put_all(out, &[b"X-Forwarded-For: ", plain, proto, host]);
    put_all(out, &[b"\r\nForwarded: for=", node, b";host=\"", host, end]);
}

fn put_list<'a>(out: &mut BytesMut, values: impl Iterator<Item = &'a [u8]>) {
    for value in values.filter(|value| !value.is_empty()) {
        put_all(out, &[value, b", "]);
    }
}

/// Builds `Forwarded` from the received `X-Forwarded-*`: host and proto are those of the first hop.
fn put_forwarded_from_older(out: &mut BytesMut, request: RequestView<'_>, peer: &ClientAddress, has: &PresentFields) {
    let authority = request.authority_bytes();
    // The first hop comes first in the list, on however many lines.
    let first = |name: FieldName| request.values(name).flat_map(tokens).next();
    let host = match first(FieldName::ForwardedHost) {
        Some(host) if has.host && is_authority(host) => host,
        _ => authority,
    };
    let proto: &[u8] = match first(FieldName::ForwardedProto) {
        Some(proto) if proto.eq_ignore_ascii_case(b"https") => b"https",
        Some(_) => b"http",
        None => peer.scheme().name().as_bytes(),
    };

    let mut origin = Some((host, proto));
    if has.chain {
        for hop in accepted_hops(request, peer) {
            // A value that is not an address could break the list syntax.
            match std::str::from_utf8(hop).ok().and_then(hop_address) {
                Some(ip) => put_element(out, &forwarded_node(ip), origin.take()),
                None => put_element(out, "unknown", origin.take()),
            }
            out.put_slice(b", ");
        }
    }
    put_element(out, peer.forwarded_node(), origin);
}

/// Whether `Forwarded` comes from the trusted proxy. One that only knows `X-Forwarded-For` passes on what its client sent, and
/// then the last hops differ. Escapes and open quotes could hide a proxy's element inside a client's.
fn is_forwarded_usable(request: RequestView<'_>, peer: &ClientAddress, has_chain: bool) -> bool {
    let is_plain =
        |value: &[u8]| !value.contains(&b'\\') && value.iter().filter(|byte| **byte == b'"').count() % 2 == 0;
    if !request.values(FieldName::Forwarded).all(is_plain) {
        return false;
    }
    let hop = |hop: &[u8]| std::str::from_utf8(hop).ok().and_then(hop_address);
    !has_chain
        || accepted_hops(request, peer).last().map(hop) == accepted_elements(request, peer).last().map(node_address)
}

fn put_element(out: &mut BytesMut, node: &str, origin: Option<(&[u8], &[u8])>) {
    put_all(out, &[b"for=", node.as_bytes()]);
    if let Some((host, proto)) = origin {
        if !host.is_empty() {
            // A port's colon has to be quoted.
            put_all(out, &[b";host=\"", host, b"\""]);
        }
        put_all(out, &[b";proto=", proto]);
    }
}

/// Whether to forward or begin a trace (RT-HDR-08).
#[derive(Clone, Copy, PartialEq, Eq)]
enum TracePropagation {
    Propagated,
    /// No valid context came: then its `tracestate` is removed as well (W3C trace context 3.2).
    Fresh,
}

impl TracePropagation {
    fn of(request: RequestView<'_>) -> Self {
        let mut parents = request.values(FieldName::TraceParent);
        match (parents.next(), parents.next()) {
            (Some(parent), None) if is_trace_parent(parent) => Self::Propagated,
            _ => Self::Fresh,
        }
    }
}

fn is_trace_parent(value: &[u8]) -> bool {
    let hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let zero = |part: &[u8]| part.iter().all(|&byte| byte == b'0');
    if value.len() < 55 || value[2] != b'-' || value[35] != b'-' || value[52] != b'-' {
        return false;
    }
    let (version, trace, span, flags) = (&value[..2], &value[3..35], &value[36..52], &value[53..55]);
    let length_fits = match version {
        b"00" => value.len() == 55,
        b"ff" => false,
        _ => value.len() == 55 || value[55] == b'-',
    };
    length_fits && hex(version) && hex(trace) && hex(span) && hex(flags) && !zero(trace) && !zero(span)
}

fn put_fresh_trace(out: &mut BytesMut, rng: &mut Rng) {
    put_field(out, b"traceparent", &fresh_trace_parent(rng));
}

/// A new trace's `traceparent`. Flag 01: without the gateway the application would have sampled by its own rule, and 00
/// would forbid it.
#[must_use]
pub fn fresh_trace_parent(rng: &mut Rng) -> [u8; 55] {
    let mut new = *b"00-00000000000000000000000000000000-0000000000000000-01";
    hex::put(&mut new[3..35], rng.u128(1..));
    hex::put(&mut new[36..52], rng.u64(1..).into());
    new
}

/// The trace id of a request that came with one.
#[must_use]
pub fn incoming_trace_id(request: RequestView<'_>) -> Option<[u8; 32]> {
    incoming_trace_parent(request)?.get(3..35)?.try_into().ok()
}

/// The `traceparent` of a request, if it is valid.
#[must_use]
pub fn incoming_trace_parent(request: RequestView<'_>) -> Option<&[u8]> {
    request
        .values(FieldName::TraceParent)
        .next()
        .filter(|_| TracePropagation::of(request) == TracePropagation::Propagated)
}

/// The id of the trace that [`put_request`] began. It is at the end of the head.
#[must_use]
pub fn fresh_trace_id(head: &[u8]) -> Option<[u8; 32]> {
    const BEGIN: &[u8] = b"\r\ntraceparent: 00-";
    let at = memchr::memmem::rfind(head, BEGIN)? + BEGIN.len();
    head.get(at..at + 32)?.try_into().ok()
}

/// Whether `Connection` names the field.
pub(super) fn is_nominated<'a>(name: &[u8], mut connection: impl Iterator<Item = &'a [u8]>) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| connection.any(|value| has_token(value, name)))
}

/// How to write a response for its client.
#[derive(Debug, Clone, Copy)]
pub struct ResponseContext {
    /// The body is sent in chunks.
    pub chunked: bool,
    /// The connection closes after this response.
    pub close: bool,
    /// The client speaks HTTP/1.0 and gets `Connection: keep-alive`.
    pub keep_alive: bool,
    /// The connection switches to another protocol.
    pub upgrade: SwitchedProtocol,
    /// For a response without a date; interim responses need none.
    pub date: Option<DateText>,
}

impl ResponseContext {
    /// An interim response.
    pub const INTERIM: Self =
        Self { chunked: false, close: false, keep_alive: false, upgrade: SwitchedProtocol::None, date: None };
}

/// What the connection switches to with this response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchedProtocol {
    None,
    WebSocket,
    /// Another one, which the response names.
    Other,
}

/// The hop-by-hop field of an upgrade.
const CONNECTION_UPGRADE: &[u8] = b"Connection: Upgrade\r\n";

/// Begins a WebSocket, in a request or its response.
const WEBSOCKET: &[u8] = b"Connection: Upgrade\r\nUpgrade: websocket\r\n";

/// The client has to use another protocol, which `Upgrade` names.
const UPGRADE_REQUIRED: u16 = 426;

/// Appends a field to a head that was written last, before its empty line.
pub fn add_field(out: &mut BytesMut, name: &str, value: &[u8]) {
    debug_assert!(out.ends_with(b"\r\n\r\n"), "a head ends with an empty line");
    out.truncate(out.len().saturating_sub(2));
    put_field(out, name.as_bytes(), value);
    out.put_slice(b"\r\n");
}

/// Writes the head of an instance's response, interim or final, including the empty line.
pub fn put_response(out: &mut BytesMut, response: ResponseView<'_>, client: ResponseContext) {
    put_changed_response(out, response, client, None);
}

/// The same, with the changes of the route.
pub fn put_changed_response(
    out: &mut BytesMut,
    response: ResponseView<'_>,
    client: ResponseContext,
    changes: Option<&HeaderChanges>,
) {
    let head = response.head;
    out.reserve(response.bytes.len() + 128); // the additions are shorter
    out.put_slice(b"HTTP/1.1 ");
    put_status(out, head.status);
    put_all(out, &[b" ", response.reason(), b"\r\n"]);

    let no_length = head.status < 200 || head.status == 204;
    let (mut has_date, mut upgrades) = (false, false);
    let mut lines = FieldCopier::of(response.bytes);
    for field in &head.fields {
        match field.kind {
            _ if changes.is_some_and(|changes| changes.drops(field.name.in_bytes(response.bytes))) => continue,
            FieldName::Date => has_date = true,
            // RFC 9110 7.8: the protocols that the instance requires.
            FieldName::Upgrade if head.status == UPGRADE_REQUIRED => upgrades = true,
            FieldName::Upgrade if client.upgrade == SwitchedProtocol::Other => upgrades = true,
            FieldName::Connection | FieldName::Upgrade | FieldName::HopByHop | FieldName::TransferEncoding => continue,
            FieldName::ContentLength if no_length || client.chunked => continue,
            FieldName::Other | FieldName::ForwardedOther
                if head.nominates
                    && is_nominated(field.name.in_bytes(response.bytes), response.values(FieldName::Connection)) =>
            {
                continue;
            }
            _ => {}
        }
        lines.put(out, field);
    }
    lines.end(out);
    for (name, value) in changes.into_iter().flat_map(HeaderChanges::written) {
        has_date |= FieldName::of(name.as_bytes()) == FieldName::Date;
        put_field(out, name.as_bytes(), value.as_bytes());
    }

    if let Some(date) = client.date.filter(|_| !has_date) {
        put_field(out, b"Date", &date);
    }
    if client.chunked {
        out.put_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if client.upgrade == SwitchedProtocol::WebSocket {
        out.put_slice(WEBSOCKET);
    } else if client.close && head.status >= 200 {
        out.put_slice(b"Connection: close\r\n");
    } else if client.keep_alive && head.status >= 200 {
        out.put_slice(b"Connection: keep-alive\r\n");
    }
    if upgrades {
        out.put_slice(CONNECTION_UPGRADE);
    }
    out.put_slice(b"\r\n");
}

pub(super) fn put_all(out: &mut BytesMut, parts: &[&[u8]]) {
    for part in parts {
        out.put_slice(part);
    }
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
