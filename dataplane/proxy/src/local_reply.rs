//! Responses that the gateway makes itself. The only place where a reason becomes a status.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use contract::counters::LOCAL_REPLY_REASONS;
use contract::table::HeaderChanges;
use contract::table::authentication::AuthenticationError;

use codec::http::LocalResponse;
use codec::http::{MalformedHttp, Method, RequestHead};
use protocol::h2::ErrorCode;

/// Value of `Allow` in a 405.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Why the gateway answers the request itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalReply {
    Malformed(MalformedHttp),
    /// The request head took longer than `head_max`.
    RequestHeaderTimeout,
    /// No byte of the request body arrived for `stall_max`.
    RequestBodyTimeout,
    /// CONNECT is not supported.
    ConnectUnsupported,
    /// A WebSocket to an instance that speaks HTTP/2.
    UpgradeUnsupported,
    /// An `Expect` that is not `100-continue`.
    ExpectationFailed,
    /// OPTIONS or TRACE with `Max-Forwards: 0` (RFC 9110 7.6.2).
    MaxForwardsExceeded(Method),
    /// The route accepts only HTTPS, and the request came over HTTP.
    HttpsRedirect {
        location: Box<str>,
    },
    /// The rule of the route redirects.
    Redirect {
        status: u16,
        location: Box<str>,
    },
    /// The rule of the route has this status instead of a backend, or for one that cannot be used: 503 if its policy cannot be
    /// used.
    FixedStatus {
        status: u16,
        backend: Box<str>,
    },
    /// The rule of the route does not admit the client's address.
    ClientDenied,
    /// A preflight of CORS is answered with these fields; none: the origin may not use the rule.
    CorsPreflight(Box<HeaderChanges>),
    /// The client is over a rate limit of the rule; the next request passes after this time.
    RateLimited(Duration),
    /// The request body is larger than the rule allows, in bytes.
    BodyTooLarge(u64),
    /// The rule requires credentials that the request does not have. The challenges say which.
    Unauthorized {
        challenges: Vec<Box<str>>,
        why: AuthenticationError,
    },
    /// The credentials cannot be verified now.
    AuthenticationUnavailable(AuthenticationError),
    /// The authorization service does not permit the request: its response.
    AuthorizationDenied(Box<LocalResponse>),
    /// The authorization service cannot be asked.
    AuthorizationUnavailable {
        status: u16,
    },
    HostNotFound(Box<str>),
    /// The host has a route, but no rule of it matches the path and headers.
    PathNotFound(Box<str>),
    /// A network probe of a host that has a route (X-KI-16).
    NetworkProbe {
        hash: Box<str>,
    },
    NetworkProbeWithoutHash,
    /// A health check of the platform to an instance (X-QP-06).
    HealthCheck,
    /// The connection was opened with the certificate of another host.
    MisdirectedRequest(Box<str>),
    /// The object that has the host cannot serve it yet, for this reason.
    NotReady(Arc<str>),
    /// All weights of the route are 0.
    NoTrafficTarget(Box<str>),
    /// The backend has no instance with free capacity, and no autoscaler that starts one.
    NoHealthyUpstream(Box<str>),
    /// ... and none can be started, for this reason of its conditions.
    InstancesUnavailable(Box<str>, &'static str),
    QueueFull,
    /// No instance had free capacity before the queue timeout.
    QueueTimeout(Box<str>),
    /// No instance accepted the connection.
    UpstreamConnectFailure(Box<str>),
    /// The target policy refuses all addresses of the backend.
    TargetRefused(Box<str>),
    /// The TLS handshake with the instances failed, or their certificates are not valid for the backend.
    UpstreamTlsVerificationFailed(Box<str>, Box<str>),
    /// The instance closed the connection before it sent a response head.
    UpstreamClosed(Box<str>),
    /// The instance reset the HTTP/2 stream with this error code.
    UpstreamReset(Box<str>, ErrorCode),
    /// The response is not valid HTTP/1.
    UpstreamMalformed(Box<str>, MalformedHttp),
    /// The response is not valid HTTP/2.
    UpstreamProtocolError(Box<str>, ErrorCode),
    /// A response timeout of the route has passed.
    ResponseTimeout,
    /// The core drains.
    Draining,
}

