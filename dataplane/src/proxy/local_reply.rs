//! Why a request gets an answer of ours instead of an instance's. The only place where a reason becomes
//! a status.

use std::fmt;

use ::h2::Reason;
use bytes::Bytes;

use crate::http::codec::{MalformedHttp, Method, RequestHead};
use crate::http::local_response::LocalResponse;

/// What programs may be asked for, as far as we know.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalReply {
    Malformed(MalformedHttp),
    /// The head took longer than `head_max`.
    HeadStalled,
    /// The body brought no byte for `stall_max`.
    BodyStalled,
    /// CONNECT: this is no tunnel.
    Connect,
    /// A WebSocket to an instance that speaks HTTP/2.
    Upgrade,
    /// An `Expect` that is not `100-continue`.
    Expectation,
    /// An OPTIONS, or else a TRACE, that nobody may pass on any more (RFC 9110 7.6.2).
    LastHop(Method),
    /// The route wants TLS, and the client came without.
    HttpsOnly {
        location: Box<str>,
    },
    UnknownHost(Box<str>),
    /// The host is known, and no branch of its route takes the path and headers.
    UnknownPath(Box<str>),
    /// It was a probe, and the route is there (X-KI-16).
    Probed {
        hash: Box<str>,
    },
    ProbeWithoutHash,
    /// It was a probe of the platform's, to instances of ours (X-QP-06).
    HealthOk,
    /// The connection was opened for a host with another certificate.
    Misdirected(Box<str>),
    /// The route exists, and all of its weights are 0.
    NoTraffic(Box<str>),
    /// Nobody starts instances of this backend, and none is there or has room.
    NoInstance(Box<str>),
    QueueFull,
    /// No instance had room for as long as the request may wait.
    Patience(Box<str>),
    /// No instance took the connection.
    Unreachable(Box<str>),
    /// The target policy refuses all addresses of this backend.
    TargetRefused(Box<str>),
    /// The instances did not prove to be whom they should be, or broke the rules of TLS.
    Untrusted(Box<str>, Box<str>),
    /// The instance took the request and gave no answer.
    InstanceFailed(Box<str>),
    /// It took the request back, with this code of HTTP/2.
    InstanceReset(Box<str>, Reason),
    /// What it answered is no HTTP.
    InstanceMalformed(Box<str>, MalformedHttp),
    /// ... by the rules of HTTP/2, which are h2's to judge.
    InstanceBroke(Box<str>, Reason),
    /// A limit of the route on the answer's time.
    TimedOut,
    /// The core stops.
    Draining,
}

impl LocalReply {
    /// The reasons' names in metrics, in the order of [`LocalReply::index`].
    pub const REASONS: [&'static str; 25] = [
        "malformed",
        "head_stalled",
        "body_stalled",
        "connect",
        "upgrade",
        "expectation",
        "unknown_host",
        "no_traffic",
        "no_instance",
        "room_full",
        "patience",
        "unreachable",
        "instance_failed",
        "instance_malformed",
        "timed_out",
        "draining",
        "https_only",
        "unknown_path",
        "probed",
        "probe_without_hash",
        "misdirected",
        "untrusted",
        "probed_for_health",
        "last_hop",
        "target_refused",
    ];

    /// What we do not do, whatever the route says.
    #[must_use]
    pub fn of(head: &RequestHead) -> Option<Self> {
        if head.method == Method::Connect {
            Some(Self::Connect)
        } else if head.expects_more {
            Some(Self::Expectation)
        } else {
            (head.hops_left == Some(0)).then_some(Self::LastHop(head.method))
        }
    }

