//! A request's head: strict, because what is ambiguous here is a smuggled request behind us.

use std::mem::MaybeUninit;

use super::field_names::trim;
use super::transfer_coding::TransferCoding;
use super::{
    BodyFraming, ByteRange, FieldName, HeaderField, HttpVersion, MalformedHttp, Parsed, UpgradeRequest,
    as_version_known, bare_line_feed, content_length, first_line, host, is_cut_by_crlf, text, tokens,
};
use crate::http::limits::{EMPTY_LINES, FIELDS_USUAL, HeadLimits, REQUEST_LINE_BYTES_MAX, TARGET_BYTES_MAX};

/// Methods that differ in framing or in what may be tried twice.
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

    /// RFC 9110 9.2.2: asking twice has the effect of asking once.
    #[must_use]
    pub fn is_idempotent(self) -> bool {
        !matches!(self, Self::Post | Self::Connect | Self::Other)
    }
}

/// Whether it is a question of the platform's, and not of a client's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PlatformProbe {
    #[default]
    No,
    /// `K-Network-Probe: probe`: whether it would be routed (X-KI-16).
    Route,
    /// By `K-Network-Probe`, `K-Kubelet-Probe` or a kubelet's `User-Agent`: whether whoever stands before the
    /// instances is well (X-QP-06).
    Health,
}

/// A request's head as ranges into its bytes. Made to be used again for the connection's next request.
#[derive(Debug, Default)]
pub struct RequestHead {
    /// How large it may be.
    pub limits: HeadLimits,
    pub method: Method,
    pub version: HttpVersion,
    pub framing: BodyFraming,
    /// The client is content to send more on this connection.
    pub keep_alive: bool,
    /// `Expect: 100-continue` on a request with a body.
    pub expects_continue: bool,
    /// An `Expect` that is not `100-continue`.
    pub expects_more: bool,
    /// `Connection` names fields beyond `close`, `keep-alive` and `upgrade`.
    pub nominates: bool,
    pub upgrade: UpgradeRequest,
    pub probe: PlatformProbe,
    /// How many may still pass it on; only of OPTIONS and TRACE, for others it means nothing (RFC 9110 7.6.2).
    pub hops_left: Option<u64>,
    pub fields: Vec<HeaderField>,
    method_name: ByteRange,
    /// The host that is meant: the URL's when the target is one (then Host does not count).
    authority: ByteRange,
    /// From the path on; empty, or from the query on, when an absolute URL has no path.
    path: ByteRange,
}

impl RequestHead {
    /// For heads that are no larger than that.
    #[must_use]
    pub fn within(limits: HeadLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// For a head that was read before, and had something added.
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

/// A head that can be read.
#[derive(Debug, Clone, Copy)]
pub struct RequestView<'a> {
    pub head: &'a RequestHead,
    pub bytes: &'a [u8],
}

impl<'a> RequestView<'a> {
    #[must_use]
    pub fn method(self) -> &'a str {
        text(self.method_bytes())
    }

