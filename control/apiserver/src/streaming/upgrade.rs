//! Which protocol a client asks for in the head of its request, and the response that switches to it.

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

const STREAM_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const SPDY: &str = "SPDY/3.1";
/// RFC 6455, 1.3.
const WEBSOCKET_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The protocols of `exec` and `attach`, the preferred one first. v5 lets a client close its input.
const REMOTE_COMMAND_WEBSOCKET: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const REMOTE_COMMAND_SPDY: [&str; 1] = ["v4.channel.k8s.io"];
const PORT_FORWARD_WEBSOCKET: [&str; 1] = ["SPDY/3.1+portforward.k8s.io"];
const PORT_FORWARD_SPDY: [&str; 1] = ["portforward.k8s.io"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    RemoteCommand,
    PortForward,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpgradeProtocol {
    Spdy,
    WebSocket,
}

/// A protocol that both sides speak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Upgrade {
    pub(crate) protocol: UpgradeProtocol,
    version: &'static str,
    /// For a WebSocket.
    accept: String,
}

/// Why a request cannot be upgraded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpgradeError {
    #[error("Upgrade request required")]
    Missing,
    #[error("unable to upgrade: the WebSocket handshake needs one Sec-WebSocket-Key and Sec-WebSocket-Version 13")]
    MalformedWebSocket,
    #[error("unable to upgrade: unable to negotiate protocol: client supports {client:?}, server accepts {server:?}")]
    NoCommonProtocol { client: Vec<String>, server: &'static [&'static str] },
}

/// # Errors
/// The client asks for no upgrade, or for no protocol of `kind`.
pub(crate) fn negotiate(headers: &HeaderMap, kind: StreamKind) -> Result<Upgrade, UpgradeError> {
    let asks = |protocol: &str| values(headers, &UPGRADE).iter().any(|value| value.eq_ignore_ascii_case(protocol));
    if !values(headers, &CONNECTION).iter().any(|value| value.eq_ignore_ascii_case("upgrade")) {
        return Err(UpgradeError::Missing);
    }
    let (protocol, offered, server): (_, _, &'static [&'static str]) = if asks("websocket") {
        let server: &[&str] = match kind {
            StreamKind::RemoteCommand => &REMOTE_COMMAND_WEBSOCKET,
            StreamKind::PortForward => &PORT_FORWARD_WEBSOCKET,
        };
        (UpgradeProtocol::WebSocket, values(headers, &SEC_WEBSOCKET_PROTOCOL), server)
    } else if asks(SPDY) {
        let server: &[&str] = match kind {
            StreamKind::RemoteCommand => &REMOTE_COMMAND_SPDY,
            StreamKind::PortForward => &PORT_FORWARD_SPDY,
        };
        (UpgradeProtocol::Spdy, values(headers, &STREAM_PROTOCOL_VERSION), server)
    } else {
        return Err(UpgradeError::Missing);
    };
    let accept = if protocol == UpgradeProtocol::WebSocket { websocket_accept(headers)? } else { String::new() };
    match server.iter().find(|version| offered.contains(*version)) {
        Some(version) => Ok(Upgrade { protocol, version, accept }),
        None => {
            let client = offered.into_iter().map(str::to_owned).collect();
            Err(UpgradeError::NoCommonProtocol { client, server })
        }
    }
}

impl Upgrade {
    pub(crate) fn response(&self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        let version = HeaderValue::from_static(self.version);
        match self.protocol {
            UpgradeProtocol::Spdy => {
                headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
                headers.insert(STREAM_PROTOCOL_VERSION, version);
            }
            UpgradeProtocol::WebSocket => {
                headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(SEC_WEBSOCKET_PROTOCOL, version);
                if let Ok(accept) = HeaderValue::from_str(&self.accept) {
                    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
                }
            }
        }
        response
    }
}

/// All values of a header whose lines are lists.
fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|value| !value.is_empty()).collect()
}

fn websocket_accept(headers: &HeaderMap) -> Result<String, UpgradeError> {
    let one = |name: &HeaderName| match *values(headers, name) {
        [one] => Ok(one),
        _ => Err(UpgradeError::MalformedWebSocket),
    };
    if one(&SEC_WEBSOCKET_VERSION)? != "13" {
        return Err(UpgradeError::MalformedWebSocket);
    }
    let key = one(&SEC_WEBSOCKET_KEY)?;
    let digest = ring_crypto::digest::digest(
        &ring_crypto::digest::SHA1_FOR_LEGACY_USE_ONLY,
        format!("{key}{WEBSOCKET_GUID}").as_bytes(),
    );
    Ok(STANDARD.encode(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }

    fn spdy(versions: &[&'static str]) -> HeaderMap {
        let mut all = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        for version in versions {
            all.append(STREAM_PROTOCOL_VERSION, HeaderValue::from_static(version));
        }
        all
    }

    fn websocket(protocols: &'static str) -> HeaderMap {
        headers(&[
            ("connection", "keep-alive, upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "13"),
            ("sec-websocket-protocol", protocols),
        ])
    }

    #[test]
    fn best_common_protocol_is_chosen() {
        use StreamKind::{PortForward, RemoteCommand};
        for (asked, kind, wanted) in [
            (spdy(&["v4.channel.k8s.io", "v3.channel.k8s.io", "channel.k8s.io"]), RemoteCommand, "v4.channel.k8s.io"),
            (spdy(&["v5.channel.k8s.io, v4.channel.k8s.io"]), RemoteCommand, "v4.channel.k8s.io"),
            (spdy(&["portforward.k8s.io"]), PortForward, "portforward.k8s.io"),
            (websocket("v4.channel.k8s.io, v5.channel.k8s.io"), RemoteCommand, "v5.channel.k8s.io"),
            (websocket("v4.channel.k8s.io"), RemoteCommand, "v4.channel.k8s.io"),
            (websocket("SPDY/3.1+portforward.k8s.io"), PortForward, "SPDY/3.1+portforward.k8s.io"),
        ] {
            assert_eq!(negotiate(&asked, kind).unwrap().version, wanted);
        }
    }

    #[test]
    fn websocket_key_is_answered_as_the_rfc_says() {
        let upgrade = negotiate(&websocket("v5.channel.k8s.io"), StreamKind::RemoteCommand).unwrap();
        let response = upgrade.response();
        assert_eq!(response.headers()[SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn request_without_common_protocol_is_refused() {
        let refused = |headers: &HeaderMap, kind| negotiate(headers, kind).unwrap_err().to_string();
        let kind = StreamKind::RemoteCommand;
        assert_eq!(refused(&HeaderMap::new(), kind), "Upgrade request required");
        assert_eq!(
            refused(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")]), kind),
            "Upgrade request required"
        );
        let message_of = refused(&spdy(&["v3.channel.k8s.io"]), kind);
        assert!(
            message_of.contains("client supports [\"v3.channel.k8s.io\"], server accepts [\"v4.channel.k8s.io\"]"),
            "{message_of}"
        );
        assert!(refused(&spdy(&[]), kind).contains("client supports []"));
        assert!(refused(&websocket("portforward.k8s.io"), StreamKind::PortForward).contains("server accepts"));
        let mut keyless = websocket("v5.channel.k8s.io");
        keyless.remove(SEC_WEBSOCKET_KEY);
        assert!(refused(&keyless, kind).contains("Sec-WebSocket-Key"));
    }
}