impl LocalReply {
    /// The reasons' names in metrics, in the order of [`LocalReply::index`].
    pub const REASONS: [&'static str; LOCAL_REPLY_REASONS] = [
        "malformed",
        "request_header_timeout",
        "request_body_timeout",
        "connect_not_supported",
        "upgrade_not_supported",
        "expectation_failed",
        "host_not_found",
        "no_traffic_target",
        "no_healthy_upstream",
        "queue_full",
        "queue_timeout",
        "upstream_connect_failure",
        "upstream_reset",
        "upstream_protocol_error",
        "response_timeout",
        "draining",
        "https_redirect",
        "path_not_found",
        "network_probe",
        "network_probe_without_hash",
        "misdirected_request",
        "upstream_tls_verification_failed",
        "health_check",
        "max_forwards_exceeded",
        "target_refused",
        "not_ready",
        "redirect",
        "fixed_status",
        "client_denied",
        "cors_preflight",
        "rate_limited",
        "request_body_too_large",
        "unauthorized",
        "authentication_unavailable",
        "authorization_denied",
        "authorization_unavailable",
    ];

    /// Requests that are rejected whatever the route says.
    #[must_use]
    pub fn of(head: &RequestHead) -> Option<Self> {
        if head.method == Method::Connect {
            Some(Self::ConnectUnsupported)
        } else if head.expects_more {
            Some(Self::ExpectationFailed)
        } else {
            (head.hops_left == Some(0)).then_some(Self::MaxForwardsExceeded(head.method))
        }
    }

    #[must_use]
    pub fn index(&self) -> usize {
        match self {
            Self::Malformed(_) => 0,
            Self::RequestHeaderTimeout => 1,
            Self::RequestBodyTimeout => 2,
            Self::ConnectUnsupported => 3,
            Self::UpgradeUnsupported => 4,
            Self::ExpectationFailed => 5,
            Self::HostNotFound(_) => 6,
            Self::NoTrafficTarget(_) => 7,
            Self::NoHealthyUpstream(_) | Self::InstancesUnavailable(..) => 8,
            Self::QueueFull => 9,
            Self::QueueTimeout(_) => 10,
            Self::UpstreamConnectFailure(_) => 11,
            Self::UpstreamClosed(_) | Self::UpstreamReset(..) => 12,
            Self::UpstreamMalformed(..) | Self::UpstreamProtocolError(..) => 13,
            Self::ResponseTimeout => 14,
            Self::Draining => 15,
            Self::HttpsRedirect { .. } => 16,
            Self::PathNotFound(_) => 17,
            Self::NetworkProbe { .. } => 18,
            Self::NetworkProbeWithoutHash => 19,
            Self::MisdirectedRequest(_) => 20,
            Self::UpstreamTlsVerificationFailed(..) => 21,
            Self::HealthCheck => 22,
            Self::MaxForwardsExceeded(_) => 23,
            Self::TargetRefused(_) => 24,
            Self::NotReady(_) => 25,
            Self::Redirect { .. } => 26,
            Self::FixedStatus { .. } => 27,
            Self::ClientDenied => 28,
            Self::CorsPreflight(_) => 29,
            Self::RateLimited(_) => 30,
            Self::BodyTooLarge(_) => 31,
            Self::Unauthorized { .. } => 32,
            Self::AuthenticationUnavailable(_) => 33,
            Self::AuthorizationDenied(_) => 34,
            Self::AuthorizationUnavailable { .. } => 35,
        }
    }

    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Malformed(why) => why.status(),
            Self::RequestHeaderTimeout | Self::RequestBodyTimeout => 408,
            Self::MaxForwardsExceeded(Method::Options) => 200,
            Self::ConnectUnsupported | Self::MaxForwardsExceeded(_) => 405,
            Self::UpgradeUnsupported => 501,
            Self::ExpectationFailed => 417,
            Self::HttpsRedirect { .. } => 301,
            Self::Redirect { status, .. }
            | Self::FixedStatus { status, .. }
            | Self::AuthorizationUnavailable { status } => *status,
            Self::AuthorizationDenied(response) => response.status,
            Self::MisdirectedRequest(_) => 421,
            Self::ClientDenied => 403,
            Self::RateLimited(_) => 429,
            Self::BodyTooLarge(_) => 413,
            Self::Unauthorized { .. } => 401,
            Self::HostNotFound(_) | Self::PathNotFound(_) => 404,
            Self::NetworkProbe { .. } | Self::HealthCheck | Self::CorsPreflight(_) => 200,
            Self::NetworkProbeWithoutHash => 400,
            Self::NotReady(_)
            | Self::AuthenticationUnavailable(_)
            | Self::NoTrafficTarget(_)
            | Self::NoHealthyUpstream(_)
            | Self::InstancesUnavailable(..)
            | Self::QueueFull
            | Self::QueueTimeout(_)
            | Self::Draining => 503,
            Self::UpstreamConnectFailure(_)
            | Self::TargetRefused(_)
            | Self::UpstreamTlsVerificationFailed(..)
            | Self::UpstreamClosed(_)
            | Self::UpstreamReset(..)
            | Self::UpstreamMalformed(..)
            | Self::UpstreamProtocolError(..) => 502,
            Self::ResponseTimeout => 504,
        }
    }

    /// Whether the connection's next bytes can still be trusted to be a request.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        matches!(
            self,
            Self::Malformed(_)
                | Self::RequestHeaderTimeout
                | Self::RequestBodyTimeout
                | Self::ConnectUnsupported
                | Self::Draining
        )
    }

    /// What the client is told. Which backends there are and how they fail is the operator's business: clients get the status in
    /// words, and the log and trusted clients the sentence (`Proxy::local_response`).
    #[must_use]
    pub fn public_text(&self) -> String {
        if !self.is_confidential() {
            return self.to_string();
        }
        match self.status() {
            404 => "not found".to_owned(),
            502 => "bad gateway".to_owned(),
            500 => "internal server error".to_owned(),
            status => format!("status {status}"),
        }
    }

    /// Whether the sentence tells more than the client's own mistake or the state of an object that it asked for.
    #[must_use]
    pub fn is_confidential(&self) -> bool {
        matches!(self.status(), 404 | 502) || matches!(self, Self::FixedStatus { .. })
    }

    #[must_use]
    pub fn answer(&self) -> LocalResponse {
        if let Self::AuthorizationDenied(response) = self {
            return LocalResponse::clone(response);
        }
        let answer = LocalResponse::text(self.status(), self.public_text());
        match self {
            Self::QueueFull
            | Self::NotReady(_)
            | Self::AuthenticationUnavailable(_)
            | Self::AuthorizationUnavailable { status: 503 }
            | Self::NoHealthyUpstream(_)
            | Self::InstancesUnavailable(..)
            | Self::Draining => answer.with("Retry-After", "1"),
            Self::Unauthorized { challenges, .. } => challenges
                .iter()
                .fold(answer, |answer, challenge| answer.with("WWW-Authenticate", challenge.as_bytes().to_vec())),
            Self::ConnectUnsupported | Self::MaxForwardsExceeded(_) => answer.with("Allow", METHODS),
            Self::HttpsRedirect { location } | Self::Redirect { location, .. } => {
                answer.with("Location", location.as_bytes().to_vec())
            }
            // the body that Knative's queue-proxy sends, and no more
            Self::HealthCheck => LocalResponse { body: Bytes::from_static(b"queue"), ..answer },
            Self::CorsPreflight(fields) => fields
                .written()
                .fold(LocalResponse::empty(200), |answer, (name, value)| answer.with(name, value.as_bytes().to_vec())),
            // Rounded up: a client that comes back a moment early is refused again.
            Self::RateLimited(wait) => answer.with("Retry-After", wait.as_secs_f64().ceil().to_string()),
            Self::NetworkProbe { hash } => answer.with("K-Network-Hash", hash.as_bytes().to_vec()),
            _ => answer,
        }
    }
}

