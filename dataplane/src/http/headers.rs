//! Writes the heads that leave, straight into the outgoing buffer.
//!
//! Removed on the way to an instance: what belongs to one hop (`Connection` and every field it names,
//! `Keep-Alive`, `Proxy-*`, `TE`, `Transfer-Encoding`, `Upgrade`), `K-Network-Hash` and what else only a platform
//! tells ([`super::codec::FieldName::Platform`]), everything under `Sluicegate-`, and what the route sets itself. Added: the route's [`HeaderEdits`], `Forwarded`,
//! `X-Forwarded-For`, `-Proto`, `-Host`, `traceparent`. All else, `Host` first, goes through unchanged and in
//! its order (RT-HDR-01).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use fastrand::Rng;

use super::codec::{
    BodyFraming, FieldName, RequestView, ResponseView, UpgradeRequest, has_token, is_authority, tokens,
};
use super::date::DateText;
use super::field_copier::{FieldCopier, put_field};
use crate::hex;
use crate::table::HeaderEdits;

/// How a client reached us.
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

/// Whom a request came from, in the two spellings that headers want; made once a connection.
#[derive(Debug)]
pub struct ClientAddress {
    pub address: SocketAddr,
    /// Came by the private listener.
    is_internal: bool,
    /// What hosts without a dot are completed by.
    domain: Option<Arc<str>>,
    scheme: ClientScheme,
    plain: Box<str>,
    /// As `Forwarded` wants it: IPv6 in brackets and quotes.
    node: Box<str>,
}

impl ClientAddress {
    /// As logs have it: an IPv4 address that came by IPv6 is one.
    #[must_use]
    pub fn canonical(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip().to_canonical(), self.address.port())
    }

    #[must_use]
    pub fn new(address: SocketAddr, scheme: ClientScheme) -> Self {
        let ip = address.ip().to_canonical();
        Self { address, is_internal: false, domain: None, scheme, plain: ip.to_string().into(), node: node(ip).into() }
    }

    /// The same, come by the private listener or not.
    #[must_use]
    pub fn inside(self, inside: bool) -> Self {
        Self { is_internal: inside, ..self }
    }

    /// The same; hosts without a dot are in `domain`.
    #[must_use]
    pub fn within(self, domain: Option<Arc<str>>) -> Self {
        Self { domain, ..self }
    }

    /// What hosts without a dot are completed by.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// Whether it may ask for what is not for the public.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.is_internal
    }

    /// Whether it asked without TLS.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.scheme == ClientScheme::Http
    }
}

fn node(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("\"[{ip}]\""),
    }
}

