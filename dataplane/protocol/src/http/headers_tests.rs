//! The heads that instances and clients get.

use std::sync::Arc;

use codec::http::{Method, Parsed, RequestHead, ResponseHead, parse_request, parse_response};

use contract::trusted_proxies::TrustedProxies;

use super::*;

fn sent(fields: &str, peer: &str) -> String {
    let text = format!("GET /p?q HTTP/1.1\r\nHost: app.example.com:8080\r\n{fields}\r\n");
    let mut head = RequestHead::default();
    let parsed = parse_request(text.as_bytes(), &mut head);
    assert_eq!(parsed, Parsed::Head { bytes: text.len() }, "{text:?}");
    let mut out = BytesMut::new();
    let peer = ClientAddress::new(peer.parse().unwrap(), ClientScheme::Http);
    put_request(&mut out, head.view(text.as_bytes()), &peer, None, &mut Rng::with_seed(1));
    String::from_utf8(out.to_vec()).unwrap()
}

/// The same from a peer for which every address is a trusted proxy's.
fn proxied(fields: &str, peer: &str) -> String {
    proxied_by(&["0.0.0.0/0", "::/0"], fields, peer)
}

fn proxied_by(networks: &[&str], fields: &str, peer: &str) -> String {
    let proxies = TrustedProxies::new(networks.iter().map(|network| network.parse().unwrap()).collect(), None);
    let peer = ClientAddress::new(peer.parse().unwrap(), ClientScheme::Http).trusting(&Arc::new(proxies));
    let text = format!("GET /p?q HTTP/1.1\r\nHost: app.example.com:8080\r\n{fields}\r\n");
    let mut head = RequestHead::default();
    assert_eq!(parse_request(text.as_bytes(), &mut head), Parsed::Head { bytes: text.len() });
    let mut out = BytesMut::new();
    put_request(&mut out, head.view(text.as_bytes()), &peer, None, &mut Rng::with_seed(1));
    String::from_utf8(out.to_vec()).unwrap()
}

fn values<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .filter(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
        .collect()
}

/// RT-HDR-01, RT-HDR-04: headers reach the instance unchanged, Host included.
#[test]
fn header_is_forwarded_in_its_spelling_and_order() {
    let head = sent("X-Custom:  Va lue\r\naccept: */*\r\nX-Custom: two\r\n", "10.0.0.9:5");
    assert!(head.starts_with(
        "GET /p?q HTTP/1.1\r\nHost: app.example.com:8080\r\nX-Custom: Va lue\r\naccept: */*\r\nX-Custom: two\r\n"
    ));
    assert!(head.ends_with("\r\n\r\n"));
}

/// HTTP/1.0 may omit Host. RFC 9112 3.2 forwards it empty; `X-Forwarded-Host` is then omitted.
#[test]
fn request_without_a_host_gets_an_empty_host() {
    let text = "GET / HTTP/1.0\r\n\r\n";
    let mut head = RequestHead::default();
    assert_eq!(parse_request(text.as_bytes(), &mut head), Parsed::Head { bytes: text.len() });
    let mut out = BytesMut::new();
    let peer = ClientAddress::new("10.0.0.9:5".parse().unwrap(), ClientScheme::Http);
    put_request(&mut out, head.view(text.as_bytes()), &peer, None, &mut Rng::with_seed(1));
    let out = String::from_utf8(out.to_vec()).unwrap();
    assert!(out.starts_with("GET / HTTP/1.1\r\nHost: \r\n"), "{out}");
    assert!(values(&out, "x-forwarded-host").is_empty(), "{out}");
    assert_eq!(values(&out, "forwarded"), ["for=10.0.0.9;proto=http"]);
}

