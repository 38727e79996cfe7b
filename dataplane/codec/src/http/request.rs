//! Parses a request head. Strict, because an ambiguity here is request smuggling behind the gateway.

use std::mem::MaybeUninit;

use super::field_names::trim;
use super::transfer_coding::TransferCoding;
use super::{
    BodyFraming, ByteRange, FieldName, HeaderField, HttpVersion, MalformedHttp, Parsed, bare_line_feed, content_length,
    first_line, host, is_cut_by_crlf, text, tokens, with_supported_version,
};
use crate::http::limits::{EMPTY_LINES, FIELDS_USUAL, HeadLimits, REQUEST_LINE_BYTES_MAX, TARGET_BYTES_MAX};

/// Methods that differ in framing or in whether they may be retried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Connect,
    Trace,
    Other,
}

impl Method {
    fn of(name: &str) -> Self {
        match name {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "DELETE" => Self::Delete,
            "OPTIONS" => Self::Options,
            "CONNECT" => Self::Connect,
            "TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }

    /// RFC 9110 9.2.2: sending twice has the effect of sending once.
    #[inline]
    #[must_use]
    pub fn is_idempotent(self) -> bool {
        !matches!(self, Self::Post | Self::Connect | Self::Other)
    }
}

/// Whether a request is a probe of the platform.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PlatformProbe {
    #[default]
    No,
    /// `K-Network-Probe: probe`: whether it would be routed (X-KI-16).
    Route,
    /// By `K-Network-Probe`, `K-Kubelet-Probe` or a kubelet's `User-Agent`: whether the proxy in front of the instances
    /// is healthy (X-QP-06).
    Health,
}

/// A request head as ranges into its bytes. Reused for the connection's next request.
#[derive(Debug, Default)]
pub struct RequestHead {
    /// The maximum size.
    pub limits: HeadLimits,
    pub method: Method,
    pub version: HttpVersion,
    pub framing: BodyFraming,
    /// The client keeps the connection open for further requests.
    pub keep_alive: bool,
    /// `Expect: 100-continue` on a request with a body.
    pub expects_continue: bool,
    /// An `Expect` that is not `100-continue`.
    pub expects_more: bool,
    /// `Connection` names fields beyond `close`, `keep-alive` and `upgrade`.
    pub nominates: bool,
    pub upgrade: UpgradeRequest,
    pub probe: PlatformProbe,
    /// How many proxies may still forward it; only for OPTIONS and TRACE (RFC 9110 7.6.2).
    pub hops_left: Option<u64>,
    pub fields: Vec<HeaderField>,
    method_name: ByteRange,
    /// The effective host: that of the URL when the target is absolute (then Host is ignored).
    authority: ByteRange,
    /// From the path on. Empty, or from the query on, when an absolute URL has no path.
    path: ByteRange,
}

/// Which protocol a request asks for by `Upgrade`, with `Connection: upgrade`, in HTTP/1.1 (RFC 9110 7.8).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeRequest {
    #[default]
    None,
    /// `websocket`, on a GET without a body; on other requests it means nothing (RFC 6455 4.1).
    WebSocket,
    /// Others, which are left out unless the operator's list has one: see [`RequestHead::admit_upgrade`].
    Offered,
    /// The first of the client's that the operator's list has: where it is in each.
    Admitted { offered: u8, listed: u8 },
}

impl RequestHead {
    /// For heads within these limits.
    #[must_use]
    pub fn within(limits: HeadLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// For a head that was parsed before and had fields added.
    #[must_use]
    pub fn rewritten() -> Self {
        Self::within(HeadLimits::REWRITTEN)
    }

    /// The head together with the bytes it was parsed from.
    #[must_use]
    pub fn view<'a>(&'a self, bytes: &'a [u8]) -> RequestView<'a> {
        RequestView { head: self, bytes }
    }
}

/// A head together with its bytes.
#[derive(Debug, Clone, Copy)]
pub struct RequestView<'a> {
    pub head: &'a RequestHead,
    pub bytes: &'a [u8],
}