/// Writes the head that an instance gets, the empty line included. `edits` are the route's.
pub fn put_request(
    out: &mut BytesMut,
    request: RequestView<'_>,
    peer: &ClientAddress,
    edits: Option<&HeaderEdits>,
    rng: &mut Rng,
) {
    let head = request.head;
    out.reserve(request.bytes.len() + 512); // what we add is shorter, except for odd Forwarded chains
    let host = edits.and_then(HeaderEdits::host).map_or(request.authority_bytes(), str::as_bytes);
    let space: &[u8] = if request.root().is_empty() { b" " } else { b" /" };
    put_all(out, &[request.method_bytes(), space, request.path_bytes(), b" HTTP/1.1\r\nHost: ", host, b"\r\n"]);

    let trace = TracePropagation::of(request);
    let has = put_fields(out, request, edits, trace);
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

/// Writes the fields that pass.
fn put_fields(
    out: &mut BytesMut,
    request: RequestView<'_>,
    edits: Option<&HeaderEdits>,
    trace: TracePropagation,
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
            FieldName::Other | FieldName::Date | FieldName::MaxForwards | FieldName::TraceState
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
struct PresentFields {
    forwarded: bool,
    chain: bool,
    host: bool,
    proto: bool,
}

/// RT-HDR-05..07. A list that came is kept and gets our client appended; lists that came on several
/// lines become one, because many applications read the first line only.
fn put_forwarding(out: &mut BytesMut, request: RequestView<'_>, peer: &ClientAddress, has: &PresentFields) {
    let host = request.authority_bytes();
    if *has == PresentFields::default() && !host.is_empty() {
        return put_first_forwarding(out, host, peer);
    }
    out.put_slice(b"X-Forwarded-For: ");
    if has.chain {
        put_list(out, request.values(FieldName::ForwardedFor));
    }
    put_all(out, &[peer.plain.as_bytes(), b"\r\n"]);
    if !has.proto {
        put_field(out, b"X-Forwarded-Proto", peer.scheme.name().as_bytes());
    }
    if !has.host && !host.is_empty() {
        put_field(out, b"X-Forwarded-Host", host);
    }

    out.put_slice(b"Forwarded: ");
    if has.forwarded {
        put_list(out, request.values(FieldName::Forwarded));
        put_element(out, &peer.node, Some((host, peer.scheme.name().as_bytes())));
    } else {
        put_forwarded_from_older(out, request, peer, has);
    }
    out.put_slice(b"\r\n");
}

/// All four, for a request that came without any: most do. In as few pieces as there are.
fn put_first_forwarding(out: &mut BytesMut, host: &[u8], peer: &ClientAddress) {
    let (proto, end): (&[u8], &[u8]) = match peer.scheme {
        ClientScheme::Http => (b"\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: ", b"\";proto=http\r\n"),
        ClientScheme::Https => (b"\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: ", b"\";proto=https\r\n"),
    };
    let (plain, node) = (peer.plain.as_bytes(), peer.node.as_bytes());
    put_all(out, &[b"X-Forwarded-For: ", plain, proto, host]);
    put_all(out, &[b"\r\nForwarded: for=", node, b";host=\"", host, end]);
}

fn put_list<'a>(out: &mut BytesMut, values: impl Iterator<Item = &'a [u8]>) {
    for value in values.filter(|value| !value.is_empty()) {
        put_all(out, &[value, b", "]);
    }
}

/// `Forwarded` out of the `X-Forwarded-*` that came: host and proto stand with the first hop.
fn put_forwarded_from_older(out: &mut BytesMut, request: RequestView<'_>, peer: &ClientAddress, has: &PresentFields) {
    let authority = request.authority_bytes();
    // A list has the first hop's first, on however many lines it came.
    let first = |name: FieldName| request.values(name).flat_map(tokens).next();
    let host = match first(FieldName::ForwardedHost) {
        Some(host) if has.host && is_authority(host) => host,
        _ => authority,
    };
    let proto: &[u8] = match first(FieldName::ForwardedProto) {
        Some(proto) if proto.eq_ignore_ascii_case(b"https") => b"https",
        Some(_) => b"http",
        None => peer.scheme.name().as_bytes(),
    };

    let mut origin = Some((host, proto));
    if has.chain {
        for hop in request.values(FieldName::ForwardedFor).flat_map(tokens) {
            // What is no address could break out of the list.
            match std::str::from_utf8(hop).ok().and_then(hop_address) {
                Some(ip) => put_element(out, &node(ip), origin.take()),
                None => put_element(out, "unknown", origin.take()),
            }
            out.put_slice(b", ");
        }
    }
    put_element(out, &peer.node, origin);
}

/// The address of a hop: alone, or as `Forwarded` has it (RFC 7239, section 6), in brackets if it is IPv6, with a port or
/// without, in quotes or not.
fn hop_address(hop: &str) -> Option<IpAddr> {
    let hop = hop.strip_prefix('"').map_or(Some(hop), |rest| rest.strip_suffix('"'))?;
    let in_brackets = || hop.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let alone = hop.parse().ok().or_else(|| in_brackets().map(IpAddr::V6));
    alone.or_else(|| hop.parse().ok().map(|address: SocketAddr| address.ip()))
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

/// What to do about trace context (RT-HDR-08).
#[derive(Clone, Copy, PartialEq, Eq)]
enum TracePropagation {
    Propagated,
    /// None came, or one that is invalid: then its `tracestate` goes as well (W3C trace context 3.2).
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

/// A new trace's `traceparent`. Flag 01: without us an application would have sampled by its own rule, and 00 would forbid it.
#[must_use]
pub fn fresh_trace_parent(rng: &mut Rng) -> [u8; 55] {
    let mut new = *b"00-00000000000000000000000000000000-0000000000000000-01";
    hex::put(&mut new[3..35], rng.u128(1..));
    hex::put(&mut new[36..52], rng.u64(1..).into());
    new
}

/// The id of the trace that a request came with.
#[must_use]
pub fn incoming_trace_id(request: RequestView<'_>) -> Option<[u8; 32]> {
    incoming_trace_parent(request)?.get(3..35)?.try_into().ok()
}

/// The `traceparent` that a request came with, if it is one.
#[must_use]
pub fn incoming_trace_parent(request: RequestView<'_>) -> Option<&[u8]> {
    request
        .values(FieldName::TraceParent)
        .next()
        .filter(|_| TracePropagation::of(request) == TracePropagation::Propagated)
}

/// The id of the trace that [`put_request`] began. It stands at the end of the head.
#[must_use]
pub fn fresh_trace_id(head: &[u8]) -> Option<[u8; 32]> {
    const BEGIN: &[u8] = b"\r\ntraceparent: 00-";
    let at = memchr::memmem::rfind(head, BEGIN)? + BEGIN.len();
    head.get(at..at + 32)?.try_into().ok()
}

/// Whether `Connection` names the field.
fn is_nominated<'a>(name: &[u8], mut connection: impl Iterator<Item = &'a [u8]>) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| connection.any(|value| has_token(value, name)))
}