/// RT-HDR-02, RT-HDR-03: fields of one hop and internal fields are not forwarded.
#[test]
fn hop_by_hop_and_nominated_fields_are_removed() {
    let head = sent(
        "Connection: close, X-Mine, X-Forwarded-For, Host\r\nX-Mine: 1\r\nKeep-Alive: 1\r\nTE: gzip\r\n\
         Upgrade: foo\r\nProxy-Connection: x\r\nProxy-Authorization: x\r\nSluicegate-Spoof: 1\r\nX-Yours: 2\r\n",
        "10.0.0.9:5",
    );
    for gone in ["connection", "x-mine", "keep-alive", "te", "upgrade", "proxy-connection", "proxy-authorization"] {
        assert!(values(&head, gone).is_empty(), "{gone} in {head}");
    }
    assert!(values(&head, "sluicegate-spoof").is_empty());
    assert_eq!(values(&head, "x-yours"), ["2"]);
    assert_eq!(values(&head, "x-forwarded-for"), ["10.0.0.9"]);
    assert_eq!(values(&head, "host"), ["app.example.com:8080"]);
}

/// RT-HDR-03, X-RTE-09: platform fields of a client are removed; those that the route sets are kept, and so are fields
/// that clients may set.
#[test]
fn platform_fields_are_accepted_only_from_the_route() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nKnative-Serving-Revision: spoof\r\nknative-serving-namespace: spoof\r\n\
                K-Original-Host: spoof\r\nK-PROXY-REQUEST: spoof\r\nK-Network-Hash: spoof\r\n\
                Knative-Serving-Tag: next\r\nX-Yours: 1\r\n\r\n";
    let mut head = RequestHead::default();
    assert_eq!(parse_request(text.as_bytes(), &mut head), Parsed::Head { bytes: text.len() });
    let mut edits = HeaderEdits::default();
    edits.set("K-Original-Host", "app.example.com").unwrap();
    edits.set("Knative-Serving-Revision", "app-00001").unwrap();
    let mut out = BytesMut::new();
    let peer = ClientAddress::new("10.0.0.9:5".parse().unwrap(), ClientScheme::Http);
    put_request(&mut out, head.view(text.as_bytes()), &peer, Some(&edits), &mut Rng::with_seed(1));
    let out = String::from_utf8(out.to_vec()).unwrap();
    assert!(!out.contains("spoof"), "{out}");
    assert_eq!(values(&out, "k-original-host"), ["app.example.com"]);
    assert_eq!(values(&out, "knative-serving-revision"), ["app-00001"]);
    assert_eq!((values(&out, "knative-serving-tag"), values(&out, "x-yours")), (vec!["next"], vec!["1"]));
}

/// RT-HDR-05, RT-HDR-06, RT-HDR-07: created when absent.
#[test]
fn forwarding_headers_are_created() {
    let head = sent("", "10.0.0.9:5");
    assert_eq!(values(&head, "forwarded"), ["for=10.0.0.9;host=\"app.example.com:8080\";proto=http"]);
    assert_eq!(values(&head, "x-forwarded-for"), ["10.0.0.9"]);
    assert_eq!(values(&head, "x-forwarded-proto"), ["http"]);
    assert_eq!(values(&head, "x-forwarded-host"), ["app.example.com:8080"]);
    assert_eq!(
        values(&sent("", "[2001:db8::1]:5"), "forwarded"),
        ["for=\"[2001:db8::1]\";host=\"app.example.com:8080\";proto=http"]
    );
}

/// RT-HDR-05..07: what a client says about other clients is replaced, under each of its names.
#[test]
fn forwarding_headers_of_untrusted_client_are_replaced() {
    let forged = "X-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1;proto=https\r\nX-Forwarded-Proto: https\r\n\
                  X-Forwarded-Host: outer\r\nX-Real-IP: 1.1.1.1\r\nx-forwarded-port: 443\r\nX-Forwarded-Prefix: /a\r\n";
    for head in [sent(forged, "10.0.0.9:5"), proxied_by(&["10.0.0.0/29"], forged, "10.0.0.9:5")] {
        assert_eq!(values(&head, "forwarded"), ["for=10.0.0.9;host=\"app.example.com:8080\";proto=http"]);
        assert_eq!(values(&head, "x-forwarded-for"), ["10.0.0.9"]);
        assert_eq!(values(&head, "x-forwarded-proto"), ["http"]);
        assert_eq!(values(&head, "x-forwarded-host"), ["app.example.com:8080"]);
        for gone in ["x-real-ip", "x-forwarded-port", "x-forwarded-prefix"] {
            assert!(values(&head, gone).is_empty(), "{gone} in {head}");
        }
    }
    let head = proxied(forged, "10.0.0.9:5");
    assert_eq!((values(&head, "x-real-ip"), values(&head, "x-forwarded-port")), (vec!["1.1.1.1"], vec!["443"]));
}