impl fmt::Display for LocalReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "bad request: {}", why.sentence()),
            Self::RequestHeaderTimeout => f.write_str("request timeout: the request head is incomplete"),
            Self::RequestBodyTimeout => f.write_str("request timeout: the request body stopped"),
            Self::ConnectUnsupported => f.write_str("CONNECT is not supported"),
            Self::UpgradeUnsupported => {
                f.write_str("WebSockets and other upgrades reach only instances that speak HTTP/1")
            }
            Self::ExpectationFailed => f.write_str("the only supported expectation is 100-continue"),
            Self::MaxForwardsExceeded(_) => f.write_str("not forwarded: Max-Forwards is 0"),
            Self::HttpsRedirect { location } => write!(f, "this host requires HTTPS: {location}"),
            Self::ClientDenied => f.write_str("forbidden: the route does not admit this client address"),
            Self::CorsPreflight(_) => f.write_str("preflight of CORS"),
            Self::RateLimited(_) => f.write_str("too many requests: try again after the time in Retry-After"),
            Self::BodyTooLarge(most) => write!(f, "the request body is larger than {most} bytes"),
            Self::Unauthorized { why, .. } | Self::AuthenticationUnavailable(why) => write!(f, "unauthorized: {why}"),
            Self::AuthorizationDenied(response) => put_authorization(f, Some(response.status)),
            Self::AuthorizationUnavailable { .. } => put_authorization(f, None),
            Self::Redirect { location, .. } => write!(f, "see {location}"),
            Self::FixedStatus { status, backend } => put_fixed_status(f, *status, backend),
            Self::HostNotFound(host) => write!(
                f,
                "no route for host \"{host}\": apply a Service whose URL has this host, or start with --route {host}=ADDRESS"
            ),
            Self::PathNotFound(host) => {
                write!(f, "no rule of the route for host \"{host}\" matches this path and these headers")
            }
            Self::NetworkProbe { .. } => f.write_str("routed"),
            Self::NetworkProbeWithoutHash => f.write_str("a network probe requires the header K-Network-Hash"),
            Self::HealthCheck => f.write_str("queue"),
            Self::MisdirectedRequest(host) => {
                write!(
                    f,
                    "the certificate of this connection is not valid for host \"{host}\": open another connection"
                )
            }
            Self::NotReady(why) => f.write_str(why),
            Self::NoTrafficTarget(host) => write!(f, "all weights of the route for host \"{host}\" are 0"),
            Self::NoHealthyUpstream(backend) => write!(f, "no instance of {backend} has free capacity"),
            Self::InstancesUnavailable(backend, reason) => {
                write!(f, "no instance of {backend} can be started: {reason}; see the conditions of the Revision")
            }
            Self::QueueFull => f.write_str("the pending queue is full"),
            Self::QueueTimeout(backend) => write!(f, "no instance of {backend} became ready in time"),
            Self::UpstreamConnectFailure(backend) => write!(f, "no instance of {backend} accepts connections"),
            Self::TargetRefused(backend) => {
                write!(f, "the target policy refuses the address of {backend}; the log of the appliance names it")
            }
            Self::UpstreamTlsVerificationFailed(backend, why) => {
                write!(f, "TLS verification of {backend} failed: {why}")
            }
            Self::UpstreamClosed(backend) => {
                write!(f, "the instance of {backend} closed the connection without a response")
            }
            Self::UpstreamMalformed(backend, why) => {
                write!(f, "the instance of {backend} sent an invalid HTTP response: {}", why.sentence())
            }
            Self::UpstreamReset(backend, why) => {
                write!(f, "the instance of {backend} reset the stream: {why}")
            }
            Self::UpstreamProtocolError(backend, why) => {
                write!(f, "the instance of {backend} sent an invalid HTTP/2 response: {why}")
            }
            Self::ResponseTimeout => f.write_str("request timeout"),
            Self::Draining => f.write_str("the server is stopping"),
        }
    }
}