/// How an answer has to be written for the client that gets it.
#[derive(Debug, Clone, Copy)]
pub struct ResponseContext {
    /// The body is sent in chunks of ours.
    pub chunked: bool,
    /// The connection ends after this answer.
    pub close: bool,
    /// The client speaks HTTP/1.0 and is told that the connection does not end.
    pub keep_alive: bool,
    /// The connection goes on in another protocol.
    pub upgrade: SwitchedProtocol,
    /// For one that came without; an interim answer needs none.
    pub date: Option<DateText>,
}

impl ResponseContext {
    /// An interim answer.
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

/// The hop's half of an upgrade.
const CONNECTION_UPGRADE: &[u8] = b"Connection: Upgrade\r\n";

/// What makes a request, or its answer, the beginning of a WebSocket.
const WEBSOCKET: &[u8] = b"Connection: Upgrade\r\nUpgrade: websocket\r\n";

/// The client has to come again by another protocol, which `Upgrade` names.
const UPGRADE_REQUIRED: u16 = 426;

/// Puts one field more behind the others of a head that was written last, with its empty line.
pub fn add_field(out: &mut BytesMut, name: &str, value: &[u8]) {
    debug_assert!(out.ends_with(b"\r\n\r\n"), "a head ends with an empty line");
    out.truncate(out.len().saturating_sub(2));
    put_field(out, name.as_bytes(), value);
    out.put_slice(b"\r\n");
}

/// Writes the head of an instance's answer, interim or final, the empty line included.
pub fn put_response(out: &mut BytesMut, response: ResponseView<'_>, client: ResponseContext) {
    let head = response.head;
    out.reserve(response.bytes.len() + 128); // what we add is shorter
    out.put_slice(b"HTTP/1.1 ");
    put_status(out, head.status);
    put_all(out, &[b" ", response.reason(), b"\r\n"]);

    let no_length = head.status < 200 || head.status == 204;
    let (mut has_date, mut upgrades) = (false, false);
    let mut lines = FieldCopier::of(response.bytes);
    for field in &head.fields {
        match field.kind {
            FieldName::Date => has_date = true,
            // RFC 9110 7.8: which protocols the instance wants instead.
            FieldName::Upgrade if head.status == UPGRADE_REQUIRED => upgrades = true,
            FieldName::Upgrade if client.upgrade == SwitchedProtocol::Other => upgrades = true,
            FieldName::Connection | FieldName::Upgrade | FieldName::HopByHop | FieldName::TransferEncoding => continue,
            FieldName::ContentLength if no_length || client.chunked => continue,
            FieldName::Other
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

/// Writes a status of three digits.
pub fn put_status(out: &mut BytesMut, status: u16) {
    for divisor in [100, 10, 1] {
        out.put_u8(b'0' + (status / divisor % 10) as u8);
    }
}

fn put_all(out: &mut BytesMut, parts: &[&[u8]]) {
    for part in parts {
        out.put_slice(part);
    }
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