impl<'a> RequestView<'a> {
    #[inline]
    #[must_use]
    pub fn method(self) -> &'a str {
        text(self.method_bytes())
    }

    /// Path and query as received, after [`root`](Self::root); `*` for `OPTIONS *` and its absolute form `OPTIONS
    /// http://host` (RFC 9112 3.2.4).
    #[inline]
    #[must_use]
    pub fn path(self) -> &'a str {
        text(self.path_bytes())
    }

    /// The `/` that `http://host?query` omits before its query (RFC 9112 3.2.1), or nothing.
    #[inline]
    #[must_use]
    pub fn root(self) -> &'static str {
        if self.head.path.in_bytes(self.bytes).first() == Some(&b'?') { "/" } else { "" }
    }

    /// Host, with the port if one was given. Empty only in HTTP/1.0.
    #[inline]
    #[must_use]
    pub fn authority(self) -> &'a str {
        text(self.authority_bytes())
    }

    /// [`method`](Self::method) for callers that only copy it.
    #[must_use]
    pub fn method_bytes(self) -> &'a [u8] {
        self.head.method_name.in_bytes(self.bytes)
    }

    /// [`path`](Self::path) for callers that only copy it.
    #[must_use]
    pub fn path_bytes(self) -> &'a [u8] {
        match self.head.path.in_bytes(self.bytes) {
            b"" if self.head.method == Method::Options => b"*",
            b"" => b"/",
            path => path,
        }
    }

    /// [`authority`](Self::authority) for callers that only copy it.
    #[must_use]
    pub fn authority_bytes(self) -> &'a [u8] {
        self.head.authority.in_bytes(self.bytes)
    }

    #[inline]
    pub fn fields(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let bytes = self.bytes;
        self.head.fields.iter().map(move |f| (text(f.name.in_bytes(bytes)), f.value.in_bytes(bytes)))
    }

    /// The first field of that name (any case).
    #[inline]
    #[must_use]
    pub fn field(self, name: &str) -> Option<&'a [u8]> {
        self.fields().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All values of one kind, in order.
    #[inline]
    pub fn values(self, kind: FieldName) -> impl Iterator<Item = &'a [u8]> {
        let bytes = self.bytes;
        self.head.fields.iter().filter(move |f| f.kind == kind).map(move |f| f.value.in_bytes(bytes))
    }
}

/// Parses a request head from the front of `bytes` into `head`.
#[must_use]
pub fn parse_request(bytes: &[u8], head: &mut RequestHead) -> Parsed {
    let window = &bytes[..bytes.len().min(head.limits.bytes())];
    match lines(window, head) {
        Ok(Some(end)) => match check_fields(window, head) {
            Ok(()) => Parsed::Head { bytes: end },
            Err(why) => Parsed::Malformed(why),
        },
        Ok(None) if window.len() == head.limits.bytes() => Parsed::Malformed(MalformedHttp::HeadTooLarge),
        Ok(None) => Parsed::NeedBytes,
        Err(why) => Parsed::Malformed(why),
    }
}

/// Splits the lines; `None` when the head is incomplete.
fn lines(window: &[u8], head: &mut RequestHead) -> Result<Option<usize>, MalformedHttp> {
    let end = split(window, head);
    if let Ok(Some(end)) = end
        && is_usual(&window[..end], head)
    {
        return Ok(Some(end));
    }
    let read = end.as_ref().map_or(window.len(), |end| end.unwrap_or(window.len()));
    match violation(&window[..read]) {
        None => end,
        // An error before this position is reported first, as if the bytes had arrived one by one.
        Some((at, why)) => split(&window[..at], head).and(Err(why)),
    }
}

/// A first line within its limit and only complete lines: [`violation`] cannot find anything.
fn is_usual(whole: &[u8], head: &RequestHead) -> bool {
    let line = head.fields.first().map_or(whole.len(), |field| field.name.start as usize);
    line <= REQUEST_LINE_BYTES_MAX && is_cut_by_crlf(whole, &head.fields)
}

/// Finds what httparse accepts and this parser does not: a bare LF as a line end, a line of any length, any number of
/// empty lines.
fn violation(read: &[u8]) -> Option<(usize, MalformedHttp)> {
    if read.starts_with(EMPTY_LINES) {
        return Some((EMPTY_LINES.len(), MalformedHttp::RequestLine));
    }
    let line = &read[..read.len().min(REQUEST_LINE_BYTES_MAX)];
    if read.len() > REQUEST_LINE_BYTES_MAX && memchr::memchr(b'\n', line).is_none() {
        return Some((REQUEST_LINE_BYTES_MAX, MalformedHttp::TargetTooLong));
    }
    bare_line_feed(read).map(|at| (at, MalformedHttp::BareLineFeed))
}

fn split(window: &[u8], head: &mut RequestHead) -> Result<Option<usize>, MalformedHttp> {
    match split_as_it_is(window, head) {
        Err(MalformedHttp::Version) => match version_at(window).and_then(|at| with_supported_version(window, at)) {
            Some(known) => split_as_it_is(&known, head),
            None => Err(MalformedHttp::Version),
        },
        split => split,
    }
}

/// The position of the version, after method and target.
fn version_at(window: &[u8]) -> Option<usize> {
    let begin = first_line(window)?;
    Some(begin + memchr::memchr_iter(b' ', &window[begin..]).nth(1)? + 1)
}