    /// Path and query as they came, behind [`root`](Self::root); `*` for `OPTIONS *`, which `OPTIONS http://host` stands for
    /// (RFC 9112 3.2.4).
    #[must_use]
    pub fn path(self) -> &'a str {
        text(self.path_bytes())
    }

    /// The `/` that `http://host?query` leaves out before its query (RFC 9112 3.2.1), and nothing else.
    #[must_use]
    pub fn root(self) -> &'static str {
        if self.head.path.in_bytes(self.bytes).first() == Some(&b'?') { "/" } else { "" }
    }

    /// Host, with the port if one was given. Empty only in HTTP/1.0.
    #[must_use]
    pub fn authority(self) -> &'a str {
        text(self.authority_bytes())
    }

    /// [`method`](Self::method) for who only writes it on.
    #[must_use]
    pub fn method_bytes(self) -> &'a [u8] {
        self.head.method_name.in_bytes(self.bytes)
    }

    /// [`path`](Self::path) for who only writes it on.
    #[must_use]
    pub fn path_bytes(self) -> &'a [u8] {
        match self.head.path.in_bytes(self.bytes) {
            b"" if self.head.method == Method::Options => b"*",
            b"" => b"/",
            path => path,
        }
    }

    /// [`authority`](Self::authority) for who only writes it on.
    #[must_use]
    pub fn authority_bytes(self) -> &'a [u8] {
        self.head.authority.in_bytes(self.bytes)
    }

    pub fn fields(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let bytes = self.bytes;
        self.head.fields.iter().map(move |f| (text(f.name.in_bytes(bytes)), f.value.in_bytes(bytes)))
    }

    /// The first field of that name (any case).
    #[must_use]
    pub fn field(self, name: &str) -> Option<&'a [u8]> {
        self.fields().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All values of one kind, in order.
    pub fn values(self, kind: FieldName) -> impl Iterator<Item = &'a [u8]> {
        let bytes = self.bytes;
        self.head.fields.iter().filter(move |f| f.kind == kind).map(move |f| f.value.in_bytes(bytes))
    }
}

/// Reads a request's head from the front of `bytes` into `head`.
#[must_use]
pub fn parse_request(bytes: &[u8], head: &mut RequestHead) -> Parsed {
    let window = &bytes[..bytes.len().min(head.limits.bytes())];
    match lines(window, head) {
        Ok(Some(end)) => match judge(window, head) {
            Ok(()) => Parsed::Head { bytes: end },
            Err(why) => Parsed::Malformed(why),
        },
        Ok(None) if window.len() == head.limits.bytes() => Parsed::Malformed(MalformedHttp::HeadTooLarge),
        Ok(None) => Parsed::NeedBytes,
        Err(why) => Parsed::Malformed(why),
    }
}

/// Splits the lines; `None` when the head's end is not there yet.
fn lines(window: &[u8], head: &mut RequestHead) -> Result<Option<usize>, MalformedHttp> {
    let end = split(window, head);
    if let Ok(Some(end)) = end
        && is_usual(&window[..end], head)
    {
        return Ok(Some(end));
    }
    let read = end.as_ref().map_or(window.len(), |end| end.unwrap_or(window.len()));
    match offence(&window[..read]) {
        None => end,
        // Whatever is wrong before it comes first, as it would if the bytes came one by one.
        Some((at, why)) => split(&window[..at], head).and(Err(why)),
    }
}

/// A first line within its limit, and nothing but whole lines: there is no [`offence`] in it.
fn is_usual(whole: &[u8], head: &RequestHead) -> bool {
    let line = head.fields.first().map_or(whole.len(), |field| field.name.start as usize);
    line <= REQUEST_LINE_BYTES_MAX && is_cut_by_crlf(whole, &head.fields)
}

/// What httparse lets pass: a bare LF as a line's end, a line of any length, empty lines without end.
fn offence(read: &[u8]) -> Option<(usize, MalformedHttp)> {
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
        Err(MalformedHttp::Version) => match version_at(window).and_then(|at| as_version_known(window, at)) {
            Some(known) => split_as_it_is(&known, head),
            None => Err(MalformedHttp::Version),
        },
        split => split,
    }
}

/// Where the version stands: behind method and target.
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

/// A function of its own, so that the usual head needs no more of the stack than it takes.
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

