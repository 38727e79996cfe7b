//! Cross-origin protection: rejects requests of web pages at listeners that trust a caller for its source address.
//!
//! Any page that is open on this host can send requests to loopback addresses, and the API treats a request from loopback as
//! the operator's. A browser sends such requests on a page's behalf, and marks them with headers that the page cannot change:
//!
//! - `Host` names the listener. A name that DNS rebinding points at this host is not one of the listener's own.
//! - `Origin` and `Sec-Fetch-Site` say which page sends the request. A page of the listener's own is the only one accepted.
//! - `Content-Type` of a body that needs no CORS preflight is absent or one of three. Those are rejected, and so is the
//!   preflight of all others, because it has an `Origin`.
//!
//! Clients other than browsers send none of these headers except `Host`, and need no change.

mod host;
mod rejections;

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Version};

use host::Authority;
pub use host::OwnHosts;
pub use rejections::{GuardedListener, Rejections};

/// Paths that tell whether the appliance is well, and nothing else. A status page of another origin may show it.
const HEALTH: [&str; 3] = ["/healthz", "/livez", "/readyz"];
/// Content types that a page may send to another origin without a preflight.
const PREFLIGHT_FREE: [&str; 3] = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// A value in a message or in the log is cut here; a client chooses it.
const SHOWN_BYTES_MAX: usize = 128;

/// The hosts and origins that one listener accepts.
#[derive(Debug)]
pub struct CrossOriginProtection {
    listener: GuardedListener,
    /// `http` or `https`.
    scheme: &'static str,
    /// `None`: a Unix socket, which no page reaches and which has no name.
    hosts: Option<OwnHosts>,
    rejections: Arc<Rejections>,
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("the request has no Host, or more than one")]
    NoHost,
    #[error("Host {0:?} is not HOST or HOST:PORT")]
    MalformedHost(String),
    #[error(
        "Host {0:?} is not a name of this listener: call it by its address or by localhost, or start the appliance with \
         --allowed-host {0}"
    )]
    ForeignHost(String),
    #[error("Origin {0:?} is not this listener's: requests of web pages from elsewhere are not answered")]
    CrossOrigin(String),
    #[error("Sec-Fetch-Site is {0:?}: requests of web pages from elsewhere are not answered")]
    CrossSite(String),
    #[error("a request with a body needs one Content-Type, such as application/json")]
    NoContentType,
    #[error("Content-Type {0:?} is not accepted, because any web page can send it: use one such as application/json")]
    PreflightFree(String),
}

impl Rejection {
    const REASONS: [&str; 4] = ["host", "origin", "fetch-site", "content-type"];

    fn reason_index(&self) -> usize {
        match self {
            Self::NoHost | Self::MalformedHost(_) | Self::ForeignHost(_) => 0,
            Self::CrossOrigin(_) => 1,
            Self::CrossSite(_) => 2,
            Self::NoContentType | Self::PreflightFree(_) => 3,
        }
    }

    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoHost | Self::MalformedHost(_) => StatusCode::BAD_REQUEST,
            Self::ForeignHost(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::CrossOrigin(_) | Self::CrossSite(_) => StatusCode::FORBIDDEN,
            Self::NoContentType | Self::PreflightFree(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }
}

impl CrossOriginProtection {
    /// For a listener on TCP.
    #[must_use]
    pub fn new(listener: GuardedListener, is_tls: bool, hosts: OwnHosts, rejections: Arc<Rejections>) -> Self {
        Self { listener, scheme: if is_tls { "https" } else { "http" }, hosts: Some(hosts), rejections }
    }

    /// For a Unix socket.
    #[must_use]
    pub fn of_socket(listener: GuardedListener, rejections: Arc<Rejections>) -> Self {
        Self { listener, scheme: "http", hosts: None, rejections }
    }

    /// Counts and logs a rejection.
    ///
    /// # Errors
    /// The request may come from a web page that is not the listener's own.
    pub fn check(&self, head: &Parts) -> Result<(), Rejection> {
        self.decide(head).inspect_err(|rejection| self.rejections.record(self.listener, rejection))
    }

    fn decide(&self, head: &Parts) -> Result<(), Rejection> {
        let is_health = is_health(head);
        let called = self.called(head, is_health)?;
        if !is_health {
            self.check_origin(&head.headers, called.as_ref())?;
        }
        if has_body(&head.headers) { check_content_type(&head.headers) } else { Ok(()) }
    }