fn split_as_it_is(window: &[u8], head: &mut RequestHead) -> Result<Option<usize>, MalformedHttp> {
    let mut slots = [const { MaybeUninit::uninit() }; FIELDS_USUAL];
    let usual = head.limits.fields().min(FIELDS_USUAL);
    match split_into(window, head, &mut slots[..usual]) {
        Err(MalformedHttp::TooManyFields) if head.limits.fields() > usual => split_with_many_fields(window, head),
        split => split,
    }
}

/// A separate function, so that the usual head uses less stack.
#[inline(never)]
fn split_with_many_fields(window: &[u8], head: &mut RequestHead) -> Result<Option<usize>, MalformedHttp> {
    let mut slots = [const { MaybeUninit::uninit() }; HeadLimits::REWRITTEN.fields()];
    let many = head.limits.fields().min(slots.len());
    split_into(window, head, &mut slots[..many])
}

fn split_into<'a>(
    window: &'a [u8],
    head: &mut RequestHead,
    slots: &mut [MaybeUninit<httparse::Header<'a>>],
) -> Result<Option<usize>, MalformedHttp> {
    let mut request = httparse::Request::new(&mut []);
    let end = match request.parse_with_uninit_headers(window, slots) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(why) => return Err(from_httparse(why)),
    };

    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(MalformedHttp::RequestLine);
    };
    head.method = Method::of(method);
    head.method_name = ByteRange::of(method.as_bytes(), window);
    head.path = ByteRange::of(target.as_bytes(), window);
    head.version = if version == 0 { HttpVersion::Http10 } else { HttpVersion::Http11 };
    head.fields.clear();
    head.fields.extend(request.headers.iter().map(|header| HeaderField {
        kind: FieldName::of(header.name.as_bytes()),
        name: ByteRange::of(header.name.as_bytes(), window),
        value: ByteRange::of(header.value, window),
    }));
    Ok(Some(end))
}

fn from_httparse(why: httparse::Error) -> MalformedHttp {
    match why {
        httparse::Error::HeaderName => MalformedHttp::FieldName,
        httparse::Error::HeaderValue => MalformedHttp::FieldValue,
        httparse::Error::TooManyHeaders => MalformedHttp::TooManyFields,
        httparse::Error::Version => MalformedHttp::Version,
        _ => MalformedHttp::RequestLine,
    }
}

/// Checks the fields against each other.
fn check_fields(bytes: &[u8], head: &mut RequestHead) -> Result<(), MalformedHttp> {
    let target = head.path;
    if target.end - target.start > TARGET_BYTES_MAX as u32 {
        return Err(MalformedHttp::TargetTooLong);
    }
    let target_authority = split_target(bytes, head)?;
    let fields = RequestFields::take(bytes, head)?;

    head.authority = match (fields.host, target_authority) {
        (None, _) if head.version == HttpVersion::Http11 => return Err(MalformedHttp::HostMissing),
        (_, Some(authority)) => authority,
        (Some(host), None) => host,
        (None, None) => ByteRange::default(),
    };
    head.framing = fields.framing(head.version)?;
    // RFC 9112 9.3: a gateway is the server that an HTTP/1.0 client may ask to keep the connection.
    head.keep_alive = !fields.close && (head.version == HttpVersion::Http11 || fields.keep_alive);
    head.nominates = fields.nominates;
    head.upgrade = match fields.upgrade_to {
        UpgradeRequest::WebSocket if head.method != Method::Get || head.framing != BodyFraming::Empty => {
            UpgradeRequest::None
        }
        // A tunnel of CONNECT is no request to upgrade.
        asked if fields.upgrade && head.version == HttpVersion::Http11 && head.method != Method::Connect => asked,
        _ => UpgradeRequest::None,
    };
    head.expects_continue =
        fields.expects_continue && head.version == HttpVersion::Http11 && head.framing != BodyFraming::Empty;
    head.expects_more = fields.expects_more;
    head.probe = fields.probe;
    head.hops_left = fields.hops_left;
    Ok(())
}