/// A client may send a list of its own to an honest proxy: it is cut off before the client's entry.
#[test]
fn forged_start_of_a_list_is_removed() {
    let head = proxied_by(
        &["10.0.0.0/8"],
        "X-Forwarded-For: 1.1.1.1, 192.0.2.7, 10.0.0.8\r\n\
         Forwarded: for=1.1.1.1, for=\"[2001:db8::7]:80\";x=\"a,b\", For=10.0.0.8;proto=https\r\n",
        "10.0.0.9:5",
    );
    assert_eq!(values(&head, "x-forwarded-for"), ["192.0.2.7, 10.0.0.8, 10.0.0.9"]);
    let own = "for=10.0.0.9;host=\"app.example.com:8080\";proto=http";
    let wanted = format!("for=\"[2001:db8::7]:80\";x=\"a,b\", For=10.0.0.8;proto=https, {own}");
    assert_eq!(values(&head, "forwarded"), [wanted.as_str()]);
}

/// A proxy that only knows `X-Forwarded-For` passes on the `Forwarded` of its client, which may hide elements in quotes.
#[test]
fn forwarded_that_a_proxy_did_not_write_is_built_again() {
    let own = "for=10.0.0.9;host=\"app.example.com:8080\";proto=http";
    let head = proxied("X-Forwarded-For: 2.2.2.2\r\nForwarded: for=1.1.1.1\r\n", "10.0.0.9:5");
    let built = "for=2.2.2.2;host=\"app.example.com:8080\";proto=http, for=10.0.0.9";
    assert_eq!(values(&head, "forwarded"), [built]);
    for forged in ["for=1.1.1.1;x=\"\\\"\", for=10.0.0.8", "for=1.1.1.1;x=\", for=10.0.0.8"] {
        let head = proxied(&format!("Forwarded: {forged}\r\n"), "10.0.0.9:5");
        assert_eq!(values(&head, "forwarded"), [own], "{forged}");
    }
    let underscored = "X_Forwarded_For: 1.1.1.1\r\nX_Real_IP: 1.1.1.1\r\nx_forwarded_proto: https\r\n";
    for head in [sent(underscored, "10.0.0.9:5"), proxied(underscored, "10.0.0.9:5")] {
        assert!(!head.contains('_'), "{head}");
    }
}

/// RT-HDR-05, RT-HDR-06: received lists are extended on one line.
#[test]
fn received_forwarding_headers_are_extended() {
    let head = proxied(
        "X-Forwarded-For: 1.1.1.1\r\nForwarded: for=1.1.1.1;proto=https, for=3.3.3.3\r\nX-Forwarded-For: 2.2.2.2, 3.3.3.3\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-Host: outer\r\n",
        "10.0.0.9:5",
    );
    assert_eq!(values(&head, "x-forwarded-for"), ["1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.9"]);
    assert_eq!(
        values(&head, "forwarded"),
        ["for=1.1.1.1;proto=https, for=3.3.3.3, for=10.0.0.9;host=\"app.example.com:8080\";proto=http"]
    );
    assert_eq!(values(&head, "x-forwarded-proto"), ["https"]);
    assert_eq!(values(&head, "x-forwarded-host"), ["outer"]);
}

/// RT-HDR-05: built from the older headers when only those came; no value can break the list syntax.
#[test]
fn forwarded_is_built_from_the_older_headers() {
    let head = proxied(
        "X-Forwarded-For: 2001:db8::7, 2.2.2.2\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: outer\r\n",
        "10.0.0.9:5",
    );
    assert_eq!(
        values(&head, "forwarded"),
        ["for=\"[2001:db8::7]\";host=\"outer\";proto=https, for=2.2.2.2, for=10.0.0.9"]
    );
    let head = proxied(
        "X-Forwarded-For: 2001:db8::7, evil\";x=\"\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: outer\r\n",
        "10.0.0.9:5",
    );
    assert_eq!(values(&head, "forwarded"), ["for=unknown;host=\"outer\";proto=https, for=10.0.0.9"]);
}