    /// The host that the request is for, which has to be the listener's own. An absolute target goes before `Host` (RFC 9112,
    /// 3.2.2), and both have to be right.
    fn called(&self, head: &Parts, is_health: bool) -> Result<Option<Authority>, Rejection> {
        let Some(own) = &self.hosts else { return Ok(None) };
        let target = head.uri.authority().map(|authority| own_host(own, authority.as_str())).transpose()?;
        let mut hosts = head.headers.get_all(header::HOST).iter();
        match (hosts.next(), hosts.next()) {
            (Some(host), None) => {
                let host = own_host(own, &text(host))?;
                Ok(Some(target.unwrap_or(host)))
            }
            // Clients of HTTP/2 send `:authority` instead, which is the target's (RFC 9113, 8.3.1).
            (None, _) if head.version == Version::HTTP_2 && target.is_some() => Ok(target),
            // A load balancer's probe; a browser speaks no HTTP/1.0.
            (None, _) if is_health && head.version == Version::HTTP_10 => Ok(target),
            _ => Err(Rejection::NoHost),
        }
    }

    fn check_origin(&self, headers: &HeaderMap, called: Option<&Authority>) -> Result<(), Rejection> {
        if let Some(origin) = headers.get_all(header::ORIGIN).iter().find(|one| !self.is_own(one, called)) {
            return Err(Rejection::CrossOrigin(cut(&text(origin))));
        }
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        // `none`: a person typed the address.
        match sites.find(|site| ![b"same-origin".as_slice(), b"none"].contains(&site.as_bytes())) {
            Some(site) => Err(Rejection::CrossSite(cut(&text(site)))),
            None => Ok(()),
        }
    }

    /// Whether a page of this origin came from the same host, by the same scheme and port, as the request goes to.
    fn is_own(&self, origin: &HeaderValue, called: Option<&Authority>) -> bool {
        let parse = || {
            let (scheme, authority) = origin.to_str().ok()?.split_once("://")?;
            Some((scheme, Authority::parse(authority)?))
        };
        let Some(((scheme, origin), called)) = parse().zip(called) else { return false };
        let default_port = if self.scheme == "https" { 443 } else { 80 };
        let port = |authority: &Authority| authority.port.unwrap_or(default_port);
        scheme == self.scheme && origin.host == called.host && port(&origin) == port(called)
    }
}

fn own_host(own: &OwnHosts, text: &str) -> Result<Authority, Rejection> {
    let authority = Authority::parse(text).ok_or_else(|| Rejection::MalformedHost(cut(text)))?;
    if own.contains(&authority.host) { Ok(authority) } else { Err(Rejection::ForeignHost(cut(name_of(text)))) }
}

/// Without the port, as `--allowed-host` takes it.
fn name_of(text: &str) -> &str {
    match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => text,
    }
}

fn is_health(head: &Parts) -> bool {
    let path = head.uri.path();
    let is_below =
        |parent: &str| path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_plain = head.method == Method::GET || head.method == Method::HEAD;
    is_plain && HEALTH.into_iter().any(is_below) && !head.headers.contains_key(header::UPGRADE)
}

/// As HTTP/1 frames it.
fn has_body(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(header::CONTENT_LENGTH);
    headers.contains_key(header::TRANSFER_ENCODING) || lengths.iter().any(|length| length != "0")
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Rejection> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let one = match (types.next(), types.next()) {
        (Some(one), None) => one,
        (None, None) if is_kubectl(headers) => return Ok(()),
        _ => return Err(Rejection::NoContentType),
    };
    let essence = text(one);
    let essence = essence.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.split_once('/') {
        Some((kind, subtype)) if !kind.is_empty() && !subtype.is_empty() => {
            let is_free = PREFLIGHT_FREE.contains(&essence.as_str());
            if is_free { Err(Rejection::PreflightFree(essence)) } else { Ok(()) }
        }
        _ => Err(Rejection::NoContentType),
    }
}

/// `kubectl create --raw` names no Content-Type. A page cannot pass for it: a User-Agent of its own needs a preflight.
fn is_kubectl(headers: &HeaderMap) -> bool {
    let mut agents = headers.get_all(header::USER_AGENT).iter();
    agents.next().is_some_and(|agent| agent.as_bytes().starts_with(b"kubectl/")) && agents.next().is_none()
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(SHOWN_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests;