    #[must_use]
    pub fn index(&self) -> usize {
        match self {
            Self::Malformed(_) => 0,
            Self::HeadStalled => 1,
            Self::BodyStalled => 2,
            Self::Connect => 3,
            Self::Upgrade => 4,
            Self::Expectation => 5,
            Self::UnknownHost(_) => 6,
            Self::NoTraffic(_) => 7,
            Self::NoInstance(_) => 8,
            Self::QueueFull => 9,
            Self::Patience(_) => 10,
            Self::Unreachable(_) => 11,
            Self::InstanceFailed(_) | Self::InstanceReset(..) => 12,
            Self::InstanceMalformed(..) | Self::InstanceBroke(..) => 13,
            Self::TimedOut => 14,
            Self::Draining => 15,
            Self::HttpsOnly { .. } => 16,
            Self::UnknownPath(_) => 17,
            Self::Probed { .. } => 18,
            Self::ProbeWithoutHash => 19,
            Self::Misdirected(_) => 20,
            Self::Untrusted(..) => 21,
            Self::HealthOk => 22,
            Self::LastHop(_) => 23,
            Self::TargetRefused(_) => 24,
        }
    }

    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Malformed(why) => why.status(),
            Self::HeadStalled | Self::BodyStalled => 408,
            Self::LastHop(Method::Options) => 200,
            Self::Connect | Self::LastHop(_) => 405,
            Self::Upgrade => 501,
            Self::Expectation => 417,
            Self::HttpsOnly { .. } => 301,
            Self::Misdirected(_) => 421,
            Self::UnknownHost(_) | Self::UnknownPath(_) => 404,
            Self::Probed { .. } | Self::HealthOk => 200,
            Self::ProbeWithoutHash => 400,
            Self::NoTraffic(_) | Self::NoInstance(_) | Self::QueueFull | Self::Patience(_) | Self::Draining => 503,
            Self::Unreachable(_)
            | Self::TargetRefused(_)
            | Self::Untrusted(..)
            | Self::InstanceFailed(_)
            | Self::InstanceReset(..)
            | Self::InstanceMalformed(..)
            | Self::InstanceBroke(..) => 502,
            Self::TimedOut => 504,
        }
    }

    /// Whether the connection's next bytes can still be trusted to be a request.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::HeadStalled | Self::BodyStalled | Self::Connect | Self::Draining)
    }

    #[must_use]
    pub fn answer(&self) -> LocalResponse {
        let answer = LocalResponse::text(self.status(), self.to_string());
        match self {
            Self::QueueFull | Self::NoInstance(_) | Self::Draining => answer.with("Retry-After", "1"),
            Self::Connect | Self::LastHop(_) => answer.with("Allow", METHODS),
            Self::HttpsOnly { location } => answer.with("Location", location.as_bytes().to_vec()),
            Self::HealthOk => LocalResponse { body: Bytes::from_static(b"queue"), ..answer }, // upstream's word, and no more
            Self::Probed { hash } => answer.with("K-Network-Hash", hash.as_bytes().to_vec()),
            _ => answer,
        }
    }
}

impl fmt::Display for LocalReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "bad request: {}", why.sentence()),
            Self::HeadStalled => f.write_str("request timeout: the head did not come"),
            Self::BodyStalled => f.write_str("request timeout: the body stopped coming"),
            Self::Connect => f.write_str("CONNECT is not offered: this is no tunnel"),
            Self::Upgrade => f.write_str("WebSockets reach only instances that speak HTTP/1"),
            Self::Expectation => f.write_str("the only expectation known is 100-continue"),
            Self::LastHop(_) => f.write_str("nobody else is asked: Max-Forwards is 0"),
            Self::HttpsOnly { location } => write!(f, "only by HTTPS: {location}"),
            Self::UnknownHost(host) => write!(
                f,
                "no route for host \"{host}\": apply a Service whose URL has this host, or start with --route {host}=ADDRESS"
            ),
            Self::UnknownPath(host) => {
                write!(f, "no rule of the route for host \"{host}\" takes this path and these headers")
            }
            Self::Probed { .. } => f.write_str("routed"),
            Self::ProbeWithoutHash => f.write_str("a probe has to bring a K-Network-Hash"),
            Self::HealthOk => f.write_str("queue"),
            Self::Misdirected(host) => {
                write!(f, "this connection's certificate is not for host \"{host}\": open another")
            }
            Self::NoTraffic(host) => write!(f, "the route for host \"{host}\" sends no traffic anywhere"),
            Self::NoInstance(backend) => write!(f, "no instance of {backend} has room"),
            Self::QueueFull => f.write_str("too many requests wait for an instance"),
            Self::Patience(backend) => write!(f, "no instance of {backend} became ready in time"),
            Self::Unreachable(backend) => write!(f, "no instance of {backend} accepts connections"),
            Self::TargetRefused(backend) => {
                write!(f, "the target policy refuses the address of {backend}; the log of the appliance names it")
            }
            Self::Untrusted(backend, why) => write!(f, "no instance of {backend} is to be trusted: {why}"),
            Self::InstanceFailed(backend) => {
                write!(f, "the instance of {backend} closed the connection without an answer")
            }
            Self::InstanceMalformed(backend, why) => {
                write!(f, "the instance of {backend} did not answer in HTTP: {}", why.sentence())
            }
            Self::InstanceReset(backend, why) => {
                write!(f, "the instance of {backend} reset the stream: {}", why.description())
            }
            Self::InstanceBroke(backend, why) => {
                write!(f, "the instance of {backend} did not answer in HTTP/2: {}", why.description())
            }
            Self::TimedOut => f.write_str("request timeout"),
            Self::Draining => f.write_str("the server is stopping"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let answer = LocalReply::UnknownHost("a.b".into()).answer();
        assert_eq!(answer.status, 404);
        assert!(std::str::from_utf8(&answer.body).unwrap().contains("--route a.b="));
        assert_eq!(LocalReply::QueueFull.answer().header("retry-after"), Some(b"1".as_slice()));
        assert_eq!(LocalReply::TimedOut.answer().body, "request timeout\n");
    }
}