/// Cuts scheme and authority off an absolute target. Returns the authority, if there was one.
fn split_target(bytes: &[u8], head: &mut RequestHead) -> Result<Option<ByteRange>, MalformedHttp> {
    let target = head.path.in_bytes(bytes);
    if target.iter().any(|&byte| byte == b'#' || !byte.is_ascii()) {
        return Err(MalformedHttp::Target);
    }
    match target {
        _ if head.method == Method::Connect => {
            return if host::is_authority(target) { Ok(Some(head.path)) } else { Err(MalformedHttp::Target) };
        }
        [b'/', ..] => return Ok(None),
        b"*" if head.method == Method::Options => return Ok(None),
        _ => {}
    }

    let scheme = [b"http://".as_slice(), b"https://"]
        .into_iter()
        .find(|scheme| target.len() > scheme.len() && target[..scheme.len()].eq_ignore_ascii_case(scheme))
        .ok_or(MalformedHttp::Target)?;
    let rest = &target[scheme.len()..];
    let authority_end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    if !host::is_authority(authority) {
        return Err(MalformedHttp::Target);
    }
    head.path = ByteRange::of(path, bytes);
    Ok(Some(ByteRange::of(authority, bytes)))
}

/// Whether a field belongs to a kubelet probe. Most fields take two comparisons of lengths.
fn is_of_kubelet(name: &[u8], value: &[u8]) -> bool {
    match name.len() {
        10 => value.starts_with(b"kube-probe/") && name.eq_ignore_ascii_case(b"user-agent"),
        15 => name.eq_ignore_ascii_case(b"k-kubelet-probe") && !value.is_empty(),
        _ => false,
    }
}

/// The result of one pass over the fields.
#[derive(Default)]
struct RequestFields {
    host: Option<ByteRange>,
    length: Option<u64>,
    coding: TransferCoding,
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    upgrade_to: UpgradeRequest,
    nominates: bool,
    expects_continue: bool,
    expects_more: bool,
    probe: PlatformProbe,
    hops_left: Option<u64>,
}

impl RequestFields {
    fn take(bytes: &[u8], head: &RequestHead) -> Result<Self, MalformedHttp> {
        let mut fields = Self::default();
        for field in &head.fields {
            let value = field.value.in_bytes(bytes);
            match field.kind {
                FieldName::Host if fields.host.is_some() => return Err(MalformedHttp::HostRepeated),
                FieldName::Host if !host::is_authority(value) => return Err(MalformedHttp::HostInvalid),
                FieldName::Host => fields.host = Some(field.value),
                FieldName::ContentLength if fields.length.is_some() => {
                    return Err(MalformedHttp::LengthRepeated);
                }
                FieldName::ContentLength => {
                    fields.length = Some(content_length(value).ok_or(MalformedHttp::LengthInvalid)?);
                }
                FieldName::TransferEncoding => fields.coding.add(value),
                FieldName::Connection => fields.connection(value),
                FieldName::Upgrade if tokens(value).any(|token| token.eq_ignore_ascii_case(b"websocket")) => {
                    fields.upgrade_to = UpgradeRequest::WebSocket;
                }
                FieldName::Upgrade if fields.upgrade_to == UpgradeRequest::None => {
                    fields.upgrade_to = UpgradeRequest::Offered;
                }
                FieldName::Expect if trim(value).eq_ignore_ascii_case(b"100-continue") => {
                    fields.expects_continue = true
                }
                FieldName::Expect => fields.expects_more = true,
                FieldName::MaxForwards if matches!(head.method, Method::Options | Method::Trace) => {
                    fields.hops_left = content_length(value).into_iter().chain(fields.hops_left).min();
                }
                FieldName::NetworkProbe if trim(value) == b"probe" => fields.probe = PlatformProbe::Route,
                FieldName::NetworkProbe => fields.probe = PlatformProbe::Health,
                // `K-Network-Probe` takes precedence, in any order.
                FieldName::Other
                    if fields.probe == PlatformProbe::No && is_of_kubelet(field.name.in_bytes(bytes), value) =>
                {
                    fields.probe = PlatformProbe::Health
                }
                FieldName::UnderscoreVariant => return Err(MalformedHttp::FieldName),
                _ => {}
            }
        }
        Ok(fields)
    }

    fn connection(&mut self, value: &[u8]) {
        for token in tokens(value) {
            if token.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if token.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if token.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else {
                self.nominates = true;
            }
        }
    }

    fn framing(&self, version: HttpVersion) -> Result<BodyFraming, MalformedHttp> {
        match (self.coding, self.length) {
            (TransferCoding::None, None | Some(0)) => Ok(BodyFraming::Empty),
            (TransferCoding::None, Some(length)) => Ok(BodyFraming::Length(length)),
            (_, Some(_)) => Err(MalformedHttp::LengthAndCoding),
            (_, None) if version == HttpVersion::Http10 => Err(MalformedHttp::CodingInOldVersion),
            (TransferCoding::Chunked, None) => Ok(BodyFraming::Chunked),
            (TransferCoding::Unknown, None) => Err(MalformedHttp::CodingUnknown),
            (TransferCoding::Open | TransferCoding::Invalid, None) => Err(MalformedHttp::CodingInvalid),
        }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