/// What the fields say together.
fn judge(bytes: &[u8], head: &mut RequestHead) -> Result<(), MalformedHttp> {
    let target = head.path;
    if target.end - target.start > TARGET_BYTES_MAX as u32 {
        return Err(MalformedHttp::TargetTooLong);
    }
    let meant = judge_target(bytes, head)?;
    let noted = RequestFields::take(bytes, head)?;

    head.authority = match (noted.host, meant) {
        (None, _) if head.version == HttpVersion::Http11 => return Err(MalformedHttp::HostMissing),
        (_, Some(authority)) => authority,
        (Some(host), None) => host,
        (None, None) => ByteRange::default(),
    };
    head.framing = noted.framing(head.version)?;
    // RFC 9112 9.3: a gateway is the server that a client of HTTP/1.0 may ask to keep the connection.
    head.keep_alive = !noted.close && (head.version == HttpVersion::Http11 || noted.keep_alive);
    head.nominates = noted.nominates;
    head.upgrade = match noted.upgrade_to {
        UpgradeRequest::WebSocket if head.method != Method::Get || head.framing != BodyFraming::Empty => {
            UpgradeRequest::None
        }
        // A tunnel of CONNECT is no request to upgrade.
        asked if noted.upgrade && head.version == HttpVersion::Http11 && head.method != Method::Connect => asked,
        _ => UpgradeRequest::None,
    };
    head.expects_continue =
        noted.expects_continue && head.version == HttpVersion::Http11 && head.framing != BodyFraming::Empty;
    head.expects_more = noted.expects_more;
    head.probe = noted.probe;
    head.hops_left = noted.hops_left;
    Ok(())
}

/// Cuts scheme and authority off an absolute target; the authority, if there was one.
fn judge_target(bytes: &[u8], head: &mut RequestHead) -> Result<Option<ByteRange>, MalformedHttp> {
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

/// A field that only probes have. Two comparisons of lengths for most.
fn is_of_kubelet(name: &[u8], value: &[u8]) -> bool {
    match name.len() {
        10 => value.starts_with(b"kube-probe/") && name.eq_ignore_ascii_case(b"user-agent"),
        15 => name.eq_ignore_ascii_case(b"k-kubelet-probe") && !value.is_empty(),
        _ => false,
    }
}

/// What the pass over the fields found.
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
        let mut noted = Self::default();
        for field in &head.fields {
            let value = field.value.in_bytes(bytes);
            match field.kind {
                FieldName::Host if noted.host.is_some() => return Err(MalformedHttp::HostRepeated),
                FieldName::Host if !host::is_authority(value) => return Err(MalformedHttp::HostInvalid),
                FieldName::Host => noted.host = Some(field.value),
                FieldName::ContentLength if noted.length.is_some() => {
                    return Err(MalformedHttp::LengthRepeated);
                }
                FieldName::ContentLength => {
                    noted.length = Some(content_length(value).ok_or(MalformedHttp::LengthInvalid)?);
                }
                FieldName::TransferEncoding => noted.coding.add(value),
                FieldName::Connection => noted.connection(value),
                FieldName::Upgrade if tokens(value).any(|token| token.eq_ignore_ascii_case(b"websocket")) => {
                    noted.upgrade_to = UpgradeRequest::WebSocket;
                }
                FieldName::Upgrade if noted.upgrade_to == UpgradeRequest::None => {
                    noted.upgrade_to = UpgradeRequest::Offered;
                }
                FieldName::Expect if trim(value).eq_ignore_ascii_case(b"100-continue") => noted.expects_continue = true,
                FieldName::Expect => noted.expects_more = true,
                FieldName::MaxForwards if matches!(head.method, Method::Options | Method::Trace) => {
                    noted.hops_left = content_length(value).into_iter().chain(noted.hops_left).min();
                }
                FieldName::NetworkProbe if trim(value) == b"probe" => noted.probe = PlatformProbe::Route,
                FieldName::NetworkProbe => noted.probe = PlatformProbe::Health,
                // `K-Network-Probe` says more, wherever it stands.
                FieldName::Other
                    if noted.probe == PlatformProbe::No && is_of_kubelet(field.name.in_bytes(bytes), value) =>
                {
                    noted.probe = PlatformProbe::Health
                }
                FieldName::Lookalike => return Err(MalformedHttp::FieldName),
                _ => {}
            }
        }
        Ok(noted)
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