/// RT-HDR-05, X-QP-05, RFC 7239 section 6: host and proto belong to the first hop, whether the lists came on one line
/// or on several; the port of a hop is removed.
#[test]
fn forwarded_host_and_proto_belong_to_the_first_hop() {
    let head =
        |proto: &str, host: &str| proxied(&format!("X-Forwarded-For: 1.1.1.1, 2.2.2.2\r\n{proto}{host}"), "10.0.0.9:5");
    let (one, two) = ("X-Forwarded-Proto: HTTPS, http\r\n", "X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\n");
    for proto in [one, two] {
        for host in ["X-Forwarded-Host: outer, inner\r\n", "X-Forwarded-Host: outer\r\nX-Forwarded-Host: inner\r\n"] {
            let head = head(proto, host);
            let wanted = "for=1.1.1.1;host=\"outer\";proto=https, for=2.2.2.2, for=10.0.0.9";
            assert_eq!(values(&head, "forwarded"), [wanted], "{proto}{host}");
        }
    }
    let cleared = head("X-Forwarded-Proto: http, https\r\n", "X-Forwarded-Host: in valid, inner\r\n");
    let wanted = "for=1.1.1.1;host=\"app.example.com:8080\";proto=http, for=2.2.2.2, for=10.0.0.9";
    assert_eq!(values(&cleared, "forwarded"), [wanted]);
}

/// RT-HDR-05, RFC 7239 section 6.
#[test]
fn hop_address_is_parsed_in_any_spelling() {
    for (hop, node) in [
        ("2.2.2.2", "2.2.2.2"),
        ("2.2.2.2:80", "2.2.2.2"),
        ("::2", "\"[::2]\""),
        ("[::2]", "\"[::2]\""),
        ("[::2]:80", "\"[::2]\""),
        ("\"[::2]:80\"", "\"[::2]\""),
        ("\"2.2.2.2\"", "2.2.2.2"),
        ("::ffff:2.2.2.2", "2.2.2.2"),
        ("2.2.2.2:x", "unknown"),
        ("[2.2.2.2]", "unknown"),
        ("[::2", "unknown"),
        ("\"[::2]", "unknown"),
        ("_hidden", "unknown"),
    ] {
        let head = proxied(&format!("X-Forwarded-For: {hop}\r\n"), "10.0.0.9:5");
        let wanted = format!("for={node};host=\"app.example.com:8080\";proto=http, for=10.0.0.9");
        assert_eq!(values(&head, "forwarded"), [wanted.as_str()], "{hop}");
    }
}

/// RT-HDR-08: a valid trace is forwarded; anything else begins a new one.
#[test]
fn trace_is_forwarded_or_begun() {
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let head = sent(&format!("traceparent: {good}\r\ntracestate: a=b\r\n"), "10.0.0.9:5");
    assert_eq!((values(&head, "traceparent"), values(&head, "tracestate")), (vec![good], vec!["a=b"]));

    for bad in [
        "",
        "traceparent: nonsense\r\n",
        "traceparent: 00-00000000000000000000000000000000-00f067aa0ba902b7-01\r\n",
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01\r\n",
        "traceparent: 00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01\r\n",
        "traceparent: ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n",
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x\r\n",
    ] {
        let head = sent(&format!("{bad}tracestate: a=b\r\n"), "10.0.0.9:5");
        let fresh = values(&head, "traceparent");
        assert_eq!(fresh.len(), 1, "{head}");
        assert!(is_trace_parent(fresh[0].as_bytes()), "{fresh:?}");
        assert!(!bad.contains(fresh[0]));
        assert!(values(&head, "tracestate").is_empty());
    }
}

