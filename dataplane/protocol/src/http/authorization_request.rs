//! Writes the head of a request to an authorization service: what the client asked for, without its body.

use bytes::BytesMut;
use codec::http::{FieldName, RequestView};
use contract::client_address::{ClientAddress, ClientScheme};
use contract::table::AuthorizationService;

use super::field_copier::{FieldCopier, put_field};
use super::headers::{PresentFields, is_nominated, put_all, put_forwarding};

/// Headers that this head has itself. Those of a client would tell the service about another request.
const OWN: [&str; 4] = ["X-Forwarded-Method", "X-Forwarded-Uri", "X-Original-Method", "X-Original-URL"];

/// Conditions and ranges are about the resource that the client asks for: a service that applies them to its own response would
/// answer 304 or 206.
const CONDITIONAL: [&str; 6] =
    ["If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range"];

/// Writes a GET about `request` of `peer`, including the empty line. The request is described as Traefik (`X-Forwarded-*`) and
/// ingress-nginx (`X-Original-*`) do.
pub fn put_authorization_request(
    out: &mut BytesMut,
    request: RequestView<'_>,
    peer: &ClientAddress,
    service: &AuthorizationService,
) {
    out.reserve(request.bytes.len() + 1024);
    put_all(out, &[b"GET ", service.path().as_bytes(), b" HTTP/1.1\r\nHost: ", service.host().as_bytes(), b"\r\n"]);
    let has = put_fields(out, request, service, peer.trust().is_some());
    put_forwarding(out, request, peer, &has);
    let (method, root, path) = (request.method_bytes(), request.root().as_bytes(), request.path_bytes());
    put_field(out, b"X-Forwarded-Method", method);
    put_all(out, &[b"X-Forwarded-Uri: ", root, path, b"\r\n"]);
    put_field(out, b"X-Original-Method", method);
    let is_https = peer.scheme() == ClientScheme::Https || peer.has_forwarded_https(request);
    let scheme: &[u8] = if is_https { b"https://" } else { b"http://" };
    put_all(out, &[b"X-Original-URL: ", scheme, request.authority_bytes(), root, path, b"\r\n\r\n"]);
}

/// Writes the client's fields that the service is told.
fn put_fields(
    out: &mut BytesMut,
    request: RequestView<'_>,
    service: &AuthorizationService,
    is_trusted: bool,
) -> PresentFields {
    let head = request.head;
    let mut lines = FieldCopier::of(request.bytes);
    let mut has = PresentFields::default();
    for field in &head.fields {
        let name = field.name.in_bytes(request.bytes);
        match field.kind {
            FieldName::Forwarded if is_trusted => {
                has.forwarded = true;
                continue;
            }
            FieldName::ForwardedFor if is_trusted => {
                has.chain = true;
                continue;
            }
            FieldName::ForwardedHost if is_trusted => has.host = true,
            FieldName::ForwardedProto if is_trusted => has.proto = true,
            FieldName::ForwardedOther if !is_trusted => continue,
            FieldName::Other | FieldName::ForwardedOther | FieldName::TraceParent | FieldName::TraceState => {
                let is_left_out = !service.forwards(name)
                    || is_one_of(&OWN, name)
                    || is_one_of(&CONDITIONAL, name)
                    || head.nominates && is_nominated(name, request.values(FieldName::Connection));
                if is_left_out {
                    continue;
                }
            }
            // They describe the body or one hop, belong to the platform, or would make this request a probe.
            _ => continue,
        }
        lines.put(out, field);
    }
    lines.end(out);
    has
}

fn is_one_of(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use codec::http::{Parsed, RequestHead, parse_request};
    use contract::trusted_proxies::TrustedProxies;

    use super::*;

    fn written(request: &str, service: &AuthorizationService, is_trusted: bool) -> String {
        let mut head = RequestHead::default();
        assert!(matches!(parse_request(request.as_bytes(), &mut head), Parsed::Head { .. }), "{request}");
        let mut peer = ClientAddress::new(([10, 0, 0, 7], 1).into(), ClientScheme::Http);
        if is_trusted {
            peer = peer.trusting(&TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()], None).into());
        }
        let mut out = BytesMut::new();
        put_authorization_request(&mut out, head.view(request.as_bytes()), &peer, service);
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { bytes } if bytes == text.len()));
        text
    }

    #[test]
    fn service_is_told_what_the_client_asked_for() {
        let service = AuthorizationService::new("auth.test:9000", "/verify").unwrap();
        let text = written(
            "POST /a?b=c HTTP/1.1\r\nHost: app.test:8080\r\nCookie: s=1\r\nContent-Length: 3\r\nIf-None-Match: \"x\"\r\n\
             Expect: 100-continue\r\nK-Network-Probe: probe\r\nX-Forwarded-Uri: /public\r\nX-Original-URL: /public\r\n\
             X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Method: GET\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n",
            &service,
            false,
        );
        assert_eq!(
            text,
            "GET /verify HTTP/1.1\r\nHost: auth.test:9000\r\nCookie: s=1\r\nX-Forwarded-For: 10.0.0.7\r\n\
             X-Forwarded-Proto: http\r\nX-Forwarded-Host: app.test:8080\r\n\
             Forwarded: for=10.0.0.7;host=\"app.test:8080\";proto=http\r\nX-Forwarded-Method: POST\r\n\
             X-Forwarded-Uri: /a?b=c\r\nX-Original-Method: POST\r\nX-Original-URL: http://app.test:8080/a?b=c\r\n\r\n"
        );
    }

    #[test]
    fn service_is_told_the_named_headers_only() {
        let mut service = AuthorizationService::new("a", "/").unwrap();
        service.forward_header("authorization").unwrap();
        let text = written("GET / HTTP/1.1\r\nHost: b\r\nAuthorization: x\r\nCookie: y\r\n\r\n", &service, false);
        assert!(text.contains("\r\nAuthorization: x\r\n") && !text.contains("Cookie"), "{text}");
    }

    #[test]
    fn trusted_proxy_names_client_and_scheme_but_not_the_path() {
        let service = AuthorizationService::new("a", "/").unwrap();
        let text = written(
            "GET /private HTTP/1.1\r\nHost: b\r\nX-Forwarded-For: 192.0.2.9\r\nX-Forwarded-Proto: https\r\n\
             X-Forwarded-Host: public.test\r\nX-Forwarded-Uri: /other\r\n\r\n",
            &service,
            true,
        );
        for line in [
            "X-Forwarded-For: 192.0.2.9, 10.0.0.7",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Host: public.test",
            "X-Forwarded-Uri: /private",
            "X-Original-URL: https://b/private",
        ] {
            assert_eq!(text.matches(&format!("\r\n{line}\r\n")).count(), 1, "{line}: {text}");
        }
        assert!(!text.contains("/other"), "{text}");
    }
}