/// `denied`: the status of the authorization service's response.
fn put_authorization(f: &mut fmt::Formatter<'_>, denied: Option<u16>) -> fmt::Result {
    match denied {
        Some(status) => write!(f, "the authorization service does not permit the request: status {status}"),
        None => f.write_str("the request cannot be authorized now"),
    }
}

fn put_fixed_status(f: &mut fmt::Formatter<'_>, status: u16, backend: &str) -> fmt::Result {
    match status {
        503 => f.write_str("the SecurityPolicy of the rule cannot be used; see the conditions of the policy"),
        _ => write!(
            f,
            "the rule of the route answers with {status}: {backend} does not exist or may not be used; see the conditions \
             of the route"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_reply_says_what_to_do() {
        let answer = LocalReply::HostNotFound("a.b".into()).answer();
        assert_eq!(answer.status, 404);
        assert_eq!(answer.body, "not found\n");
        assert!(LocalReply::HostNotFound("a.b".into()).to_string().contains("--route a.b="));
        let refused = LocalReply::UpstreamConnectFailure("ns/hello-1".into()).answer();
        assert_eq!((refused.status, &refused.body[..]), (502, &b"bad gateway\n"[..]));
        assert_eq!(LocalReply::QueueFull.answer().header("retry-after"), Some(b"1".as_slice()));
        assert_eq!(LocalReply::ResponseTimeout.answer().body, "request timeout\n");
        let unavailable = LocalReply::InstancesUnavailable("ns/hello-1".into(), "ErrImagePull").answer();
        assert_eq!(unavailable.status, 503);
        assert!(std::str::from_utf8(&unavailable.body).unwrap().contains("ns/hello-1 can be started: ErrImagePull;"));
    }

    #[test]
    fn every_reason_is_documented() {
        let docs = include_str!("../../../docs/admin.md");
        for reason in LocalReply::REASONS {
            assert!(docs.contains(&format!("`{reason}`")), "docs/admin.md does not explain {reason}");
        }
    }
}