/// RFC 9110 7.6.2: Max-Forwards is decremented for OPTIONS and TRACE only.
#[test]
fn max_forwards_is_decremented() {
    for (method, count, expected) in [
        ("OPTIONS", "Max-Forwards: 3", "2"),
        ("TRACE", "max-forwards: 1", "0"),
        ("OPTIONS", "Max-Forwards: 9\r\nMax-Forwards: 4", "3"),
        ("OPTIONS", "Max-Forwards: few", "few"),
        ("GET", "Max-Forwards: 3", "3"),
    ] {
        let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{count}\r\n\r\n");
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), &mut head), Parsed::Head { bytes: text.len() });
        let mut out = BytesMut::new();
        let peer = ClientAddress::new("10.0.0.9:5".parse().unwrap(), ClientScheme::Http);
        put_request(&mut out, head.view(text.as_bytes()), &peer, None, &mut Rng::with_seed(1));
        assert_eq!(values(std::str::from_utf8(&out).unwrap(), "max-forwards"), [expected], "{method} {count}");
    }
}

fn answered(text: &str, asked: Method, chunked: bool, close: bool) -> String {
    let mut head = ResponseHead::default();
    assert_eq!(parse_response(text.as_bytes(), asked, &mut head), Parsed::Head { bytes: text.len() });
    let mut out = BytesMut::new();
    let client = ResponseContext { chunked, close, ..ResponseContext::INTERIM };
    put_response(&mut out, head.view(text.as_bytes()), client);
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn response_keeps_its_fields_without_hop_by_hop() {
    assert_eq!(
        answered(
            "HTTP/1.1 200 Fine\r\nContent-Length: 3\r\nSet-Cookie: a\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
             Set-Cookie: b\r\nKeep-Alive: timeout=5\r\n\r\n",
            Method::Get,
            false,
            false
        ),
        "HTTP/1.1 200 Fine\r\nContent-Length: 3\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n"
    );
    assert_eq!(
        answered("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Method::Get, true, true),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        answered("HTTP/1.1 204 None\r\nContent-Length: 3\r\n\r\n", Method::Get, false, false),
        "HTTP/1.1 204 None\r\n\r\n"
    );
    assert_eq!(
        answered("HTTP/1.1 304 Same\r\nContent-Length: 3\r\n\r\n", Method::Get, false, false),
        "HTTP/1.1 304 Same\r\nContent-Length: 3\r\n\r\n"
    );
}

/// RFC 9110 6.6.1: a proxy adds the missing date to a response.
#[test]
fn response_without_a_date_gets_one_after_its_fields() {
    let date = *b"Sun, 06 Nov 1994 08:49:37 GMT";
    for (fields, expected) in [
        ("A: b\r\n", "A: b\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"),
        ("Dates: b\r\n", "Dates: b\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"),
        ("dATE: then\r\nA: b\r\n", "dATE: then\r\nA: b\r\n"),
    ] {
        let text = format!("HTTP/1.1 304 Same\r\n{fields}\r\n");
        let mut head = ResponseHead::default();
        assert_eq!(parse_response(text.as_bytes(), Method::Get, &mut head), Parsed::Head { bytes: text.len() });
        let mut out = BytesMut::new();
        let client = ResponseContext { date: Some(date), ..ResponseContext::INTERIM };
        put_response(&mut out, head.view(text.as_bytes()), client);
        assert_eq!(out, format!("HTTP/1.1 304 Same\r\n{expected}\r\n"));
    }
}

/// RFC 9110 7.8: a 426 without it would not say which protocol is required.
#[test]
fn response_426_keeps_its_upgrade() {
    for (status, kept) in [(426, true), (200, false), (101, false)] {
        let text = format!("HTTP/1.1 {status} So\r\nUpgrade: TLS/1.3\r\nConnection: Upgrade\r\nX-A: b\r\n\r\n");
        let mut head = ResponseHead::default();
        let parsed = parse_response(text.as_bytes(), Method::Get, &mut head);
        assert_eq!(parsed, Parsed::Head { bytes: text.len() });
        let mut out = BytesMut::new();
        put_response(&mut out, head.view(text.as_bytes()), ResponseContext::INTERIM);
        let out = String::from_utf8(out.to_vec()).unwrap();
        assert_eq!(out.contains("\r\nUpgrade: TLS/1.3\r\n"), kept, "{out}");
        assert_eq!(out.contains("\r\nConnection: Upgrade\r\n"), kept, "{out}");
    }
}
